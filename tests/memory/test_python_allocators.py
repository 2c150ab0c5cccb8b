"""Allocators written in Python: records, checks, errors, re-entrance, the end of the process."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from doubles import FakeStreams

from minicaffe import memory
from minicaffe.errors import Error, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import Allocator, BuddyAllocator, Buffer, CachingAllocator, CPUPlace, LimitAllocator, SystemAllocator

MIB = 1 << 20


class Through(Allocator):
    """Pass each call on."""

    def __init__(self, upstream):
        super().__init__(upstream.place, upstream)

    def alloc(self, nbytes):
        return super().alloc(nbytes)

    def free(self, address):
        super().free(address)


class Own(Allocator):
    """Take memory from ctypes; `answer`, if any, is what alloc gives in its place."""

    def __init__(self, place=None, answer=None):
        super().__init__(place or CPUPlace())
        self.arrays, self.answer = {}, answer

    def alloc(self, nbytes):
        if self.answer is not None:
            return None if self.answer is ... else self.answer
        array = ctypes.create_string_buffer(nbytes + 64)
        address = -(-ctypes.addressof(array) // 64) * 64
        self.arrays[address] = array
        return address

    def free(self, address):
        del self.arrays[address]


@pytest.mark.parametrize("place", [CPUPlace(), memory.PinnedPlace(), memory.CUDAPlace(1)], ids=repr)
@pytest.mark.parametrize("kind", ["own", "through"])
def test_records_are_kept_for_it(place, kind):
    allocator = Own(place) if kind == "own" else Through(SystemAllocator(place))
    blocks = [Buffer(allocator, n, "mine") for n in (0, 100, 5000)]
    assert allocator.stats()[:5] == (5100, 5100, 5100, 3, 3)
    assert {(b.address, b.nbytes) for b in memory.reporter.live() if b.name == "mine"} == {(b.address, b.nbytes) for b in blocks}
    del blocks[2]
    assert allocator.stats()[:5] == (100, 5100, 100, 2, 3)
    blocks.clear()
    assert allocator.stats().count == 0 and not (allocator.arrays if kind == "own" else allocator.upstream.stats().count)
    if place == CPUPlace():
        memory.use(place, allocator)
        used, address = memory.used(place), memory.alloc(place, 1000)
        assert (memory.used(place), memory.stats(place).reserved) == (used + 1000, 1000)
        memory.free(place, address)


@pytest.mark.parametrize("stack", [lambda mine: LimitAllocator(mine, MIB), lambda mine: memory.FailAllocator(mine, 0), CachingAllocator,
                                   memory.CachingHostAllocator, BuddyAllocator, Through], ids=["limit", "fail", "caching", "pinned", "buddy", "python"])
def test_below_any_other_allocator(stack):
    mine = Through(SystemAllocator())
    above = stack(mine)
    blocks = [Buffer(above, n) for n in (10, 1000, 100_000)]
    assert above.stats().live == 101_010 and mine.stats().live == mine.upstream.stats().live == above.stats().reserved >= 101_010
    del blocks
    above.empty_cache()
    assert above.stats().live == mine.stats().live == mine.upstream.stats().live == 0


def test_above_a_cache():
    streams = FakeStreams()
    cache = CachingAllocator(SystemAllocator(memory.CUDAPlace(0)), streams)
    mine = Through(cache)
    address = Buffer(mine, 700).address
    assert Buffer(mine, 500).address == address and cache.stats().hits == 1
    mine.empty_cache()
    assert cache.stats().reserved == 0
    block = Buffer(LimitAllocator(mine, MIB), 500)
    block.record_stream(3)      # passed on to the cache
    del block
    assert streams.put == {3: 1} and cache.stats().waiting == 512


@pytest.mark.parametrize(("answer", "error", "message"), [
    (0, PointerError, "Own.alloc gave 0x0; an address must be a multiple of 64 other than 0"), (-64, PointerError, "gave -0x40"),
    (1 << 64, PointerError, "must be a multiple of 64"), (4096 + 32, PointerError, "gave 0x1020"), (True, PointerError, "gave 0x1;"),
    (64.0, WrongTypeError, r"Own.alloc must give an address \(int\), got float"), ("64", WrongTypeError, "got str"),
    (..., WrongTypeError, "got NoneType")])     # alloc returns nothing
def test_what_alloc_gives_is_checked(answer, error, message):
    mine = Own(answer=answer)
    with pytest.raises(error, match=message):
        Buffer(mine, 10)
    assert mine.stats()[:5] == (0, 0, 0, 0, 0)


def test_live_block_given_twice():
    class Dangling(Allocator):
        def alloc(self, nbytes):
            address = super().alloc(nbytes)
            super().free(address)
            return address

    mine = Own()
    block = Buffer(mine, 1000)
    mine.answer = block.address
    with pytest.raises(PointerError, match=f"gave {block.address:#x}, where a block of 1,000 bytes lives already"):
        Buffer(mine, 10)
    assert mine.stats().live == 1000
    del block
    assert mine.stats().live == 0
    mine.answer = None
    above = memory.FailAllocator(mine, 0)
    address = above.alloc(10)
    above.free(address)
    freed_below = Dangling(CPUPlace(), CachingAllocator(SystemAllocator()))
    taken = LimitAllocator(freed_below, 1000).alloc(100)
    with pytest.raises(PointerError, match=f"Dangling.alloc gave {taken:#x}, where a block of 100 bytes lives already"):
        Buffer(freed_below, 100)
    dangling = memory.FailAllocator(freed_below, 0)
    for heap, wrong, words in ((above, address, ""), (LimitAllocator(mine, 1000), 4096, ""), (dangling, dangling.alloc(3 * MIB), "CachingAllocator: ")):
        with pytest.raises(PointerError, match=f"{words}no live block starts at"):      # nor is an address freed that is no live block's
            heap.free(wrong)
    assert freed_below.stats().count == 1


def test_what_has_to_be_overridden():
    class Nothing(Allocator):
        pass

    class NoFree(Allocator):
        alloc = Own.alloc
        arrays, answer = {}, None

    class NoPlace(Own):
        def __init__(self):
            pass

    limit = LimitAllocator(NoFree(CPUPlace()), 100)
    address = limit.alloc(1)
    for call, words in ((lambda: Buffer(Nothing(CPUPlace()), 1), "Nothing must override alloc"),
                        (lambda: Nothing(CPUPlace(), SystemAllocator()).alloc(1), "Nothing must override alloc"),
                        (lambda: limit.free(address), "NoFree has no upstream, so it must override free"),
                        (lambda: Buffer(NoPlace(), 1), r"NoPlace has no place; its __init__ must call super\(\).__init__"),
                        (lambda: Allocator.alloc(Own(), 1), "Own has no upstream, so it must override alloc")):
        with pytest.raises(Error, match=words):
            call()


class Broken(Through):
    error = None

    def alloc(self, nbytes):
        if self.error is not None:
            raise self.error
        return super().alloc(nbytes)

    def free(self, address):
        super().free(address)
        if self.error is not None:
            raise self.error


STACKS = [CachingAllocator, memory.CachingHostAllocator, BuddyAllocator]


@pytest.mark.parametrize("stack", [lambda mine: mine, *STACKS], ids=["plain", "caching", "pinned", "buddy"])
def test_errors_pass_through(stack):
    mine = Broken(SystemAllocator())
    above = stack(mine)
    for error in ZeroDivisionError("mine"), OutOfMemoryError("none left today"):
        mine.error = error
        with pytest.raises(type(error), match=str(error)):
            Buffer(above, 1000)
    mine.error = None
    Buffer(above, 1000)
    above.empty_cache()
    assert above.stats().live == mine.stats().live == mine.upstream.stats().live == 0


@pytest.fixture
def unraisable(monkeypatch):
    """The texts of errors that no caller can catch."""
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: caught.append(str(unraisable.exc_value)))
    return caught


def test_error_of_free(unraisable):
    mine = Broken(SystemAllocator())
    block, limit = Buffer(mine, 100), LimitAllocator(mine, 1000)
    address = limit.alloc(10)
    mine.error = ValueError("cannot free")
    del block
    assert unraisable == ["cannot free"] and mine.stats().count == 1
    with pytest.raises(ValueError, match="cannot free"):
        limit.free(address)


@pytest.mark.parametrize("stack", STACKS)
def test_end_of_a_cache(stack, unraisable):
    mine = Broken(SystemAllocator())
    above = stack(mine)
    for nbytes in (1000, 3 * MIB, 30 * MIB, 200 * MIB):
        above.alloc(nbytes)
    taken = mine.stats().count
    assert taken > 1
    mine.error = ValueError("cannot free")
    del above
    assert unraisable == ["cannot free"] * taken and mine.upstream.stats().count == 0


def test_alloc_and_free_may_use_blobs(host):
    """A log that keeps its own lines in a blob of the same place."""
    class Keeping(Through):
        def __init__(self, upstream):
            super().__init__(upstream)
            self.busy, self.sizes = False, []

        def note(self, nbytes):
            if not self.busy:
                self.busy, synced = True, memory.SyncedMemory(8)
                np.frombuffer(synced.mutable_cpu_data(), np.int64)[0] = nbytes
                self.sizes.append(synced)
                self.busy = False

        def alloc(self, nbytes):
            self.note(nbytes)
            return super().alloc(nbytes)

        def free(self, address):
            self.note(-1)
            super().free(address)

    mine, count = Keeping(SystemAllocator()), 15
    for above in (mine, CachingAllocator(mine), BuddyAllocator(mine)):
        memory.use(CPUPlace(), above)
        synced = [memory.SyncedMemory(n * MIB // 2) for n in range(1, count)]
        for n, each in enumerate(synced):
            np.frombuffer(each.mutable_cpu_data(), np.uint8)[...] = n
        assert all((np.frombuffer(each.cpu_data(), np.uint8) == n).all() for n, each in enumerate(synced))
        del each, synced
    memory.use(CPUPlace(), host)
    noted = [int(np.frombuffer(each.cpu_data(), np.int64)[0]) for each in mine.sizes]
    mine.sizes.clear()  # they hold the allocator that they come from
    assert noted[:2 * count - 2] == [n * MIB // 2 for n in range(1, count)] + [-1] * (count - 1)


def test_endless_alloc(host):
    class Endless(Allocator):
        def alloc(self, nbytes):
            return memory.alloc(CPUPlace(), nbytes)

    memory.use(CPUPlace(), Endless(CPUPlace()))
    with pytest.raises(RecursionError):
        memory.alloc(CPUPlace(), 1)
    for built_in in SystemAllocator, LimitAllocator, memory.FailAllocator, BuddyAllocator, CachingAllocator, memory.CachingHostAllocator:
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Mine", (built_in,), {})


# A process may end while blobs are alive: the collector then takes allocators and buffers in any order.
# The registered class keeps the script's names, and with them the blob, alive until the very last collection.
BLOB = """
from minicaffe.blob import Blob
from minicaffe.layer import Layer, register_layer

class AtExit(Layer):
    def hold(self):
        return blob

blob = Blob((10,))
blob.data[...] = 1
register_layer("AtExit", AtExit)
"""
ALLOCATOR = """
import sys
from minicaffe import memory
from minicaffe.memory import Allocator, Buffer, CachingAllocator, SystemAllocator

class Mine(Allocator):
    def alloc(self, nbytes):
        return super().alloc(nbytes)
    def free(self, address):
        print("free", sys.is_finalizing(), flush=True)
        super().free(address)

mine = Mine(memory.CPUPlace(), SystemAllocator())
early = Buffer(mine, 10)
del early
block = Buffer(mine, 10)
cached = Buffer(CachingAllocator(mine), 10)
mine.ring = [block, cached, mine]
class Holder:
    def __del__(self, blocks=[block, cached]):
        pass
holder = Holder()
holder.own = holder
"""


@pytest.mark.parametrize(("script", "printed"), [(BLOB, ""), (ALLOCATOR, "free False\n")], ids=["blob", "allocator in Python"])
def test_blobs_alive_at_exit(script, printed):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
