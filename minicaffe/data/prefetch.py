"""Batches prepared by a separate thread (Caffe base_data_layer.cpp).

    batch reader -> buffer -> `full` queue -> next() -> consumer
                      ^                                    |
                      '-------- `free` queue <-------------'

A fixed number of buffers is reused: up to `depth` are full, `hold` more are used by the consumer. The thread (`fill_buffers`)
refers to the two queues, not to the Prefetcher. So it ends when the Prefetcher (or the layer that holds it) is freed.

A batch reader fills the buffers: with records of a database (record_batches.py), pictures of a list (image_batches.py), windows of
pictures (window_batches.py) or frames of a video (video_data.py). A batch reader has

    source           the file or database, for names and errors
    fill(numbers, buffer)
                     puts the records of the range `numbers` into the arrays of ``buffer.reshape(...)``, and decodes no others;
                     they are counted from the start of training, and each batch begins after the end of the one before
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

from minicaffe.errors import Error, OutOfMemoryError

JOIN_SECONDS = 5.0  # a batch takes much less time; a disk that does not respond must not block the exit


class Prefetcher:
    """Returns the batches of a batch reader, without end.

    The range `numbers` has the numbers of the first batch's records; `step` is added to those of a batch for the next one. `depth`
    batches, at least 1, are prepared in advance; the thread continues when half of them were returned by `next`.
    The last `hold` that were returned are kept unchanged. Without `labels` `next` returns None for them. The thread calls
    ``allocate(shape, dtype)`` for each buffer that must grow: the default allocates pageable memory, a layer in GPU mode pinned
    memory.

    Attributes
    ----------
    numbers, upcoming : range
        The record numbers of the batch that `next` returned last (None before the first call), and of the batch after it.
    error : Exception or None
        The error of the thread that `next` has raised. The thread has ended then; a new Prefetcher may succeed later.
    """

    def __init__(self, reader, numbers, step, depth=4, dtype=np.float32, *, labels=True, allocate=np.empty, hold=1):
        self.numbers, self.upcoming, self.step = None, numbers, step
        self._consumer_buffers = deque()
        # The consumer returns several buffers at once: a thread that wakes takes the GIL and a processor from the consumer.
        self._hold, self._max_consumer_buffers = hold, hold + depth // 2
        self.error = None
        self._source, self._pid = reader.source, os.getpid()
        self._free, self._full, stop = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
        for _ in range(depth + hold):
            self._free.put(BatchArrays(np.dtype(dtype), labels, allocate))
        thread = threading.Thread(target=fill_buffers, args=(reader, numbers, step, self._free, self._full, stop),
                                  name=f"prefetch {reader.source}", daemon=True)
        # Also called at interpreter exit, while threads can still be joined.
        self._finish = weakref.finalize(self, _end_thread, thread, self._free, stop)
        thread.start()

    def next(self):
        """Return the next data, an array (N, C, H, W), and labels, (N,) or None; reuse the buffers of earlier ones.

        Both may be overwritten from the `hold`-th call of `next` after this one on. Raises DataError, which names file and record,
        if a record is wrong, and again in every later call; Error in a forked child, which has no such thread, or after `close`.
        """
        if os.getpid() != self._pid:
            raise Error("a forked process has no prefetch thread; create the net after the fork", file=self._source)
        if not self._finish.alive:
            raise Error("the prefetch thread was closed", file=self._source)
        if self.error is None:
            if len(self._consumer_buffers) == self._max_consumer_buffers:
                while len(self._consumer_buffers) >= self._hold:
                    self._free.put(self._consumer_buffers.popleft())
            item = self._full.get()     # a buffer, or the exception of the thread
            if isinstance(item, BatchArrays):
                self._consumer_buffers.append(item)
                self.numbers = now = self.upcoming
                self.upcoming = range(now.start + self.step, now.stop + self.step, now.step)
                return item.data, item.labels
            self.error = item
        raise self.error

    def close(self):
        """End the thread and release what it reads; arrays returned before remain valid."""
        self._finish()


class BatchArrays:
    """Memory for one batch, reused while batches fit into it; `Prefetcher.next` returns its `data` and `labels`."""

    def __init__(self, dtype, wants_labels, allocate):
        self.data = self.labels = None
        self._dtype, self._wants_labels, self._allocate = dtype, wants_labels, allocate
        self._memory = {}   # arrays of one axis by "data" and "labels", allocated again only when a larger one is needed

    def reshape(self, shape, label_shape=None):
        """Return the arrays that a batch reader fills: one of `shape`, one of `label_shape` for the labels (None without labels).

        By default the labels have shape (shape[0],).
        """
        self.data = self.labels = None  # released before larger ones are allocated
        self.data = self._array("data", shape)
        if self._wants_labels:
            self.labels = self._array("labels", shape[:1] if label_shape is None else label_shape)
        return self.data, self.labels

    def write(self, batch, numbers, labels=None):
        """Write a Batch of the records `numbers` for a batch reader; an array of `labels` replaces the labels of the Batch."""
        data, own = self.reshape(batch.shape, None if labels is None else labels.shape)
        batch.write(data, own if labels is None else None, numbers.start, numbers.step)
        if labels is not None and own is not None:
            own[...] = labels

    def _array(self, part, shape):
        """Return an array of `shape` in the memory of `part`, "data" or "labels", which grows if needed."""
        count = math.prod(shape)
        if part not in self._memory or self._memory[part].size < count:
            self._memory.pop(part, None)
            try:
                self._memory[part] = self._allocate((count,), self._dtype)
            except MemoryError as error:
                if isinstance(error, Error):
                    raise
                raise OutOfMemoryError(f"no memory for a batch of shape {list(shape)}, {count * self._dtype.itemsize} bytes "
                                       f"({error}); make batch_size or prefetch smaller") from None
        return self._memory[part][:count].reshape(shape)


def fill_buffers(reader, numbers, step, free, full, stop):
    """Fill the buffers of the queue `free`, and put them into `full`, until `stop` is set; the thread of a Prefetcher.

    An exception is put into `full` instead of a buffer, after the reader is closed: the consumer may open the database at once.
    """
    failed = None
    try:
        while (buffer := free.get()) is not None and not stop.is_set():
            reader.fill(numbers, buffer)
            numbers = range(numbers.start + step, numbers.stop + step, numbers.step)
            full.put(buffer)
    except Error as error:
        failed = error.with_traceback(None)  # its frames refer to values of the cursor, and would keep them alive
    except BaseException as error:  # noqa: BLE001  (any error must reach the consumer)
        failed = error
    try:
        reader.close()
    finally:
        if failed is not None:
            full.put(failed)


def _end_thread(thread, free, stop):
    """Stop the thread and wait for its end, at `close` or when the Prefetcher is freed, to which it must have no reference."""
    stop.set()
    free.put(None)     # wakes a thread that waits for a buffer
    if thread is not threading.current_thread():  # any thread may drop the last reference
        thread.join(JOIN_SECONDS)
