"""The buddy allocator (after PaddlePaddle's ``memory/detail/buddy_allocator.cc``).

Memory comes from `upstream` in pools whose size is a power of two. A pool is cut in halves until a chunk just fits;
the two halves of one cut are buddies, and two free buddies become one chunk again. Here sizes are powers of two, so
that a buddy is found by flipping one bit of the offset; Paddle cuts to the exact size and links neighbours instead.
The price is that up to half of a chunk stays unused. Requests beyond the largest pool go to `upstream` as they are.

Each chunk starts with a 64-byte `Header`, hence host memory only. Its guard word says free or in use and holds the
address, so a block that is freed twice, or was written beyond its chunk, is found when it or its neighbour is freed.

Nothing here releases the GIL, but `upstream` may, and recording an event may run the garbage collector and so `free`:
before each such call the books are in order.
"""

cimport cython
from cython.operator cimport dereference, predecrement
from libc.stdint cimport uint64_t
from libcpp.map cimport map as ordered_map

from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.reporter cimport Reporter

from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory.reporter import reporter

cdef Reporter _reporter = reporter

cdef enum:
    HEADER = 64     # bytes in front of each block: keeps the block on the 64-byte grid of the pool
    ORDERS = 48     # chunk sizes: min_chunk << 0 ... min_chunk << 47

cdef uint64_t IN_USE = 0x6d636275736564ff
cdef uint64_t FREE = 0x6d63667265656400

cdef struct Header:
    uint64_t guard      # IN_USE or FREE, xor the header's address; 0 where no chunk starts any more
    size_t nbytes       # asked for by the user, while in use
    Header* previous    # in the list of free chunks of this order, while free
    Header* next
    int order           # the chunk is min_chunk << order bytes long, header included
    int pool_order


@cython.final
@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class BuddyAllocator(Allocator):
    """Serve blocks from pools of power-of-two size.

    Parameters
    ----------
    upstream : Allocator
        Of host memory; gives the pools.
    min_chunk : int
        Smallest chunk in bytes, 64 of them header; a power of two, at least 128.
    pool : int
        Bytes of the first pool; a power of two. Each further pool is twice as large as the last, up to `max_pool`.
    max_pool : int
        Bytes of the largest pool; a power of two. What does not fit goes to `upstream`.

    Notes
    -----
    The largest empty pool is kept for the next request, the others go back to `upstream`; `trim` gives back all.
    """
    cdef Allocator upstream
    cdef readonly size_t min_chunk
    cdef Header* free_lists[ORDERS]
    cdef ordered_map[size_t, int] pools     # address -> order
    cdef int next_order                     # of the pool to be taken next
    cdef int max_order
    cdef int empty_pools

    def __init__(self, Allocator upstream not None, size_t min_chunk=256, size_t pool=1 << 20,
                 size_t max_pool=1 << 26):
        super().__init__(upstream.place)
        if not self.place.on_host:
            raise ConfigError(f"keeps its headers in the memory itself, which {self.place} does not allow; "
                              "use the caching allocator there", field="BuddyAllocator.upstream")
        for field, nbytes, least in (("min_chunk", min_chunk, 2 * HEADER), ("pool", pool, min_chunk),
                                     ("max_pool", max_pool, pool)):
            if nbytes < least or nbytes & (nbytes - 1):
                raise ConfigError(f"must be a power of two and at least {least}, got {nbytes}",
                                  field=f"BuddyAllocator.{field}")
        self.upstream = upstream
        self.min_chunk = min_chunk
        self.next_order = (pool // min_chunk).bit_length() - 1
        self.max_order = (max_pool // min_chunk).bit_length() - 1
        if self.max_order >= ORDERS:
            raise ConfigError(f"must be less than 2**{ORDERS} times min_chunk", field="BuddyAllocator.max_pool")

    def __dealloc__(self):
        # Whoever holds a Buffer from here holds this object, so only blocks of raw addresses can still be out.
        if self.upstream is not None:
            for pool in self.pools:
                self.upstream.free(<void*>pool.first)
            for large in self.sizes:
                self.upstream.free(<void*>large.first)

    cdef void* alloc(self, size_t nbytes) except NULL:
        cdef int wanted = 0
        cdef int order
        cdef Header* chunk
        cdef Header* half
        if nbytes > (self.min_chunk << self.max_order) - HEADER:
            return self.alloc_large(nbytes)
        while (self.min_chunk << wanted) < nbytes + HEADER:
            wanted += 1
        while True:
            order = wanted
            while order <= self.max_order and self.free_lists[order] == NULL:
                order += 1
            if order <= self.max_order:
                break
            self.grow(wanted)       # another thread may take what it brings, so look again
        chunk = self.free_lists[order]
        self.check(chunk, FREE)
        self.unlink(chunk)
        if order == chunk.pool_order:
            self.empty_pools -= 1
        chunk.guard = IN_USE ^ <uint64_t>chunk
        chunk.nbytes = nbytes
        self.usage.take(nbytes)
        while chunk.order > wanted:
            chunk.order -= 1
            half = <Header*>(<char*>chunk + (self.min_chunk << chunk.order))
            half.order = chunk.order
            half.pool_order = chunk.pool_order
            self.link(half)
            if _reporter.recording:
                self.tell("split", chunk)
        return <char*>chunk + HEADER

    cdef int free(self, void* ptr) except -1:
        cdef size_t base = self.pool_of(<size_t>ptr)
        if base == 0:
            self.forget(ptr)
            return self.upstream.free(ptr)
        cdef Header* chunk = <Header*>(<char*>ptr - HEADER)
        cdef size_t offset = <size_t>chunk - base
        cdef size_t nbytes
        cdef Header* buddy
        if offset % self.min_chunk != 0:
            raise PointerError(f"BuddyAllocator: {<size_t>ptr:#x} lies inside a pool, but no block starts there")
        self.check(chunk, IN_USE)
        nbytes = self.min_chunk << chunk.order
        if offset + nbytes < self.min_chunk << chunk.pool_order:
            self.check_neighbour(chunk, <Header*>(<char*>chunk + nbytes))
        self.usage.give(chunk.nbytes)
        while chunk.order < chunk.pool_order:
            buddy = <Header*>(base + (offset ^ (self.min_chunk << chunk.order)))
            if buddy.guard != FREE ^ <uint64_t>buddy or buddy.order != chunk.order:
                break
            self.unlink(buddy)
            chunk.guard = 0         # one of the two headers is overtaken; the lower one stays
            buddy.guard = 0
            if buddy < chunk:
                chunk = buddy
                offset = <size_t>chunk - base
            chunk.order += 1
            chunk.guard = IN_USE ^ <uint64_t>chunk
            chunk.nbytes = 0
            if _reporter.recording:
                self.tell("merge", chunk)
        self.link(chunk)
        if chunk.order == chunk.pool_order:
            self.empty_pools += 1
            if self.empty_pools > 1:
                self.drop_pool(self.smallest_empty_pool())
        return 0

    cdef void* alloc_large(self, size_t nbytes) except NULL:
        cdef void* ptr = self.upstream.alloc(nbytes)
        self.remember(ptr, nbytes)
        return ptr

    cdef int grow(self, int wanted) except -1:
        """Take one more pool; where the usual size is not to be had, one that just holds an order `wanted` chunk."""
        cdef int order = max(wanted, self.next_order)
        cdef Header* chunk
        try:
            chunk = <Header*>self.upstream.alloc(self.min_chunk << order)
        except OutOfMemoryError:
            self.trim()
            order = wanted
            chunk = <Header*>self.upstream.alloc(self.min_chunk << order)
        self.next_order = min(order + 1, self.max_order)
        chunk.order = chunk.pool_order = order
        self.pools[<size_t>chunk] = order
        self.link(chunk)
        self.empty_pools += 1
        if _reporter.recording:
            self.tell("pool taken", chunk)
        return 0

    cdef int drop_pool(self, Header* chunk) except -1:
        if chunk == NULL:
            raise PointerError("BuddyAllocator: the header of an empty pool was overwritten; the pool is kept")
        self.unlink(chunk)
        self.empty_pools -= 1
        self.pools.erase(<size_t>chunk)
        if _reporter.recording:
            self.tell("pool given back", chunk)
        return self.upstream.free(chunk)

    cpdef trim(self):
        """Give every empty pool back to `upstream`."""
        while self.empty_pools > 0:     # dropping one may run other code, so search anew
            self.drop_pool(self.smallest_empty_pool())

    cdef Header* smallest_empty_pool(self) noexcept:
        cdef Header* chunk
        cdef Header* smallest = NULL
        for pool in self.pools:
            chunk = <Header*>pool.first
            if chunk.guard == FREE ^ <uint64_t>chunk and chunk.order == chunk.pool_order:
                if smallest == NULL or chunk.order < smallest.order:
                    smallest = chunk
        return smallest

    cdef size_t reserved(self) noexcept:
        cdef size_t held = 0
        for pool in self.pools:
            held += self.min_chunk << pool.second
        for large in self.sizes:
            held += large.second
        return held

    cdef size_t pool_of(self, size_t address) noexcept:
        """Find the pool around `address`; 0 if there is none."""
        after = self.pools.upper_bound(address)
        if after == self.pools.begin():
            return 0
        predecrement(after)
        cdef size_t base = dereference(after).first
        return base if address - base < self.min_chunk << dereference(after).second else 0

    cdef void link(self, Header* chunk) noexcept:
        chunk.guard = FREE ^ <uint64_t>chunk
        chunk.previous = NULL
        chunk.next = self.free_lists[chunk.order]
        if chunk.next != NULL:
            chunk.next.previous = chunk
        self.free_lists[chunk.order] = chunk

    cdef void unlink(self, Header* chunk) noexcept:
        if chunk.previous != NULL:
            chunk.previous.next = chunk.next
        else:
            self.free_lists[chunk.order] = chunk.next
        if chunk.next != NULL:
            chunk.next.previous = chunk.previous

    cdef int check(self, Header* chunk, uint64_t expected) except -1:
        if chunk.guard == expected ^ <uint64_t>chunk:
            return 0
        address = f"{<size_t>chunk + HEADER:#x}"
        if chunk.guard == FREE ^ <uint64_t>chunk:
            raise PointerError(f"BuddyAllocator: the block at {address} is free already")
        if expected == IN_USE:
            raise PointerError(f"BuddyAllocator: no block starts at {address}, or its header was overwritten")
        raise PointerError(f"BuddyAllocator: the header of the free block at {address} was overwritten")

    cdef int check_neighbour(self, Header* chunk, Header* right) except -1:
        if right.guard == IN_USE ^ <uint64_t>right or right.guard == FREE ^ <uint64_t>right:
            return 0
        raise PointerError(f"BuddyAllocator: the block of {chunk.nbytes:,} bytes at {<size_t>chunk + HEADER:#x} was "
                           "written beyond its end, into the next header; it is not given back")

    cdef int tell(self, str kind, Header* chunk) except -1:
        return _reporter.event(kind, self.place, <size_t>chunk, self.min_chunk << chunk.order, "", "")
