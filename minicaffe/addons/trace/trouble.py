"""Trouble: keep the trace of a training's last iterations, and write it when a loss or gradient is no longer finite.

The document has two more keys (docs/trace.md): ``samples``, those of `minicaffe.inspection.watch` in the kept iterations, and
``trouble``, the first array that is not finite, with the step that wrote it.
"""

import logging
import os

from minicaffe.errors import Error, FileError
from minicaffe.inspection.watch import Watch, extremes
from minicaffe.addons.trace import html
from minicaffe.addons.trace.record import Recorder

log = logging.getLogger("minicaffe.addons.trace")

KEPT_ITERATIONS = 2    # whole iterations before the failing one
MAX_INPUTS = 16
ARRAY_TITLES = {"blob": "blob '{}'", "diff": "gradient of blob '{}'", "parameter": "gradient of {}", "update": "update of {}"}


class Trouble:
    """Records a solver until a loss or a parameter's gradient is not finite, then writes the trace and stops.

    Each iteration runs layer by layer, and all of its values are read, so a training takes longer.

    Parameters
    ----------
    solver : Solver
    path : str
        Of the trace: JSON (`minicaffe.addons.trace.load`), or the page if it ends in ``.html``, which opens at the failing step.

    Attributes
    ----------
    first : dict or None
        Once the trace is written, a description of the first array that is not finite. ``iteration``; ``layer``, which computed
        it. Its name is ``blob`` (a top), ``diff`` (a top's gradient), ``parameter`` (a parameter's gradient) or ``update`` (the
        value subtracted from a parameter). ``not_finite`` (share), ``wrong`` (number of values) and ``first`` (index of the first,
        None of an update). ``step`` and ``event``, its numbers in the trace (None if the step is not in it). ``before``, its
        sample of the iteration before, or None. ``inputs``, the arrays that it was computed from, `MAX_INPUTS` at most, each with
        ``name``, ``part`` (data, diff), ``min``, ``max``, ``wrong`` and ``first`` as in `minicaffe.inspection.watch`, and ``before``,
        the same of the iteration before, or None. ``left_out``, the number of further inputs.

    Raises
    ------
    FileError
        If the file cannot be written.
    """

    def __init__(self, solver, path):
        self.solver, self.path, self.first = solver, str(path), None
        folder = os.path.dirname(self.path) or "."
        if not os.access(folder, os.W_OK):   # before days of training
            raise FileError("cannot be written: there is no such folder, or no permission; correct the path", file=self.path)
        if os.path.isdir(self.path):
            raise FileError("is a folder; give the path of a file in it", file=self.path)
        self.recorder = Recorder(solver, KEPT_ITERATIONS + 1)  # the iteration that runs is dropped first
        self.recorder.start()
        self.watch = Watch(solver, 1, self._check_samples)

    def close(self):
        """Stop to record; a second call does nothing."""
        self.watch.close()
        self.recorder.stop()

    def _check_samples(self, solver, iteration, samples):
        """Write the trace if a value of this iteration is not finite."""
        del self.watch.records[: -KEPT_ITERATIONS - 1]
        losses = {top.name for node in solver.net.nodes for top, weight in zip(node.tops, node.loss_weights) if weight}
        if not any((s["wrong"] or s.get("update_wrong")) and ("blob" not in s or s["blob"] in losses) for s in samples):
            return
        records = list(self.watch.records)
        self.close()
        trace = self.recorder.trace()
        trace.document["samples"] = [{"iteration": number, **sample} for number, one in records for sample in one]
        sampled = {s["parameter"] for s in samples if "parameter" in s}
        others = {blob.name: extremes(blob.cpu_data) for blob in solver.net.param_table.params if blob.name not in sampled}
        self.first = trace.document["trouble"] = first_not_finite(trace.document, others)
        try:
            if self.path.endswith(".html"):
                html.write(trace, self.path, self.first["event"])
            else:
                trace.save(self.path)
        except Error as error:      # a training continues without its trace
            log.warning("%s", error)
            return
        key = next(key for key in ARRAY_TITLES if key in self.first)
        log.warning("Iteration %d: the %s, of layer '%s', is the first that is not finite; wrote %s", self.first["iteration"],
                    ARRAY_TITLES[key].format(self.first[key]), self.first["layer"], self.path)


def first_not_finite(document, others=None):
    """Return `Trouble.first` of a document with samples, of which one is not finite.

    `others` has the extremes of the parameters that are not learned, by name: they have no samples.
    """
    samples, nodes = document["samples"], document["net"]["nodes"]
    iteration = next(sample["iteration"] for sample in samples if sample["wrong"] or sample.get("update_wrong"))
    now, ago = ([sample for sample in samples if sample["iteration"] == number] for number in (iteration, iteration - 1))
    numbers = {node["name"]: number for number, node in enumerate(nodes)}
    backward = sorted((sample for sample in now if "blob" not in sample), key=lambda sample: -numbers[sample["layer"]])
    order = [sample for sample in now if "blob" in sample] + backward   # the order of computation
    first = next((sample for sample in order if sample["wrong"]), None)
    if first is not None:
        key = next(key for key in ("blob", "diff", "parameter") if key in first)
        name, found = first[key], {key: first[key] for key in ("not_finite", "wrong", "first")}
    else:
        first, key = next(sample for sample in order if sample.get("update_wrong")), "update"
        name, found = first["parameter"], {"not_finite": None, "wrong": first["update_wrong"], "first": None}
    number = numbers[first["layer"]]
    if key == "diff":   # the layer that reads the blob computed its gradient
        number = next((i for i in range(number + 1, len(nodes)) if name in nodes[i]["bottoms"]), number)
    kind = {"blob": "forward", "update": "update"}.get(key, "backward")
    steps = [i for i, step in enumerate(document["steps"]) if step["iteration"] == iteration and step["kind"] == kind
             and (name in step["parameters"] if kind == "update" else step["node"] == number)]
    step = steps[min(first.get("batch", len(steps)), len(steps) - 1)] if steps else None
    inputs = []
    for blob, part in _inputs(nodes[number], key, name):
        here, before = (_extremes(one, nodes, number, kind, blob, part) for one in (now, ago))
        if here := here or (others or {}).get(blob):
            inputs.append({"name": blob, "part": part, **here, "before": before})
    before = next((sample for sample in ago if (sample["layer"], sample.get("parameter" if key == "update" else key))
                   == (first["layer"], name)), None)
    return {"iteration": iteration, "layer": nodes[number]["name"], key: name, **found, "step": step,
            "event": document["steps"][step]["last"] if step is not None else None, "before": before,
            "inputs": inputs[:MAX_INPUTS], "left_out": max(0, len(inputs) - MAX_INPUTS)}


def _inputs(node, key, name):
    """Return name and part of the arrays from which a node computes tops (`key` is blob), gradients, or a parameter's update."""
    if key == "update":
        return [(name, "diff"), (name, "data")]
    gradients = [(blob, "diff") for blob in node["tops"]] if key != "blob" else []
    params = [(blob, "data") for blob in node["params"]] if key != "parameter" else []
    return list(dict.fromkeys([*gradients, *((blob, "data") for blob in node["bottoms"]), *params]))


def _extremes(samples, nodes, number, kind, name, part):
    """Return the extremes of an array that node `number` reads, from the samples of an iteration, or None."""
    maker = next((node for node in nodes if node["type"] == "Split" and name in node["tops"]), None)
    name = maker["bottoms"][0] if maker and part == "data" else name
    found = None
    for sample in samples:
        if sample.get("parameter") == name:
            found = sample if part == "diff" else sample["values"]
        elif part == "diff" and sample.get("diff") == name and sample["layer"] == nodes[number]["name"]:
            found = sample
        elif part == "data" and sample.get("blob") == name:
            if kind == "forward" and sample["layer"] == nodes[number]["name"]:
                break       # a layer in place overwrites the top of an earlier one
            found = sample
    return found and {key: found[key] for key in ("min", "max", "wrong", "first")}
