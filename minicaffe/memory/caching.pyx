"""The caching allocator of devices (after Torch's THCCachingAllocator and PyTorch's CUDACachingAllocator).

Asking a driver for memory is slow, and giving memory back waits for the whole device. So memory is taken in segments
and kept: a freed block goes to a free list, and the next request that fits takes it from there.

    request             rounded to      taken from segments of      rest is split off if it has
    up to 1 MiB         512 bytes       2 MiB                       512 bytes or more
    up to 10 MiB        512 bytes       20 MiB                      more than 1 MiB
    beyond              512 bytes       its size, in whole 2 MiB    more than 1 MiB

Small and large blocks live in pools of their own, so that a small one never pins a large segment. The free block that
fits best is taken: of the current stream, the smallest, the lowest. A freed block is merged with its free neighbours.
A block belongs to the stream that was current when its segment was taken, see ``streams.pyx``.

When `upstream` has no memory, or the limit is reached: give back the smallest whole free segment that is big enough,
and try again; wait for blocks that other streams use, give back all free segments, and try again; try once more for
just what is needed instead of a usual segment; raise OutOfMemoryError.

The records are kept beside the memory, which the host may not be able to touch. The GIL is held, so they need no lock;
`upstream`, streams and the reporter may run other code, so the records are consistent before each is called.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.map cimport map as ordered_map
from libcpp.pair cimport pair
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, limit_of, out_of_memory
from minicaffe.memory.red_zones cimport RedZones
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.streams cimport StreamOrder, StreamUses

from collections import namedtuple

from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory.reporter import Stats, live, reporter

cdef Reporter _reporter = reporter

CachingStats = namedtuple("CachingStats", (*Stats._fields, "peak_reserved", "hits", "upstream_allocations", "splits",
                                           "merges", "retries", "waiting", "split_free", "largest_free"))
CachingStats.__doc__ = """`Stats`, and: bytes held at most; allocations served from the cache and allocations of upstream;
blocks split and merged; times that upstream had no memory at first; bytes freed that other streams still use; free bytes
in segments that are partly in use (fragmentation: they cannot be given back); bytes of the largest free block."""

Segment = namedtuple("Segment", "address nbytes stream pool blocks")
Segment.__doc__ = """Memory taken from upstream at once; `pool` is small or large, `blocks` lists `SegmentBlock` by address."""
SegmentBlock = namedtuple("SegmentBlock", "address nbytes asked state name")
SegmentBlock.__doc__ = """Part of a segment; `state` is live, free or waiting (for streams). Of a live one, `asked` is what
the user wants of its `nbytes`, and `name` the blob it serves."""

cdef enum:
    GRAIN = 512                     # bytes: sizes of blocks are multiples of this
    SMALL_REQUEST = 1 << 20         # the largest that the small pool serves, and the largest rest a large block keeps
    SMALL_SEGMENT = 2 << 20
    MIDDLE_REQUEST = 10 << 20       # the largest that shares a segment of usual size
    LARGE_SEGMENT = 20 << 20
    LARGE_GRAIN = 2 << 20           # segments for larger requests are multiples of this

cdef enum:
    SMALL
    LARGE
    POOLS

cdef enum:
    FREE
    LIVE
    WAITING

cdef size_t ANY = <size_t>-1

cdef struct Block:
    size_t address
    size_t nbytes
    size_t asked        # by the user, while LIVE
    size_t stream
    Block* left         # neighbours in the segment; NULL at its ends
    Block* right
    int pool
    int state
    bint shared         # used on other streams, too

ctypedef pair[size_t, pair[size_t, size_t]] Key     # stream, bytes, address: the order of the best fit
ctypedef ordered_map[Key, Block*] FreeBlocks


@cython.final
@cython.no_gc_clear     # __dealloc__ needs upstream
cdef class CachingAllocator(Allocator):
    """Keep freed blocks for the next request.

    Parameters
    ----------
    upstream : Allocator
        Gives the segments. If there are streams, its `free` must wait for all of them, as cuMemFree does.
    streams : StreamOrder, optional
        Of the device; without, all work is taken to be in order.
    limit : int, optional
        Bytes to be held from `upstream` at most; see `set_limit`.

    Notes
    -----
    Source: THCCachingAllocator.cpp, CUDACachingAllocator.cpp. Left out: expandable segments, private pools for graphs.
    """
    cdef RedZones zones
    cdef size_t grain                           # GRAIN, or more where red zones lie between blocks
    cdef StreamOrder streams
    cdef StreamUses uses
    cdef unordered_map[size_t, Block] blocks    # address -> block, of all states; a Block stays where it is until erased
    cdef vector[FreeBlocks] cached              # by pool; a vector, as Cython runs no constructors in an array
    cdef size_t held, peak_held, limit
    cdef size_t hits, upstream_allocations, splits, merges, retries
    cdef str refusal                            # what stood against the last segment that could not be had

    def __init__(self, Allocator upstream not None, StreamOrder streams=None, limit=None):
        super().__init__(upstream.place, upstream)
        self.zones = upstream.red_zones()
        self.grain = max(<size_t>GRAIN, self.zones.nbytes)
        self.streams = streams
        self.uses = StreamUses(streams)
        self.cached.resize(POOLS)
        self.set_limit(limit)

    def __dealloc__(self):
        # Whoever holds a Buffer from here holds this object, so only blocks of raw addresses can still be out.
        if self.upstream is not None:
            for item in self.blocks:
                if item.second.left == NULL:
                    self.upstream.free_ptr(<void*>item.first)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef size_t stream = 0
        cdef size_t size = max((nbytes + self.grain - 1) & ~(self.grain - 1), self.grain) + self.zones.nbytes
        cdef int pool = SMALL if nbytes <= SMALL_REQUEST else LARGE
        cdef size_t rest = 0
        cdef bint hit
        cdef Block* block
        if nbytes > ANY >> 1:       # beyond it sums could overflow
            raise out_of_memory(self, nbytes, "half of the address space")
        if self.streams is not None:
            stream = self.streams.current()
            if self.uses.open.size() > 0:
                self.take_back(False)
        block = self.take_cached(pool, stream, size)
        hit = block != NULL
        self.hits += hit
        if not hit:
            block = self.grow(pool, stream, size)
            if block == NULL:
                raise out_of_memory(self, nbytes, self.refusal)
        block.state = LIVE
        block.asked = nbytes
        self.usage.take(nbytes)
        rest = block.nbytes - size
        if rest > SMALL_REQUEST or pool == SMALL and rest >= self.grain:
            self.split(block, size)
        self.zones.open(block.address, nbytes)
        if _reporter.recording:
            if hit:
                self.tell("cache hit", block.address, size, "")
            if block.nbytes < size + rest:
                self.tell("split", block.address, size, f"{rest} bytes left")
        return <void*>block.address

    cdef int free_ptr(self, void* ptr) except -1:
        known = self.blocks.find(<size_t>ptr)
        if known == self.blocks.end() or dereference(known).second.state != LIVE:
            raise self.no_block(<size_t>ptr)
        cdef Block* block = &dereference(known).second
        self.zones.close(block.address, block.nbytes)
        if block.shared:
            block.state = WAITING       # first, so that a second free by another thread is found
            try:
                self.uses.retire(block.address)
            except BaseException:
                block.state = LIVE
                raise
            block.shared = False
            self.usage.give(block.asked)
            return 0
        self.usage.give(block.asked)
        return self.cache(block)

    cdef Block* take_cached(self, int pool, size_t stream, size_t nbytes) noexcept:
        """Take the free block that fits best off its list; NULL if there is none."""
        cdef Block* block
        found = self.cached[pool].lower_bound(key(stream, nbytes, 0))
        if found == self.cached[pool].end() or dereference(found).first.first != stream:
            return NULL
        block = dereference(found).second
        self.cached[pool].erase(found)
        return block

    cdef void split(self, Block* block, size_t nbytes) noexcept:
        """Cut `block` after `nbytes`; the rest is free."""
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
        self.list_free(rest)
        self.splits += 1

    cdef int cache(self, Block* block) except -1:
        """Make `block` free, one with its free neighbours."""
        cdef size_t before = block.nbytes
        block.state = FREE
        if block.right != NULL and block.right.state == FREE:
            self.unlist(block.right)
            self.absorb_right(block)
        if block.left != NULL and block.left.state == FREE:
            block = block.left
            self.unlist(block)
            self.absorb_right(block)
        self.list_free(block)
        if _reporter.recording and block.nbytes != before:
            self.tell("merge", block.address, block.nbytes, "")
        return 0

    cdef void absorb_right(self, Block* block) noexcept:
        cdef Block* right = block.right
        block.nbytes += right.nbytes
        block.right = right.right
        if block.right != NULL:
            block.right.left = block
        self.blocks.erase(right.address)
        self.merges += 1

    cdef void list_free(self, Block* block) noexcept:
        self.cached[block.pool][key(block.stream, block.nbytes, block.address)] = block

    cdef void unlist(self, Block* block) noexcept:
        self.cached[block.pool].erase(key(block.stream, block.nbytes, block.address))

    cdef Block* grow(self, int pool, size_t stream, size_t size) except? NULL:
        """Take a segment and give it as one block; where there is no memory, do as the head of this file says."""
        cdef size_t least = SMALL_SEGMENT if pool == SMALL else (size + LARGE_GRAIN - 1) & ~<size_t>(LARGE_GRAIN - 1)
        cdef size_t usual = LARGE_SEGMENT if pool == LARGE and size <= MIDDLE_REQUEST else least
        cdef Block* fitting
        cdef Block* block = self.take_segment(pool, stream, usual)
        if block != NULL:
            return block
        self.retries += 1
        fitting = self.whole_free(usual)
        if fitting != NULL:
            self.give_segment(fitting)
            block = self.take_segment(pool, stream, usual)
            if block != NULL:
                return block
        self.take_back(True)
        block = self.take_cached(pool, stream, size)    # what came back may do
        if block == NULL:
            self.give_free_segments()
            block = self.take_segment(pool, stream, usual)
        if block == NULL and least < usual:
            block = self.take_segment(pool, stream, least)
        return block

    cdef Block* take_segment(self, int pool, size_t stream, size_t nbytes) except? NULL:
        """Take `nbytes` from `upstream` as one block; NULL if there is no memory."""
        cdef size_t address
        cdef Block* block
        if self.held + nbytes > self.limit:
            self.refusal = f"{self.limit:,} bytes"
            return NULL
        self.held += nbytes             # first: another thread may come here meanwhile
        try:
            address = <size_t>self.upstream.alloc_ptr(nbytes)
        except BaseException as error:
            self.held -= nbytes
            if isinstance(error, OutOfMemoryError):
                self.refusal = limit_of(error)
                return NULL
            raise
        self.peak_held = max(self.peak_held, self.held)
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
            self.tell("segment taken", address, nbytes, "")
        return block

    cdef int give_segment(self, Block* block) except -1:
        """Give a segment that is one free block back to `upstream`."""
        cdef size_t address = block.address
        cdef size_t nbytes = block.nbytes
        self.unlist(block)
        self.blocks.erase(address)
        self.held -= nbytes
        if _reporter.recording:
            self.tell("segment given back", address, nbytes, "")
        return self.upstream.free_ptr(<void*>address)

    cdef int give_free_segments(self) except -1:
        cdef Block* block = self.whole_free(0)
        while block != NULL:
            self.give_segment(block)    # may run other code, so search anew
            block = self.whole_free(0)
        return 0

    cdef Block* whole_free(self, size_t least) noexcept:
        """Find the smallest segment that is one free block of at least `least` bytes; NULL if there is none."""
        cdef Block* block
        cdef Block* smallest = NULL
        cdef int pool
        for pool in range(POOLS):
            for item in self.cached[pool]:
                block = item.second
                if block.left == NULL and block.right == NULL and block.nbytes >= least:
                    if smallest == NULL or block.nbytes < smallest.nbytes:
                        smallest = block
        return smallest

    cdef int take_back(self, bint wait) except -1:
        """Make free what no stream uses any more; with `wait`, wait for that."""
        cdef size_t address = self.uses.pop(wait)
        while address != 0:
            self.cache(&self.blocks[address])
            address = self.uses.pop(wait)
        return 0

    def empty_cache(self):
        """Wait for blocks that other streams use, then give every segment without a live block back to `upstream`."""
        self.take_back(True)
        self.give_free_segments()
        self.upstream.empty_cache()

    def record_stream(self, size_t address, size_t stream):
        """Say that `stream`, too, uses the block at `address`: once freed, it is not given out before `stream` got there.

        Raises
        ------
        PointerError
            If no live block starts at `address`.
        ConfigError
            If the allocator was made without `streams`.
        """
        known = self.blocks.find(address)
        if known == self.blocks.end() or dereference(known).second.state != LIVE:
            raise self.no_block(address)
        if stream != dereference(known).second.stream:
            self.uses.add(address, stream)
            dereference(known).second.shared = True

    def set_limit(self, nbytes):
        """Hold at most `nbytes` from `upstream` from now on; None: no limit. What is held already stays.

        Raises
        ------
        ConfigError
            If `nbytes` is negative.
        """
        if nbytes is not None and not 0 <= nbytes < ANY:
            raise ConfigError(f"must be a number of bytes, at least 0, got {nbytes}", field="CachingAllocator.limit")
        self.limit = ANY if nbytes is None else nbytes

    cdef size_t reserved(self) noexcept:
        return self.held

    cdef size_t largest_free(self) noexcept:
        cdef size_t largest = 0
        cdef int pool
        for pool in range(POOLS):
            for item in self.cached[pool]:
                largest = max(largest, item.second.nbytes)
        return largest

    def stats(self):
        """Give `CachingStats`."""
        cdef size_t split_free = 0
        cdef size_t waiting = 0
        for item in self.blocks:
            if item.second.state == WAITING:
                waiting += item.second.nbytes
            elif item.second.state == FREE and (item.second.left != NULL or item.second.right != NULL):
                split_free += item.second.nbytes
        return CachingStats(*Allocator.stats(self), self.peak_held, self.hits, self.upstream_allocations, self.splits,
                            self.merges, self.retries, waiting, split_free, self.largest_free())

    def snapshot(self):
        """List the segments as `Segment`, each with its blocks, by address: for a view of the memory."""
        cdef vector[Block] copies
        for item in self.blocks:        # nothing in this loop makes an object
            copies.push_back(item.second)
        rows = [(b.address, b.nbytes, b.asked, b.state, b.stream, b.pool, b.left == NULL) for b in copies]
        names = {b.address: b.name for b in live() if b.place == self.place}
        segments = []
        for address, nbytes, asked, state, stream, pool, first in sorted(rows):
            if first:
                blocks = []
                segments.append(Segment(address, 0, stream, ("small", "large")[pool], blocks))
            asked, name = (asked, names.get(address, "")) if state == LIVE else (0, "")
            blocks.append(SegmentBlock(address, nbytes, asked, ("free", "live", "waiting")[state], name))
        return [segment._replace(nbytes=sum(b.nbytes for b in segment.blocks)) for segment in segments]

    cdef no_block(self, size_t address):
        """Make the PointerError that says why no live block starts at `address`."""
        cdef size_t start = 0
        cdef int state = FREE
        for item in self.blocks:
            if item.first <= address < item.first + item.second.nbytes:
                start = item.first
                state = item.second.state
        if start == 0:
            why = "is no live block; it comes from another allocator, or its segment was given back"
        elif start != address:
            why = f"lies inside the block at {start:#x}, but no block starts there"
        else:
            why = "is free already" + (" and waits for its streams" if state == WAITING else "")
        return PointerError(f"CachingAllocator: {address:#x} {why}")

    cdef int tell(self, str kind, size_t address, size_t nbytes, str detail) except -1:
        return _reporter.event(kind, self.place, address, nbytes, "", detail)


cdef inline Key key(size_t stream, size_t nbytes, size_t address) noexcept:
    return Key(stream, pair[size_t, size_t](nbytes, address))
