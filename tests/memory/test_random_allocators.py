"""The caching allocators and the buddy allocator against a second implementation of their rules in plain Python.

Random sequences of calls, some of which fail below the cache or in a stream, give the same addresses, errors, blocks and
statistics after each call.
"""

import ctypes
import random
from collections import deque
from types import SimpleNamespace

import pytest
from doubles import FakeStreams
from heaps import POOLS

from minicaffe import memory
from minicaffe.errors import OutOfMemoryError, PointerError
from minicaffe.memory import Allocator, BuddyAllocator, CachingAllocator, CachingHostAllocator, CUDAPlace, PinnedPlace

MIB, NO_STREAM = 1 << 20, 2**64 - 1
# large request, least rest, grain, small segment, middle request, middle segment, grain of segments
RULES = {
    "pytorch": (MIB + 1, MIB + 1, 512, 2 * MIB, 10 * MIB, 20 * MIB, 2 * MIB),
    "thc": (MIB + 1, MIB + 1, 128 << 10, MIB, 0, 0, 1),
    "arena": (0, 512, 512, 0, 1024 * MIB, 1024 * MIB, 2 * MIB),
}
SIZES = [0, 1, 512, 513, 4096, 300 << 10, MIB, MIB + 1, 3 * MIB, 8 * MIB + 5, 10 * MIB, 10 * MIB + 1, 11 * MIB, 25 * MIB, 2048 * MIB]


class Upstream(Allocator):
    """Addresses from `base` on, by default no memory; the allocation over `room` bytes fails, and so does a stream that is `broken`."""

    def __init__(self, place, room, base=1 << 40):
        super().__init__(place)
        self.room, self.next, self.taken, self.log, self.broken = room, base, {}, [], False

    def alloc(self, nbytes):
        if sum(self.taken.values()) + nbytes > self.room:
            raise OutOfMemoryError(f"no {nbytes} bytes beside {sum(self.taken.values())}")
        address = self.next
        self.next += -(-nbytes // 512) * 512       # segments touch
        self.taken[address] = nbytes
        self.log.append(("alloc", address, nbytes))
        return address

    def free(self, address):
        self.log.append(("free", address, self.taken.pop(address)))

    def record_stream(self, address, stream):
        if self.broken:
            raise OSError("record_stream failed")
        self.log.append(("stream", address, stream))

    def empty_cache(self):
        self.log.append(("empty_cache",))


class Plain:
    """What both have in common: blocks that wait for events of streams, counts, and memory from the upstream allocator."""

    def __init__(self, upstream, streams):
        self.upstream, self.streams, self.queues = upstream, streams, {}
        self.live = self.peak = self.allocations = 0

    def count(self, nbytes):
        self.live += nbytes
        self.allocations += 1
        self.peak = max(self.peak, self.live)

    def take_upstream(self, nbytes, stream):
        try:
            address = self.upstream.alloc(nbytes)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"that of the upstream allocator ({error})") from None
        if stream not in (self.streams.stream, NO_STREAM):
            try:
                self.upstream.record_stream(address, stream)
            except OSError:
                self.upstream.free(address)
                raise
        return address

    def release_block(self, block, *owner):
        """Free a block now, or when the streams that used it are done."""
        if block.users:
            events = [(stream, self.streams.record(stream)) for stream in sorted(block.users)]
            block.state, block.waits = "waiting", len(events)
            for stream, event in events:
                self.queues.setdefault(stream, deque()).append((event, block, owner))
        self.live -= block.requested
        if block.state == "live":
            self.merge(*owner, block)

    def reclaim(self, wait):
        for queue in self.queues.values():
            while queue:
                event, block, owner = queue[0]
                if wait:
                    self.streams.wait(event)
                elif not self.streams.done(event):
                    break
                queue.popleft()
                block.waits -= 1
                if block.waits == 0:
                    self.merge(*owner, block)

    def empty_cache(self):
        self.reclaim(True)
        self.release_unused()
        self.upstream.empty_cache()


class PlainCache(Plain):
    """The rules of the head of caching.pyx; a block is a SimpleNamespace, a segment a list of blocks."""

    def __init__(self, upstream, streams, constants):
        super().__init__(upstream, streams)
        self.constants, self.segments, self.peak_reserved = constants, [], 0
        self.hits = self.upstream_allocations = self.splits = self.retries = 0
        self.merged = []        # address and bytes, as events report them

    @property
    def blocks(self):
        return [block for segment in self.segments for block in segment]

    @property
    def held(self):
        return sum(block.n for block in self.blocks)

    def free_blocks(self, stream=None):
        return [b for b in self.blocks if b.state == "free" and stream in (None, b.stream)]

    def find(self, address):
        block = next((b for b in self.blocks if b.at == address), None)
        if block is None or block.state != "live":
            raise PointerError(address)
        return block

    def alloc(self, nbytes, stream=None):
        chosen = stream
        stream = self.streams.stream if stream is None else stream
        self.reclaim(False)
        if self.constants is None:
            size = max(512, 1 << max(0, nbytes - 1).bit_length())
            pool, stream, least = "whole", NO_STREAM, None
        else:
            large_request, large_rest, grain = RULES[self.constants][:3]
            pool = "small" if nbytes < large_request else "large"
            grain, least = (512, 512) if pool == "small" else (grain, large_rest)
            size = max(-(-nbytes // grain) * grain, grain)
        block = self.cached(pool, stream, size)
        if block is None:
            block = self.grow(pool, stream, size)
        else:
            self.hits += 1
        block.state, block.requested, block.users = "live", nbytes, []
        self.count(nbytes)
        if least is not None and block.n - size >= least:
            segment = next(s for s in self.segments if block in s)
            rest = SimpleNamespace(at=block.at + size, n=block.n - size, state="free", stream=stream, pool=pool, requested=0)
            segment.insert(segment.index(block) + 1, rest)
            block.n = size
            self.splits += 1
        if chosen is not None:
            self.record_stream(block.at, chosen)
        return block.at

    def cached(self, pool, stream, size):
        fitting = [b for b in self.free_blocks(stream) if b.pool == pool and (b.n == size or b.n > size and pool != "whole")]
        return min(fitting, key=lambda b: (b.n, b.at), default=None)

    def grow(self, pool, stream, size):
        least = usual = size
        if pool != "whole":
            _, _, _, small_segment, middle_request, middle_segment, grain = RULES[self.constants]
            least = usual = max(small_segment, size) if pool == "small" else -(-size // grain) * grain
            if pool == "large" and size <= middle_request:
                usual = middle_segment
        if block := self.take(pool, stream, usual):
            return block
        self.retries += 1
        whole = [s for s in self.segments if len(s) == 1 and s[0].state == "free" and s[0].n >= usual]
        if whole:
            self.release(min(whole, key=self.rank))
            if block := self.take(pool, stream, usual):
                return block
        self.reclaim(True)
        if block := self.cached(pool, stream, size):
            return block
        self.release_unused()
        if block := self.take(pool, stream, usual):
            return block
        if least < usual and (block := self.take(pool, stream, least)):
            return block
        raise OutOfMemoryError(self.refusal)

    def rank(self, segment):
        """What is returned first: the smallest; of equal ones that of the first list, by stream and address."""
        block = segment[0]
        return block.n, block.pool == "large", block.stream, block.at

    def take(self, pool, stream, nbytes):
        try:
            address = self.take_upstream(nbytes, stream)
        except OutOfMemoryError as error:
            self.refusal = str(error)
            return None
        self.upstream_allocations += 1
        block = SimpleNamespace(at=address, n=nbytes, state="live", stream=stream, pool=pool, requested=0)
        self.segments.append([block])
        self.peak_reserved = max(self.peak_reserved, self.held)
        return block

    def release(self, segment):
        self.segments.remove(segment)
        self.upstream.free(segment[0].at)

    def release_unused(self):
        for segment in sorted([s for s in self.segments if len(s) == 1 and s[0].state == "free"], key=self.rank):
            self.release(segment)

    def record_stream(self, address, stream):
        block = self.find(address)
        if stream != block.stream and stream not in block.users:
            block.users.append(stream)

    def free(self, address):
        self.release_block(self.find(address))

    def merge(self, block):
        block.state = "free"
        segment = next(s for s in self.segments if block in s)
        merged, address, nbytes = [], block.at, block.n
        for b in segment:
            if merged and merged[-1].state == b.state == "free":
                merged[-1].n += b.n
            else:
                merged.append(b)
        segment[:] = merged
        block = next(b for b in merged if b.at <= address < b.at + b.n)
        if block.n != nbytes:
            self.merged.append((block.at, block.n))

    def largest(self, stream=None):
        return max((b.n for b in self.free_blocks(stream)), default=0)

    def stats(self):
        live = [b for b in self.blocks if b.state == "live"]
        return (self.live, self.peak, self.held, len(live), self.allocations, self.peak_reserved, self.hits,
                self.upstream_allocations, self.retries, sum(b.n for b in self.blocks if b.state == "waiting"), self.largest())

    def snapshot(self):
        return [(s[0].at, sum(b.n for b in s), s[0].stream, s[0].pool,
                 [(b.at, b.n, b.requested if b.state == "live" else 0, b.state, "") for b in s])
                for s in sorted(self.segments, key=lambda s: s[0].at)]


class PlainBuddy(Plain):
    """The rules of the head of buddy.pyx: chunks of 128 bytes to 4 KiB, the first pool of 1 KiB; a pool is a list of chunks."""

    def __init__(self, upstream, streams):
        super().__init__(upstream, streams)
        self.guard = 8 if upstream.place.on_host else 0
        self.pools, self.large, self.next_order = [], {}, 3

    def ordered(self, pools):
        return sorted(pools, key=lambda pool: pool.base)

    def is_empty(self, pool):
        return len(pool.chunks) == 1 and pool.chunks[0].state == "free"

    def find(self, address):
        found = [(pool, c) for pool in self.pools for c in pool.chunks if pool.base + 128 * c.at == address and c.state == "live"]
        if not found:
            raise PointerError(address)
        return found[0]

    def largest(self, pool, at=0, order=5):
        """The order of the largest free chunk in a part of a pool, -1 if there is none."""
        return max((min(c.order, order) for c in pool.chunks if c.state == "free" and c.at < at + (1 << order)
                    and at < c.at + (1 << c.order)), default=-1)

    def best_pool(self, wanted, stream):
        fitting = [pool for pool in self.pools if pool.stream == stream and self.largest(pool) >= wanted]
        return min(fitting, key=lambda pool: (self.largest(pool), pool.base), default=None)

    def alloc(self, nbytes, stream=None):
        chosen = stream
        stream = self.streams.stream if stream is None else stream
        self.reclaim(False)
        if nbytes + self.guard > 4096:
            try:
                address = self.take_upstream(nbytes, stream)
            except OutOfMemoryError:
                self.reclaim(True)
                self.release_unused()
                address = self.take_upstream(nbytes, stream)
            self.large[address] = nbytes
        else:
            wanted = max(0, -(-(nbytes + self.guard) // 128) - 1).bit_length()
            pool = self.best_pool(wanted, stream) or self.grow(wanted, stream)
            at, order = 0, pool.order
            while order > wanted:
                order -= 1
                left, right = self.largest(pool, at, order), self.largest(pool, at + (1 << order), order)
                if left < wanted or left > right >= wanted:
                    at += 1 << order
            chunk = next(c for c in pool.chunks if c.at <= at < c.at + (1 << c.order))
            while chunk.order > wanted:
                chunk.order -= 1
                half = SimpleNamespace(at=chunk.at + (1 << chunk.order), order=chunk.order, state="free", requested=0)
                pool.chunks.insert(pool.chunks.index(chunk) + 1, half)
                chunk = half if at >= half.at else chunk
            chunk.state, chunk.requested, chunk.users = "live", nbytes, []
            address = pool.base + 128 * chunk.at
        self.count(nbytes)
        if chosen is not None:
            try:
                self.record_stream(address, chosen)
            except OSError:
                self.free(address)
                raise
        return address

    def grow(self, wanted, stream):
        order = max(wanted, self.next_order)
        try:
            base = self.take_upstream(128 << order, stream)
        except OutOfMemoryError:
            self.reclaim(True)
            if pool := self.best_pool(wanted, stream):
                return pool
            self.release_unused()
            order = wanted
            base = self.take_upstream(128 << order, stream)
        self.next_order = min(order + 1, 5)
        chunk = SimpleNamespace(at=0, order=order, state="free", requested=0)
        self.pools.append(SimpleNamespace(base=base, order=order, stream=stream, chunks=[chunk]))
        return self.pools[-1]

    def release(self, pool):
        self.pools.remove(pool)
        self.upstream.free(pool.base)

    def release_unused(self):
        for pool in self.ordered(filter(self.is_empty, self.pools)):
            self.release(pool)

    def record_stream(self, address, stream):
        if address in self.large:
            self.upstream.record_stream(address, stream)
            return
        pool, chunk = self.find(address)
        if stream != pool.stream and stream not in chunk.users:
            chunk.users.append(stream)

    def free(self, address):
        if address in self.large:
            self.live -= self.large.pop(address)
            self.upstream.free(address)
            return
        pool, chunk = self.find(address)
        self.release_block(chunk, pool)

    def merge(self, pool, chunk):
        chunk.state = "free"
        while buddy := next((c for c in pool.chunks if (c.at, c.order, c.state) == (chunk.at ^ 1 << chunk.order, chunk.order,
                                                                                   "free") and c is not chunk), None):
            pool.chunks.remove(max(chunk, buddy, key=lambda c: c.at))
            chunk = min(chunk, buddy, key=lambda c: c.at)
            chunk.order += 1
        empty = [p for p in self.pools if p.stream == pool.stream and self.is_empty(p)]
        if self.is_empty(pool) and len(empty) > 1:
            self.release(min(empty, key=lambda p: (p.order, p.base)))

    def blocks_at(self, state):
        return [pool.base + 128 * c.at for pool in self.pools for c in pool.chunks if c.state == state]

    def stats(self):
        held = sum(128 << pool.order for pool in self.pools) + sum(self.large.values())
        return self.live, self.peak, held, len(self.blocks_at("live")) + len(self.large), self.allocations

    def snapshot(self):
        return [(pool.base, 128 << pool.order, pool.stream, "buddy",
                 [(pool.base + 128 * c.at, 128 << c.order, c.requested if c.state == "live" else 0, c.state, "") for c in pool.chunks])
                for pool in self.ordered(self.pools)]


def outcome(function, *arguments):
    """What a call returns, or the type and, of a refusal, the limit of its error."""
    try:
        return function(*arguments)
    except (OutOfMemoryError, PointerError, OSError) as error:
        return type(error).__name__, (getattr(error, "limit", str(error)) if isinstance(error, OutOfMemoryError) else "")


def do_both(kind, ours, plain, address, nbytes, stream):
    """Return what a call of the allocator and of the plain one gives."""
    if kind == "malloc":
        return outcome(ours.malloc, nbytes, stream), outcome(plain.alloc, nbytes, stream)
    method, *arguments = {"alloc": ("alloc", nbytes), "free": ("free", address), "inside": ("free", address + 64),
                          "use": ("record_stream", address, stream), "empty": ("empty_cache",)}[kind]
    return outcome(getattr(ours, method), *arguments), outcome(getattr(plain, method), *arguments)


def disturb(kind, stream, streams, upstreams, fails):
    """Change the stream, let its work end, or let a call of it fail; say whether the upstream fails. The same on both sides."""
    for one in streams:
        if kind == "stream":
            one.stream = stream
        elif kind == "reach":
            one.reach(stream)
        else:
            one.broken = "" if one.broken else ["record", "done", "wait"][stream]
    for upstream in upstreams:
        upstream.broken = fails


WEIGHTS = {"alloc": 9, "malloc": 3, "free": 8, "stream": 2, "use": 5, "reach": 2, "empty": 0.5, "break": 1, "inside": 0.3}


def walk(seed, heap, streams, plain, live, sizes, events):
    """Call an allocator and the plain one at random; yield bytes and result of each step, after which both are alike."""
    pick, known, upstreams = random.Random(seed), [], (heap.upstream, plain.upstream)
    for _ in range(120):
        if pick.random() < 0.4:
            streams.broken = plain.streams.broken = ""
        kind, addresses, result = pick.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], live(), None
        address = pick.choice(addresses) if addresses and pick.random() < 0.95 else pick.choice(known or [64])
        stream, nbytes = pick.randrange(3), pick.choice(sizes)
        if kind in ("stream", "reach", "break"):
            disturb(kind, stream, (streams, plain.streams), upstreams, pick.random() < 0.2)
        else:
            with memory.record(events):
                result, wanted = do_both(kind, heap, plain, address, nbytes, stream)
            assert result == wanted, (seed, kind, nbytes)
        if type(result) is int:
            known.append(result)
        snapshot = [(*segment[:4], [tuple(block) for block in segment.blocks]) for segment in heap.snapshot()]
        assert snapshot == plain.snapshot(), (seed, kind)
        assert tuple(heap.stats()) == plain.stats(), (seed, kind)
        assert upstreams[0].log == upstreams[1].log, (seed, kind)
        yield nbytes, result


@pytest.mark.parametrize("constants", ["pytorch", "thc", "arena", None])
def test_caches(constants):
    place, retries = PinnedPlace() if constants is None else CUDAPlace(0), 0
    options = {} if constants is None else {"constants": constants}
    for seed in range(24):
        room, events = random.Random(seed).choice([24, 40, 64, 10**6]) * MIB, []
        upstream, streams = Upstream(place, room), FakeStreams()
        cache = (CachingAllocator if constants else CachingHostAllocator)(upstream, streams, **options)
        plain = PlainCache(Upstream(place, room), FakeStreams(), constants)
        for _ in walk(seed, cache, streams, plain, lambda plain=plain: [b.at for b in plain.blocks if b.state == "live"], SIZES, events):
            assert [(e.address, e.nbytes) for e in events if e.kind == "merge"] == plain.merged, seed
            assert sum(e.kind == "cache hit" for e in events) == plain.hits and sum(e.kind == "split" for e in events) == plain.splits
            for stream in (None, 0, 1, 2) if constants else (None,):    # page-locked blocks belong to no stream
                assert cache.cache_info(stream) == (sum(b.n for b in plain.free_blocks(stream)), plain.largest(stream))
            for segment in plain.segments:
                for block in segment:
                    if block.state == "live":
                        assert cache.base_allocation(block.at) == (segment[0].at, sum(b.n for b in segment))
        assert plain.hits and plain.allocations > 20
        retries += plain.retries
        del cache
        assert not upstream.taken
    assert retries > 10


BUDDY_SIZES = [0, 1, 120, 128, 129, 256, 400, 512, 1016, 1024, 1025, 2048, 4088, 4096, 4097]


@pytest.mark.parametrize("place", [CUDAPlace(0), PinnedPlace()], ids=repr)
def test_buddies(place):
    """A guard follows each block of host memory, where each keeps what was written until it is freed."""
    refused = waited = 0
    for seed in range(25):
        room, host = random.Random(seed).choice([6, 9, 14, 10**6]) << 10, ctypes.create_string_buffer(1 << 20)     # more than all pools together
        base = -(-ctypes.addressof(host) // 512) * 512 if place.on_host else 1 << 40
        upstream, streams, contents = Upstream(place, room, base), FakeStreams(), {}
        buddy = BuddyAllocator(upstream, streams=streams, **POOLS)
        plain = PlainBuddy(Upstream(place, room, base), FakeStreams())

        def live(plain=plain):
            return [*plain.blocks_at("live"), *plain.large]

        for step, (nbytes, result) in enumerate(walk(seed, buddy, streams, plain, live, BUDDY_SIZES, [])):
            if type(result) is int and place.on_host:
                contents[result] = bytes([step]) * nbytes
                ctypes.memset(result, step, nbytes)
            contents = {address: contents[address] for address in live() if place.on_host}
            assert all(ctypes.string_at(address, len(content)) == content for address, content in contents.items()), (seed, step)
            refused += type(result) is tuple and result[0] == "OutOfMemoryError"
            waited += len(plain.blocks_at("waiting"))
        del buddy
        assert not upstream.taken
    assert refused > 10 and waited > 100
