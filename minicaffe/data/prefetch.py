"""Batches made ready by a thread of their own (Caffe base_data_layer.cpp, data_layer.cpp).

    database -> cursor -> Transformer -> `full` queue -> next() -> consumer
                             ^                                        |
                             '---------- `free` queue <---------------'

A fixed set of buffers goes round: `depth` may lie full, `hold` more are at the consumer. The thread knows its `_Work` with
the two queues, never the Prefetcher: so dropping the Prefetcher (or the layer that holds it) ends the thread.

Differs from Caffe: the place in the stream can be read and restored; errors of the thread are raised in `next`.
"""

import os
import queue
import threading
import weakref
from collections import deque

import numpy as np

from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError, Error

JOIN_SECONDS = 5.0  # a batch in the making ends long before; a dead disk must not stop the exit


class Prefetcher:
    """Hands out transformed batches of a database, which goes round for ever.

    With several solvers in TRAIN, solver r of n gets the records whose running number modulo n is r, where the running
    number goes on counting when the database starts over.

    Parameters
    ----------
    source, backend
        As for `open_db`.
    batch_size : int
    transformer : Transformer
    depth : int
        Batches kept ready.
    start_record : int
        Running number to start at; to resume, the `position` saved earlier.
    dtype : float32 or float64
    solver_count, solver_rank : int
    labels : bool
        False: `next` gives None for the labels.
    allocate : callable
        ``allocate(shape, dtype) -> ndarray``, called from the thread for each buffer that must grow; the default is
        ordinary memory, a GPU run gives pinned memory.

    hold : int
        How many batches that were handed out stay as they are; the one before them is overwritten.

    Attributes
    ----------
    batches : int
        Handed out by `next` so far.
    position : int
        Running number of the first record that `next` has not handed out: what to save.
    step : int
        Records from one batch to the next.

    Raises
    ------
    ConfigError
        batch_size, depth, solver_count or solver_rank out of range.
    FileError, DataError
        The database cannot be opened or is empty.
    """

    def __init__(
        self,
        source,
        backend,
        batch_size,
        transformer,
        depth=4,
        start_record=0,
        dtype=np.float32,
        *,
        solver_count=1,
        solver_rank=0,
        labels=True,
        allocate=np.empty,
        hold=1,
    ):
        for field, value in (("batch_size", batch_size), ("prefetch", depth), ("solver_count", solver_count)):
            if value < 1:
                raise ConfigError(f"must be at least 1, got {value}", field=field)
        if not 0 <= solver_rank < solver_count:
            raise ConfigError(f"must be from 0 to {solver_count - 1}, got {solver_rank}", field="solver_rank")
        if start_record < 0:
            raise ConfigError(f"must be at least 0, got {start_record}", field="start_record")
        self.batches = 0
        self._start = start_record
        self.step = batch_size * solver_count
        self._held = deque()
        self._hold = hold
        self._error = None
        self._pid = os.getpid()
        self._work = work = _Work(open_db(source, backend), batch_size, transformer, np.dtype(dtype))
        work.first, work.solver_count, work.solver_rank = start_record, solver_count, solver_rank
        work.labels, work.allocate = labels, allocate
        for _ in range(depth + hold):
            work.free.put(_Buffer())
        thread = threading.Thread(target=work.run, name=f"prefetch {work.db.source}", daemon=True)
        # Also called at interpreter exit, while threads can still be joined.
        self._finish = weakref.finalize(self, _finish, work, thread)
        thread.start()

    @property
    def position(self):
        return self._start + self.batches * self.step

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
            A record is wrong; names database, number and key. Every later call raises it again.
        Error
            Called in a forked child, which has no such thread, or after `close`.
        """
        if os.getpid() != self._pid:
            raise Error("a forked process has no prefetch thread; create the net after the fork", file=self._work.db.source)
        if not self._finish.alive:
            raise Error("the prefetch thread was closed", file=self._work.db.source)
        if self._error is None:
            if len(self._held) == self._hold:
                self._work.free.put(self._held.popleft())
            made = self._work.full.get()
            if isinstance(made, _Buffer):
                self._held.append(made)
                self.batches += 1
                return made.data, made.labels
            self._error = made
        raise self._error

    def close(self):
        """End the thread and let go of the database; arrays handed out stay valid."""
        self._finish()


class _Buffer:
    """Memory for one batch, reused while batches fit into it."""

    def __init__(self):
        self.data = self.labels = self._memory = None

    def shape(self, shape, dtype, allocate, labels):
        """Make `data` an array of `shape`, and `labels` one of shape[0] elements if wanted."""
        count = int(np.prod(shape, dtype=np.int64))
        if self._memory is None or self._memory.size < count:
            self.data = self._memory = None  # gone before the larger one is asked for
            self._memory = allocate((count,), dtype)
        self.data = self._memory[:count].reshape(shape)
        if labels and self.labels is None:
            self.labels = allocate((shape[0],), dtype)


class _Work:
    """What the thread needs, and all it keeps alive."""

    def __init__(self, db, batch_size, transformer, dtype):
        self.db, self.batch_size, self.transformer, self.dtype = db, batch_size, transformer, dtype
        self.free, self.full = queue.SimpleQueue(), queue.SimpleQueue()
        self.stop = False

    def run(self):
        """Fill free buffers until told to stop; an exception goes to the consumer instead of a buffer."""
        try:
            cursor = self.db.cursor()
            cursor.seek(self.first)
            number = self.first
            while (buffer := self.free.get()) is not None and not self.stop:
                self.fill(cursor, number, buffer)
                number += self.batch_size * self.solver_count
                self.full.put(buffer)
            cursor.close()
        except Error as error:
            self.full.put(error.with_traceback(None))  # its frames hold values of the cursor
        except BaseException as error:  # noqa: BLE001  (whatever it is, the consumer must hear of it)
            self.full.put(error)
        finally:
            self.db.close()

    def fill(self, cursor, number, buffer):
        """Put the batch that starts at running number `number` into `buffer`."""
        records = cursor.take(self.batch_size * self.solver_count)
        # Numbers stay multiples of solver_count plus a fixed rest, unless a run was resumed at another place.
        offset = (self.solver_rank - number) % self.solver_count
        mine = records[offset :: self.solver_count]
        try:
            batch = self.transformer.load([value for _, value in mine])
            buffer.shape(batch.shape, self.dtype, self.allocate, self.labels)
            batch.write(buffer.data, buffer.labels, number + offset, self.solver_count)
        except Error as error:
            index = getattr(error, "record", None)
            if index is None:
                raise error.at(file=self.db.source)
            raise self.db.locate(error, number + offset + index * self.solver_count, mine[index][0])


def _finish(work, thread):
    work.stop = True
    work.free.put(None)
    if thread is not threading.current_thread():  # the last reference may die in any thread
        thread.join(JOIN_SECONDS)
