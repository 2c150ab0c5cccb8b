"""Streams that get on only when a test says so."""

from minicaffe.memory import StreamOrder


class FakeStreams(StreamOrder):
    """Each event is ``(stream, number)``; it is done once `reach` has let the stream come that far."""

    def __init__(self):
        self.stream = 0
        self.put = {}  # stream -> events recorded
        self.at = {}  # stream -> events done
        self.calls = []
        self.broken = ""

    def _call(self, name):
        self.calls.append(name)
        if self.broken == name:
            raise OSError(f"{name} failed")

    def current(self):
        return self.stream

    def record(self, stream):
        self._call("record")
        self.put[stream] = self.put.get(stream, 0) + 1
        return stream, self.put[stream]

    def done(self, event):
        self._call("done")
        stream, number = event
        return self.at.get(stream, 0) >= number

    def wait(self, event):
        self._call("wait")
        stream, number = event
        self.at[stream] = max(self.at.get(stream, 0), number)

    def reach(self, stream):
        """Let `stream` do all that was put on it."""
        self.at[stream] = self.put.get(stream, 0)
