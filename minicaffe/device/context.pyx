"""Where operations run now, the CPU or the stream of a device, and where new memory is taken. One choice for the process, so that
new threads inherit it. It is kept here alone: `compute_on` and `choose_gpu` write all of it at once, so that its parts agree.
"""

from minicaffe.device.threads cimport num_threads

cdef extern from *:
    """
    // The stream whose device this thread has made current, so that a launch need not ask the driver.
    static thread_local mc::cuda::Stream* active_stream = nullptr;
    """
    CudaStream* active_stream

cdef CudaStream* _stream = NULL     # NULL: the CPU
current_gpu = -1
cdef int _gpu_of_memory = 0         # see `gpu_of_memory`
cdef bint _pinned = False           # see `host_is_pinned`


cdef void set_active(CudaStream* stream) noexcept nogil:
    """Say that the device of `stream` is now current in this thread."""
    global active_stream
    active_stream = stream


cdef Context cpu_context() noexcept nogil:
    """Give the context of the CPU."""
    cdef Context on
    on.threads = num_threads()
    on.stream = NULL
    return on


cdef Context context() noexcept nogil:
    """Give the context of the present mode, ready for launches by the calling thread."""
    cdef Context on
    on.threads = num_threads()
    on.stream = _stream
    if on.stream != NULL and active_stream != on.stream:
        on.stream.activate(on.stream)
    return on


cdef bint on_device() noexcept nogil:
    """Whether the present mode is that of a device."""
    return _stream != NULL


cdef void choose_gpu(int index) noexcept:
    """Let GPU mode, now or later, compute on GPU `index`, and new device memory be taken there."""
    global current_gpu, _gpu_of_memory
    current_gpu = _gpu_of_memory = index


cdef void compute_on(CudaStream* stream) noexcept:
    """Let all operations run on `stream` from now on, and what goes to and from its GPU lie in page-locked memory; NULL: the CPU."""
    global _stream, _pinned
    if stream != NULL:
        choose_gpu(stream.device)
    _stream = stream
    _pinned = stream != NULL


def gpu_of_memory():
    """Give the number of the GPU on which new device sides are taken: the current one, unless `take_memory` chose another."""
    return _gpu_of_memory


def host_is_pinned():
    """Whether new host sides are page-locked: in GPU mode, unless `take_memory` said otherwise."""
    return _pinned


def take_memory(gpu=None, pinned=None):
    """Take new memory on that GPU, or in page-locked memory of the host or not, until the next choice of where to compute."""
    global _gpu_of_memory, _pinned
    _gpu_of_memory = _gpu_of_memory if gpu is None else gpu
    _pinned = _pinned if pinned is None else pinned


cdef int settle(const Context& on) except -1:
    """Raise what went wrong on the context's stream, if anything did."""
    if on.stream != NULL and on.stream.failed:
        return on.stream.raise_error(on.stream)
