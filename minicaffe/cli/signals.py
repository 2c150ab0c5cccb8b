"""Ctrl-C, SIGTERM and SIGHUP during a training: the handlers only note the signal, the solver asks.

Different from Caffe (signal_handler.cpp): SIGTERM, with which systemd, Docker and SLURM end a process, stops like Ctrl-C.
"""

import signal

EFFECTS = ("stop", "snapshot", "none")


class Signals:
    """A context in which SIGINT, SIGHUP and SIGTERM become actions of a solver: "stop", "snapshot" or "none".

    SIGTERM stops; `terminated` tells whether it did.
    """

    def __init__(self, sigint_effect="stop", sighup_effect="snapshot"):
        # In the order in which they are asked.
        self.effects = {signal.SIGTERM: "stop", signal.SIGHUP: sighup_effect, signal.SIGINT: sigint_effect}
        self.terminated = False
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
                    self.terminated |= number == signal.SIGTERM
                    return effect
        return "none"
