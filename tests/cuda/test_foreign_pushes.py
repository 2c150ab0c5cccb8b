"""Memory of other libraries that is copied on a stream stays alive until the copy is done, whatever else is copied before.

The owner of the memory overwrites it when it is deleted, as a library that gives it to another user. With ``deferred=1`` a copy runs
when something waits for it, so that one from page-locked memory has the new bytes; ``race=1`` finds a writer on a device.
"""

import pytest
from processes import run

pytestmark = pytest.mark.slow(10)    # all together

PROGRAM = """
from minicaffe.memory import CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry
minicaffe.set_mode_gpu()
N, device = 4096, cuda.current()
side = registry.device_side(CUDAPlace(0))
deleted = []

class OnHost:
    "Page-locked bytes of a library."

    def __init__(self, byte):
        self.address = memory.alloc(PinnedPlace(), N)
        self.__array_interface__ = dict(shape=(N,), typestr="|u1", data=(self.address, False), version=3)
        np.asarray(self)[:] = byte

    def __del__(self):
        deleted.append(self.address)
        np.ctypeslib.as_array((ctypes.c_uint8 * N).from_address(self.address))[:] = 99

class OnDevice:
    "Bytes of a library on the GPU."

    def __init__(self, byte):
        self.address = memory.alloc(CUDAPlace(0), N)
        self.__cuda_array_interface__ = dict(shape=(N,), typestr="|u1", data=(self.address, False), version=3, strides=None)
        values = np.full(N, byte, np.uint8)
        side.copy_to_device(self.address, values.ctypes.data, N)

    def __del__(self):
        deleted.append(self.address)
        side.zero(self.address, N)

def bytes_of(address):
    out = np.empty(N, np.uint8)
    side.copy_to_host(out.ctypes.data, address, N)
    return out

def on_host(address):
    return np.ctypeslib.as_array((ctypes.c_uint8 * N).from_address(address))

def others():
    "Copies that have nothing to do with it: they drop what is done."
    for _ in range(3):
        side.copy_to_device(elsewhere, zeros.ctypes.data, N)
        gc.collect()

elsewhere, zeros = memory.alloc(CUDAPlace(0), N), np.zeros(N, np.uint8)
stream = cuda.Stream(device)
"""
WAYS = {
    "from the host": "theirs, mine = OnHost(byte), memory.alloc(CUDAPlace(0), N); memory.copy((CUDAPlace(0), mine), np.asarray(theirs), stream=stream)",
    "from the device to the device": "theirs, mine = OnDevice(byte), memory.alloc(CUDAPlace(0), N); memory.copy((CUDAPlace(0), mine), theirs, stream=stream)",
    "from the device to the host": "theirs, mine = OnDevice(byte), memory.alloc(PinnedPlace(), N); memory.copy((PinnedPlace(), mine), theirs, stream=stream)",
}


@pytest.mark.parametrize("settings", ["deferred=1", "race=1"])
@pytest.mark.parametrize("way", WAYS)
def test_kept_until_copied(place, way, settings):
    run("import ctypes\n" + PROGRAM + f"""
for byte in range(1, 5):
    {WAYS[way]}
    del theirs
    others()
    stream.synchronize()
    found = on_host(mine) if {"to the host" in way} else bytes_of(mine)
    assert (found == byte).all(), (byte, found[:4])
device.synchronize()
others()
assert len(deleted) == 4, deleted       # and no longer
""", place, settings)
