"""Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP during a training: handlers store the signal, and the solver polls.

Different from Caffe (signal_handler.cpp): SIGTERM, with which systemd, Docker and SLURM end a process, stops like Ctrl-C. So does
SIGUSR1: every mpiexec forwards it and does not end its processes afterwards.
"""

import contextlib
import signal
import time

EFFECTS = ("stop", "snapshot", "none")
SAME_INTERRUPT_SECONDS = 1.0      # seconds: a terminal and mpiexec may both send the same Ctrl-C


class Signals(contextlib.ExitStack):
    """SIGINT, SIGHUP, SIGTERM and SIGUSR1 as actions of a solver, "stop", "snapshot" or "none", to the end of the ``with`` block.

    SIGTERM and SIGUSR1 stop; `terminated` is true after SIGTERM. Where Ctrl-C stops, a second one raises KeyboardInterrupt at once.
    """

    def __init__(self, sigint_effect="stop", sighup_effect="snapshot"):
        super().__init__()
        # In order of precedence.
        self.effects = {signal.SIGTERM: "stop", signal.SIGUSR1: "stop", signal.SIGHUP: sighup_effect, signal.SIGINT: sigint_effect}
        self.terminated = False
        self.pending = set()
        self.first_interrupt = None       # time of the first Ctrl-C
        for number in self.effects:
            self.callback(signal.signal, number, signal.signal(number, self._store_signal))

    def _store_signal(self, number, frame):
        """Store a signal for `poll`, as Python's handler: it may interrupt any step of an update, so it must not act itself."""
        self.pending.add(number)
        if number == signal.SIGINT and self.effects[number] == "stop":
            if self.first_interrupt is None:
                self.first_interrupt = time.monotonic()
            elif time.monotonic() - self.first_interrupt > SAME_INTERRUPT_SECONDS:
                raise KeyboardInterrupt

    def poll(self):
        """Return the action of a signal since the last call, the first in `effects`, and remove it; "none" without one.

        It is the solver's `action`, called after each update and before each batch of a test.
        """
        if self.pending:
            for number, effect in self.effects.items():
                if number in self.pending:
                    self.pending.discard(number)
                    self.terminated |= number == signal.SIGTERM
                    return effect
        return "none"
