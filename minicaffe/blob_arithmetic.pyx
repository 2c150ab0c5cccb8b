"""Arithmetic of a blob's memory, on the CPU or the device: update, sums, scaling (Caffe blob.cpp)."""

from minicaffe.device.context cimport Context, context, cpu_context, settle
from minicaffe.kernels.types cimport is_computed, item_size
from minicaffe.loops.sums.caffe cimport absolute_sum, square_sum
from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport HEAD_AT_GPU, HEAD_AT_GPU_PRIVATE, HEAD_AT_PRIVATE, SYNCED_GPU_PRIVATE, UNINITIALIZED
from minicaffe.memory.synced cimport SyncedMemory

from minicaffe.errors import ShapeError
from minicaffe.memory.place import CUDAPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock

cdef extern from "minicaffe/device/typed.hpp" nogil:
    void scaled "mc::map1<mc::Scaled>"(const Context& on, int dtype, long long n, const void* x, void* y, double factor)
    void minus "mc::map2<mc::Minus>"(const Context& on, int dtype, long long n, const void* w, const void* step, void* y)


cdef int check_arithmetic(int dtype) except -1:     # FLOAT and DOUBLE pass
    if not is_computed(dtype):
        raise ShapeError("an integer blob has no arithmetic")


cdef double total(SyncedMemory memory, int dtype, long long count, bint squares) except? -1:
    """Return the sum of `count` absolute values or `squares`; computed on the device in GPU mode if only that is current."""
    if memory.head == UNINITIALIZED or count == 0:
        return 0
    check_arithmetic(dtype)
    cdef Context on = context() if memory.head in (HEAD_AT_GPU, HEAD_AT_GPU_PRIVATE, SYNCED_GPU_PRIVATE) else cpu_context()
    cdef double sum = 0
    cdef double* out = &sum
    cdef Layout layout = memory.layout() if memory.head in (HEAD_AT_PRIVATE, HEAD_AT_GPU_PRIVATE) else None
    cdef const void* x
    cdef Buffer of_device
    if layout is not None and layout.dtype == dtype and layout.on_device == (on.stream != NULL):    # padding adds zeros
        x, count = memory.private_data_ptr(layout), <long long> layout.nbytes // item_size(layout.dtype)
    else:
        x = memory.cpu_data_ptr() if on.stream == NULL else memory.gpu_data_ptr()
    if on.stream != NULL:
        place = CUDAPlace(on.stream.device)     # the memory may be on a peer
        of_device = Buffer(registry.allocator(place), sizeof(double), "sum")
        out = <double*> of_device.ptr
    with device_lock:
        if squares:
            square_sum(on, dtype, count, out, x)
        else:
            absolute_sum(on, dtype, count, out, x)
        if on.stream != NULL:
            settle(on)
            registry.device_side(place).copy_to_host(<size_t> &sum, <size_t> out, sizeof(double))
    return sum


cdef int scale(SyncedMemory memory, int dtype, long long count, double factor) except -1:
    """Multiply all in place, in the present mode: on the CPU or the current GPU."""
    if memory.head == UNINITIALIZED or count == 0:
        return 0
    check_arithmetic(dtype)
    cdef Context on = context()
    cdef void* x = memory.mutable_cpu_data_ptr() if on.stream == NULL else memory.mutable_gpu_data_ptr()
    scaled(on, dtype, count, x, x, factor)
    return settle(on)


cdef int subtract(SyncedMemory data, SyncedMemory diff, int dtype, long long count) except -1:
    """Compute ``data -= diff``, in the present mode (`Blob.update`)."""
    check_arithmetic(dtype)
    cdef Context on = context()
    cdef void* w
    with device_lock:
        w = data.mutable_cpu_data_ptr() if on.stream == NULL else data.mutable_gpu_data_ptr()
        minus(on, dtype, count, w, diff.cpu_data_ptr() if on.stream == NULL else diff.gpu_data_ptr(), w)
        return settle(on)
