"""CUDA graphs: a sequence of launches, recorded once and launched as one.

During recording nothing runs. Each replay uses the same blocks of memory. The recording thread allocates device memory from a
pool shared by all graphs of the device: their replays run one after the other, on one stream, so they can share blocks. Blocks
from elsewhere that this thread drops are kept by the graph. Numbers that change between replays are stored on the device, in
memory of the graph: the learning rate, and how many random numbers were drawn before (device/stream.hpp: rate, drawn).
net/recorded.py records and replays graphs: of a training step, or of a forward pass.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t

from minicaffe.cuda.device cimport Device
from minicaffe.cuda.driver cimport check, exchange_context, may_call
from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.buffer cimport Buffer

import gc
from weakref import WeakValueDictionary

from minicaffe.errors import ConfigError, DeviceError
from minicaffe.memory.buffer import record_blocks
from minicaffe.memory.caching import CachingAllocator
from minicaffe.memory.place import CUDAPlace
from minicaffe.memory.registry import registry

cdef int _recording = 0         # how many graphs are being recorded
cdef bint _collects = False     # whether the garbage collector was on before the first of them
_pools = WeakValueDictionary()      # allocator of a device -> the pool of its graphs, freed with its last user


cdef struct Inputs:     # the arguments of `replay`
    double rate
    uint64_t drawn


@cython.no_gc_clear     # __dealloc__ needs device
cdef class Graph:
    """The recorded work of the computing stream of `device`; use it as ``with graph: ...``, then call `replay`.

    `nodes` (int) is the number of launches, copies and fills in the graph; 0 before it was recorded. The constructor raises
    OutOfMemoryError if the device has no memory for the inputs.
    """

    cdef readonly Device device
    cdef readonly size_t nodes
    cdef cydriver.CUgraphExec executable    # NULL: nothing was recorded
    cdef Inputs inputs
    cdef Buffer on_device   # a copy of `inputs`, which the recorded launches read
    cdef object pool        # the allocator of device blocks during the recording, kept alive for the replays
    cdef list kept          # Buffers from elsewhere, dropped during the recording, but used by the replays

    def __init__(self, Device device not None):
        self.device = device
        self.on_device = Buffer(registry.allocator(CUDAPlace(device.index)), sizeof(Inputs), "CUDA graph inputs")

    def __dealloc__(self):
        cdef cydriver.CUcontext before
        if self.executable != NULL and may_call():
            before = exchange_context(self.device.context)
            cydriver.cuGraphExecDestroy(self.executable)
            exchange_context(before)

    def __enter__(self):
        """Begin to record the launches of this thread on the device's computing stream; a graph is recorded once."""
        cdef cydriver.CUstream stream = <cydriver.CUstream> self.device.stream.handle
        if self.executable != NULL:
            raise ConfigError("this graph was recorded already; make another: cuda.Graph(device)")
        self.pool, self.kept = pool_of(CUDAPlace(self.device.index)), []
        (<Allocator> self.pool).upstream.empty_cache()     # the pool can use free blocks there only if they are large enough
        self.device.activate()
        check(cydriver.cuStreamBeginCapture(stream, cydriver.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture")
        pause_collector(True)
        record_blocks(self.kept, self.pool)     # new Buffers of this thread are from `pool`; others that it drops are put in `kept`
        cdef Inputs* inputs = <Inputs*> self.on_device.ptr
        self.device.stream.rate = &inputs.rate
        self.device.stream.drawn = <const unsigned long long*> &inputs.drawn
        return self

    def __exit__(self, kind, error, trace):
        """End recording; after a failure there is no graph, and the stream is usable as before."""
        cdef cydriver.CUstream stream = <cydriver.CUstream> self.device.stream.handle
        cdef cydriver.CUgraph graph = NULL
        self.device.stream.rate = NULL
        self.device.stream.drawn = NULL
        code = cydriver.cuStreamEndCapture(stream, &graph)
        if code != cydriver.CUDA_SUCCESS:   # the stream may still be in capture mode; if it is not, this call has no effect
            cydriver.cuStreamEndCapture(stream, &graph)
        record_blocks(None)
        pause_collector(False)
        try:
            if kind is None:
                check(code, "cuStreamEndCapture")
                check(cydriver.cuGraphGetNodes(graph, NULL, &self.nodes), "cuGraphGetNodes")
                check(cydriver.cuGraphInstantiate(&self.executable, graph, 0), "cuGraphInstantiate", (f"{self.nodes} nodes",))
                for block in self.kept:     # a replay may be running when the graph is deallocated
                    block.record_stream(self.device.compute_stream)
        finally:
            if self.executable == NULL:     # no replay is possible
                self.pool = self.kept = None
            if graph != NULL:
                cydriver.cuGraphDestroy(graph)
        return False

    def replay(self, double rate, unsigned long long drawn):
        """Launch the recorded work; the host does not wait. Raises DeviceError if nothing was recorded, or the launch fails.

        `rate` is the learning rate, `drawn` how many random numbers were drawn between recording and now: each recorded random
        stream begins that many numbers later.
        """
        cdef cydriver.CUstream stream = <cydriver.CUstream> self.device.stream.handle
        if self.executable == NULL:
            raise DeviceError("nothing was recorded in this graph")
        self.device.activate()
        self.inputs.rate, self.inputs.drawn = rate, drawn
        # The source is pageable memory, which the driver has read when the call returns.
        check(cydriver.cuMemcpyHtoDAsync(self.on_device.address, &self.inputs, sizeof(Inputs), stream), "cuMemcpyHtoDAsync",
              (hex(self.on_device.address), sizeof(Inputs)))
        check(cydriver.cuGraphLaunch(self.executable, stream), "cuGraphLaunch", (f"{self.nodes} nodes",))


def pool_of(place):
    """Return the pool shared by the graphs of a device: an allocator above the device's own, with free blocks for them alone."""
    allocator = registry.allocator(place)
    pool = _pools.get(allocator)
    if pool is None:
        pool = _pools[allocator] = CachingAllocator(allocator, registry.stream_order(place), red_zones=False)
    return pool


cdef int pause_collector(bint pause) except -1:
    """Disable Python's cyclic collector, or re-enable it after the last recording: memory that it frees would break a recording."""
    global _recording, _collects
    if pause:
        if _recording == 0:
            _collects = gc.isenabled()
            gc.disable()
        _recording += 1
        return 0
    _recording -= 1
    if _recording == 0 and _collects:
        gc.enable()
    return 0
