"""Arrays of other libraries on a GPU, synchronized with the work of those libraries.

With the CUDA Array Interface, version 3, an array names its stream. The legacy default stream, which PyTorch and CuPy use by
default, and our computing stream wait for each other.
"""

from minicaffe.cuda import driver, peers
from minicaffe.cuda.mode import current
from minicaffe.device.strided import device_array
from minicaffe.errors import DeviceError
from minicaffe.memory.place import CUDAPlace
from minicaffe.memory.registry import registry

LEGACY = 1  # the legacy default stream, as the CUDA Array Interface names it


class ForeignArray:
    """An array of another library, which a net gets as input: it is read on the current GPU between `begin` and `end`.

    `value` has a ``__cuda_array_interface__``; `name` is that of the field, for errors. The attribute `array` is a DeviceArray of
    the same memory, which keeps `value` alive.
    """

    def __init__(self, value, name):
        self.device, self.name, self.stream = current(), name, interface_stream(value)
        self.array = device_array(value, name)

    def begin(self):
        """Make the computing stream wait for the library's work so far.

        Raises DeviceError if part of the array is not in GPU memory; WrongDeviceError if the current GPU may not use that memory.
        """
        if self.array.size:
            check_memory(self.array, self.name)
        if self.stream is not None:
            self.device.wait_for(self.stream)

    def end(self):
        """Make the library's later work wait for our work queued so far, and keep the array alive until that is done."""
        if self.stream is not None:
            self.device.make_stream_wait(self.stream)
        registry.device_side(CUDAPlace(self.device.index)).keep_alive(self.array)


def interface_stream(value):
    """Return the CUstream (int) on which an array's library works; None if no wait is needed: none is named, or the legacy one."""
    interface = getattr(value, "__cuda_array_interface__", None) or {}
    return None if interface.get("stream") == LEGACY else interface.get("stream")


def check_memory(array, name):
    """Raise DeviceError or WrongDeviceError, with `name` for the array, unless it lies in one allocation usable by the current GPU.

    `array` is a DeviceArray with at least one element.
    """
    low, high = array.bounds()
    found = driver.allocation(low)
    if found is None:
        raise DeviceError(f"{name} is at {low:#x}, which is in no memory of a device; was it freed?")
    owner, start, nbytes = found
    peers.check_owner(owner, name)
    if high > start + nbytes:
        raise DeviceError(f"{name} reaches {high - start - nbytes} bytes beyond its allocation of {nbytes} bytes; its shape and "
                          "strides are not those of its memory")
