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
from helpers import one_of

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
    """What both have in common: segments, which are lists of blocks; blocks that wait for events of streams; memory from the upstream allocator."""

    def __init__(self, upstream, streams):
        self.upstream, self.streams, self.queues, self.segments, self.large = upstream, streams, {}, [], {}
        self.live = self.peak = self.allocations = 0

    def blocks(self, state, stream=None):
        return [block for segment in self.segments for block in segment if block.state == state and stream in (None, block.stream)]

    def addresses(self):
        return [*(block.at for block in self.blocks("live")), *self.large]

    def held(self):
        return sum(block.n for segment in self.segments for block in segment) + sum(self.large.values())

    def find(self, address):
        for segment in self.segments:
            for block in segment:
                if block.at == address and block.state == "live":
                    return segment, block
        raise PointerError(address)

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

    def new_segment(self, nbytes, stream, pool):
        block = SimpleNamespace(at=self.take_upstream(nbytes, stream), n=nbytes, state="free", stream=stream, pool=pool, requested=0)
        self.segments.append([block])
        return self.segments[-1]

    def split(self, segment, block, nbytes):
        """Cut a block after its first bytes; return the rest."""
        rest = SimpleNamespace(at=block.at + nbytes, n=block.n - nbytes, state="free", stream=block.stream, pool=block.pool, requested=0)
        segment.insert(segment.index(block) + 1, rest)
        block.n = nbytes
        return rest

    def record_stream(self, address, stream):
        _, block = self.find(address)
        if stream not in (block.stream, *block.users):
            block.users.append(stream)

    def free(self, address):
        """Free a block now, or when the streams that used it are done."""
        segment, block = self.find(address)
        if block.users:
            events = [(stream, self.streams.record(stream)) for stream in sorted(block.users)]
            block.state, block.waits = "waiting", len(events)
            for stream, event in events:
                self.queues.setdefault(stream, deque()).append((event, segment, block))
        self.live -= block.requested
        if block.state == "live":
            self.merge(segment, block)

    def reclaim(self, wait):
        for queue in self.queues.values():
            while queue:
                event, segment, block = queue[0]
                if wait:
                    self.streams.wait(event)
                elif not self.streams.done(event):
                    break
                queue.popleft()
                block.waits -= 1
                if block.waits == 0:
                    self.merge(segment, block)

    def unused(self):
        return [segment for segment in self.segments if len(segment) == 1 and segment[0].state == "free"]

    def release(self, segment):
        self.segments.remove(segment)
        self.upstream.free(segment[0].at)

    def release_unused(self):
        for segment in sorted(self.unused(), key=self.release_order):
            self.release(segment)

    def empty_cache(self):
        self.reclaim(True)
        self.release_unused()
        self.upstream.empty_cache()

    def snapshot(self):
        return [(s[0].at, sum(b.n for b in s), s[0].stream, s[0].pool,
                 [(b.at, b.n, b.requested if b.state == "live" else 0, b.state, "") for b in s])
                for s in sorted(self.segments, key=lambda s: s[0].at)]

    def stats(self):
        return self.live, self.peak, self.held(), len(self.addresses()), self.allocations


class PlainCache(Plain):
    """The rules of the head of caching.pyx."""

    def __init__(self, upstream, streams, constants):
        super().__init__(upstream, streams)
        self.constants = constants
        self.hits = self.upstream_allocations = self.splits = self.retries = self.peak_reserved = 0
        self.merged = []        # address and bytes, as events report them

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
        self.hits += block is not None
        block = block or self.grow(pool, stream, size)
        block.state, block.requested, block.users = "live", nbytes, []
        self.count(nbytes)
        if least is not None and block.n - size >= least:
            self.split(self.find(block.at)[0], block, size)
            self.splits += 1
        if chosen is not None:
            self.record_stream(block.at, chosen)
        return block.at

    def cached(self, pool, stream, size):
        fitting = [b for b in self.blocks("free", stream) if b.pool == pool and (b.n == size or b.n > size and pool != "whole")]
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
        if whole := [s for s in self.unused() if s[0].n >= usual]:
            self.release(min(whole, key=self.release_order))
            if block := self.take(pool, stream, usual):
                return block
        self.reclaim(True)
        if block := self.cached(pool, stream, size):
            return block
        self.release_unused()
        block = self.take(pool, stream, usual) or (self.take(pool, stream, least) if least < usual else None)
        if block is None:
            raise OutOfMemoryError(self.refusal)
        return block

    def release_order(self, segment):
        """First the smallest; of equal ones that of the first list, by stream and address."""
        block = segment[0]
        return block.n, block.pool == "large", block.stream, block.at

    def take(self, pool, stream, nbytes):
        try:
            (block,) = self.new_segment(nbytes, stream, pool)
        except OutOfMemoryError as error:
            self.refusal = str(error)
            return None
        self.upstream_allocations += 1
        self.peak_reserved = max(self.peak_reserved, self.held())
        return block

    def merge(self, segment, block):
        block.state = "free"
        merged, nbytes = [], block.n
        for b in segment:
            if merged and merged[-1].state == b.state == "free":
                merged[-1].n += b.n
            else:
                merged.append(b)
        segment[:] = merged
        whole = next(b for b in merged if b.at <= block.at < b.at + b.n)
        if whole.n != nbytes:
            self.merged.append((whole.at, whole.n))

    def largest(self, stream=None):
        return max((b.n for b in self.blocks("free", stream)), default=0)

    def stats(self):
        return (*super().stats(), self.peak_reserved, self.hits, self.upstream_allocations, self.retries,
                sum(b.n for b in self.blocks("waiting")), self.largest())


class PlainBuddy(Plain):
    """The rules of the head of buddy.pyx: chunks of 128 bytes to 4 KiB, the first pool of 1 KiB."""

    next_pool = 1024

    def largest(self, pool, at=0, nbytes=4096):
        """The bytes of the largest free chunk in a part of a pool."""
        at = at or pool[0].at
        return max((min(b.n, nbytes) for b in pool if b.state == "free" and b.at < at + nbytes and at < b.at + b.n), default=0)

    def best_pool(self, wanted, stream):
        fitting = [pool for pool in self.segments if pool[0].stream == stream and self.largest(pool) >= wanted]
        return min(fitting, key=lambda pool: (self.largest(pool), pool[0].at), default=None)

    def alloc(self, nbytes, stream=None):
        chosen = stream
        stream = self.streams.stream if stream is None else stream
        self.reclaim(False)
        wanted = nbytes + (8 if self.upstream.place.on_host else 0)      # with its guard
        if wanted > 4096:
            try:
                address = self.take_upstream(nbytes, stream)
            except OutOfMemoryError:
                self.reclaim(True)
                self.release_unused()
                address = self.take_upstream(nbytes, stream)
            self.large[address] = nbytes
        else:
            address = self.chunk(nbytes, max(128, 1 << (wanted - 1).bit_length()), stream)
        self.count(nbytes)
        if chosen is not None:
            try:
                self.record_stream(address, chosen)
            except OSError:
                self.free(address)
                raise
        return address

    def chunk(self, nbytes, wanted, stream):
        pool = self.best_pool(wanted, stream) or self.grow(wanted, stream)
        at, part = pool[0].at, sum(b.n for b in pool)
        while part > wanted:
            part //= 2
            left, right = self.largest(pool, at, part), self.largest(pool, at + part, part)
            if left < wanted or left > right >= wanted:
                at += part
        block = next(b for b in pool if b.at <= at < b.at + b.n)
        while block.n > wanted:
            half = self.split(pool, block, block.n // 2)
            block = half if at >= half.at else block
        block.state, block.requested, block.users = "live", nbytes, []
        return block.at

    def grow(self, wanted, stream):
        size = max(wanted, self.next_pool)
        try:
            pool = self.new_segment(size, stream, "buddy")
        except OutOfMemoryError:
            self.reclaim(True)
            if pool := self.best_pool(wanted, stream):
                return pool
            self.release_unused()
            size = wanted
            pool = self.new_segment(size, stream, "buddy")
        self.next_pool = min(2 * size, 4096)
        return pool

    def release_order(self, pool):
        return pool[0].at

    def record_stream(self, address, stream):
        (self.upstream if address in self.large else super()).record_stream(address, stream)

    def free(self, address):
        if address not in self.large:
            return super().free(address)
        self.live -= self.large.pop(address)
        self.upstream.free(address)
        return None

    def merge(self, pool, block):
        block.state, base = "free", pool[0].at
        while buddy := next((b for b in pool if (b.at - base, b.n, b.state) == ((block.at - base) ^ block.n, block.n, "free")), None):
            block, other = sorted((block, buddy), key=lambda b: b.at)
            pool.remove(other)
            block.n *= 2
        empty = [p for p in self.unused() if p[0].stream == block.stream]
        if len(pool) == 1 and len(empty) > 1:
            self.release(min(empty, key=lambda p: (p[0].n, p[0].at)))


def outcome(function, *arguments):
    """What a call returns, or the type and, of a refusal, the limit of its error."""
    try:
        return function(*arguments)
    except (OutOfMemoryError, PointerError, OSError) as error:
        return type(error).__name__, (getattr(error, "limit", str(error)) if isinstance(error, OutOfMemoryError) else "")


def do_both(kind, ours, plain, address, nbytes, stream):
    """Return what a call of the allocator and of the plain one gives."""
    method, *arguments = {"malloc": ("alloc", nbytes, stream), "alloc": ("alloc", nbytes), "free": ("free", address), "inside": ("free", address + 64),
                          "use": ("record_stream", address, stream), "empty": ("empty_cache",)}[kind]
    return outcome(getattr(ours, "malloc" if kind == "malloc" else method), *arguments), outcome(getattr(plain, method), *arguments)


def disturb(kind, stream, streams, upstreams, fails):
    """Change the stream, let its work end, or let a call of it fail; say whether the upstream fails. The same on both sides."""
    for one, upstream in zip(streams, upstreams, strict=True):
        upstream.broken = fails
        if kind == "stream":
            one.stream = stream
        elif kind == "reach":
            one.reach(stream)
        else:
            one.broken = "" if one.broken else ["record", "done", "wait"][stream]


WEIGHTS = {"alloc": 9, "malloc": 3, "free": 8, "stream": 2, "use": 5, "reach": 2, "empty": 0.5, "break": 1, "inside": 0.3}


def walk(seed, heap, streams, plain, sizes, events):
    """Call an allocator and the plain one at random; yield bytes and result of each step, after which both are alike."""
    pick, known, upstreams = random.Random(seed), [], (heap.upstream, plain.upstream)
    for _ in range(120):
        if pick.random() < 0.4:
            streams.broken = plain.streams.broken = ""
        kind, addresses, result = pick.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], plain.addresses(), None
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


@pytest.mark.parametrize("constants", one_of(4, ["arena", "pytorch", "thc", None]))
def test_caches(constants):
    place, retries = PinnedPlace() if constants is None else CUDAPlace(0), 0
    options = {} if constants is None else {"constants": constants}
    for seed in range(24):
        room, events = random.Random(seed).choice([24, 40, 64, 10**6]) * MIB, []
        upstream, streams = Upstream(place, room), FakeStreams()
        cache = (CachingAllocator if constants else CachingHostAllocator)(upstream, streams, **options)
        plain = PlainCache(Upstream(place, room), FakeStreams(), constants)
        for _ in walk(seed, cache, streams, plain, SIZES, events):
            assert [(e.address, e.nbytes) for e in events if e.kind == "merge"] == plain.merged, seed
            assert sum(e.kind == "cache hit" for e in events) == plain.hits and sum(e.kind == "split" for e in events) == plain.splits
            for stream in (None, 0, 1, 2) if constants else (None,):    # page-locked blocks belong to no stream
                assert cache.cache_info(stream) == (sum(b.n for b in plain.blocks("free", stream)), plain.largest(stream))
            for segment in plain.segments:
                assert all(cache.base_allocation(b.at) == (segment[0].at, sum(b.n for b in segment)) for b in segment if b.state == "live")
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
        buddy, plain = BuddyAllocator(upstream, streams=streams, **POOLS), PlainBuddy(Upstream(place, room, base), FakeStreams())
        for step, (nbytes, result) in enumerate(walk(seed, buddy, streams, plain, BUDDY_SIZES, [])):
            if type(result) is int and place.on_host:
                contents[result] = bytes([step]) * nbytes
                ctypes.memset(result, step, nbytes)
            contents = {address: contents[address] for address in plain.addresses() if place.on_host}
            assert all(ctypes.string_at(address, len(content)) == content for address, content in contents.items()), (seed, step)
            refused += type(result) is tuple and result[0] == "OutOfMemoryError"
            waited += len(plain.blocks("waiting"))
        del buddy
        assert not upstream.taken
    assert refused > 10 and waited > 100
