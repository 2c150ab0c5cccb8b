"""Layouts for tests: the bytes backwards, behind some zeros."""

import ctypes

from minicaffe.memory import Layout


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
