"""Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP during a training: the handlers only note the signal, the solver asks.

Different from Caffe (signal_handler.cpp): SIGTERM, with which systemd, Docker and SLURM end a process, stops like Ctrl-C; so does
SIGUSR1, which every mpiexec passes on without ending its processes soon after.
"""

import signal
import time

EFFECTS = ("stop", "snapshot", "none")


PATIENCE = 1.0      # seconds: a terminal and mpiexec may both pass the same Ctrl-C on


class Signals:
    """A context in which SIGINT, SIGHUP, SIGTERM and SIGUSR1 become actions of a solver: "stop", "snapshot" or "none".

    SIGTERM and SIGUSR1 stop; `terminated` is true after SIGTERM. Where Ctrl-C stops, a second one raises KeyboardInterrupt at once.
    """

    def __init__(self, sigint_effect="stop", sighup_effect="snapshot"):
        # In the order in which they are asked.
        self.effects = {signal.SIGTERM: "stop", signal.SIGUSR1: "stop", signal.SIGHUP: sighup_effect, signal.SIGINT: sigint_effect}
        self.terminated = False
        self.pending = set()
        self.asked = None       # when Ctrl-C came first
        self.before = {}

    def __enter__(self):
        for number in self.effects:
            self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number, frame):
        self.pending.add(number)
        if number == signal.SIGINT and self.effects[number] == "stop":
            if self.asked is None:
                self.asked = time.monotonic()
            elif time.monotonic() - self.asked > PATIENCE:
                raise KeyboardInterrupt

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def poll(self):
        """Return the action of the first signal that came since the last call, and forget that signal."""
        if self.pending:
            for number, effect in self.effects.items():
                if number in self.pending:
                    self.pending.discard(number)
                    self.terminated |= number == signal.SIGTERM
                    return effect
        return "none"
