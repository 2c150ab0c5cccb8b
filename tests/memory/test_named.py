"""Allocators chosen by name, through `make_allocator` and the registry."""

import pytest
from doubles import FakeStreams

from minicaffe import memory
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError, WrongTypeError
from minicaffe.memory import Allocator, Buffer, CPUPlace, CUDAPlace, LimitAllocator, PinnedPlace, SystemAllocator, make_allocator
from minicaffe.memory.sizes import host_memory

LIMIT, SYSTEM, BUDDY, CACHING = LimitAllocator, SystemAllocator, memory.BuddyAllocator, memory.CachingAllocator


@pytest.mark.parametrize(("name", "place", "kinds"), [
    ("plain", CPUPlace(), [SYSTEM]), ("caching", CPUPlace(), [CACHING, SYSTEM]), ("caching", CUDAPlace(1), [CACHING, SYSTEM]),
    ("caching", PinnedPlace(), [memory.CachingHostAllocator, SYSTEM]), ("buddy", CUDAPlace(0), [BUDDY, SYSTEM]),
    ("limit:2GiB", CPUPlace(), [LIMIT, SYSTEM]), ("caching+limit:2GiB", CPUPlace(), [CACHING, LIMIT, SYSTEM]),
    ("limit:1MiB + buddy + plain", CPUPlace(), [LIMIT, BUDDY, SYSTEM]),
    ("caching:thc + limit:50% + plain:alignment=4KiB", CPUPlace(), [CACHING, LIMIT, SYSTEM]),
    ("buddy: min_chunk_size=1KiB, max_chunk_size=1MiB", PinnedPlace(), [BUDDY, SYSTEM])])
def test_names_stack_allocators(name, place, kinds):
    allocator = make_allocator(name, SystemAllocator(place))
    assert allocator.place == place
    found = []
    while allocator is not None:
        found.append(type(allocator))
        allocator = allocator.upstream
    assert found == kinds


@pytest.mark.parametrize(("name", "message"), [
    ("cashing", "unknown allocator 'cashing'; did you mean 'caching'.; known are plain, caching, buddy, limit"),
    ("caching+budy", "unknown allocator 'budy'; did you mean 'buddy'"),
    ("", "unknown allocator ''; known are"), ("limit", "limit needs a size; write e.g. limit:2GiB or limit:50%"),
    ("limit:2GiB,4GiB", "'4GiB' must be written key=value; known are max_bytes"),
    ("limit:2GiB,max_bytes=4GiB", "max_bytes is given twice"),
    ("limit:max_byte=4GiB", "unknown parameter 'max_byte'; did you mean 'max_bytes'.; known are max_bytes"),
    ("buddy:2GiB", "'2GiB' must be written key=value; known are min_chunk_size, max_chunk_size, first_pool_size"),
    ("buddy:min_chunk=64KiB", "allocator 'buddy:min_chunk=64KiB': unknown parameter 'min_chunk'; did you mean 'min_chunk_size'"),
    ("buddy:min_chunk_size=1KiB,min_chunk_size=2KiB", "min_chunk_size is given twice"),
    ("buddy:min_chunk_size=", "'' is not a size"),
    ("buddy:min_chunk_size=1000", "BuddyAllocator.min_chunk_size: must be a power of two and at least 64, got 1000"),
    ("buddy:min_chunk_size=4KiB,max_chunk_size=2KiB", "max_chunk_size: must be a power of two and at least 4096, got 2048"),
    ("buddy:min_chunk_size=32", "BuddyAllocator.min_chunk_size: must be a power of two and at least 64, got 32"),
    ("buddy:min_chunk_size=96", "BuddyAllocator.min_chunk_size: must be a power of two and at least 64, got 96"),
    ("buddy:first_pool_size=128", "BuddyAllocator.first_pool_size: must be a power of two and at least "),
    ("buddy:first_pool_size=3000", "BuddyAllocator.first_pool_size: must be a power of two and at least "),
    ("buddy:max_chunk_size=128", "BuddyAllocator.max_chunk_size: must be a power of two and at least "),
    ("buddy:max_chunk_size=4194304TiB", "BuddyAllocator.max_chunk_size"),
    ("buddy:max_chunk_size=1MiB,first_pool_size=2MiB", "first_pool_size: must be at most max_chunk_size, 1048576, got 2097152"),
    ("caching:torch", "CachingAllocator.constants: must be one of pytorch, thc, arena, got 'torch'"),
    ("caching:", "must be one of pytorch, thc, arena, got ''"),
    ("plain:4096", "must be written key=value; known are alignment"),
    ("plain:alignment=100", "SystemAllocator.alignment: must be a power of two from 64 to 2\\^47, got 100"),
    *((f"plain:alignment={n}", f"must be a power of two from 64 to 2\\^47, got {n}") for n in (0, 32)),
    ("plain:alignment=4096+caching", "alignment can be chosen where the C library gives the memory; here it comes from a CachingAllocator"),
    ("limit:0%", "a percentage must be above 0% and at most 100%, got '0%'"),
    *((f"limit:{text}", f"at most 100%, got '{text}'") for text in ("101%", "-5%", "half%")),
    ("limit:much", "'much' is not a size; write a number and one of B, KiB, MiB, GiB, TiB"),
    *((f"limit:{text}", f"'{text}' is not a size") for text in ("", "-1")),
    ("limit:99999999TiB", "'99999999TiB' is too large; a size is less than 2\\^63 bytes"),
    ("plain:alignment=256TiB", "must be a power of two from 64 to 2\\^47, got 281474976710656")])
def test_wrong_names(name, message):
    with pytest.raises(ConfigError, match=message):
        make_allocator(name, SystemAllocator())


def test_percentages(monkeypatch, caplog):
    monkeypatch.setattr(memory.named, "host_memory", lambda: 1000_001)
    with caplog.at_level("INFO"):
        for place in (CPUPlace(), PinnedPlace()):
            limit = make_allocator("limit:12.5%", SystemAllocator(place))
            assert limit.max_bytes == 125_000
            with pytest.raises(OutOfMemoryError, match="the limit is 125,000 bytes"):
                limit.alloc(125_001)
    assert caplog.messages == [f"12.5% of the memory at {place} is 125,000 bytes" for place in (CPUPlace(), PinnedPlace())]
    assert host_memory() > 1 << 20
    assert make_allocator("limit:50%", Sized(CUDAPlace(3))).max_bytes == 4_000_000_000
    assert make_allocator("limit:100% + caching", Sized(CUDAPlace(3))).max_bytes == 8_000_000_000
    with pytest.raises(ConfigError, match=r"allocator 'limit:50%': the total memory of CUDAPlace\(0\) is unknown, .* give a size"):
        make_allocator("limit:50%", SystemAllocator(CUDAPlace(0)))


def test_parameters_reach_their_class():
    buddy, thc = (make_allocator(name, SystemAllocator()) for name in ("buddy:max_chunk_size=64KiB,min_chunk_size=4KiB", "caching:thc"))
    for allocator, reserved in (buddy, 64 << 10), (thc, 1 << 20):   # the first pool is no larger than the largest
        allocator.free(allocator.alloc(1))
        assert allocator.stats().reserved == reserved
    assert buddy.min_chunk_size == 4096
    with pytest.raises(ConfigError, match="the cache of page-locked memory takes no constants"):
        make_allocator("caching:thc", SystemAllocator(PinnedPlace()))
    for alignment in 64, 128, 4096, 1 << 21:
        plain = make_allocator(f"plain:alignment={alignment}", SystemAllocator())
        addresses = [plain.alloc(n) for n in (0, 1, 100, 5000, 100_000)]
        assert plain.alignment == alignment and not any(address % alignment for address in addresses)
        for address in addresses:
            plain.free(address)


def test_arguments_of_the_wrong_type():
    needed = r"needs a place, CPUPlace\(\), PinnedPlace\(\) or CUDAPlace\(i\), got "
    take_a_place = (memory.used, memory.stats, memory.allocator_of, memory.set_host_place, memory.set_device_place, lambda place: memory.alloc(place, 1),
                    lambda place: memory.free(place, 64), lambda place: memory.use(place, "plain"), lambda place: memory.use(place, None))
    for words, call, *wrong in (
            *((needed, call, 3, "cpu", None, CPUPlace) for call in take_a_place), (r"got 3; device 3 is CUDAPlace\(3\)", memory.used, 3),
            ("needs a place", memory.empty_cache, 3), ("a device number must be an int, got 'a'", CUDAPlace, "a"),
            ("memory.alloc needs a number of bytes", lambda nbytes: memory.alloc(CPUPlace(), nbytes), -1, 1.5, "10", 1 << 64),
            ("memory.free needs an address", lambda address: memory.free(CPUPlace(), address), None),
            ("memory.use needs an Allocator, its name or None, got 7", lambda name: memory.use(CPUPlace(), name), 7)):
        for value in wrong:
            with pytest.raises(WrongTypeError, match=words):
                call(value)


def test_use_by_name(host):
    assert memory.use(CPUPlace(), "caching") is host
    address = memory.alloc(CPUPlace(), 1000)
    assert memory.stats(CPUPlace()).reserved == 2 << 20
    memory.use(CPUPlace(), "plain")
    memory.free(CPUPlace(), address)  # a block keeps its allocator
    assert memory.stats(CPUPlace()).reserved == 0
    memory.use(CPUPlace(), "limit:1KiB")
    with pytest.raises(OutOfMemoryError, match="the limit is 1,024 bytes"):
        memory.alloc(CPUPlace(), 1025)
    limit = memory.use(CPUPlace(), None)
    assert isinstance(limit, LimitAllocator)
    for place, name, error, words in ((CPUPlace(), "plane", ConfigError, "did you mean 'plain'"), (PinnedPlace(), limit, ConfigError, "cannot serve PinnedPlace"),
                                      (CUDAPlace(0), "caching", DependencyError, None)):
        with pytest.raises(error, match=words):
            memory.use(place, name)


def test_provider_with_streams():
    streams, gpu, taken = FakeStreams(), CUDAPlace(0), []
    memory.register(CUDAPlace, SystemAllocator, streams=lambda place: streams, default="caching")
    for streams.stream in 5, 6:
        taken.append(memory.alloc(gpu, 100))
        if len(taken) == 1:
            memory.free(gpu, taken[0])
    assert taken[0] != taken[1]
    for empty, reserved in (lambda: None, 4 << 20), (lambda: memory.empty_cache(CPUPlace()), 4 << 20), (memory.empty_cache, 2 << 20):
        empty()
        assert memory.stats(gpu).reserved == reserved
    memory.free(gpu, taken[1])


class Sized(Allocator):
    def __init__(self, place):
        super().__init__(place, SystemAllocator(place))

    def alloc(self, nbytes):
        return super().alloc(nbytes)

    def memory_info(self):
        return 1000, 8_000_000_000


@pytest.mark.parametrize("name", ["limit:100KiB", "caching+limit:100KiB", "buddy+limit:100KiB"])
def test_error_of_a_device(name):
    allocator = make_allocator(name, Sized(CUDAPlace(3)))
    held = [Buffer(allocator, 10, f"blob{i}") for i in (0, 0, 0, *range(1, 12))] if name.startswith("limit") else []
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.alloc(200 << 10)
    error, text = caught.value, str(caught.value)
    assert (error.nbytes, error.free, error.total, error.limit) == (200 << 10, 1000, 8_000_000_000, "102,400 bytes")
    assert "the limit is 102,400 bytes" in text and "1,000 of the device's 8,000,000,000 bytes are free" in text
    assert text.endswith("make batches or images smaller, call minicaffe.memory.empty_cache(), choose another allocator, "
                         "close other programs that use the device")
    if held:
        assert len(error.holders) == 10 and error.holders[0] == ("blob0", 30)
        assert "largest holders: blob0 30, blob1 10, blob10 10, " in text
    with pytest.raises(OutOfMemoryError, match="4,611,686,018,427,387,904 bytes.*; make batches or images smaller$") as caught:
        SystemAllocator().alloc(1 << 62)
    assert "reserved" not in str(caught.value) and "free" not in str(caught.value)
