"""The caching allocator of page-locked host memory (after PyTorch's CachingHostAllocator).

Locking pages costs far more than copying a batch, so blocks are kept. They are whole: sizes are powers of two, one free
list for each, nothing is split or merged; the price is that up to half of a block stays unused. Copies to and from a
device run later than the host, so a block that streams use (`record_stream`) is given out again only when events
recorded on them at its free are done. Unlike device memory, it belongs to no stream.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, limit_of, out_of_memory
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.streams cimport StreamOrder, StreamUses

from minicaffe.errors import OutOfMemoryError, PointerError
from minicaffe.memory.caching import CachingStats
from minicaffe.memory.reporter import reporter

cdef Reporter _reporter = reporter

cdef enum:
    LEAST = 9       # the smallest block has 1 << 9 = 512 bytes
    ORDERS = 48

cdef enum:
    FREE
    LIVE
    WAITING

cdef struct HostBlock:
    size_t asked        # by the user, while LIVE
    int order           # 1 << order bytes
    int state
    bint shared         # used on streams


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class CachingHostAllocator(Allocator):
    """Keep freed blocks of host memory for the next request of their size.

    Parameters
    ----------
    upstream : Allocator
        Of pinned (or any host) memory.
    streams : StreamOrder, optional
        Of the device that copies; without, blocks are free at once.

    Notes
    -----
    Source: PyTorch's CachingHostAllocator.cpp, before it got background threads.
    """
    cdef StreamUses uses
    cdef unordered_map[size_t, HostBlock] blocks    # address -> block, of all states
    cdef vector[vector[size_t]] cached              # by order: free blocks; the last one freed is the first one taken
    cdef size_t held, peak_held, waiting
    cdef size_t hits, upstream_allocations, retries
    cdef str refusal                                # what stood against the last block that could not be had

    def __init__(self, Allocator upstream not None, StreamOrder streams=None):
        super().__init__(upstream.place, upstream)
        self.uses = StreamUses(streams)
        self.cached.resize(ORDERS)

    def __dealloc__(self):
        if self.upstream is not None:
            for item in self.blocks:
                self.upstream.free_ptr(<void*>item.first)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef int order = LEAST
        cdef size_t address
        cdef HostBlock* block
        while order < ORDERS and (<size_t>1 << order) < nbytes:
            order += 1
        if order == ORDERS:
            raise out_of_memory(self, nbytes, f"{<size_t>1 << (ORDERS - 1):,} bytes for one block")
        if self.uses.open.size() > 0:
            self.take_back(False)
        address = self.take_cached(order)
        cdef bint hit = address != 0
        self.hits += hit
        if not hit:
            address = self.grow(order)
            if address == 0:
                raise out_of_memory(self, nbytes, self.refusal)
        block = &self.blocks[address]
        block.state = LIVE
        block.asked = nbytes
        self.usage.take(nbytes)
        if hit and _reporter.recording:
            _reporter.event("cache hit", self.place, address, <size_t>1 << order, "", "")
        return <void*>address

    cdef int free_ptr(self, void* ptr) except -1:
        cdef HostBlock* block = self.find_live(<size_t>ptr)
        if block.shared:
            block.state = WAITING       # first, so that a second free by another thread is found
            try:
                self.uses.retire(<size_t>ptr)
            except BaseException:
                block.state = LIVE
                raise
            block.shared = False
            self.waiting += <size_t>1 << block.order
        else:
            block.state = FREE
            self.cached[block.order].push_back(<size_t>ptr)
        self.usage.give(block.asked)
        return 0

    cdef size_t take_cached(self, int order) noexcept:
        """Take the address of a free block off its list; 0 if there is none."""
        if self.cached[order].empty():
            return 0
        cdef size_t address = self.cached[order].back()
        self.cached[order].pop_back()
        return address

    cdef size_t grow(self, int order) except? 0:
        """Take a block from `upstream`, after a failure from what streams and cache give back; 0 if there is no memory."""
        cdef size_t address = self.take_block(order)
        if address == 0:
            self.retries += 1
            self.take_back(True)
            address = self.take_cached(order)
        if address == 0:
            self.give_free_blocks()
            address = self.take_block(order)
        return address

    cdef size_t take_block(self, int order) except? 0:
        cdef size_t address
        cdef HostBlock* block
        try:
            address = <size_t>self.upstream.alloc_ptr(<size_t>1 << order)
        except OutOfMemoryError as error:
            self.refusal = limit_of(error)
            return 0
        self.held += <size_t>1 << order
        self.peak_held = max(self.peak_held, self.held)
        self.upstream_allocations += 1
        block = &self.blocks[address]
        block.order = order
        block.shared = False
        block.state = LIVE
        return address

    cdef int give_free_blocks(self) except -1:
        cdef int order
        cdef size_t address
        for order in range(ORDERS):
            while not self.cached[order].empty():
                address = self.take_cached(order)
                self.blocks.erase(address)
                self.held -= <size_t>1 << order
                self.upstream.free_ptr(<void*>address)      # may run other code, hence last
        return 0

    cdef int take_back(self, bint wait) except -1:
        """Make free what no stream uses any more; with `wait`, wait for that."""
        cdef size_t address = self.uses.pop(wait)
        cdef HostBlock* block
        while address != 0:
            block = &self.blocks[address]
            block.state = FREE
            self.waiting -= <size_t>1 << block.order
            self.cached[block.order].push_back(address)
            address = self.uses.pop(wait)
        return 0

    def empty_cache(self):
        """Wait for blocks that streams use, then give all free blocks back to `upstream`."""
        self.take_back(True)
        self.give_free_blocks()
        self.upstream.empty_cache()

    def record_stream(self, size_t address, size_t stream):
        """Say that `stream` uses the block at `address`: once freed, it is not given out before `stream` got there.

        Raises
        ------
        PointerError
            If no live block starts at `address`.
        ConfigError
            If the allocator was made without `streams`.
        """
        cdef HostBlock* block = self.find_live(address)
        self.uses.add(address, stream)
        block.shared = True

    cdef HostBlock* find_live(self, size_t address) except NULL:
        known = self.blocks.find(address)
        if known == self.blocks.end():
            raise PointerError(f"CachingHostAllocator: no live block starts at {address:#x}; it was given back, or comes "
                               "from another allocator")
        if dereference(known).second.state != LIVE:
            raise PointerError(f"CachingHostAllocator: {address:#x} is free already")
        return &dereference(known).second

    cdef size_t reserved(self) noexcept:
        return self.held

    cdef size_t largest_free(self) noexcept:
        cdef int order
        for order in range(ORDERS - 1, LEAST - 1, -1):
            if not self.cached[order].empty():
                return <size_t>1 << order
        return 0

    def stats(self):
        """Give `CachingStats`; nothing is ever split or merged."""
        return CachingStats(*Allocator.stats(self), self.peak_held, self.hits, self.upstream_allocations, 0, 0,
                            self.retries, self.waiting, 0, self.largest_free())
