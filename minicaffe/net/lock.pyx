"""NetLock: one thread at a time uses a net; the others wait in a queue (docs/threads.md). Caffe has nothing like it.

``threading.Lock`` is not enough. It is not fair: a thread that reads blobs of a training could wait until its end. Blobs must know
which thread may change their shapes. And a running net needs the GIL after each operation, which a thread that computes in Python
releases only every 5 ms by default.
"""

from minicaffe.blob cimport Blob, this_thread

import sys
from threading import Lock

cdef double GIL_SWITCH_INTERVAL = 5e-5        # switch interval of the GIL while a net runs, in seconds
cdef int _held_locks = 0              # locks of nets that are held
cdef double _saved_switch_interval = 0       # the interval before that


cdef int adjust_switch_interval(int change) except -1:
    """Shorten the GIL's switch interval while any lock is held; restore it afterwards, unless the program has changed it."""
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
    """``with net.lock:`` other threads neither run the net nor reshape its `blobs`; one thread may enter it again."""

    def __init__(self, blobs):
        self.blobs = []
        self.waiting = []
        self.add(blobs)

    def add(self, blobs):
        """Add blobs; no thread may hold the lock now."""
        cdef Blob blob
        for blob in blobs:
            self.blobs.append(blob)

    def __enter__(self):
        cdef unsigned long long thread = this_thread()
        if self.owner != thread:
            self.wait(thread)
            for blob in self.blobs:
                (<Blob> blob).begin_use(thread)
            adjust_switch_interval(1)
        self.depth += 1
        return self

    def __exit__(self, *_):
        self.depth -= 1
        if self.depth == 0:
            adjust_switch_interval(-1)
            for blob in self.blobs:
                (<Blob> blob).end_use()
            self.wake_next()

    cdef int wait(self, unsigned long long thread) except -1:
        """Become the owner when all earlier threads have released the lock."""
        if self.owner == 0:
            self.owner = thread
            return 0
        turn = Lock()
        turn.acquire()
        place = thread, turn
        if self.owner == 0:     # allocation may have let the owner run and release it
            self.owner = thread
            return 0
        self.waiting.append(place)
        try:
            turn.acquire()
        except BaseException:   # Ctrl-C
            if place in self.waiting:
                self.waiting.remove(place)
            else:
                self.wake_next()
            raise

    cdef int wake_next(self) except -1:
        """Make the first thread of the queue the owner."""
        if self.waiting:
            self.owner, turn = self.waiting.pop(0)
            turn.release()
        else:
            self.owner = 0
