"""The buddy allocator (after PaddlePaddle's ``memory/detail/buddy_allocator.cc``).

Memory comes from `upstream` in pools whose size is a power of two. A pool is split in halves until a chunk just fits. The two
halves of one split are buddies; two free buddies are merged again. A chunk has min_chunk_size << order bytes, so that all chunks
of a pool are the nodes of one binary tree; Paddle splits off the exact size and links neighbours instead. The price is that up to
half of a chunk is unused. Requests larger than the largest pool are passed to `upstream` unchanged.

Paddle writes a header in front of each chunk. Here the tree is stored outside the pool, one byte for each node: the order of the
largest free chunk below it. So device and host memory are treated alike, and a program that writes beyond its blocks does not
damage the records. A pool belongs to the stream that it was allocated for (``streams.pyx``).

Overruns are detected in host memory: a guard word follows each block (so a block of 2^n bytes takes the next larger chunk), and
each freed chunk starts with another word. A write beyond a block is found when the block is freed, a write into a freed chunk
when the chunk is allocated again.

`upstream` may release the GIL, and recording an event may run the garbage collector and thus `free`: the records are consistent
before each such call.
"""

import itertools

cimport cython
from cython.operator cimport dereference, predecrement, preincrement
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, malloc
from libc.stdlib cimport free as c_free
from libc.string cimport memcpy, memset
from libcpp.map cimport map as ordered_map
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, bytes_of, limit_text, no_live_block, out_of_memory
from minicaffe.memory.red_zones cimport RedZones
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.provider cimport StreamOrder
from minicaffe.memory.streams cimport StreamAllocator

from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory.caching import Segment, SegmentBlock
from minicaffe.memory.reporter import live, reporter
from minicaffe.memory.sizes import checked
from minicaffe.memory.streams import stream_number

cdef Reporter _reporter = reporter

cdef enum:
    MIN_CHUNK = 64    # bytes: keeps blocks on the 64-byte grid
    ORDERS = 40         # chunk sizes: min_chunk_size << 0 ... min_chunk_size << 39

cdef uint64_t IN_USE = 0x6d636275736564ff       # the guard word, and the first word of a freed chunk, each XOR the block's address
cdef uint64_t FREED = 0x6d63667265656400
cdef size_t FREED_HERE = <size_t>-1     # as Pool.requested

cdef struct Pool:
    size_t base         # its address
    size_t stream       # as a number of `StreamOrder`; 0 without streams
    int order           # the pool has min_chunk_size << order bytes, in 1 << order leaves of min_chunk_size each
    # For each node the order of its largest free chunk plus one; 0: none. Node 1 is the pool, 2n and 2n + 1 are the
    # halves of n. Below a chunk that is in use, or free as a whole, all nodes are marked as wholly free.
    uint8_t* largest
    # For each leaf: the bytes of the block in use that starts there, plus one; 0 if none does; FREED_HERE if a free chunk
    # with FREED as its first word starts there. The system allocates these pages on first access.
    size_t* requested

cdef enum:
    FREE, WAITING, LIVE

cdef tuple CHUNK_STATES = ("free", "waiting", "live")

cdef struct Chunk:
    size_t base, stream     # of the pool
    int order
    size_t address, nbytes, requested
    int state


@cython.final
@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class BuddyAllocator(StreamAllocator):
    """Serve blocks from pools of power-of-two size.

    Parameters
    ----------
    upstream : Allocator
        The source of the pools, of host or device memory.
    min_chunk_size : int
        Smallest chunk in bytes; a power of two, at least 64.
    max_chunk_size : int
        Bytes of the largest pool; a power of two. Larger requests are passed to `upstream`.
    first_pool_size : int, optional
        Bytes of the first pool, 1 MiB where the others allow it; a power of two. Each further pool is twice as large as the
        last, up to `max_chunk_size`.
    streams : StreamOrder, optional
        Of the device; None: all work is assumed to be in order.

    Notes
    -----
    The largest empty pool of each stream is kept for the next request; other empty pools are returned to `upstream`.
    `empty_cache` returns all. The records of a pool take at most 10 bytes of host memory for each `min_chunk_size`.
    """
    cdef readonly size_t min_chunk_size
    cdef ordered_map[size_t, Pool*] pools   # base -> pool
    cdef RedZones zones
    cdef size_t guard                       # bytes after each block: a word on the host, a red zone on a device that has them
    cdef bint has_guard_words               # only in host memory: the CPU cannot write to device memory
    cdef int shift                          # min_chunk_size is 1 << shift
    cdef int next_order                     # of the next pool
    cdef int max_order                      # of the largest pools
    cdef int empty_pools                    # number of pools without a block in use, of all streams

    def __init__(self, Allocator upstream not None, min_chunk_size=256, max_chunk_size=1 << 26,
                 first_pool_size=None, StreamOrder streams=None):
        super().__init__(upstream, streams)
        min_chunk_size, max_chunk_size = checked(min_chunk_size, "min_chunk_size"), checked(max_chunk_size, "max_chunk_size")
        first = min(max(1 << 20, min_chunk_size), max_chunk_size)
        if first_pool_size is not None:
            first = checked(first_pool_size, "first_pool_size")
        for field, nbytes, least in (("min_chunk_size", min_chunk_size, MIN_CHUNK),
                                     ("max_chunk_size", max_chunk_size, min_chunk_size),
                                     ("first_pool_size", first, min_chunk_size)):
            if nbytes < least or nbytes & (nbytes - 1):
                raise ConfigError(f"must be a power of two and at least {least}, got {nbytes}",
                                  field=f"BuddyAllocator.{field}")
        if first > max_chunk_size:
            raise ConfigError(f"must be at most max_chunk_size, {max_chunk_size}, got {first}",
                              field="BuddyAllocator.first_pool_size")
        self.min_chunk_size = min_chunk_size
        self.shift = min_chunk_size.bit_length() - 1
        self.zones = upstream.red_zones()
        self.has_guard_words = self.place.on_host
        self.guard = sizeof(uint64_t) if self.has_guard_words else self.zones.nbytes
        self.next_order = (first // min_chunk_size).bit_length() - 1
        self.max_order = (max_chunk_size // min_chunk_size).bit_length() - 1
        if self.max_order >= ORDERS:
            raise ConfigError(f"must be less than 2**{ORDERS} times min_chunk_size", field="BuddyAllocator.max_chunk_size")

    def __dealloc__(self):
        # Each Buffer holds a reference to its allocator, so only blocks of raw addresses can still be live.
        if self.upstream is not None:
            for item in self.pools:
                free_records(item.second)
                self.free_upstream(item.first)
            for large in self.sizes:
                self.free_upstream(large.first)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        """Walk down from node 1 of the best pool's tree to a chunk that just fits, mark it as used, and update the nodes above."""
        cdef size_t stream = 0
        cdef size_t most = self.min_chunk_size << self.max_order
        if self.streams is not None:
            stream = self.next_stream()
            if self.waiting.size() > 0:
                self.reclaim_waiting(False)
        if nbytes > most or nbytes + self.guard > most:
            return self.alloc_large(nbytes, stream)
        cdef int wanted = self.order_of(nbytes)
        cdef Pool* pool = self.best_pool(wanted, stream)
        while pool == NULL:
            self.grow(wanted, nbytes, stream)
            pool = self.best_pool(wanted, stream)   # search again: another thread may have used the new pool
        cdef uint8_t* largest = pool.largest
        cdef size_t node = 1
        cdef int order = pool.order
        cdef int whole = -1                 # order of the free chunk that is split for the block
        while order > wanted:
            if whole < 0 and largest[node] == order + 1:
                whole = order
            order -= 1
            node *= 2
            # The half with the smaller largest chunk, if that is large enough, so that larger chunks stay whole.
            if largest[node] <= wanted or largest[node] > largest[node + 1] > wanted:
                node += 1
        cdef size_t leaf = (node << order) - (<size_t>1 << pool.order)
        cdef size_t address = pool.base + (leaf << self.shift)
        if pool.requested[leaf] == FREED_HERE and (<uint64_t*>address)[0] != FREED ^ address:
            raise PointerError(f"BuddyAllocator: the free block at {address:#x} was overwritten after it was freed")
        self.empty_pools -= is_empty(pool)
        pool.requested[leaf] = nbytes + 1
        self.zones.open(address, nbytes)
        if self.has_guard_words:
            write_guard(address, nbytes)
        largest[node] = 0
        while node > 1:
            node >>= 1
            order = max(largest[2 * node], largest[2 * node + 1])
            if largest[node] == order:
                break
            largest[node] = order
        self.usage.count_alloc(nbytes)
        if _reporter.recording:
            for order in range(whole - 1, wanted - 1, -1):
                self.report_event("split", address, self.min_chunk_size << order)
        return <void*>address

    cdef int free_ptr(self, void* ptr) except -1:
        """Check the guard word, mark the chunk as free, merge it with free buddies (node ^ 1), and free a spare empty pool."""
        cdef size_t address = <size_t>ptr
        cdef Pool* pool = self.pool_of(address)
        if pool == NULL:
            return self.free_large(ptr)
        cdef size_t leaf = self.leaf_of(pool, address)
        cdef size_t nbytes = pool.requested[leaf] - 1
        if self.has_guard_words and not guard_is_intact(address, nbytes):
            raise PointerError(f"BuddyAllocator: the block of {nbytes:,} bytes at {address:#x} was written beyond its "
                               "end; it is not freed")
        cdef uint8_t* largest = pool.largest
        cdef int first = self.order_of(nbytes)
        cdef int order = first
        cdef int merged = first             # order of the free chunk that the block becomes part of
        cdef size_t node = (leaf >> order) + (<size_t>1 << (pool.order - order))
        cdef size_t start = leaf            # of that chunk
        cdef int value = order + 1
        self.zones.close(address, self.min_chunk_size << first)
        if self.users.size() > 0 and self.defer_free(address):
            self.usage.count_free(nbytes)
            return 0
        pool.requested[leaf] = 0
        largest[node] = value
        while node > 1:
            if largest[node] == order + 1 and largest[node ^ 1] == order + 1:
                value = order + 2
                merged = order + 1
                start &= ~(<size_t>1 << order)
                pool.requested[start | <size_t>1 << order] = 0      # no free chunk starts at the upper half any more
            else:
                value = max(largest[node], largest[node ^ 1])
            node >>= 1
            order += 1
            if largest[node] == value:
                break
            largest[node] = value
        if self.has_guard_words and start == leaf:
            (<uint64_t*>address)[0] = FREED ^ address
            pool.requested[leaf] = FREED_HERE
        self.usage.count_free(nbytes)
        cdef size_t base = pool.base
        cdef size_t stream = pool.stream
        cdef bint whole = merged == pool.order
        self.empty_pools += whole
        if _reporter.recording:     # may run other code, which may free the pool
            for order in range(first + 1, merged + 1):
                self.report_event("merge", base + (leaf >> order << order << self.shift), self.min_chunk_size << order)
        if whole and self.empty_pools > 1:
            pool = self.spare_pool(stream)
            if pool != NULL:
                self.free_pool(pool)
        return 0

    cdef int make_available(self, size_t address) except -1:
        """Free a block for which `defer_free` waited, now that no stream uses it: `reclaim_waiting` of StreamAllocator calls it."""
        cdef Pool* pool = self.pool_of(address)
        self.usage.live += pool.requested[(address - pool.base) >> self.shift] - 1     # `free_ptr` counted it, and does again
        self.usage.count += 1
        return self.free_ptr(<void*>address)

    cdef void* alloc_large(self, size_t nbytes, size_t stream) except NULL:
        """Allocate a block too large for a pool from `upstream`; if that has no memory, first return unused pools to it."""
        cdef void* ptr
        try:
            ptr = self.alloc_upstream(nbytes, stream)
        except OutOfMemoryError:
            self.reclaim_waiting(True)
            self.free_unused_segments()
            try:
                ptr = self.alloc_upstream(nbytes, stream)
            except OutOfMemoryError as error:
                raise out_of_memory(self, nbytes, limit_text(error)) from error
        self.remember(ptr, nbytes)
        self.reserved_bytes += nbytes
        return ptr

    cdef int free_large(self, void* ptr) except -1:
        """Free a block of `alloc_large`; raise PointerError, by `forget`, for any other address."""
        cdef size_t before = self.usage.live
        self.forget(ptr)
        self.reserved_bytes -= before - self.usage.live
        return self.upstream.free_ptr(ptr)

    cdef int order_of(self, size_t nbytes) noexcept:
        """Return the order of the smallest chunk for a block of `nbytes` and its guard."""
        cdef size_t units = (nbytes + self.guard + self.min_chunk_size - 1) >> self.shift
        cdef int order = 0
        while (<size_t>1 << order) < units:
            order += 1
        return order

    cdef Pool* best_pool(self, int wanted, size_t stream) noexcept:
        """Return the pool of `stream` whose largest free chunk is the smallest of order `wanted` or more, or NULL."""
        cdef Pool* best = NULL
        for item in self.pools:
            if item.second.largest[1] > wanted and item.second.stream == stream \
                    and (best == NULL or item.second.largest[1] < best.largest[1]):
                best = item.second
        return best

    cdef int grow(self, int wanted, size_t nbytes, size_t stream) except -1:
        """Add a pool for a block of `nbytes`, of order `wanted`; it is just as large if there is no memory for the usual size."""
        cdef int order = max(wanted, self.next_order)
        cdef size_t base
        try:
            base = <size_t>self.alloc_upstream(self.min_chunk_size << order, stream)
        except OutOfMemoryError:
            self.reclaim_waiting(True)
            if self.best_pool(wanted, stream) != NULL:
                return 0                    # a returned block is large enough
            self.free_unused_segments()
            order = wanted
            try:
                base = <size_t>self.alloc_upstream(self.min_chunk_size << order, stream)
            except OutOfMemoryError as error:
                raise out_of_memory(self, nbytes, limit_text(error)) from error
        cdef Pool* pool = <Pool*>calloc(1, sizeof(Pool))
        cdef int level
        if pool != NULL:
            pool.largest = <uint8_t*>malloc(<size_t>2 << order)
            pool.requested = <size_t*>calloc(<size_t>1 << order, sizeof(size_t))
        if pool == NULL or pool.largest == NULL or pool.requested == NULL:
            free_records(pool)
            self.upstream.free_ptr(<void*>base)
            raise MemoryError("BuddyAllocator: no host memory for the records of a pool")
        pool.base = base
        pool.stream = stream
        pool.order = order
        for level in range(order + 1):
            memset(pool.largest + (<size_t>1 << level), order - level + 1, <size_t>1 << level)
        self.next_order = min(order + 1, self.max_order)
        self.pools[base] = pool
        self.zones.close(base, self.min_chunk_size << order)
        self.reserved_bytes += self.min_chunk_size << order
        self.empty_pools += 1
        if _reporter.recording:
            self.report_event("pool taken", base, self.min_chunk_size << order)
        return 0

    cdef int free_pool(self, Pool* pool) except -1:
        """Return an empty pool to `upstream`."""
        cdef size_t base = pool.base
        cdef size_t nbytes = self.min_chunk_size << pool.order
        free_records(pool)
        self.pools.erase(base)
        self.empty_pools -= 1
        self.reserved_bytes -= nbytes
        if _reporter.recording:
            self.report_event("pool given back", base, nbytes)
        return self.upstream.free_ptr(<void*>base)

    cdef int free_unused_segments(self) except -1:
        """Return all empty pools to `upstream`; the segments of this allocator are its pools."""
        item = self.pools.begin()
        while item != self.pools.end():
            if is_empty(dereference(item).second):
                self.free_pool(dereference(item).second)
                item = self.pools.begin()   # freeing a pool may run other code, which may change `pools`: restart the search
            else:
                preincrement(item)
        return 0

    cdef size_t own_stream(self, size_t address) except? -2:    # of StreamAllocator, as `record_stream`
        cdef Pool* pool = self.pool_of(address)
        if pool == NULL:
            raise no_live_block(self, address)
        self.leaf_of(pool, address)
        return pool.stream

    def record_stream(self, address, stream):
        if self.sizes.count(bytes_of(address, "address")) > 0:   # too large for the pools
            self.upstream.record_stream(address, stream_number(stream))
        else:
            StreamAllocator.record_stream(self, address, stream)

    cdef Pool* spare_pool(self, size_t stream) noexcept:
        """Return the smallest empty pool of `stream`, to be returned to `upstream`; NULL if fewer than two are empty."""
        cdef Pool* smallest = NULL
        cdef int count = 0
        for item in self.pools:
            if is_empty(item.second) and item.second.stream == stream:
                count += 1
                if smallest == NULL or item.second.order < smallest.order:
                    smallest = item.second
        return smallest if count > 1 else NULL

    cdef size_t largest_free(self) noexcept:    # of Allocator
        cdef int largest = 0
        for item in self.pools:
            largest = max(largest, item.second.largest[1])
        return self.min_chunk_size << (largest - 1) if largest > 0 else 0

    def snapshot(self):
        """Return a `Segment` (``caching.pyx``) for each pool, with its chunks, by address; for displays of the memory."""
        cdef vector[Chunk] chunks
        for item in self.pools:     # it runs no Python code, in which another thread or garbage collection would change the pools
            self.list_chunks(item.second, 1, item.second.order, chunks)
        names = {block.address: block.name for block in live() if block.place == self.place}
        rows = [(c.base, c.order, c.stream, SegmentBlock(c.address, c.nbytes, c.requested, CHUNK_STATES[c.state],
                                                         names.get(c.address, "") if c.state == LIVE else "")) for c in chunks]
        return [Segment(base, self.min_chunk_size << order, stream, "buddy", [row[3] for row in group])
                for (base, order, stream), group in itertools.groupby(rows, lambda row: row[:3])]

    cdef int list_chunks(self, Pool* pool, size_t node, int order, vector[Chunk]& chunks) except -1:
        """Append the chunks below a node, of `order`, of a pool's tree to `chunks`, by address."""
        cdef size_t leaf = (node << order) - (<size_t>1 << pool.order)
        cdef size_t requested = pool.requested[leaf]
        cdef Chunk chunk = Chunk(pool.base, pool.stream, pool.order, pool.base + (leaf << self.shift), self.min_chunk_size << order)
        chunk.requested, chunk.state = 0, FREE
        if pool.largest[node] != order + 1:
            if pool.largest[node] or requested in (0, FREED_HERE) or self.order_of(requested - 1) != order:
                self.list_chunks(pool, 2 * node, order - 1, chunks)
                self.list_chunks(pool, 2 * node + 1, order - 1, chunks)
                return 0
            chunk.state = WAITING if self.waiting.count(chunk.address) else LIVE
            chunk.requested = requested - 1 if chunk.state == LIVE else 0
        chunks.push_back(chunk)
        return 0

    cdef Pool* pool_of(self, size_t address) noexcept:
        """Return the pool that contains `address`; NULL if there is none."""
        after = self.pools.upper_bound(address)
        if after == self.pools.begin():
            return NULL
        predecrement(after)
        cdef Pool* pool = dereference(after).second
        return pool if address - pool.base < self.min_chunk_size << pool.order else NULL

    cdef size_t leaf_of(self, Pool* pool, size_t address) except? 0:
        """Return the leaf where the block in use at `address` starts; PointerError, which finds a second free, if none does."""
        cdef size_t leaf = (address - pool.base) >> self.shift
        if (address - pool.base) & (self.min_chunk_size - 1) or pool.requested[leaf] in (0, FREED_HERE) or \
                self.waiting.size() > 0 and self.waiting.count(address) > 0:
            raise no_live_block(self, address)
        return leaf

    cdef int report_event(self, str kind, size_t address, size_t nbytes) except -1:
        return _reporter.event(kind, self.place, address, nbytes, "", "")     # no name, no detail; `minicaffe trace` shows it


cdef inline bint is_empty(const Pool* pool) noexcept:
    """Return whether no block of the pool is in use: its largest free chunk is the whole pool."""
    return pool.largest[1] == pool.order + 1


cdef void free_records(Pool* pool) noexcept:    # its memory is freed by the caller
    if pool != NULL:
        c_free(pool.largest)
        c_free(pool.requested)
        c_free(pool)


cdef inline void write_guard(size_t address, size_t nbytes) noexcept:   # behind a block; `guard_is_intact` reads it
    cdef uint64_t word = IN_USE ^ address
    memcpy(<char*>address + nbytes, &word, sizeof(word))    # not a plain store: the address may be unaligned


cdef inline bint guard_is_intact(size_t address, size_t nbytes) noexcept:   # whether nothing was written behind the block
    cdef uint64_t word
    memcpy(&word, <char*>address + nbytes, sizeof(word))
    return word == IN_USE ^ address
