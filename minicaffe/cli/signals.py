"""Ctrl-C and SIGHUP during a training (Caffe signal_handler.cpp): the handlers only note the signal, the solver asks."""

import signal

EFFECTS = ("stop", "snapshot", "none")


class Signals:
    """A context in which SIGINT and SIGHUP become actions of a solver.

    Parameters
    ----------
    sigint_effect, sighup_effect : str
        "stop", "snapshot" or "none".
    """

    def __init__(self, sigint_effect="stop", sighup_effect="snapshot"):
        self.effects = {signal.SIGHUP: sighup_effect, signal.SIGINT: sigint_effect}  # SIGHUP is asked first
        self.pending = set()
        self.before = {}

    def __enter__(self):
        for number in self.effects:
            self.before[number] = signal.signal(number, lambda number, frame: self.pending.add(number))
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def poll(self):
        """Return the action of the first signal that came since the last call, and forget that signal."""
        if self.pending:
            for number, effect in self.effects.items():
                if number in self.pending:
                    self.pending.discard(number)
                    return effect
        return "none"
