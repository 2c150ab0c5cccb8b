"""--allocator: which places it sets, what it refuses."""

import pytest

import minicaffe as caffe
from minicaffe import memory
from minicaffe.errors import DependencyError
from minicaffe.memory import (
    BuddyAllocator,
    CachingAllocator,
    CachingHostAllocator,
    CPUPlace,
    CUDAPlace,
    LimitAllocator,
    PinnedPlace,
)
from minicaffe.memory.registry import registry


@pytest.fixture(autouse=True)
def allocators_come_back(on_cpu, monkeypatch):
    monkeypatch.setenv("MINICAFFE_DEVICE", "cpu")  # the option changes the variable
    before = dict(registry._allocators)
    yield
    caffe.set_mode_cpu()
    for place in [*registry._allocators, *before]:
        memory.use(place, before.get(place))


@pytest.fixture
def where(device):
    """The device of these tests' process, which cannot have both: sim, unless the tests run on a GPU."""
    return "gpu" if device == "gpu" else "sim"


@pytest.fixture
def train(minicaffe, folder):
    def run(*options, status=0):
        return minicaffe("train", "--solver", "solver.prototxt", "--max-iter", "1", *options, status=status)
    return run


def test_the_buddy_on_the_cpu(train):
    train("--device", "cpu", "--allocator", "cpu=buddy:min_chunk_size=1KiB,max_chunk_size=4MiB+limit:50%")
    buddy = memory.allocator_of(CPUPlace())
    assert isinstance(buddy, BuddyAllocator) and buddy.min_chunk_size == 1024 and isinstance(buddy.upstream, LimitAllocator)
    assert buddy.stats().allocations > 0


def test_places_are_chosen_one_by_one(train, where):
    try:
        train("--device", where, "--allocator", "cpu=caching", "--allocator", "pinned=buddy", "--allocator=cuda=limit:75%+caching:thc")
    except DependencyError as error:
        pytest.skip(str(error))
    kinds = [type(memory.allocator_of(place)) for place in (CPUPlace(), PinnedPlace(), CUDAPlace(0))]
    assert kinds == [CachingAllocator, BuddyAllocator, LimitAllocator]
    device = memory.allocator_of(CUDAPlace(0))
    assert isinstance(device.upstream, CachingAllocator) and device.max_bytes == int(0.75 * device.memory_info()[1])
    assert device.stats().allocations > 0 and memory.allocator_of(PinnedPlace()).stats().allocations > 0


def test_without_a_place_it_is_the_cpu_where_that_computes(train):
    train("--device", "cpu", "--allocator", "buddy:max_chunk_size=16MiB")
    assert isinstance(memory.allocator_of(CPUPlace()), BuddyAllocator) and memory.allocator_of(CPUPlace()).stats().allocations > 0


def test_the_allocator_of_the_cpu_is_that_alone(train, where):
    train("--device", where, "--allocator", "cpu=buddy:max_chunk_size=16MiB")
    kinds = [type(memory.allocator_of(place)) for place in (CPUPlace(), PinnedPlace(), CUDAPlace(0))]
    assert kinds[0] is BuddyAllocator and BuddyAllocator not in kinds[1:]


def test_without_a_place_it_is_the_gpu(train, where):
    train("--device", where, "--allocator", "buddy:max_chunk_size=16MiB")
    assert isinstance(memory.allocator_of(CUDAPlace(0)), BuddyAllocator)
    assert isinstance(memory.allocator_of(PinnedPlace()), CachingHostAllocator)


@pytest.mark.parametrize(("option", "message"), [
    ("gpu=buddy", "'gpu' in 'gpu=buddy' is no place; write cpu=NAME, pinned=NAME or cuda=NAME"),
    ("cpu=budy", "unknown allocator 'budy'; did you mean 'buddy'?"),
    ("cpu=", "unknown allocator ''"),
    ("cpu=buddy:min_chunk=1KiB", "unknown parameter 'min_chunk'; did you mean 'min_chunk_size' or"),
    ("cpu=plain:alignment=3000", "SystemAllocator.alignment: must be a power of two from 64 to 2^47, got 3000"),
    ("cpu=limit:0%", "a percentage must be above 0% and at most 100%, got '0%'"),
])
def test_what_is_refused(train, option, message):
    assert message in train("--device", "cpu", "--allocator", option, status=2)


def test_a_limit_ends_the_run_with_its_bytes(train):
    assert "the limit is 200 bytes" in train("--device", "cpu", "--allocator", "cpu=limit:200B", status=1)
