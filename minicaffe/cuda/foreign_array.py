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

LEGACY = 1  # of the CUDA Array Interface: the legacy default stream


class ForeignArray:
    """An array of another library, to be read on the current GPU between `begin` and `end`.

    Parameters
    ----------
    value : object with ``__cuda_array_interface__``
    name : str
        Of the field, for errors.

    Attributes
    ----------
    array : DeviceArray
    """

    def __init__(self, value, name):
        self.device, self.name, self.stream = current(), name, interface_stream(value)
        self.array = device_array(value, name)

    def begin(self):
        """Make the computing stream wait for the library's work so far.

        Raises
        ------
        DeviceError, WrongDeviceError
            If part of the array is not in GPU memory, or it is on a GPU whose memory the current GPU may not use.
        """
        if self.array.size:
            check_memory(self.array, self.name)
        if self.stream is not None:
            self.device.wait_for(self.stream)

    def end(self):
        """Make the library's later work wait for the work queued now; the memory is kept until that is done."""
        if self.stream is not None:
            self.device.make_stream_wait(self.stream)
        registry.device_side(CUDAPlace(self.device.index)).keep_alive(self.array)


def interface_stream(value):
    """Return the CUstream that an array's interface names; None if no wait is needed."""
    interface = getattr(value, "__cuda_array_interface__", None) or {}
    return None if interface.get("stream") == LEGACY else interface.get("stream")


def check_memory(array, name):
    """Raise unless a DeviceArray with elements lies within one allocation that the current GPU may use.

    Raises
    ------
    DeviceError, WrongDeviceError
        The message names the array `name`.
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
