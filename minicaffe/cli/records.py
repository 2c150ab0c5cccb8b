"""Listeners that record a training: JSON lines for programs, and the result for the terminal."""

import json
import logging
import math
import os
import shlex
import time

from minicaffe.cli import log, ranks
from minicaffe.cli.options import notify
from minicaffe.errors import FileError
from minicaffe.solver.report import images_per_iteration, output_text
from minicaffe.solver.snapshot import complete_states


class JsonLines(log.TrainingFile):
    """A listener of a solver that writes each display (``"event": "train"``) and test (``"event": "test"``) as one line of JSON.

    ``"time"`` is in seconds since 1970. Numbers that are not finite become null, since JSON cannot write them. With `append` the
    lines are added to those in the file. Raises FileError if the file cannot be opened.
    """

    def __init__(self, path, append=False):
        try:
            super().__init__(path, append, "records")
        except OSError as cause:
            raise FileError(f"cannot be written: {cause.strerror}; correct the path of --json", file=path) from cause

    def on_display(self, solver, record):
        self._write_event("train", record)

    def on_test(self, solver, record):
        self._write_event("test", record)

    def on_watch(self, solver, iteration, samples):
        """Write the samples of `minicaffe.inspection.watch` as an ``"event": "watch"`` (`report_samples` of train.py)."""
        self._write_event("watch", {"iteration": iteration, "samples": samples})

    def _write_event(self, event, record):
        """Write a record as a line and flush it, so that a program can follow the training."""
        if not self.failed:
            values = finite_values({"event": event, "time": round(time.time(), 3), **record})
            self.emit(logging.makeLogRecord({"msg": json.dumps(values, ensure_ascii=False)}))


def finite_values(value):
    """Return a value for JSON with None in place of each number that is not finite."""
    if isinstance(value, dict):
        return {key: finite_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Result:
    """A listener of a solver: stores what `lines` yields at the end of a training, and deletes older snapshots (--keep)."""

    def __init__(self):
        self.tests = {}  # the last record of each test net, by its number
        self.display = None  # the last record of the train net
        self.stopped = False
        self.log_path = None
        self.keep = self.resumed = None  # how many snapshots are kept (None: all); whether this training was resumed (train.py)
        self.earlier, self.states = [], []  # snapshots before the resume and written since: state, iteration, model
        self.seconds = 0.0

    def on_start(self, solver):
        self._start_time = time.perf_counter()
        self.first_iter = solver.iter
        if self.keep and self.resumed:
            self.earlier = [one for one in complete_states(solver.param.snapshot_prefix) if one[1] <= solver.iter]

    def on_display(self, solver, record):
        self.display = record

    def on_test(self, solver, record):
        self.tests[record["net"]] = record

    def on_snapshot(self, solver, model_path, state_path):
        """Remember a snapshot, and delete the oldest ones beyond --keep."""
        self.earlier, self.states = ([one for one in some if one[0] != state_path] for some in (self.earlier, self.states))
        self.states.append((state_path, solver.iter, model_path))
        while self.keep and len(self.earlier) + len(self.states) > self.keep:
            state, _, model = (self.earlier or self.states).pop(0)
            for path in (state, model) if ranks.group.rank == 0 else ():    # the state first: it is never without its model
                try:
                    os.remove(path)
                except OSError as error:
                    notify(f"{path}: cannot be deleted: {error.strerror}")

    def on_end(self, solver, stopped):
        self.stopped = stopped
        self.seconds = time.perf_counter() - self._start_time

    def lines(self, solver, resume_command):
        """Yield the result as lines of text; ``resume_command(state, *options)`` is the command that continues from a state."""
        done = solver.iter - self.first_iter
        images = images_per_iteration(solver)
        rate = f", {images * done / self.seconds:,.0f} images/s" if images and self.seconds else ""
        impatient = self.stopped and solver.best is not None and solver.best.exhausted      # by --patience
        why = f": {solver.best.reason()}" if impatient else ""
        yield f"{'Stopped' if self.stopped else 'Finished'} at iteration {solver.iter} of {solver.param.max_iter}{why}"
        yield f"time: {self.seconds:.1f} s for {done} iterations{rate} (with tests and snapshots)"
        if self.display:
            yield f"smoothed loss = {solver.smoothed_loss:g}"
            for output in self.display["outputs"]:
                yield f"train {output_text(output)}" + iteration_suffix(self.display, solver)
        for number, record in sorted(self.tests.items()):
            name = f"test net {number}" if len(self.tests) > 1 else "test"
            for output in record["outputs"]:
                yield f"{name} {output_text(output)}" + iteration_suffix(record, solver)
            if record["loss"] is not None:
                yield f"{name} total loss = {record['loss']:g}" + iteration_suffix(record, solver)
        if solver.best is not None:
            yield from solver.best.lines()
        yield from (f"wrote {path}" for state, _, model in self.states for path in (model, state))
        if self.log_path:
            yield f"wrote {self.log_path}; draw it: minicaffe plot {shlex.quote(self.log_path)}"
        if impatient and self.states:
            more = f"--patience={2 * solver.best.patience}"
            yield f"resume with more patience: {resume_command(self.states[-1][0], more)}"
        elif self.stopped and self.states:
            state, iteration, _ = self.states[-1]
            yield f"resume{iteration_suffix({'iteration': iteration}, solver)} with: {resume_command(state)}"
        elif self.stopped and not solver.param.snapshot_after_train:
            yield "wrote no snapshot: snapshot_after_train is false"


def iteration_suffix(record, solver):
    """Return " (at iteration N)" for a record in the result, "" for one of the solver's last iteration."""
    return "" if record["iteration"] == solver.iter else f" (at iteration {record['iteration']})"
