"""The caching allocators: of devices (after Torch's THCCachingAllocator and PyTorch's CUDACachingAllocator), and of page-locked
host memory (after THCCachingHostAllocator and PyTorch's CachingHostAllocator before it got background threads).

Allocation by a driver is slow, and its free waits for the whole device. So memory is allocated in segments and kept: a freed
block goes to a free list, for the next request that fits.

    request             rounded to      taken from segments of      rest is split off if it has
    up to 1 MiB         512 bytes       2 MiB                       512 bytes or more
    up to 10 MiB        512 bytes       20 MiB                      more than 1 MiB
    beyond              512 bytes       its size, in whole 2 MiB    more than 1 MiB

These are later PyTorch's constants. With those of the first THCCachingAllocator requests of many sizes left segments that fitted
no other request. To reproduce examples from that time, ``caching:thc`` (`constants`) uses them:

    up to 1 MiB         512 bytes       1 MiB                       512 bytes or more
    beyond              128 KiB         its size                    more than 1 MiB

On a host, pages of a segment take no memory before their first access. So ``caching:arena`` serves all requests from segments of
1 GiB, and uses the best-fitting free blocks first. Blocks of many sizes then lie in hardly more pages than the peak use needs.

    any                 512 bytes       1 GiB                       512 bytes or more

Locking pages of the host takes far longer than copying a batch, so `CachingHostAllocator` never splits a block. As in later
PyTorch, sizes are powers of two; the price is that up to half of a block is unused. Such a block belongs to no stream. Copies to
and from a device run asynchronously, so it is reused when events recorded on the streams that use it are done.

    any                 powers of 2     its size                    never

Small and large blocks are in separate pools, so that a small block never pins a large segment. The best fit is the smallest
sufficient free block of the current stream, the one with the lowest address among equals. A freed block is merged with its free
neighbours. A block belongs to the stream that was current when its segment was allocated, see ``streams.pyx``.

When `upstream` has no memory: return the smallest sufficient whole free segment to `upstream` and try again; wait for blocks
that other streams use, return all free segments and try again; try a segment of only the needed size; raise OutOfMemoryError.

The records are stored outside the memory, which may be inaccessible to the host. The GIL is held, so they need no lock;
`upstream`, streams and the reporter may run other code, so the records are consistent before each is called.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.map cimport map as ordered_map
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, bytes_of, limit_text, no_live_block, out_of_memory
from minicaffe.memory.containers cimport unordered_map
from minicaffe.memory.red_zones cimport RedZones
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.provider cimport StreamOrder
from minicaffe.memory.streams cimport NO_STREAM, StreamAllocator

from collections import namedtuple

from minicaffe.errors import ConfigError, OutOfMemoryError
from minicaffe.memory.reporter import Stats, live, reporter
from minicaffe.memory.streams import stream_number

cdef Reporter _reporter = reporter

CachingStats = namedtuple("CachingStats", (*Stats._fields, "peak_reserved", "hits", "upstream_allocations", "retries", "waiting",
                                           "largest_free"))
CachingStats.__doc__ = """`Stats`, and: maximum of the bytes held; allocations served from the cache and allocations of upstream;
times that upstream had no memory at first; freed bytes that other streams still use; bytes of the largest free block."""

Segment = namedtuple("Segment", "address nbytes stream pool blocks")
Segment.__doc__ = """One allocation of upstream; `pool` is small, large or ``whole``, `blocks` lists `SegmentBlock` by address."""
SegmentBlock = namedtuple("SegmentBlock", "address nbytes requested state name")
SegmentBlock.__doc__ = """Part of a segment; `state` is live, free or waiting (for streams). For a live one, `requested` is
the size of the request, at most `nbytes`, and `name` that of its blob."""

cdef enum:
    BLOCK_GRANULARITY = 512                     # bytes: sizes of blocks are multiples of this

cdef struct Constants:              # the tables above, in bytes; the small pool's grain and rest are BLOCK_GRANULARITY
    size_t large_request            # the smallest request that the large pool serves
    size_t large_rest               # the smallest rest that is split off a block there
    size_t large_grain              # sizes of blocks there are multiples of this
    size_t small_segment            # bytes of a segment of the small pool
    size_t middle_request           # the largest request that shares a segment of usual size
    size_t middle_segment           # the usual size
    size_t segment_grain            # segments for larger requests are multiples of this

cdef size_t ANY = <size_t>-1        # more than any size; or, of streams, all of them
cdef size_t MIB = 1 << 20
cdef dict CONSTANTS = {
    "pytorch": Constants(MIB + 1, MIB + 1, BLOCK_GRANULARITY, 2 * MIB, 10 * MIB, 20 * MIB, 2 * MIB),
    "thc": Constants(MIB + 1, MIB + 1, 128 << 10, MIB, 0, 0, 1),
    "arena": Constants(0, BLOCK_GRANULARITY, BLOCK_GRANULARITY, 0, 1024 * MIB, 1024 * MIB, 2 * MIB)}
cdef Constants WHOLE = Constants(0, ANY, BLOCK_GRANULARITY, 0, 0, 0, 1)     # for blocks that are never split

cdef enum:          # the pools
    SMALL
    LARGE
    POOLS           # their number

cdef enum:          # the states of a Block
    FREE
    LIVE            # or waiting for streams

cdef struct Block:      # a part of a segment
    size_t address
    size_t nbytes
    size_t requested    # bytes of the request, while LIVE
    size_t stream       # that of its segment: a number of `StreamOrder`, 0 without streams, or NO_STREAM
    Block* left         # neighbours in the segment; NULL at its ends
    Block* right
    int pool            # SMALL or LARGE
    int state

ctypedef pair[size_t, pair[size_t, size_t]] Key     # stream, bytes, address: the order of the best fit
ctypedef ordered_map[Key, Block*] FreeBlocks


@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class BlockCache(StreamAllocator):
    """The base of the caching allocators; the arguments are described in `CachingAllocator`."""
    cdef object __weakref__
    cdef RedZones zones
    cdef Constants constants
    cdef size_t small_grain, large_grain        # those of the constants, or more if red zones lie between blocks
    cdef unordered_map[size_t, Block] blocks    # address -> block, of all states; the address of a Block is constant until erased
    cdef vector[FreeBlocks] cached              # free blocks, by pool; a vector, as Cython runs no constructors in an array
    cdef bint powers_of_two                     # the sizes of blocks, which are never split
    cdef size_t peak_reserved                   # this line and the next: as in CachingStats
    cdef size_t hits, upstream_allocations, retries
    cdef str refusal                            # why the last segment could not be allocated

    def __init__(self, Allocator upstream not None, StreamOrder streams=None, str constants="pytorch", bint red_zones=True):
        super().__init__(upstream, streams)
        if constants not in CONSTANTS:
            raise ConfigError(f"must be one of {', '.join(CONSTANTS)}, got '{constants}'", field="CachingAllocator.constants")
        self.constants = CONSTANTS[constants]
        self.zones = upstream.red_zones() if red_zones else RedZones()
        self.small_grain = max(<size_t>BLOCK_GRANULARITY, self.zones.nbytes)
        self.large_grain = max(self.constants.large_grain, self.zones.nbytes)
        self.cached.resize(POOLS)

    def __dealloc__(self):
        # Each Buffer holds a reference to its allocator, so only blocks of raw addresses can still be live.
        if self.upstream is not None:
            for item in self.blocks:
                if item.second.left == NULL:
                    self.free_upstream(item.first)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        """Take the best-fitting free block, or a new segment, and split off the rest, as described at the head of this file."""
        cdef size_t stream = 0
        cdef int pool = SMALL if nbytes < self.constants.large_request else LARGE
        cdef size_t grain = self.small_grain if pool == SMALL else self.large_grain
        cdef size_t size = max((nbytes + grain - 1) & ~(grain - 1), grain) + self.zones.nbytes
        cdef size_t rest = 0
        cdef bint hit
        cdef Block* block
        if self.streams is not None:
            stream = self.next_stream()
            if self.waiting.size() > 0:
                self.reclaim_waiting(False)
        if nbytes > ANY >> 1:       # larger sums could overflow
            raise out_of_memory(self, nbytes, "half of the address space")
        if self.powers_of_two:
            stream, size = NO_STREAM, BLOCK_GRANULARITY
            while size < nbytes:
                size <<= 1
        block = self.take_cached(pool, stream, size)
        hit = block != NULL
        self.hits += hit
        if not hit:
            block = self.grow(pool, stream, size)
            if block == NULL:
                raise out_of_memory(self, nbytes, self.refusal)
        block.state = LIVE
        block.requested = nbytes
        self.usage.count_alloc(nbytes)
        rest = block.nbytes - size
        if rest >= (grain if pool == SMALL else self.constants.large_rest):
            self.split(block, size)
        self.zones.open(block.address, nbytes)
        if _reporter.recording:
            if hit:
                self.report_event("cache hit", block.address, size, "")
            if block.nbytes < size + rest:
                self.report_event("split", block.address, size, f"{rest} bytes left")
        return <void*>block.address

    cdef int free_ptr(self, void* ptr) except -1:
        """Put the block on its free list; if other streams use it, `defer_free` delays that until they have finished with it."""
        cdef Block* block = self.find_live(<size_t>ptr)
        self.zones.close(block.address, block.nbytes)
        if self.users.size() > 0 and self.defer_free(<size_t>ptr):
            self.usage.count_free(block.requested)
            return 0
        self.usage.count_free(block.requested)
        return self.cache(block)

    cdef int make_available(self, size_t address) except -1:    # of StreamAllocator, after the wait
        return self.cache(&self.blocks[address])

    @cython.final
    cdef Block* take_cached(self, int pool, size_t stream, size_t nbytes) noexcept:
        """Remove the best-fitting free block of `stream` from its list and return it; NULL if there is none."""
        cdef Block* block
        found = self.cached[pool].lower_bound(key(stream, nbytes, 0))
        if found == self.cached[pool].end() or dereference(found).first.first != stream:
            return NULL
        block = dereference(found).second
        if self.powers_of_two and block.nbytes != nbytes:
            return NULL
        self.cached[pool].erase(found)
        return block

    @cython.final
    cdef void split(self, Block* block, size_t nbytes) noexcept:
        """Split `block`, which is in no list, after `nbytes`; the rest becomes a free block."""
        cdef Block* rest = &self.blocks[block.address + nbytes]
        rest.address = block.address + nbytes
        rest.nbytes = block.nbytes - nbytes
        rest.stream = block.stream
        rest.pool = block.pool
        rest.state = FREE
        rest.left = block
        rest.right = block.right
        if rest.right != NULL:
            rest.right.left = rest
        block.right = rest
        block.nbytes = nbytes
        self.add_to_free_list(rest)

    @cython.final
    cdef int cache(self, Block* block) except -1:
        """Make `block` free and merge it with its free neighbours."""
        cdef size_t before = block.nbytes
        block.state = FREE
        if block.right != NULL and block.right.state == FREE:
            self.remove_from_free_list(block.right)
            self.absorb_right(block)
        if block.left != NULL and block.left.state == FREE:
            block = block.left
            self.remove_from_free_list(block)
            self.absorb_right(block)
        self.add_to_free_list(block)
        if _reporter.recording and block.nbytes != before:
            self.report_event("merge", block.address, block.nbytes, "")
        return 0

    @cython.final
    cdef void absorb_right(self, Block* block) noexcept:
        """Merge `block` with its free right neighbour, which is in no free list any more."""
        cdef Block* right = block.right
        block.nbytes += right.nbytes
        block.right = right.right
        if block.right != NULL:
            block.right.left = block
        self.blocks.erase(right.address)

    @cython.final
    cdef void add_to_free_list(self, Block* block) noexcept:
        self.cached[block.pool][key(block.stream, block.nbytes, block.address)] = block

    @cython.final
    cdef void remove_from_free_list(self, Block* block) noexcept:
        self.cached[block.pool].erase(key(block.stream, block.nbytes, block.address))

    cdef Block* grow(self, int pool, size_t stream, size_t size) except? NULL:
        """Return a new segment, as one block, or a cached block (see the head of this file); NULL, and `refusal` set, if none."""
        cdef size_t grain = self.constants.segment_grain
        cdef size_t least = max(self.constants.small_segment, size) if pool == SMALL else (size + grain - 1) & ~(grain - 1)
        cdef size_t usual = self.constants.middle_segment if pool == LARGE and size <= self.constants.middle_request else least
        cdef Block* fitting
        cdef Block* block = self.take_segment(pool, stream, usual)
        if block != NULL:
            return block
        self.retries += 1
        fitting = self.smallest_free_segment(usual)
        if fitting != NULL:
            self.free_segment(fitting)
            block = self.take_segment(pool, stream, usual)
            if block != NULL:
                return block
        self.reclaim_waiting(True)
        block = self.take_cached(pool, stream, size)    # a returned block may be large enough
        if block == NULL:
            self.free_unused_segments()
            block = self.take_segment(pool, stream, usual)
        if block == NULL and least < usual:
            block = self.take_segment(pool, stream, least)
        return block

    cdef Block* take_segment(self, int pool, size_t stream, size_t nbytes) except? NULL:
        """Allocate `nbytes` from `upstream` as one block, in no list yet; NULL, and `refusal` set, if there is no memory."""
        cdef size_t address
        cdef Block* block
        self.reserved_bytes += nbytes             # first: another thread may get here during the allocation
        try:
            address = <size_t>self.alloc_upstream(nbytes, stream)
        except BaseException as error:
            self.reserved_bytes -= nbytes
            if isinstance(error, OutOfMemoryError):
                self.refusal = limit_text(error)
                return NULL
            raise
        self.peak_reserved = max(self.peak_reserved, self.reserved_bytes)
        self.upstream_allocations += 1
        self.zones.close(address, nbytes)
        block = &self.blocks[address]
        block.address = address
        block.nbytes = nbytes
        block.stream = stream
        block.pool = pool
        block.state = LIVE
        block.left = block.right = NULL
        if _reporter.recording:
            self.report_event("segment taken", address, nbytes, "")
        return block

    cdef int free_segment(self, Block* block) except -1:
        """Return a segment that is one free block to `upstream`."""
        cdef size_t address = block.address
        cdef size_t nbytes = block.nbytes
        self.remove_from_free_list(block)
        self.blocks.erase(address)
        self.reserved_bytes -= nbytes
        if _reporter.recording:
            self.report_event("segment given back", address, nbytes, "")
        return self.upstream.free_ptr(<void*>address)

    cdef int free_unused_segments(self) except -1:
        """Return all segments without a live block to `upstream`."""
        cdef Block* block = self.smallest_free_segment(0)
        while block != NULL:
            self.free_segment(block)    # may run other code, so restart the search
            block = self.smallest_free_segment(0)
        return 0

    cdef Block* smallest_free_segment(self, size_t least) noexcept:
        """Return the smallest segment that is one free block of at least `least` bytes; NULL if there is none."""
        cdef Block* block
        cdef Block* smallest = NULL
        cdef size_t pool
        for pool in range(POOLS):
            for item in self.cached[pool]:
                block = item.second
                if block.left == NULL and block.right == NULL and block.nbytes >= least:
                    if smallest == NULL or block.nbytes < smallest.nbytes:
                        smallest = block
        return smallest

    cdef size_t own_stream(self, size_t address) except? -2:    # of StreamAllocator
        return self.find_live(address).stream

    cdef size_t largest_free(self) noexcept:    # of Allocator
        return self.free_bytes(ANY).second

    cdef pair[size_t, size_t] free_bytes(self, size_t stream) noexcept:
        """Return the sum of all free bytes of `stream`, or of ANY, and the bytes of the largest free block."""
        cdef pair[size_t, size_t] found
        cdef size_t pool
        for pool in range(POOLS):
            for item in self.cached[pool]:
                if stream == ANY or item.second.stream == stream:
                    found.first += item.second.nbytes
                    found.second = max(found.second, item.second.nbytes)
        return found

    def stats(self):
        """Return `CachingStats`."""
        cdef size_t waiting = 0
        for late in self.waiting:
            waiting += self.blocks[late.first].nbytes
        return CachingStats(*Allocator.stats(self), self.peak_reserved, self.hits, self.upstream_allocations, self.retries, waiting,
                            self.largest_free())

    def cache_info(self, stream=None):
        """Return the free bytes of the cache and its largest free block (THC's cacheInfo).

        Parameters
        ----------
        stream : int or cuda.Stream, optional
            Count only memory of this stream; None: of all streams.

        Returns
        -------
        (int, int)
            All free bytes, and those of the largest free block.
        """
        cdef pair[size_t, size_t] found = self.free_bytes(ANY if stream is None else stream_number(stream))
        return found.first, found.second

    def base_allocation(self, address):
        """Return the address and bytes of the segment that contains a live block (THC's getBaseAllocation).

        Raises
        ------
        PointerError
            If no live block starts at `address`.
        """
        cdef Block* block = self.find_live(bytes_of(address, "address"))
        cdef size_t nbytes = 0
        while block.left != NULL:
            block = block.left
        cdef size_t base = block.address
        while block != NULL:
            nbytes += block.nbytes
            block = block.right
        return base, nbytes

    def snapshot(self):
        """List the segments as `Segment`, each with its blocks, by address, for a display of the memory."""
        cdef vector[Block] copies
        for item in self.blocks:        # it creates no Python object, so no garbage collection frees a block
            copies.push_back(item.second)
        rows = [(b.address, b.nbytes, b.requested, b.state, b.stream, b.pool, b.left == NULL) for b in copies]
        late = {item.first for item in self.waiting}
        names = {b.address: b.name for b in live() if b.place == self.place}
        segments = []
        for address, nbytes, requested, state, stream, pool, first in sorted(rows):
            if first:
                blocks = []
                kind = "whole" if self.powers_of_two else "small" if pool == SMALL else "large"
                segments.append(Segment(address, 0, stream, kind, blocks))
            word = "free" if state == FREE else "waiting" if address in late else "live"
            requested, name = (requested, names.get(address, "")) if word == "live" else (0, "")
            blocks.append(SegmentBlock(address, nbytes, requested, word, name))
        return [segment._replace(nbytes=sum(b.nbytes for b in segment.blocks)) for segment in segments]

    @cython.final
    cdef Block* find_live(self, size_t address) except NULL:
        """Return the block in use at `address`; PointerError, which finds a second free, unless one starts there."""
        known = self.blocks.find(address)
        if known == self.blocks.end() or dereference(known).second.state != LIVE or \
                self.waiting.size() > 0 and self.waiting.count(address) > 0:
            raise no_live_block(self, address)
        return &dereference(known).second

    cdef int report_event(self, str kind, size_t address, size_t nbytes, str detail) except -1:
        return _reporter.event(kind, self.place, address, nbytes, "", detail)     # no name; `minicaffe trace` shows it


@cython.final
@cython.no_gc_clear
cdef class CachingAllocator(BlockCache):
    """Keep freed blocks for the next request.

    Parameters
    ----------
    upstream : Allocator
        The source of the segments. If there are streams, its `free` must wait for all of them, as cuMemFree does.
    streams : StreamOrder, optional
        Of the device; None: all work is assumed to be in order.
    constants : {"pytorch", "thc", "arena"}
        Sizes of segments and blocks: later PyTorch's, those of the first THCCachingAllocator, or few large segments.
    red_zones : bool
        False: free blocks may be written. A replay of a CUDA graph writes to blocks that were free when its recording ended.

    Notes
    -----
    Source: THCCachingAllocator.cpp, CUDACachingAllocator.cpp. Left out: expandable segments. The private pool of CUDA graphs is a
    further CachingAllocator on top of the device's own (cuda/graph.pyx).
    """


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class CachingHostAllocator(BlockCache):
    """Keep freed blocks of page-locked host memory for the next request of their size; blocks are never split or merged.

    Parameters
    ----------
    upstream : Allocator
        Of pinned (or any host) memory.
    streams : StreamOrder, optional
        Of the device that copies; None: freed blocks can be reused at once.
    """

    def __init__(self, Allocator upstream not None, StreamOrder streams=None):
        super().__init__(upstream, streams, red_zones=False)
        self.constants = WHOLE
        self.powers_of_two = True


cdef inline Key key(size_t stream, size_t nbytes, size_t address) noexcept:     # the place of a block in FreeBlocks
    return Key(stream, pair[size_t, size_t](nbytes, address))
