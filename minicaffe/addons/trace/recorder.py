"""Recorder: collect the events of a solver's or net's iterations, all of them or the last few."""

import numbers
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import NamedTuple

from minicaffe import cuda, memory
from minicaffe.addons.trace import build
from minicaffe.addons.trace.model import Trace
from minicaffe.addons.trace.reasons import CopyReasons
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, WrongTypeError, check_type, shown
from minicaffe.memory import reporter
from minicaffe.memory.registry import registry
from minicaffe.net.net import Net
from minicaffe.solver.solver import Solver


class Part(NamedTuple):
    """The events of an iteration, and the state before it: names and heads of memories by id, live blocks, arenas of allocators."""

    time: int
    heads: dict
    blocks: list
    arenas: list
    iteration: int = 0
    events: list = ()


class Recorder:
    """Record what happens in memory and layers from `start` to `stop`.

    Recording changes two things: iterations on a GPU run by single launches, not by a CUDA graph, and the host waits for each
    kernel and each call of cuBLAS and cuDNN, to measure its time.

    Parameters
    ----------
    target : Solver, Net or None
        The trace shows its layers and blobs; None: only the memory, of everything that runs.
    keep : int, optional
        Of a solver: keep only the last `keep` whole iterations and the one that runs, so that a recorder can run for days.

    Raises
    ------
    ConfigError
        If `keep` is less than 1, or given without a solver.
    WrongTypeError
        If `target` is something else.
    """

    def __init__(self, target=None, keep=None):
        if not isinstance(target, Solver | Net | None):
            raise WrongTypeError(f"a trace is of a Solver, a Net or None, got {type(target).__name__}")
        self.solver = target if isinstance(target, Solver) else None
        self.net = target.net if self.solver is not None else target
        if keep is not None:
            check_type(keep, numbers.Integral, "keep", "a number of iterations")
        if keep is not None and (self.solver is None or keep < 1):
            raise ConfigError(f"must be at least 1, and the target a solver, got {keep} of a {type(target).__name__}",
                              field="keep")
        self.keep = keep
        self.parts = []
        self._running = None    # ends the recording, while it runs
        self._events = self._before = self._device = None
        self._held = None       # the document, after `stop`

    def start(self):
        """Start to record; events of an earlier recording are removed."""
        if self._running is not None:
            raise ConfigError("this recorder runs already; stop it first")
        self.parts.clear()
        self._held = None
        self._device = build.present_device()    # it measures; that must not be recorded
        device = cuda.current() if caffe.mode == "gpu" else None
        with ExitStack() as running:
            if device is not None:
                device.add_launch_recorder()
                running.callback(device.remove_launch_recorder)
            self._events = running.enter_context(reporter.record())
            if self.solver is not None:
                self.solver.listeners.append(self)
                running.callback(self.solver.listeners.remove, self)
            self._before = self._snapshot()
            del self._events[:]     # of taking the snapshot
            self._running = running.pop_all()

    def stop(self):
        """Stop to record; a second call does nothing. `trace` then returns what was recorded, also after the net has changed."""
        if self._running is not None:
            running, self._running = self._running, None
            with running:
                self._end_part(self._iteration())
            self._held = self._document(self.parts)

    def on_iteration(self, solver):
        """Begin the next iteration; the solver calls it after each. Raises WrongTypeError for another object."""
        if solver is not self.solver or self._running is None:
            raise WrongTypeError(f"is called by the solver that it records while it runs, got {shown(solver)}")
        self._end_part(solver.iter - 1)
        if self.keep is not None:
            del self.parts[: -self.keep]

    def trace(self):
        """Return the `Trace` of the kept events; may be called while the recorder runs.

        Raises
        ------
        ConfigError
            If it was never started.
        """
        if self._before is None:
            raise ConfigError("this recorder has recorded nothing; start it first")
        if self._held is not None:
            return Trace(dict(self._held))  # one of its own, to which the caller may add entries
        running = [self._before._replace(iteration=self._iteration(), events=list(self._events))] if self._running else []
        return Trace(self._document([*self.parts, *running]))

    def _document(self, parts):
        """Return the document of some parts, of the net as it is now."""
        document = build.document(parts or [self._before], self.net, self.solver, self._device)
        document["why"] = {str(number): text for number, text in CopyReasons(Trace(document)).all().items()}
        return document

    def _iteration(self):
        return self.solver.iter if self.solver is not None else 0

    def _end_part(self, iteration):
        """Store the events so far as those of `iteration`."""
        events = list(self._events)
        del self._events[: len(events)]     # another thread may have added some in between
        if not events:      # what was there before still is
            return
        self.parts.append(self._before._replace(iteration=iteration, events=events))
        if self.keep is not None:
            before = len(self._events)
            self._before = self._snapshot()
            del self._events[before:]

    def _snapshot(self):
        memories = build.memories_of(self.net, self.solver)
        heads = {address: (one.called, str(one.head)) for address, one in memories.items()}
        blocks = [{"place": repr(b.place), "address": b.address, "bytes": b.nbytes, "name": b.name} for b in reporter.live()]
        return Part(perf_counter_ns(), heads, blocks, arenas())


ARENAS = memory.CachingAllocator, memory.BuddyAllocator     # allocators that list their segments


def arenas():
    """Return the segments, and the blocks in them, of each allocator that cuts blocks from segments."""
    registry.host_pool()    # so that all allocators that nets use exist
    if caffe.mode == "gpu":
        registry.allocator(registry.device_place)
    found = []
    for allocator in registry.all_in_use():
        while allocator is not None and not isinstance(allocator, ARENAS):
            allocator = allocator.upstream
        if allocator is None:
            continue
        kind = "buddy" if isinstance(allocator, memory.BuddyAllocator) else "caching"
        segments = [{"address": s.address, "bytes": s.nbytes,
                     "blocks": [{"address": b.address, "bytes": b.nbytes, "used": b.state != "free"} for b in s.blocks]}
                    for s in allocator.snapshot()]
        found.append({"place": repr(allocator.place), "allocator": kind, "segments": segments})
    return found


@contextmanager
def record(target=None):
    """Record while the ``with`` block runs.

    Parameters
    ----------
    target : Solver, Net or None
        See `Recorder`.

    Yields
    ------
    Trace
        Empty until the block ends, also by an error; then with the events of the block.
    """
    recorder = Recorder(target)
    trace = Trace(None)
    recorder.start()
    try:
        yield trace
    finally:
        recorder.stop()
        trace.fill(recorder.trace().document)
