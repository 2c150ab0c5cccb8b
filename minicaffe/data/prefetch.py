"""Batches made ready by a thread of their own (Caffe base_data_layer.cpp).

    maker -> buffer -> `full` queue -> next() -> consumer
               ^                                    |
               '-------- `free` queue <-------------'

A fixed set of buffers goes round: `depth` may lie full, `hold` more are at the consumer. The thread knows its `_Work` with
the two queues, never the Prefetcher: so dropping the Prefetcher (or the layer that holds it) ends the thread.

What is in a batch is the business of a maker: records of a database (record_batches.py), pictures of a list
(image_batches.py), windows of pictures (window_batches.py). A maker has

    source           the file or database, for names and errors
    open(number)     called by the thread first: batches begin at record `number`, counted from the start of training
    fill(numbers, buffer)
                     puts the records of the range `numbers` into the arrays that ``buffer.room(...)`` gives, and decodes no others;
                     each batch begins behind the end of the one before
    close()          called by the thread last

Differs from Caffe: the place in the stream can be read and restored; errors of the thread are raised in `next`.
"""

import math
import os
import queue
import threading
import weakref
from collections import deque

import numpy as np

from minicaffe.errors import ConfigError, Error, OutOfMemoryError

JOIN_SECONDS = 5.0  # a batch in the making ends long before; a dead disk must not stop the exit


class Prefetcher:
    """Hands out the batches of a maker, for ever.

    Parameters
    ----------
    maker
        As above; the Prefetcher closes it.
    numbers : range
        The records of the first batch, by their numbers since the start of training.
    step : int
        From each record of a batch to that of the next batch.
    depth : int
        Batches made ready ahead; the thread continues when half of them were taken.
    dtype : float32 or float64
    labels : bool
        False: `next` gives None for the labels.
    allocate : callable
        ``allocate(shape, dtype) -> ndarray``, called from the thread for each buffer that must grow; the default is
        ordinary memory, a GPU run gives pinned memory.
    hold : int
        How many batches that were handed out stay as they are; those before them may be overwritten.

    Attributes
    ----------
    numbers, upcoming : range
        The records of the batch that `next` handed out last, None before; and of the one after it.
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
        self._held = deque()
        # Buffers go back several at a time: each time that the thread wakes it takes the GIL and a processor from the consumer.
        self._hold, self._most_held = hold, hold + depth // 2
        self._error = None
        self._pid = os.getpid()
        self._work = work = _Work(maker, numbers, step)
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
        """Return the next (data, labels) and take back the former ones.

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
            if len(self._held) == self._most_held:
                while len(self._held) >= self._hold:
                    self._work.free.put(self._held.popleft())
            made = self._work.full.get()
            if isinstance(made, BatchArrays):
                self._held.append(made)
                self.numbers, self.upcoming = self.upcoming, _after(self.upcoming, self.step)
                return made.data, made.labels
            self._error = made
        raise self._error

    def close(self):
        """End the thread and release what it reads; arrays handed out stay valid."""
        self._finish()


class BatchArrays:
    """Memory for one batch, reused while batches fit into it."""

    def __init__(self, dtype, wants_labels, allocate):
        self.data = self.labels = None
        self._data_memory = _Memory(dtype, allocate)
        self._label_memory = _Memory(dtype, allocate) if wants_labels else None

    def room(self, shape, label_shape=None):
        """Return an array of `shape` for the data, and one of `label_shape` for the labels, or None.

        The labels are shape[0] numbers unless said otherwise.
        """
        self.data = self.labels = None  # gone before larger ones are asked for
        self.data = self._data_memory.front(shape)
        if self._label_memory is not None:
            self.labels = self._label_memory.front(shape[:1] if label_shape is None else label_shape)
        return self.data, self.labels


class _Memory:
    """An array that grows, and is replaced only then."""

    def __init__(self, dtype, allocate):
        self._dtype, self._allocate, self._array = dtype, allocate, None

    def front(self, shape):
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


class _Work:
    """What the thread needs, and all it keeps alive."""

    def __init__(self, maker, numbers, step):
        self.maker, self.numbers, self.step = maker, numbers, step
        self.free, self.full = queue.SimpleQueue(), queue.SimpleQueue()
        self.stop = False

    def run(self):
        """Fill free buffers until `stop` is set; an exception is put into the queue instead of a buffer.

        It is put there after the maker is closed: the consumer may open the same database at once.
        """
        failed = None
        try:
            numbers = self.numbers
            self.maker.open(numbers.start)
            while (buffer := self.free.get()) is not None and not self.stop:
                self.maker.fill(numbers, buffer)
                numbers = _after(numbers, self.step)
                self.full.put(buffer)
        except Error as error:
            failed = error.with_traceback(None)  # its frames hold values of the cursor
        except BaseException as error:  # noqa: BLE001  (whatever it is, the consumer must hear of it)
            failed = error
        try:
            self.maker.close()
        finally:
            if failed is not None:
                self.full.put(failed)


def _after(numbers, step):
    return range(numbers.start + step, numbers.stop + step, numbers.step)


def _finish(work, thread):
    work.stop = True
    work.free.put(None)
    if thread is not threading.current_thread():  # the last reference may die in any thread
        thread.join(JOIN_SECONDS)
