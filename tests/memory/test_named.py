"""Allocators chosen by name, through `make_allocator` and the registry."""

import pytest
from fake_streams import FakeStreams

from minicaffe import memory
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError
from minicaffe.memory import (
    Allocator,
    BuddyAllocator,
    Buffer,
    CachingAllocator,
    CachingHostAllocator,
    CPUPlace,
    CUDAPlace,
    LimitAllocator,
    PinnedPlace,
    SystemAllocator,
    make_allocator,
)
from minicaffe.memory.named import parse_size


@pytest.mark.parametrize(
    ("name", "place", "kinds"),
    [
        ("plain", CPUPlace(), [SystemAllocator]),
        ("caching", CPUPlace(), [CachingAllocator, SystemAllocator]),
        ("caching", CUDAPlace(1), [CachingAllocator, SystemAllocator]),
        ("caching", PinnedPlace(), [CachingHostAllocator, SystemAllocator]),
        ("buddy", CUDAPlace(0), [BuddyAllocator, SystemAllocator]),
        ("limit:2GiB", CPUPlace(), [LimitAllocator, SystemAllocator]),
        ("caching+limit:2GiB", CPUPlace(), [CachingAllocator, LimitAllocator, SystemAllocator]),
        ("limit:1MiB + buddy + plain", CPUPlace(), [LimitAllocator, BuddyAllocator, SystemAllocator]),
    ],
)
def test_names_stack_allocators(name, place, kinds):
    allocator = make_allocator(name, SystemAllocator(place))
    assert allocator.place == place
    found = []
    while allocator is not None:
        found.append(type(allocator))
        allocator = allocator.upstream
    assert found == kinds


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cashing", "unknown allocator 'cashing'; did you mean 'caching'.; known are plain, caching, buddy, limit"),
        ("caching+budy", "unknown allocator 'budy'; did you mean 'buddy'"),
        ("", "unknown allocator ''; known are"),
        ("limit", "limit needs a size"),
        ("buddy:2GiB", "no other takes one"),
        ("limit:much", "'much' is no size; write a number and one of B, KiB, MiB, GiB, TiB"),
        ("limit:", "'' is no size"),
        ("limit:-1", "'-1' is no size"),
        ("limit:99999999TiB", "is no size"),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(ConfigError, match=message):
        make_allocator(name, SystemAllocator())


@pytest.mark.parametrize(
    ("text", "nbytes"), [("0", 0), ("512", 512), ("512B", 512), ("64KiB", 65536), ("2 gib", 2 << 30), ("1.5MiB", 3 << 19)]
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


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
    before = memory.use(CPUPlace(), None)
    with pytest.raises(ConfigError, match="did you mean 'plain'"):
        memory.use(CPUPlace(), "plane")
    assert isinstance(before, LimitAllocator)
    with pytest.raises(DependencyError):
        memory.use(CUDAPlace(0), "caching")


def test_a_provider_brings_streams_and_a_default():
    streams = FakeStreams()
    memory.register(CUDAPlace, SystemAllocator, streams=lambda place: streams, default="caching")
    try:
        streams.stream = 5
        first = memory.alloc(CUDAPlace(0), 100)
        memory.free(CUDAPlace(0), first)
        streams.stream = 6
        second = memory.alloc(CUDAPlace(0), 100)
        assert first != second
        assert memory.stats(CUDAPlace(0)).reserved == 4 << 20
        memory.empty_cache(CPUPlace())
        assert memory.stats(CUDAPlace(0)).reserved == 4 << 20
        memory.empty_cache()
        assert memory.stats(CUDAPlace(0)).reserved == 2 << 20
        memory.free(CUDAPlace(0), second)
    finally:
        memory.unregister(CUDAPlace)


class Telling(Allocator):
    def __init__(self, place):
        super().__init__(place, SystemAllocator(place))

    def alloc(self, nbytes):
        return super().alloc(nbytes)

    def memory_info(self):
        return 1000, 8_000_000_000


@pytest.mark.parametrize("name", ["limit:100KiB", "caching+limit:100KiB", "buddy+limit:100KiB"])
def test_the_error_says_what_the_device_has_and_who_holds_it(name):
    allocator = make_allocator(name, Telling(CUDAPlace(3)))
    held = [Buffer(allocator, 10, f"blob{i}") for i in range(12)] if name.startswith("limit") else []
    held += [Buffer(allocator, 20, "blob0")] if held else []
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.alloc(200 << 10)
    error = caught.value
    assert (error.nbytes, error.free, error.total) == (200 << 10, 1000, 8_000_000_000)
    assert error.limit == "102,400 bytes" and "the limit is 102,400 bytes" in str(error)
    assert "1,000 of the device's 8,000,000,000 bytes are free" in str(error)
    assert str(error).endswith(
        "make batches or images smaller, call minicaffe.memory.empty_cache(), choose another allocator, "
        "close other programs that use the device"
    )
    if held:
        assert len(error.holders) == 10 and error.holders[0] == ("blob0", 30)
        assert "largest holders: blob0 30, blob1 10, blob10 10, " in str(error)


def test_the_error_of_plain_host_memory_is_short():
    with pytest.raises(OutOfMemoryError) as caught:
        SystemAllocator().alloc(1 << 62)
    assert str(caught.value).endswith("; make batches or images smaller")
    assert "reserved" not in str(caught.value) and "free" not in str(caught.value)
