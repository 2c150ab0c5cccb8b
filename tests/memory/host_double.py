"""A device made of host memory: it counts its calls, and its streams wait until they are released."""

import ctypes

from minicaffe.memory import DeviceSide


class HostDouble(DeviceSide):
    def __init__(self, place):
        super().__init__(place)
        self.calls = []
        self.pending = []
        self.broken = False

    def _do(self, name, work):
        if self.broken:
            raise OSError(f"{name} failed")
        self.calls.append(name)
        work()

    def copy_to_device(self, dst, src, nbytes):
        self._do("host to device", lambda: ctypes.memmove(dst, src, nbytes))

    def copy_to_host(self, dst, src, nbytes):
        self._do("device to host", lambda: ctypes.memmove(dst, src, nbytes))

    def zero(self, dst, nbytes):
        self._do("zero device", lambda: ctypes.memset(dst, 0, nbytes))

    def copy_within(self, dst, src, nbytes):
        self._do("device to device", lambda: ctypes.memmove(dst, src, nbytes))

    def stream(self):
        return 1

    def push(self, dst, src, nbytes, stream, fresh):
        self.fresh = fresh
        self._do("push", lambda: self.pending.append((stream, lambda: ctypes.memmove(dst.address, src.address, nbytes))))

    def synchronise(self):
        for _, copy in self.pending:
            copy()
        self.pending.clear()
