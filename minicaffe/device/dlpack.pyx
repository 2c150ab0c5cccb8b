"""Arrays of other libraries by DLPack (dmlc/dlpack, dlpack.h): a test whether one is on a GPU, and conversion to a DeviceArray.

Only unversioned capsules (named ``dltensor``) are read; every library with DLPack exports them.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t, uintptr_t

import numpy as np

from minicaffe.device.strided import DeviceArray
from minicaffe.errors import WrongTypeError

cdef enum:
    ON_CUDA = 2
    ON_CUDA_MANAGED = 13

cdef struct DLDevice:
    int32_t kind
    int32_t index

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides        # in elements; NULL: contiguous in C order
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor tensor
    void* manager
    void (*deleter)(DLManagedTensor*) noexcept

KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}     # DLDataTypeCode; bfloat16 (4) and others are no types of NumPy


cdef class _Owner:
    """Keeps the memory of a capsule alive until this object is deallocated."""

    cdef DLManagedTensor* managed

    def __dealloc__(self):
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)


def is_on_gpu(array):
    """Return whether an array of any library is on a GPU, by its ``__dlpack_device__`` or ``__cuda_array_interface__``."""
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] in (ON_CUDA, ON_CUDA_MANAGED)
    return hasattr(array, "__cuda_array_interface__")


def from_capsule(capsule, str name):
    """Convert the capsule from ``array.__dlpack__(stream=...)``, for an array on a GPU, to a DeviceArray that owns the memory.

    Raises
    ------
    WrongTypeError
        If it is no such capsule, or its elements have no type in NumPy. The message has `name`.
    """
    cdef _Owner owner = _Owner()
    cdef DLTensor tensor
    cdef int i
    if not PyCapsule_IsValid(capsule, b"dltensor"):
        raise WrongTypeError("__dlpack__ must return a capsule 'dltensor' that was not used before", field=name)
    owner.managed = <DLManagedTensor*> PyCapsule_GetPointer(capsule, b"dltensor")
    PyCapsule_SetName(capsule, b"used_dltensor")
    tensor = owner.managed.tensor
    if tensor.device.kind not in (ON_CUDA, ON_CUDA_MANAGED):
        raise WrongTypeError(f"its memory is of DLPack's device type {tensor.device.kind}, which is no GPU of CUDA", field=name)
    try:
        if tensor.dtype.lanes != 1:
            raise TypeError
        dtype = np.dtype(f"{KINDS[tensor.dtype.code]}{tensor.dtype.bits // 8}")
    except (KeyError, TypeError):
        raise WrongTypeError(f"elements of DLPack's type code {tensor.dtype.code}, {tensor.dtype.bits} bits and "
                             f"{tensor.dtype.lanes} lanes have no type in NumPy; convert the array to float32 first",
                             field=name) from None
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    strides = None if tensor.strides == NULL else [tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim)]
    return DeviceArray(<uintptr_t> tensor.data + tensor.byte_offset, shape, dtype, owner, strides)
