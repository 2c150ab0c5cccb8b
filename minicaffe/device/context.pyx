"""The present place of operations, the CPU or the stream of a device, and the place of new memory. One choice for the process, so
that new threads inherit it. It is stored only here; `compute_on` and `choose_gpu` write all of it, so that it is consistent.
"""

from minicaffe.device.threads cimport num_threads

cdef extern from *:
    """
    // The stream whose device is current in this thread, so that a launch need not query the driver.
    static thread_local mc::cuda::Stream* active_stream = nullptr;
    """
    CudaStream* active_stream

cdef CudaStream* _stream = NULL     # NULL: the CPU
current_gpu = -1
cdef int _gpu_of_memory = 0         # see `gpu_of_memory`
cdef bint _pinned = False           # see `host_is_pinned`
cdef long long _mode_changes = 0


cdef void set_active(CudaStream* stream) noexcept nogil:
    """Store that the device of `stream` is now current in this thread, for the modules of cuda/, which make it so."""
    global active_stream
    active_stream = stream


cdef Context cpu_context() noexcept nogil:
    """Return the context of the CPU, also in GPU mode: for what runs on the host in every mode."""
    cdef Context on
    on.threads = num_threads()
    on.stream = NULL
    return on


cdef Context context() noexcept nogil:
    """Return the context of the current mode, ready for launches by the calling thread."""
    cdef Context on
    on.threads = num_threads()
    on.stream = _stream
    if on.stream != NULL and active_stream != on.stream:
        on.stream.activate(on.stream)
    return on


cdef bint on_device() noexcept nogil:
    """Return whether the current mode is GPU mode."""
    return _stream != NULL


cdef void choose_gpu(int index) noexcept:
    """Select GPU `index` for GPU mode, now or later, and for new device memory."""
    global current_gpu, _gpu_of_memory
    current_gpu = _gpu_of_memory = index


cdef void compute_on(CudaStream* stream) noexcept:
    """Run all operations on `stream` from now on, with page-locked memory for new host sides; NULL: run them on the CPU."""
    global _stream, _pinned, _mode_changes
    if stream != NULL:
        choose_gpu(stream.device)
    _mode_changes += stream != _stream
    _stream = stream
    _pinned = stream != NULL


def mode_change_count():
    """Return how often operations have moved between CPU and GPUs: a recorded CUDA graph is valid until this number changes."""
    return _mode_changes


def gpu_of_memory():
    """Return the number of the GPU for new device sides of SyncedMemory: the current one, or that of `set_memory_placement`."""
    return _gpu_of_memory


def host_is_pinned():
    """Return whether new host sides are page-locked: in GPU mode, unless `set_memory_placement` changed it."""
    return _pinned


def set_memory_placement(gpu=None, pinned=None):
    """Set the GPU of new device sides and whether new host sides are page-locked (None: unchanged), until mode or GPU change."""
    global _gpu_of_memory, _pinned
    _gpu_of_memory = _gpu_of_memory if gpu is None else gpu
    _pinned = _pinned if pinned is None else pinned


cdef int settle(const Context& on) except -1:
    """Raise the error of the context's stream, if it failed: launches without the GIL, before this call, only mark the stream."""
    if on.stream != NULL and on.stream.failed:
        return on.stream.raise_error(on.stream)
