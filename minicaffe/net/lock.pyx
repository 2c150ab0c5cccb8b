"""NetLock: one thread at a time uses a net; other threads wait in a queue (docs/threads.md). Caffe has no such lock.

``threading.Lock`` is not enough. It is not fair: a thread that reads blobs of a net in training could wait until the training ends.
Each blob stores which thread may change its shape. And a running net needs the GIL after each operation; a thread that computes in
Python releases the GIL only every 5 ms by default.
"""

from minicaffe.blob cimport Blob
from minicaffe.memory.buffer cimport this_thread

import sys
from threading import Lock

cdef double GIL_SWITCH_INTERVAL = 5e-5    # seconds; while any NetLock is held
cdef int _held_locks = 0                  # number of NetLocks that are held
cdef double _saved_switch_interval = 0    # seconds; the interval before the first of them was entered


cdef int count_held_locks(int change) except -1:
    """Add `change` (1 or -1) to the number of held locks. The GIL's switch interval is short while that is above 0.

    Afterwards the old interval is restored, unless the program has changed it.
    """
    global _held_locks, _saved_switch_interval
    if _held_locks == 0:
        _saved_switch_interval = sys.getswitchinterval()
        if _saved_switch_interval > GIL_SWITCH_INTERVAL:
            sys.setswitchinterval(GIL_SWITCH_INTERVAL)
    _held_locks += change
    if (_held_locks == 0 and _saved_switch_interval > GIL_SWITCH_INTERVAL
            and abs(sys.getswitchinterval() - GIL_SWITCH_INTERVAL) < 1e-6):
        sys.setswitchinterval(_saved_switch_interval)


cdef class NetLock:
    """In ``with net.lock:`` no other thread runs the net or reshapes its `blobs`. The owner may enter the lock again."""

    cdef list blobs                     # only the thread that holds the lock may change their shapes
    cdef readonly list waiting          # (thread, the closed Lock on which it waits) in order of arrival
    cdef unsigned long long owner       # 0: none
    cdef int depth                      # how often the owner has entered

    def __init__(self, blobs):
        self.blobs = []
        self.waiting = []
        self.add(blobs)

    def add(self, blobs):
        """Add blobs that the lock protects, such as a solver's history. The lock must be free."""
        cdef Blob blob
        for blob in blobs:
            self.blobs.append(blob)

    def __enter__(self):
        """Wait until this thread is the owner; then its blobs refuse other threads that reshape them."""
        cdef unsigned long long thread = this_thread()
        if self.owner != thread:
            self.wait(thread)
            for blob in self.blobs:
                (<Blob> blob).begin_use(thread)
            count_held_locks(1)
        self.depth += 1
        return self

    def __exit__(self, *_):
        self.depth -= 1
        if self.depth == 0:
            count_held_locks(-1)
            for blob in self.blobs:
                (<Blob> blob).end_use()
            self.wake_next()

    cdef int wait(self, unsigned long long thread) except -1:
        """Become the owner when all earlier threads have released the lock."""
        if self.owner == 0:
            self.owner = thread
            return 0
        wakeup = Lock()         # `wake_next` releases it
        wakeup.acquire()
        entry = thread, wakeup
        if self.owner == 0:     # the allocations above may switch threads, and the owner may have released the NetLock
            self.owner = thread
            return 0
        self.waiting.append(entry)
        try:
            wakeup.acquire()
        except BaseException:   # such as KeyboardInterrupt
            if entry in self.waiting:
                self.waiting.remove(entry)
            else:               # this thread is the owner already
                self.wake_next()
            raise

    cdef int wake_next(self) except -1:
        """Make the first waiting thread the owner; without one the lock is free."""
        if self.waiting:
            self.owner, wakeup = self.waiting.pop(0)
            wakeup.release()
        else:
            self.owner = 0
