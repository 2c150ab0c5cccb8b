"""Where operations run now: the CPU, or the stream of a device. One choice for the process, so that new threads inherit it."""

from minicaffe.device.threads cimport num_threads

cdef extern from *:
    """
    // The stream whose device this thread has made current, so that a launch need not ask the driver.
    static thread_local mc::cuda::Stream* active_stream = nullptr;
    """
    CudaStream* active_stream

cdef CudaStream* _stream = NULL     # NULL: the CPU


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


cdef int set_stream(CudaStream* stream) except -1:
    """Let all operations run on `stream` from now on; NULL means the CPU."""
    global _stream
    _stream = stream


cdef int settle(const Context& on) except -1:
    """Raise what went wrong on the context's stream, if anything did."""
    if on.stream != NULL and on.stream.failed:
        return on.stream.raise_error(on.stream)
