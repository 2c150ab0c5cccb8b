"""Average precision of detections, from the rows of DetectionEvaluate (SSD's solver.cpp and bbox_util.cpp, ComputeAP).

`ap_version` is ``"Integral"``, precision times the step of recall summed over the detections; ``"MaxIntegral"``, the same under
the envelope that decreases with recall (VOC 2012); or ``"11point"``, the mean of that envelope at recall 0, 0.1, ... 1 (VOC 2007).
"""

import math

import numpy as np

from minicaffe.errors import ConfigError, DataError
from minicaffe.solver.report import OutputMeans

VERSIONS = ("Integral", "MaxIntegral", "11point")


def average_precision(scores, right, wrong, objects, version="Integral"):
    """Return the average precision of one class.

    Parameters
    ----------
    scores, right, wrong : array_like, shape (n,)
        Of its detections over all images; 0 in both of the latter leaves a detection out.
    objects : int
        How many there are to be found; 0 gives 0.
    version : str
        One of `VERSIONS`.

    Raises
    ------
    ConfigError
        For another version.
    """
    if version not in VERSIONS:
        raise ConfigError(f"must be one of {', '.join(VERSIONS)}, got '{version}'", field="ap_version")
    if not objects or not len(scores):
        return 0.0
    order = np.argsort(-np.asarray(scores, float), kind="stable")
    hits, misses = np.cumsum(np.asarray(right, float)[order]), np.cumsum(np.asarray(wrong, float)[order])
    precision, recall = hits / np.maximum(hits + misses, 1), hits / objects
    envelope = precision if version == "Integral" else np.maximum.accumulate(precision[::-1])[::-1]
    if version != "11point":
        return float((envelope * np.diff(recall, prepend=0)).sum())
    # A recall of 0.1 may come out as 0.09999: the levels are met to within a millionth.
    first = np.searchsorted(recall, np.arange(11) / 10 - 1e-6)
    return float(np.where(first < len(recall), envelope[np.minimum(first, len(recall) - 1)], 0).mean())


class MeanPrecision:
    """Gathers the rows of a whole test set; `version` is as for `average_precision`."""

    def __init__(self, version="Integral"):
        self.version = version
        self.objects, self._rows = {}, []

    def add(self, rows):
        """Take the top of a DetectionEvaluate layer, any shape of rows of 5 numbers."""
        rows = np.asarray(rows, float)
        if rows.shape[-1:] != (5,):
            raise DataError(f"rows of DetectionEvaluate have 5 numbers, got shape {list(rows.shape)}")
        rows = rows.reshape(-1, 5)
        for label, count in rows[rows[:, 0] == -1, 1:3].astype(int).tolist():
            self.objects[label] = self.objects.get(label, 0) + count
        self._rows.append(rows[rows[:, 0] != -1])

    def by_class(self):
        """Return the average precision of each label that has objects."""
        rows = np.concatenate([np.zeros((0, 5)), *self._rows])
        return {label: average_precision(*rows[rows[:, 1] == label].T[2:], objects, self.version)
                for label, objects in sorted(self.objects.items()) if objects}

    def mean(self):
        """Return the mean over the classes that have objects; NaN where none has."""
        values = self.by_class().values()
        return sum(values) / len(values) if values else math.nan


class DetectionOutputs(OutputMeans):
    """Result of a test of a solver with ``eval_type: "detection"``: the mean average precision of each output.

    The net's outputs are tops of DetectionEvaluate. Of the solver's parameters `ap_version` counts, and `show_per_class_result` for
    the precision of each class too. Raises ConfigError for another `ap_version`.
    """

    def __init__(self, net, param):
        if param.ap_version not in VERSIONS:
            raise ConfigError(f"must be one of {', '.join(VERSIONS)}, got '{param.ap_version}'", field="ap_version")
        super().__init__(net)
        self.each = param.show_per_class_result
        self.outputs = [(blob, MeanPrecision(param.ap_version)) for blob in net.output_blobs]

    def add(self, values=None, share=1.0, counted=None, loss=0.0):
        """Take the outputs of a pass, by default as they are now; all rows count alike, however many records the pass had."""
        self.loss_sum += loss * share
        self.loss_weight += share
        for (_, precision), rows in zip(self.outputs, values or [blob.cpu_data for blob, _ in self.outputs], strict=True):
            precision.add(rows)

    def records(self):
        """Return dicts as `OutputMeans.records` does: first the mean, then on request ``<name>[<label>]``."""
        records = []
        for blob, precision in self.outputs:
            values = {blob.name: precision.mean()}
            if self.each:
                values.update({f"{blob.name}[{label}]": value for label, value in precision.by_class().items()})
            records += [{"name": word, "index": len(records) + i, "value": value, "loss_weight": 0.0}
                        for i, (word, value) in enumerate(values.items())]
        return records
