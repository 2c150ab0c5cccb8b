"""The caching allocator of page-locked host memory (after THCCachingHostAllocator and PyTorch's CachingHostAllocator).

Locking pages costs far more than copying a batch, so blocks are kept. They are whole: nothing is split or merged. THC kept each
at the size first asked for and gave out the smallest that fits; here, as in later PyTorch, sizes are powers of two with one
free list for each, so that taking a block is no search; the price is that up to half of a block stays unused. Copies to and
from a device run later than the host, so a block that streams use (`record_stream`) is given out again only when events
recorded on them at its free are done. Unlike device memory, it belongs to no stream.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, limit_of, out_of_memory
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.streams cimport NO_STREAM, StreamAllocator, StreamOrder

from minicaffe.errors import OutOfMemoryError, PointerError
from minicaffe.memory.caching import CachingStats
from minicaffe.memory.reporter import reporter

cdef Reporter _reporter = reporter

cdef enum:
    LEAST = 9       # the smallest block has 1 << 9 = 512 bytes
    ORDERS = 48

cdef enum:
    FREE
    LIVE            # or waiting for streams

cdef struct HostBlock:
    size_t asked        # by the user, while LIVE
    int order           # 1 << order bytes
    int state


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class CachingHostAllocator(StreamAllocator):
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
    cdef unordered_map[size_t, HostBlock] blocks    # address -> block, of all states
    cdef vector[vector[size_t]] cached              # by order: free blocks; the last one freed is the first one taken
    cdef size_t peak_held, hits, upstream_allocations, retries
    cdef str refusal                                # what stood against the last block that could not be had

    def __init__(self, Allocator upstream not None, StreamOrder streams=None):
        super().__init__(upstream, streams)
        self.cached.resize(ORDERS)

    def __dealloc__(self):
        if self.upstream is not None:
            for item in self.blocks:
                self.drop(item.first)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef int order = LEAST
        cdef size_t address
        cdef HostBlock* block
        while order < ORDERS and (<size_t>1 << order) < nbytes:
            order += 1
        if order == ORDERS:
            raise out_of_memory(self, nbytes, f"{<size_t>1 << (ORDERS - 1):,} bytes for one block")
        if self.waiting.size() > 0:
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
        if self.users.size() == 0 or not self.retire(<size_t>ptr):
            self.list_free(<size_t>ptr, block)
        self.usage.give(block.asked)
        return 0

    cdef int reuse(self, size_t address) except -1:
        self.list_free(address, &self.blocks[address])
        return 0

    cdef void list_free(self, size_t address, HostBlock* block) noexcept:
        block.state = FREE
        self.cached[block.order].push_back(address)

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
            self.give_free()
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
        block.state = LIVE
        return address

    cdef int give_free(self) except -1:
        cdef int order
        cdef size_t address
        for order in range(ORDERS):
            while not self.cached[order].empty():
                address = self.take_cached(order)
                self.blocks.erase(address)
                self.held -= <size_t>1 << order
                self.upstream.free_ptr(<void*>address)      # may run other code, hence last
        return 0

    cdef size_t own_stream(self, size_t address) except? -2:
        self.find_live(address)
        return NO_STREAM

    cdef HostBlock* find_live(self, size_t address) except NULL:
        known = self.blocks.find(address)
        if known == self.blocks.end():
            raise PointerError(f"CachingHostAllocator: no live block starts at {address:#x}; it was given back, or comes "
                               "from another allocator")
        if dereference(known).second.state != LIVE or self.waiting.size() > 0 and self.waiting.count(address) > 0:
            raise PointerError(f"CachingHostAllocator: {address:#x} is free already")
        return &dereference(known).second

    cdef size_t largest_free(self) noexcept:
        cdef int order
        for order in range(ORDERS - 1, LEAST - 1, -1):
            if not self.cached[order].empty():
                return <size_t>1 << order
        return 0

    def stats(self):
        """Give `CachingStats`; nothing is ever split or merged."""
        cdef size_t waiting = 0
        for late in self.waiting:
            waiting += <size_t>1 << self.blocks[late.first].order
        return CachingStats(*Allocator.stats(self), self.peak_held, self.hits, self.upstream_allocations, 0, 0,
                            self.retries, waiting, 0, self.largest_free())
