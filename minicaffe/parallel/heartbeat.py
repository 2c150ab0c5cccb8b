"""Heartbeats between ranks: if a rank dies or hangs, it is reported and all ranks end, instead of waiting without limit.

The ranks form a ring. A thread of each sends a message, the heartbeat, to the next rank every second, and receives those of the
previous rank. It needs the GIL, but not the main thread, which may be waiting for other ranks inside MPI.
"""

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
import weakref

import numpy as np

from minicaffe.errors import Error
from minicaffe.parallel.group import abort, wait_for_root_error
from minicaffe.parallel.launch import mpi

INTERVAL, SILENCE, TIMEOUT = 1.0, 10.0, 600.0   # seconds
HEARTBEAT_TAG, GOODBYE_TAG = 0, 1   # tags of messages

log = logging.getLogger(__name__)


class Heartbeat:
    """End all ranks of a group when one sends no heartbeat, makes no progress, leaves or raises while others need it.

    A rank in minicaffe that makes no progress, and waits for no other rank, reports itself. If all wait for each other, the rank
    that detects this reports it. A program may take any time between two calls of minicaffe, unless other ranks wait for it.

    The heartbeats end with the group or the process. A process that ends by an exception ends all ranks. All ranks of the Group
    must make this object together.

    `timeout`, `silence` and `interval` are in seconds: without progress, which is an iteration or a round of a test (0: no limit);
    without a heartbeat, after which a rank is reported as failed; between two heartbeats.
    """

    def __init__(self, group, timeout=TIMEOUT, silence=SILENCE, interval=INTERVAL):
        MPI = mpi()
        self.steps, self.timeout, self.silence, self.interval = group.steps, timeout, silence, interval
        self.rank, self.size, self.name = group.rank, group.size, group.name()
        self.previous, self.next = (group.rank - 1) % group.size, (group.rank + 1) % group.size
        self.previous_name = group.name(self.previous)
        self.comm, self.any_tag, self.status = group.comm.Dup(), MPI.ANY_TAG, MPI.Status()
        self.thread_watched = threading.get_ident()     # of the program: `_place` shows where it is
        self.ended = threading.Event()
        self.thread, self.hook = None, None     # of `_watch`; the earlier sys.excepthook
        if self.size == 1:
            return
        self.hook, sys.excepthook = sys.excepthook, self._excepthook
        weakref.finalize(group, self.end)   # also when the process ends, before MPI does
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self.thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
            self.thread.start()
        elif self.rank == 0:
            log.warning("this MPI takes calls of one thread only, so ranks send no heartbeats: a rank that hangs is not detected")

    def end(self):
        """Send the next rank a goodbye: from now on it does not report this rank as missing, unless it waits for it."""
        if self.ended.is_set():
            return
        self.ended.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(self.silence)
        if sys.excepthook == self._excepthook:
            sys.excepthook = self.hook

    # ---- what the thread does

    def _watch(self):
        """Send and receive heartbeats, and end all ranks at the first failure, until `end`."""
        now = time.monotonic()
        self.last_heartbeat = self.progress = self.latest_progress = now    # of the previous rank; of this rank; of any rank
        # The last `steps.count`; the time of the previous rank's goodbye, None before it; MPI's request of the last message.
        self.last_count, self.left, self.sent = None, None, None
        while not self.ended.wait(self.interval):
            slept = time.monotonic() - now - self.interval
            now = time.monotonic()
            if slept > self.interval:   # this rank was stopped, perhaps all were, by Ctrl-Z: that time counts for no rank
                self.last_heartbeat += slept
                self.progress += slept
                self.latest_progress += slept
            try:
                self._exchange(now)
            except Exception as error:      # MPI's error about a rank that has ended; its missing messages are found below
                log.debug("heartbeat: %s", error)
            if (failure := self._find_failure(now)) is not None:
                self._abort_all(failure)
        try:
            self._send(GOODBYE_TAG, time.monotonic())
        except Exception as error:
            log.debug("heartbeat: %s", error)

    def _exchange(self, now):
        """Send the next rank a heartbeat, receive those of the previous rank, and note when each made progress."""
        inside, self.waits, self.place = _place(self.thread_watched)
        count = self.steps.count
        if count != self.last_count or not inside:
            self.last_count, self.progress = count, now
        if inside:      # time outside minicaffe is no progress for other ranks
            self.latest_progress = max(self.latest_progress, self.progress)
        if self.sent is None or self.sent[0].Test():
            self._send(HEARTBEAT_TAG, now)
        age = np.empty(1)
        while self.comm.Iprobe(self.previous, self.any_tag, self.status):
            self.comm.Recv(age, self.previous, self.any_tag, self.status)
            self.last_heartbeat, self.latest_progress = now, max(self.latest_progress, now - age[0])
            if self.status.tag == GOODBYE_TAG:
                self.left = now

    def _send(self, tag, now):
        """Send the next rank how long ago, in seconds, any rank made progress: this one, or others by their messages."""
        age = np.array([now - self.latest_progress])       # clocks of machines differ, ages do not
        self.sent = self.comm.Isend(age, self.next, tag), age

    def _find_failure(self, now):
        """Return a sentence about the first failure that is found: of the previous rank, of this one, or of all; None if none."""
        if self.left is None and now - self.last_heartbeat > self.silence:
            return (f"{self.previous_name} has sent no heartbeat for {self.silence:g} s: it, its machine or the network "
                    "hangs, or it was killed")
        if self.left is not None and self.waits and now - max(self.left, self.progress) > self.silence:
            return f"{self.previous_name} has ended or left the group, and {self.name} waits for it at {self.place}"
        if self.timeout and not self.waits and now - self.progress > self.timeout:
            return f"{self.name} has made no progress for {self.timeout:g} s; it is at {self.place} (--timeout is how long it may)"
        # A message about progress takes up to an interval for each rank of the ring.
        stalled = now - max(self.latest_progress, self.progress)
        if self.timeout and self.waits and stalled > self.timeout + self.size * self.interval:
            return (f"no rank has made progress for {self.timeout:g} s; {self.name} waits for others at {self.place} (--timeout "
                    "is how long it may)")
        return None

    # ---- the end of all

    def _excepthook(self, kind, error, trace):
        """``sys.excepthook``: print the exception that ends the program, and end the other ranks, which wait for this one."""
        if hasattr(sys, "ps1") or self.ended.is_set():      # at a prompt an exception ends nothing
            self.hook(kind, error, trace)
            return
        wait_for_root_error(self.rank)      # what goes wrong on all ranks is shown once
        self.hook(kind, error, trace)
        line = str(error) if isinstance(error, Error) else traceback.format_exception_only(kind, error)[-1].strip()
        self._abort_all(f"{self.name}: {line}", 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _abort_all(self, line, status=1):
        """Print a line and end all ranks; other output is flushed first, as `abort` ends the process at once."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):   # closed, or none
                stream.flush()
        with contextlib.suppress(OSError):
            os.write(2, f"minicaffe: {line}; all ranks end\n".encode())    # sys.stderr may be locked by the main thread
        abort(self.comm, status)


def _place(thread):
    """Return whether a thread is in minicaffe, whether it waits for other ranks there, and where, as text.

    Only time in minicaffe counts as a lack of progress, and only a rank that does not wait for others is the cause of one.
    """
    frame = innermost = sys._current_frames().get(thread)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("minicaffe."):
        frame = frame.f_back
    if frame is None:
        return False, False, "the program"
    name = innermost.f_globals.get("__name__", "")
    return True, name.startswith("minicaffe.parallel."), f"{innermost.f_code.co_filename}:{innermost.f_lineno}"
