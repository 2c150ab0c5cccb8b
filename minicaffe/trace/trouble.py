"""Trouble: keep the trace of a training's last iterations, and write it when a loss or gradient is no longer finite.

The document gets two things more (docs/trace.md): ``samples``, what `minicaffe.solver.watch` measured of the iterations that are
kept, and ``trouble``, the first array that is not finite, with the step that wrote it.
"""

import logging
import os

from minicaffe.errors import Error, FileError
from minicaffe.solver.watch import Watch
from minicaffe.trace import html
from minicaffe.trace.record import Recorder

log = logging.getLogger("minicaffe.trace")

KEEP = 2    # whole iterations before the one in which it happens


class Trouble:
    """Records a solver until a loss or a parameter's gradient is not finite, then writes the trace and ends to record.

    Each iteration runs layer by layer, and all of its values are read, so a training takes longer.

    Parameters
    ----------
    solver : Solver
    path : str
        Of the trace: JSON (`minicaffe.trace.load`), or if it ends in ``.html`` the page, which opens at the place.

    Attributes
    ----------
    first : dict or None
        When it was written: ``iteration``, ``layer``, ``blob`` or ``parameter``, ``not_finite`` (share) of the first array that is
        not finite, ``step`` and ``event``, its numbers in the trace (None where the step is not in it), and ``before``, its sample
        of the iteration before, or None.

    Raises
    ------
    FileError
        If the file cannot be written.
    """

    def __init__(self, solver, path):
        self.solver, self.path, self.first = solver, str(path), None
        folder = os.path.dirname(self.path) or "."
        if not os.access(folder, os.W_OK):   # now rather than after days of training
            raise FileError("cannot be written: there is no such folder, or no permission; correct the path", file=self.path)
        self.recorder = Recorder(solver, KEEP + 1)  # the running one is cut off first
        self.recorder.start()
        self.watch = Watch(solver, 1, self._look)

    def close(self):
        """Record no longer; harmless a second time."""
        self.watch.close()
        self.recorder.stop()

    def _look(self, solver, iteration, samples):
        """Write the trace if this iteration went wrong."""
        del self.watch.records[: -KEEP - 1]
        losses = {top.name for node in solver.net.nodes for top, weight in zip(node.tops, node.loss_weights) if weight}
        if not any(s["not_finite"] and ("parameter" in s or s["blob"] in losses) for s in samples):
            return
        records = list(self.watch.records)
        self.close()
        trace = self.recorder.trace()
        trace.document["samples"] = [{"iteration": number, **sample} for number, one in records for sample in one]
        self.first = trace.document["trouble"] = first_trouble(trace.document)
        try:
            write(trace, self.path, self.first["event"])
        except Error as error:      # the training is worth more than its trace
            log.warning("%s", error)
            return
        what = f"gradient of {self.first['parameter']}" if "parameter" in self.first else f"blob '{self.first['blob']}'"
        log.warning("Iteration %d: the %s of layer '%s' is the first that is not finite; wrote %s", self.first["iteration"], what,
                    self.first["layer"], self.path)


def first_trouble(document):
    """Return `Trouble.first` of a document with samples, of which one is not finite."""
    samples = document["samples"]
    first = next(sample for sample in samples if sample["not_finite"])
    kind, key = ("backward", "parameter") if "parameter" in first else ("forward", "blob")
    step = next((number for number, step in enumerate(document["steps"]) if step["layer"] == first["layer"]
                 and step["kind"] == kind and step["iteration"] == first["iteration"]), None)
    before = [sample for sample in samples if sample["iteration"] < first["iteration"] and sample["layer"] == first["layer"]
              and sample.get(key) == first[key]]
    return {"iteration": first["iteration"], "layer": first["layer"], key: first[key], "not_finite": first["not_finite"],
            "step": step, "event": document["steps"][step]["last"] if step is not None else None,
            "before": before[-1] if before else None}


def write(trace, path, moment):
    """Write a trace as JSON, or as the page, which opens at event `moment`."""
    if path.endswith(".html"):
        html.write(trace, path, moment)
    else:
        trace.save(path)
