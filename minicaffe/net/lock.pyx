"""NetLock: a net serves one thread at a time; the others wait in line (docs/threads.md). Caffe has nothing like it.

A lock of threading would do but for three things: it serves whoever comes first again and again, so that a thread that looks
into a training could wait for all of it; the net's blobs have to know who may change their shapes; and a net that runs asks for
Python's own lock after each operation, which a thread that computes in Python gives away only every 5 ms unless told.
"""

from minicaffe.blob cimport Blob, this_thread

import sys
from threading import Lock

cdef double HURRY = 5e-5        # seconds that a thread may keep Python's lock from one that runs a net
cdef int _held = 0              # locks of nets that are held
cdef double _patience = 0       # Python's own interval, which they came upon


cdef int count_held(int change) except -1:
    """Let threads that compute in Python give way at once while any lock is held; what the program itself sets counts."""
    global _held, _patience
    if _held == 0:
        _patience = sys.getswitchinterval()
        if _patience > HURRY:
            sys.setswitchinterval(HURRY)
    _held += change
    if _held == 0 and _patience > HURRY and abs(sys.getswitchinterval() - HURRY) < 1e-6:
        sys.setswitchinterval(_patience)


cdef class NetLock:
    """``with net.lock:`` other threads neither run the net nor reshape its `blobs`; one thread may enter it again."""

    def __init__(self, blobs):
        self.blobs = []
        self.waiting = []
        self.add(blobs)

    def add(self, blobs):
        """Let the lock hold for more blobs; nobody may have it now."""
        cdef Blob blob
        for blob in blobs:
            self.blobs.append(blob)

    def __enter__(self):
        cdef unsigned long long thread = this_thread()
        if self.owner != thread:
            self.wait(thread)
            for blob in self.blobs:
                (<Blob> blob).begin_use(thread)
            count_held(1)
        self.depth += 1
        return self

    def __exit__(self, *_):
        self.depth -= 1
        if self.depth == 0:
            count_held(-1)
            for blob in self.blobs:
                (<Blob> blob).end_use()
            self.pass_on()

    cdef int wait(self, unsigned long long thread) except -1:
        """Become the owner, as soon as those who came before are done."""
        if self.owner == 0:
            self.owner = thread
            return 0
        turn = Lock()
        turn.acquire()
        place = thread, turn
        if self.owner == 0:     # making objects may have let the owner go on
            self.owner = thread
            return 0
        self.waiting.append(place)
        try:
            turn.acquire()
        except BaseException:   # Ctrl-C
            if place in self.waiting:
                self.waiting.remove(place)
            else:
                self.pass_on()
            raise

    cdef int pass_on(self) except -1:
        """Make the next in line the owner."""
        if self.waiting:
            self.owner, turn = self.waiting.pop(0)
            turn.release()
        else:
            self.owner = 0
