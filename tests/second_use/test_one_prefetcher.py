"""One Prefetcher through any sequence of calls.

Batches come in order, those that are held stay as they are, no more are made ahead than `depth` says, and the thread ends with `close`,
an error, or the last reference.
"""

import gc
import re
import threading
import time

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from minicaffe.data.prefetch import Prefetcher
from minicaffe.errors import DataError, Error, OutOfMemoryError

SECONDS = 5.0   # after which a thread that has not done its work never will


class Numbers:
    """A batch reader whose batches hold the numbers of their records; `faults` has exceptions by number."""

    source = "numbers"

    def __init__(self, faults):
        self.faults, self.made, self.closed = faults, [], 0

    def fill(self, numbers, buffer):
        data, labels = buffer.reshape((len(numbers), 1 + numbers[0] % 3))   # of a size that varies
        data[...] = -1
        for i, number in enumerate(numbers):
            if number in self.faults:
                raise self.faults[number]
            data[i] = number
            if labels is not None:
                labels[i] = -number
        self.made.append(numbers)

    def close(self):
        self.closed += 1


class PrefetcherMachine(RuleBasedStateMachine):
    """`left` batches were handed out and are still held; `ended` is the error that every call raises from now on."""

    @initialize(start=st.integers(0, 5), size=st.integers(1, 3), gap=st.integers(1, 3), pause=st.integers(0, 3), depth=st.integers(1, 5),
                hold=st.integers(1, 3), labels=st.booleans(), double=st.booleans(),
                faults=st.dictionaries(st.integers(0, 60), st.sampled_from([DataError, ZeroDivisionError]).map(lambda kind: kind("bad")), max_size=1),
                refused=st.none() | st.integers(1, 12))
    def make(self, start, size, gap, pause, depth, hold, labels, double, faults, refused):
        self.allocated, self.refused, self.depth, self.hold, self.labels = 0, refused, depth, hold, labels
        self.type = np.float64 if double else np.float32
        self.reader = Numbers(faults)
        self.coming, self.step = range(start, start + size * gap, gap), size * gap + pause
        self.start, self.last, self.held, self.ended, self.taken = start, None, [], None, 0
        before = set(threading.enumerate())
        self.prefetcher = Prefetcher(self.reader, self.coming, self.step, depth, self.type, labels=labels, allocate=self.allocate, hold=hold)
        self.thread = next(iter(set(threading.enumerate()) - before), None)     # None: it has failed and ended already

    def allocate(self, shape, dtype):
        self.allocated += 1
        if self.allocated == self.refused:
            raise MemoryError("refused")
        return np.empty(shape, dtype)

    @rule(count=st.integers(1, 4))
    def next(self, count=1):
        for _ in range(count):
            if self.ended is not None:
                with pytest.raises(type(self.ended), match=re.escape(str(self.ended))):
                    self.prefetcher.next()
                continue
            try:
                data, labels = self.prefetcher.next()
            except Exception as error:  # noqa: BLE001  (which one is what is looked at)
                self.ended = error
                wrong = [self.reader.faults[key] for key in self.coming if key in self.reader.faults]
                assert error in wrong or isinstance(error, OutOfMemoryError) and self.refused is not None
                assert self.prefetcher.error is error and self.reader.closed == 1
                continue
            wanted = np.repeat(np.array(self.coming, self.type)[:, None], 1 + self.coming[0] % 3, 1)
            assert data.dtype == self.type and (labels is None) == (not self.labels)
            np.testing.assert_array_equal(data, wanted)
            self.held = [*self.held, (data, labels, wanted)][-self.hold:]
            self.last, self.coming = self.coming, range(self.coming.start + self.step, self.coming.stop + self.step, self.coming.step)
            self.taken += 1
        self.look()

    @rule()
    def look(self):
        """At what was handed out, and at the places."""
        for data, labels, wanted in self.held:
            np.testing.assert_array_equal(data, wanted)
            assert labels is None or (labels == -wanted[:, 0]).all()
        if self.prefetcher is not None:
            assert (self.prefetcher.numbers, self.prefetcher.upcoming, self.prefetcher.step) == (self.last, self.coming, self.step)

    @rule()
    def wait(self):
        """Until the thread has done all that it may: no batch is made twice, and at least half of `depth` lie ready, at most all."""
        if self.thread is None or self.ended is not None:
            return
        until = time.monotonic() + SECONDS
        while len(self.reader.made) - self.taken < (self.depth + 1) // 2 and self.thread.is_alive() and time.monotonic() < until:
            time.sleep(0.0005)
        made = len(self.reader.made)
        assert made - self.taken <= self.depth + self.hold - min(self.hold, self.taken)
        assert made - self.taken >= (self.depth + 1) // 2 or not self.thread.is_alive()
        assert [numbers.start for numbers in self.reader.made] == [self.start + i * self.step for i in range(made)]
        self.look()

    @precondition(lambda self: self.prefetcher is not None)
    @rule()
    def close(self):
        """Twice does what once does."""
        self.prefetcher.close()
        self.gone()
        self.ended = Error("the prefetch thread was closed")

    @rule()
    def drop(self):
        """Arrays that were handed out stay; a new one continues where it was."""
        self.prefetcher = None
        gc.collect()
        self.gone()
        self.look()
        self.make(self.coming.start, len(self.coming), self.coming.step, self.step - len(self.coming) * self.coming.step, self.depth, self.hold,
                  self.labels, self.type is np.float64, {}, None)

    def gone(self):
        until = time.monotonic() + SECONDS
        while self.thread is not None and self.thread.is_alive() and time.monotonic() < until:
            time.sleep(0.0005)
        assert self.thread is None or not self.thread.is_alive()
        assert self.reader.closed == 1

    def teardown(self):
        if hasattr(self, "reader"):
            self.next(2)
            self.close()
            self.next()


def test_any_sequence(search):
    search(PrefetcherMachine, 40, 12)
