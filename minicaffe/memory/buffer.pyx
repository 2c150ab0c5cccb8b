"""Buffer: one block of memory, freed when its last reference is dropped, by a SyncedMemory or a NumPy view.

A Buffer may also wrap foreign memory, which it keeps alive and never frees. While a thread records a CUDA graph, blocks that it
drops are kept for the graph (`record_blocks`).
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)

from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.reporter cimport Reporter

import gc

from minicaffe.errors import ConfigError, OutOfMemoryError
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.reporter import reporter
from minicaffe.memory.sizes import checked

MOST = (1 << 64) - 1    # bytes

cdef Reporter _reporter = reporter
cdef dict _recordings = {}      # thread that records a graph -> (kept, pool), see `record_blocks`


@cython.no_gc_clear     # __dealloc__ needs allocator and usage
cdef class Buffer:
    """One block of memory, freed when the last reference is dropped.

    ``np.ndarray(shape, dtype, buffer=buf)`` is a view that keeps `buf` alive, writable unless it is `readonly`. Device memory
    has no views.

    Parameters
    ----------
    allocator : Allocator
    nbytes : int
    name : str
        Purpose of the block (``conv1 data``), for the reporter.
    stream : int or cuda.Stream, optional
        See `Allocator.malloc`; None: the current one.

    Raises
    ------
    OutOfMemoryError
        From the allocator; if a garbage collection frees memory, allocation is tried once more first.
    """

    def __init__(self, Allocator allocator not None, nbytes, str name="", stream=None):
        if type(nbytes) is not int or nbytes < 0 or nbytes > MOST:     # without a call, as training steps make Buffers
            nbytes = checked(nbytes)
        if self.place is not None:
            raise ConfigError("a Buffer is made once; __init__ was called again")
        cdef size_t live
        if _recordings and (recording := _recordings.get(this_thread())) is not None and recording[1].place == allocator.place:
            allocator = recording[1]    # the graph's pool
        try:
            self.ptr = alloc_block(allocator, nbytes, stream)
        except OutOfMemoryError:
            # Garbage in reference cycles may hold memory.
            live = allocator.usage.live
            gc.collect()
            if allocator.usage.live == live:
                raise
            self.ptr = alloc_block(allocator, nbytes, stream)
        self.allocator = allocator
        self.nbytes = nbytes
        self.place = allocator.place
        self.name = name
        self.usage = _reporter.add(self, self.place, nbytes)
        if _reporter.recording:
            _reporter.event("alloc", self.place, <size_t>self.ptr, nbytes, name, "")

    def __dealloc__(self):
        if self.usage is not None:
            _reporter.remove(self, self.usage, self.nbytes)     # first: the reporter must not list a dying Buffer
        if self.allocator is not None and _recordings and (recording := _recordings.get(this_thread())) is not None \
                and recording[1] is not self.allocator:
            recording[0].append(move_block(self))   # a recorded launch may use it
            return
        if self.allocator is not None:
            if _reporter.recording:     # before the block is freed and another thread may allocate it, and before merge events
                _reporter.event("free", self.place, <size_t>self.ptr, self.nbytes, self.name, "")
            self.allocator.free_ptr(self.ptr)

    def __getbuffer__(self, Py_buffer* view, int flags):    # for NumPy and memoryview
        if not self.place.on_host:
            raise BufferError(f"{self!r} is device memory; the host cannot access it")
        PyBuffer_FillInfo(view, self, self.ptr, self.nbytes, self.readonly, flags)

    cpdef Buffer toreadonly(self):
        """Return a read-only Buffer of the same memory, which keeps this one alive; this one if it is read-only."""
        cdef Buffer buffer
        if self.readonly:
            return self
        buffer = foreign_buffer(self.ptr, self.nbytes, self.place, self, self.name)
        buffer.readonly = True
        return buffer

    def record_stream(self, stream):
        """Record that `stream` uses the block, too: see `Allocator.record_stream`.

        Returns
        -------
        bool
            False for foreign memory without an allocator of ours: keep it alive yourself until `stream` is done with it.
        """
        owner = self
        while not isinstance(owner, Buffer) or (<Buffer>owner).allocator is None:
            if isinstance(owner, Buffer):
                owner = (<Buffer>owner).owner
            elif isinstance(owner, memoryview):
                owner = owner.obj
            else:
                owner = getattr(owner, "base", None)    # of a NumPy view
            if owner is None:
                return False
        (<Buffer>owner).allocator.record_stream(<size_t>(<Buffer>owner).ptr, stream)
        return True

    @property
    def address(self):
        """int: where the block starts."""
        return <size_t>self.ptr

    def __repr__(self):
        return f"<Buffer {self.name!r} {self.nbytes:,} bytes in {self.place} at {<size_t>self.ptr:#x}>"


cdef void* alloc_block(Allocator allocator, size_t nbytes, stream) except NULL:     # `stream` None: the current one
    return allocator.alloc_ptr(nbytes) if stream is None else <void*><size_t>allocator.malloc(nbytes, stream)


def record_blocks(kept, pool=None):
    """Begin the recording of a CUDA graph by this thread (cuda/graph.pyx), whose replays use the same blocks; None ends it.

    Parameters
    ----------
    kept : list or None
        Receives the blocks that this thread drops, which are then not freed.
    pool : Allocator
        Allocates this thread's new blocks of its place. Dropped blocks return to it, as no other thread allocates there.
    """
    if kept is None:
        _recordings.pop(this_thread(), None)
    else:
        _recordings[this_thread()] = kept, pool


cdef Buffer move_block(Buffer dying):
    """Move the block of `dying`, a Buffer in deallocation, to a new Buffer, so that a CUDA graph can keep it."""
    cdef Buffer buffer = foreign_buffer(dying.ptr, dying.nbytes, dying.place, None, dying.name)
    buffer.allocator = dying.allocator
    buffer.usage = _reporter.add(buffer, buffer.place, buffer.nbytes)
    return buffer


def wrap(size_t address, size_t nbytes, place, owner):
    """Return `foreign_buffer` without a name, for Python code."""
    return foreign_buffer(<void*>address, nbytes, place, owner, "")


cdef Buffer foreign_buffer(void* ptr, size_t nbytes, place, owner, str name):
    """Wrap `nbytes` at `ptr`, which `owner` keeps alive, in a Buffer, which keeps `owner` alive and never frees them."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.ptr = ptr
    buffer.nbytes = nbytes
    buffer.place = place
    buffer.owner = owner
    buffer.name = name
    return buffer


cdef Buffer wrap_array(source, size_t nbytes, str call, str name):
    """Wrap the memory of `source`, an object with the buffer protocol, in a Buffer called `name`, which never frees it.

    Raises ConfigError, with `call` in the message, unless it is contiguous, writable and has `nbytes` bytes.
    """
    cdef Py_buffer view
    try:
        owner = memoryview(source)      # keeps the export, so that a bytearray cannot be resized
        PyObject_GetBuffer(owner, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
    except (TypeError, ValueError, BufferError) as error:
        raise ConfigError(f"{call} needs contiguous writable memory, got {type(source).__name__}: {error}", field=name or None)
    cdef void* ptr = view.buf
    cdef size_t found = view.len
    PyBuffer_Release(&view)             # `owner` has an export of its own
    if found != nbytes or ptr == NULL:
        raise ConfigError(f"{call} needs {nbytes} bytes, got {found}", field=name or None)
    return foreign_buffer(ptr, nbytes, CPUPlace(), owner, name)
