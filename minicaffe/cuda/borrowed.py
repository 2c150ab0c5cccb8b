"""Arrays of other libraries on a GPU, in order with what those libraries compute.

By the CUDA Array Interface an array names the stream of its work, if it has version 3; by DLPack its library lets our stream wait.
The legacy default stream, which PyTorch and CuPy use by default, waits for our computing stream, which waits for it.
"""

from minicaffe.cuda import device, driver
from minicaffe.device.dlpack import from_capsule
from minicaffe.device.strided import device_array
from minicaffe.errors import DeviceError, WrongTypeError
from minicaffe.memory.place import CUDAPlace
from minicaffe.memory.registry import registry

LEGACY = 1  # of the CUDA Array Interface: the legacy default stream


class Borrowed:
    """An array of another library, to be read on the current GPU between `begin` and `end`.

    Parameters
    ----------
    value : object with ``__cuda_array_interface__`` or ``__dlpack__``
        DLPack is used where the interface names no stream.
    name : str
        Of the field, for errors.

    Attributes
    ----------
    array : DeviceArray

    Raises
    ------
    WrongTypeError
        If its library does not give it, or its elements have no type in NumPy.
    """

    def __init__(self, value, name):
        self.device, self.name, self.stream = device.current(), name, named_stream(value)
        if self.stream is None and hasattr(value, "__dlpack__"):
            try:
                capsule = value.__dlpack__(stream=self.device.compute_stream)
            except BufferError as error:
                raise WrongTypeError(f"its library does not export it: {error}", field=name) from None
            self.array = from_capsule(capsule, name)
        else:
            self.array = device_array(value, name)

    def begin(self):
        """Let what is computed from now on come after the library's work so far.

        Raises
        ------
        DeviceError, WrongDeviceError
            If the array is not all memory of a GPU, or of one whose memory the current GPU may not use.
        """
        if self.array.size:
            check_memory(self.array, self.name)
        if self.stream is not None:
            self.device.wait_for(self.stream)

    def end(self):
        """Let the library's later work come after what is computed now; until that is done the memory is kept."""
        if self.stream is not None:
            self.device.let_wait(self.stream)
        registry.device_side(CUDAPlace(self.device.index)).hold(self.array)


def named_stream(value):
    """Return the CUstream that an array's interface names for its work; None if it is none that has to be waited for."""
    interface = getattr(value, "__cuda_array_interface__", None) or {}
    return None if interface.get("stream") == LEGACY else interface.get("stream")


def check_memory(array, name):
    """Raise unless a DeviceArray, which has elements, lies whole in memory of a device that the current GPU may use.

    Raises
    ------
    DeviceError, WrongDeviceError
        Naming `name`.
    """
    low, high = array.bounds()
    found = driver.allocation(low)
    if found is None:
        raise DeviceError(f"{name} is at {low:#x}, where the driver knows no memory of a device; was it freed?")
    owner, start, nbytes = found
    device.check_owner(owner, name)
    if high > start + nbytes:
        raise DeviceError(f"{name} reaches {high - start - nbytes} bytes beyond its allocation of {nbytes} bytes; its shape and "
                          "strides are not those of its memory")
