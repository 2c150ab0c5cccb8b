"""Doubles: streams that get on only when a test says so, a device made of host memory, layouts whose bytes are backwards."""

import ctypes

from minicaffe.memory import DeviceSide, Layout, StreamOrder


class FakeStreams(StreamOrder):
    """Each event is ``(stream, number)``; it is done once `reach` has let the stream come that far."""

    def __init__(self):
        self.stream, self.calls, self.broken = 0, [], ""
        self.put, self.at = {}, {}  # by stream: events recorded, events done

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
        return self.at.get(event[0], 0) >= event[1]

    def wait(self, event):
        self._call("wait")
        self.at[event[0]] = max(self.at.get(event[0], 0), event[1])

    def reach(self, stream):
        """Let `stream` do all that was put on it."""
        self.at[stream] = self.put.get(stream, 0)


class HostDouble(DeviceSide):
    """It counts its calls, and its streams wait until they are released."""

    def __init__(self, place):
        super().__init__(place)
        self.calls, self.pending, self.broken = [], [], False

    def _do(self, name, work, *arguments):
        if self.broken:
            raise OSError(f"{name} failed")
        self.calls.append(name)
        work(*arguments)

    def copy_to_device(self, dst, src, nbytes):
        self._do("host to device", ctypes.memmove, dst, src, nbytes)

    def copy_to_host(self, dst, src, nbytes):
        self._do("device to host", ctypes.memmove, dst, src, nbytes)

    def zero(self, dst, nbytes):
        self._do("zero device", ctypes.memset, dst, 0, nbytes)

    def copy_within(self, dst, src, nbytes):
        self._do("device to device", ctypes.memmove, dst, src, nbytes)

    def stream(self):
        return 1

    def push(self, dst, src, nbytes, stream, fresh):
        self.fresh = fresh
        self._do("push", self.pending.append, (stream, lambda: ctypes.memmove(dst.address, src.address, nbytes)))

    def synchronise(self):
        while self.pending:
            self.pending.pop(0)[1]()


class Backwards(Layout):
    """`nbytes` bytes of an array in reverse order, after `padding` zeros."""

    def __init__(self, nbytes, padding, knows_others=False, on_device=False):
        super().__init__(nbytes + padding, nbytes, f"backwards after {padding}", on_device=on_device)
        self.padding, self.knows_others = padding, knows_others
        self.broken = False

    def __eq__(self, other):
        return isinstance(other, Backwards) and hash(self) == hash(other)

    def __hash__(self):
        return hash((self.plain_nbytes, self.padding, self.on_device))

    def arranged(self, plain):
        """The private bytes of an array."""
        return bytes(self.padding) + bytes(plain)[::-1]

    def plain(self, private):
        """The array in private bytes."""
        return private[self.padding:][::-1]

    def to_plain(self, plain, private, stream=0):
        assert (stream != 0) == self.on_device
        self._write(plain, self.plain(ctypes.string_at(private, self.nbytes)))

    def from_plain(self, private, plain, stream=0):
        assert (stream != 0) == self.on_device
        self._write(private, self.arranged(ctypes.string_at(plain, self.plain_nbytes)))

    def from_layout(self, private, source, other):
        if not self.knows_others or source.plain_nbytes != self.plain_nbytes:
            return False
        self._write(private, self.arranged(source.plain(ctypes.string_at(other, source.nbytes))))
        return True

    def _write(self, address, content):
        if self.broken:
            raise OSError("the reorder failed")
        ctypes.memmove(address, content, len(content))
