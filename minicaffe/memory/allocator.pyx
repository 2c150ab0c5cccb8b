"""Allocators: each allocates memory of one place.

Caffe called malloc, cudaMallocHost and cudaMalloc directly, so a NumPy array could outlive its memory. Caffe2 had one
replaceable allocator for the CPU. Here each place has one. On the CPU it is plain by default, as in both: the C library keeps
freed memory itself, so a cache above it saves little time and holds more memory.

The blocks of an `Allocator` are aligned to 64 bytes. Allocators wrap allocators, the `upstream`: `LimitAllocator` and
`FailAllocator` here; those that cache are in modules of their own (``caching.pyx``, ``buddy.pyx``). A `Buffer`
(``buffer.pyx``) is one block: it calls `alloc_ptr` when it is made and `free_ptr` when its last reference is dropped.

A subclass in Cython overrides `alloc_ptr` and `free_ptr`. It either calls `remember` and `forget`, which keep sizes and
counters and reject unknown pointers, or keeps its own counts in `usage`. A subclass in Python overrides `alloc` and `free`;
`Allocator` keeps its records (docs/own_allocators.md). All run under the GIL; code that releases it must first make its
records consistent.
"""

cimport cython
from cython.operator cimport dereference
from libc.stdlib cimport free as c_free
from posix.stdlib cimport posix_memalign

from minicaffe.memory.reporter cimport Reporter, MemoryCounts

from numbers import Integral
from time import perf_counter_ns

from minicaffe.errors import ConfigError, Error, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.red_zones import RedZones
from minicaffe.memory.reporter import Stats, live, reporter
from minicaffe.memory.sizes import checked

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000
    #define Py_IsFinalizing _Py_IsFinalizing
    #endif
    """
    bint Py_IsFinalizing() noexcept

cdef extern from *:
    """
    #include <sys/mman.h>
    #include <unistd.h>
    // Ask Linux for pages of 2 MiB in a block of 1 MiB or more: a training step takes 0.76 to 0.95 of its time with pages of 4 KiB.
    // The pages at the block's ends may belong to other blocks, too, which does no harm. An error is none: it stays as it was.
    static void ask_for_huge_pages(void* block, size_t nbytes) {
    #ifdef MADV_HUGEPAGE
      if (nbytes < 1 << 20) return;
      const size_t page = size_t(sysconf(_SC_PAGESIZE)), first = size_t(block) / page * page;
      madvise(reinterpret_cast<void*>(first), size_t(block) + nbytes - first, MADV_HUGEPAGE);
    #endif
    }
    """
    void ask_for_huge_pages(void* block, size_t nbytes)

cdef enum:
    ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

cdef Reporter _reporter = reporter


@cython.no_gc_clear     # at exit the collector may clear an allocator before the last Buffer that it has to free
cdef class Allocator:
    """Allocate blocks of `place` (abstract).

    Parameters
    ----------
    place : CPUPlace, PinnedPlace or CUDAPlace
    upstream : Allocator, optional
        The source of the memory, of the same place.
    """

    def __cinit__(self, *_args, **_options):
        self.usage = MemoryCounts()

    def __init__(self, place, Allocator upstream=None):
        self.place = place
        self.upstream = upstream

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        """Return a block of at least `nbytes` bytes, never NULL; raise OutOfMemoryError if there is none.

        This implementation is for allocators written in Python: it calls `alloc`.
        """
        cdef str name = type(self).__name__
        if type(self).alloc is Allocator.alloc:
            raise Error(f"{name} must override alloc")
        if self.place is None:
            raise Error(f"{name} has no place; its __init__ must call super().__init__(place, upstream)")
        address = self.alloc(nbytes)
        if not isinstance(address, int):
            raise WrongTypeError(f"{name}.alloc must give an address (int), got {type(address).__name__}")
        if not 0 < address < 1 << 64 or address % ALIGNMENT != 0:
            raise PointerError(f"{name}.alloc gave {address:#x}; an address must be a multiple of {ALIGNMENT} other than 0")
        if self.sizes.count(address):
            raise PointerError(f"{name}.alloc gave {address:#x}, where a block of {self.sizes[address]:,} bytes lives already")
        self.remember(<void*><size_t>address, nbytes)
        return <void*><size_t>address

    cdef int free_ptr(self, void* ptr) except -1:
        """Free a block; raise PointerError if it is not a live block of this allocator."""
        self.forget(ptr)
        if not Py_IsFinalizing():   # modules that Python code needs may be gone by now; the process's memory is freed anyway
            self.free(<size_t>ptr)
        return 0

    cdef size_t reserved(self) noexcept:
        """Return the bytes held from `upstream`, in use or cached, for `stats` and `out_of_memory`."""
        return self.usage.live

    cdef size_t largest_free(self) noexcept:
        """Return the bytes of the largest free block that is held, 0 without a cache; for `out_of_memory`."""
        return 0

    cdef void remember(self, void* ptr, size_t nbytes) noexcept:
        """Record a new block, in an override of `alloc_ptr`: `forget` needs its size."""
        self.sizes[<size_t>ptr] = nbytes
        self.usage.count_alloc(nbytes)

    cdef int forget(self, void* ptr) except -1:
        """Remove the record of a block, in an override of `free_ptr`; raise PointerError if no live block begins at `ptr`."""
        known = self.sizes.find(<size_t>ptr)
        if known == self.sizes.end():
            raise no_live_block(self, <size_t>ptr)
        self.usage.count_free(dereference(known).second)
        self.sizes.erase(known)
        return 0

    def red_zones(self):
        """Return the `RedZones` of the memory, for allocators that split it: those of `upstream`, else with 0 bytes."""
        return RedZones() if self.upstream is None else self.upstream.red_zones()

    def memory_info(self):
        """Return ``(free, total)`` bytes of the device itself, None if unknown; those of `upstream` if there is one."""
        return None if self.upstream is None else self.upstream.memory_info()

    def empty_cache(self):
        """Return held memory that is not in use to `upstream`, and so on down to the driver."""
        if self.upstream is not None:
            self.upstream.empty_cache()

    def malloc(self, nbytes, stream):
        """Allocate a block for work on `stream`, whichever is current; return its address.

        Once freed, it is reused on other streams only after `stream` has finished the work queued before the free.

        Parameters
        ----------
        nbytes : int
        stream : int or cuda.Stream

        Raises
        ------
        OutOfMemoryError
        ConfigError
            If the allocator does not distinguish streams.
        """
        checked(nbytes)
        raise ConfigError(f"a {type(self).__name__} gives no memory for a chosen stream; use a CachingAllocator or BuddyAllocator")

    def record_stream(self, address, stream):
        """Record that `stream`, too, uses the block at `address`: once freed, it is not reused before `stream` reached that point.

        An allocator without a cache does nothing: a driver's own free waits for all streams. Neither does one of pageable host
        memory, which a copy has read when the call returns.

        Parameters
        ----------
        address : int
        stream : int or cuda.Stream

        Raises
        ------
        PointerError
            If no live block starts at `address` (allocators that cache).
        ConfigError
            If the allocator was made without `streams`.
        """
        bytes_of(address, "address")
        if self.upstream is not None:
            self.upstream.record_stream(address, stream)

    def alloc(self, nbytes):
        """Allocate `nbytes` bytes; return the address, a multiple of 64. Pair it with `free`. A `Buffer` frees itself instead.

        An allocator written in Python overrides it. There ``super().alloc(nbytes)`` allocates from `upstream`.

        Raises
        ------
        OutOfMemoryError
        WrongTypeError
            If `nbytes` is not an int from 0 to below 2^64.
        """
        return <size_t>provider(self, "alloc").alloc_ptr(checked(nbytes))

    def free(self, address):
        """Free the block at `address`; in an override, ``super().free(address)`` frees it in `upstream`.

        Raises
        ------
        PointerError
            If no block of this allocator lives there.
        """
        provider(self, "free").free_ptr(<void*>bytes_of(address, "address"))

    def stats(self):
        """Return `Stats`: live, peak and reserved bytes, live count and number of allocations."""
        return Stats(self.usage.live, self.usage.peak, self.reserved(), self.usage.count, self.usage.allocations)


cdef Allocator provider(Allocator allocator, str call):
    """Return the allocator whose pointer functions Allocator's `alloc` and `free` call: itself, or an override's upstream."""
    if type(allocator).alloc is Allocator.alloc:
        return allocator
    if allocator.upstream is None:
        raise Error(f"{type(allocator).__name__} has no upstream, so it must override {call} and not call super().{call}()")
    return allocator.upstream


@cython.final
@cython.no_gc_clear
cdef class SystemAllocator(Allocator):
    """Allocate every block with the C library.

    Parameters
    ----------
    place : place, default CPUPlace()
    alignment : int
        Addresses are multiples of it; a power of two, at least 64.
    """
    cdef readonly size_t alignment

    def __init__(self, place=CPUPlace(), alignment=ALIGNMENT):
        super().__init__(place)
        if not isinstance(alignment, Integral) or not ALIGNMENT <= alignment < 1 << 48 or alignment & (alignment - 1):
            raise ConfigError(f"must be a power of two from {ALIGNMENT} to 2^47, got {alignment}",
                              field="SystemAllocator.alignment")
        self.alignment = alignment

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef void* ptr = NULL
        if posix_memalign(&ptr, self.alignment, max(nbytes, 1)) != 0:    # a block of 0 bytes needs a unique address, too
            raise out_of_memory(self, nbytes, "what the system gives")
        ask_for_huge_pages(ptr, nbytes)
        self.remember(ptr, nbytes)
        return ptr

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        c_free(ptr)
        return 0


@cython.final
@cython.no_gc_clear
cdef class LimitAllocator(Allocator):
    """Raise OutOfMemoryError instead of letting more than `max_bytes` (int) of blocks from `upstream`, an Allocator, be live."""
    cdef readonly size_t max_bytes

    def __init__(self, Allocator upstream not None, max_bytes):
        super().__init__(upstream.place, upstream)
        self.max_bytes = checked(max_bytes, "max_bytes")

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        if nbytes > self.max_bytes - self.usage.live:
            raise out_of_memory(self, nbytes, f"{self.max_bytes:,} bytes")
        cdef void* ptr = self.upstream.alloc_ptr(nbytes)
        if nbytes > self.max_bytes - self.usage.live:   # another thread has allocated since the first check
            self.upstream.free_ptr(ptr)
            raise out_of_memory(self, nbytes, f"{self.max_bytes:,} bytes")
        self.remember(ptr, nbytes)
        return ptr

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        return self.upstream.free_ptr(ptr)


@cython.final
@cython.no_gc_clear
cdef class FailAllocator(Allocator):
    """Make the `nth` allocation from now on (counted from 1) fail, pass all others to `upstream`: for tests of error paths."""
    cdef public size_t nth      # each allocation decreases it; the one that makes it 0 fails

    def __init__(self, Allocator upstream not None, nth):
        super().__init__(upstream.place, upstream)
        self.nth = checked(nth, "nth")

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        self.nth -= 1
        if self.nth == 0:
            raise out_of_memory(self, nbytes, "one allocation less than this")
        cdef void* ptr = self.upstream.alloc_ptr(nbytes)
        self.remember(ptr, nbytes)
        return ptr

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        return self.upstream.free_ptr(ptr)


def nanoseconds(Allocator allocator not None, size_t nbytes, int times):
    """Return the mean nanoseconds of one alloc and one free of `nbytes` bytes, called `times` times from C, for benchmarks."""
    cdef int _i
    start = perf_counter_ns()
    for _i in range(times):
        allocator.free_ptr(allocator.alloc_ptr(nbytes))
    return (perf_counter_ns() - start) / times


cdef size_t bytes_of(value, str what) except? <size_t> -1:
    """Convert `value`, bytes or an address; raise WrongTypeError naming `what` unless it is an int from 0 to below 2^64."""
    if type(value) is not int or not 0 <= value < 1 << 64:      # the usual case calls no Python function
        value = checked(value, what)
    return value


cdef no_live_block(Allocator allocator, size_t address):    # returns the error of a wrong or second free
    return PointerError(f"{type(allocator).__name__}: no live block starts at {address:#x}: it was freed before, lies inside a "
                        "block, or comes from another allocator")


cdef out_of_memory(Allocator allocator, size_t nbytes, str limit):
    """Return the OutOfMemoryError for a request of `nbytes` that `allocator` cannot serve; `limit` is its limit in words.

    Its attributes, for programs: `place`, `nbytes`, `live`, `reserved`, `largest_free`, `free` and `total` of the device
    (None where unknown), `limit`, and `holders`: up to ten ``(name, bytes)``, the largest first.
    """
    bytes_by_name = {}
    for block in live():
        if block.place == allocator.place:
            bytes_by_name[block.name] = bytes_by_name.get(block.name, 0) + block.nbytes
    holders = sorted(bytes_by_name.items(), key=lambda item: (-item[1], item[0]))[:10]
    free, total = allocator.memory_info() or (None, None)
    text = [f"{allocator.place}: no memory for {nbytes:,} bytes; live are {allocator.usage.live:,} bytes, the limit is "
            f"{limit}"]
    if allocator.reserved() != allocator.usage.live:
        text.append(f"{allocator.reserved():,} bytes are reserved, the largest free block in them has "
                    f"{allocator.largest_free():,}")
    if total is not None:
        text.append(f"{free:,} of the device's {total:,} bytes are free")
    if holders:
        text.append("largest holders: " + ", ".join(f"{name or '(no name)'} {size:,}" for name, size in holders))
    remedies = "make batches or images smaller"
    if allocator.upstream is not None:
        remedies += ", call minicaffe.memory.empty_cache(), choose another allocator"
    if not allocator.place.on_host:
        remedies += ", close other programs that use the device"
    text.append(remedies)
    error = OutOfMemoryError("; ".join(text))
    error.place, error.nbytes, error.live, error.reserved = allocator.place, nbytes, allocator.usage.live, allocator.reserved()
    error.largest_free, error.free, error.total, error.holders = allocator.largest_free(), free, total, holders
    error.limit = limit
    return error


cdef str limit_text(error):
    """Return the limit behind an OutOfMemoryError of the upstream, in words, for `out_of_memory` of the next allocator."""
    return getattr(error, "limit", None) or f"that of the upstream allocator ({error})"
