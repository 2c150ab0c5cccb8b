"""Batches prepared by a separate thread (Caffe base_data_layer.cpp).

    maker -> buffer -> `full` queue -> next() -> consumer
               ^                                    |
               '-------- `free` queue <-------------'

A fixed set of buffers circulates: up to `depth` are full, `hold` more are at the consumer. The thread refers to its `_ThreadState`
with the two queues, not to the Prefetcher, so dropping the Prefetcher (or the layer that holds it) ends the thread.

A maker fills the batches: with records of a database (record_batches.py), pictures of a list (image_batches.py) or windows of
pictures (window_batches.py). A maker has

    source           the file or database, for names and errors
    open(number)     called by the thread first: batches begin at record `number`, counted from the start of training
    fill(numbers, buffer)
                     puts the records of the range `numbers` into the arrays of ``buffer.room(...)``, and decodes no others;
                     each batch begins after the end of the one before
    close()          called by the thread last

Different from Caffe: the position in the stream can be read and restored; errors of the thread are raised in `next`.
"""

import math
import os
import queue
import threading
import weakref
from collections import deque

import numpy as np

from minicaffe.errors import ConfigError, Error, OutOfMemoryError

JOIN_SECONDS = 5.0  # a batch takes far less; a dead disk must not block the exit


class Prefetcher:
    """Returns the batches of a maker, endlessly.

    Parameters
    ----------
    maker
        As above; the Prefetcher closes it.
    numbers : range
        The records of the first batch, by their numbers since the start of training.
    step : int
        From each record of a batch to that of the next batch.
    depth : int
        Batches prepared ahead; the thread continues when half of them were taken.
    dtype : float32 or float64
    labels : bool
        False: `next` returns None for the labels.
    allocate : callable
        ``allocate(shape, dtype) -> ndarray``, called by the thread for each buffer that must grow; the default is
        ordinary memory, for a GPU pinned memory.
    hold : int
        How many of the returned batches are kept unchanged; earlier ones may be overwritten.

    Attributes
    ----------
    numbers, upcoming : range
        The records of the batch that `next` returned last, None before; and of the one after it.
    step : int
        As given.
    failed : bool
        Whether `next` has raised an error of the thread, which has ended; what could not be read may be there later.

    Raises
    ------
    ConfigError
        `depth` out of range.
    """

    def __init__(self, maker, numbers, step, depth=4, dtype=np.float32, *, labels=True, allocate=np.empty, hold=1):
        if depth < 1:
            raise ConfigError(f"must be at least 1, got {depth}", field="prefetch")
        self.numbers, self.upcoming, self.step = None, numbers, step
        self._consumer_buffers = deque()
        # Buffers are returned several at a time: a thread that wakes takes the GIL and a processor from the consumer.
        self._hold, self._max_consumer_buffers = hold, hold + depth // 2
        self._error = None
        self._pid = os.getpid()
        self._work = work = _ThreadState(maker, numbers, step)
        for _ in range(depth + hold):
            work.free.put(BatchArrays(np.dtype(dtype), labels, allocate))
        thread = threading.Thread(target=work.run, name=f"prefetch {maker.source}", daemon=True)
        # Also called at interpreter exit, while threads can still be joined.
        self._finish = weakref.finalize(self, _finish, work, thread)
        thread.start()

    @property
    def failed(self):
        return self._error is not None

    def next(self):
        """Return the next (data, labels), and reuse the buffers of earlier ones.

        Returns
        -------
        data : ndarray, shape (N, C, H, W)
        labels : ndarray, shape (N,), or None
            Both may be overwritten from the `hold`-th call of `next` after this one on.

        Raises
        ------
        DataError
            A record is wrong; names file and record. Every later call raises it again.
        Error
            Called in a forked child, which has no such thread, or after `close`.
        """
        if os.getpid() != self._pid:
            raise Error("a forked process has no prefetch thread; create the net after the fork", file=self._work.maker.source)
        if not self._finish.alive:
            raise Error("the prefetch thread was closed", file=self._work.maker.source)
        if self._error is None:
            if len(self._consumer_buffers) == self._max_consumer_buffers:
                while len(self._consumer_buffers) >= self._hold:
                    self._work.free.put(self._consumer_buffers.popleft())
            made = self._work.full.get()
            if isinstance(made, BatchArrays):
                self._consumer_buffers.append(made)
                self.numbers, self.upcoming = self.upcoming, _next_range(self.upcoming, self.step)
                return made.data, made.labels
            self._error = made
        raise self._error

    def close(self):
        """End the thread and release what it reads; arrays returned before remain valid."""
        self._finish()


class BatchArrays:
    """Memory for one batch, reused while batches fit into it."""

    def __init__(self, dtype, wants_labels, allocate):
        self.data = self.labels = None
        self._data_memory = _Memory(dtype, allocate)
        self._label_memory = _Memory(dtype, allocate) if wants_labels else None

    def room(self, shape, label_shape=None):
        """Return an array of `shape` for the data, and one of `label_shape` for the labels, or None.

        By default the labels have shape (shape[0],).
        """
        self.data = self.labels = None  # released before larger ones are allocated
        self.data = self._data_memory.as_shape(shape)
        if self._label_memory is not None:
            self.labels = self._label_memory.as_shape(shape[:1] if label_shape is None else label_shape)
        return self.data, self.labels


class _Memory:
    """An array that is replaced only to grow."""

    def __init__(self, dtype, allocate):
        self._dtype, self._allocate, self._array = dtype, allocate, None

    def as_shape(self, shape):
        """Return its beginning as an array of `shape`."""
        count = math.prod(shape)
        if self._array is None or self._array.size < count:
            self._array = None
            try:
                self._array = self._allocate((count,), self._dtype)
            except MemoryError as error:
                if isinstance(error, Error):
                    raise
                raise OutOfMemoryError(f"no memory for a batch of shape {list(shape)}, {count * self._dtype.itemsize} bytes "
                                       f"({error}); make batch_size or prefetch smaller") from None
        return self._array[:count].reshape(shape)


class _ThreadState:
    """The state of the thread, and all that it keeps alive."""

    def __init__(self, maker, numbers, step):
        self.maker, self.numbers, self.step = maker, numbers, step
        self.free, self.full = queue.SimpleQueue(), queue.SimpleQueue()
        self.stop = False

    def run(self):
        """Fill free buffers until `stop` is set; an exception is put into the queue instead of a buffer.

        The exception is queued after the maker is closed: the consumer may open the same database at once.
        """
        failed = None
        try:
            numbers = self.numbers
            self.maker.open(numbers.start)
            while (buffer := self.free.get()) is not None and not self.stop:
                self.maker.fill(numbers, buffer)
                numbers = _next_range(numbers, self.step)
                self.full.put(buffer)
        except Error as error:
            failed = error.with_traceback(None)  # its frames hold values of the cursor
        except BaseException as error:  # noqa: BLE001  (any error must reach the consumer)
            failed = error
        try:
            self.maker.close()
        finally:
            if failed is not None:
                self.full.put(failed)


def _next_range(numbers, step):
    return range(numbers.start + step, numbers.stop + step, numbers.step)


def _finish(work, thread):
    work.stop = True
    work.free.put(None)
    if thread is not threading.current_thread():  # any thread may drop the last reference
        thread.join(JOIN_SECONDS)
