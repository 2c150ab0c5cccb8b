"""--allocator: which places it sets, what it refuses."""

import pytest

import minicaffe as caffe
from minicaffe import memory
from minicaffe.errors import DependencyError
from minicaffe.memory import BuddyAllocator, CPUPlace, CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry


@pytest.fixture(autouse=True)
def restored_allocators(on_cpu, monkeypatch):
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


def test_places_one_by_one(train, where):
    try:
        train("--device", where, "--allocator", "cpu=caching", "--allocator", "pinned=buddy", "--allocator=cuda=limit:75%+caching:thc")
    except DependencyError as error:
        pytest.skip(str(error))
    kinds = [type(memory.allocator_of(place)) for place in (CPUPlace(), PinnedPlace(), CUDAPlace(0))]
    assert kinds == [memory.CachingAllocator, BuddyAllocator, memory.LimitAllocator]
    device = memory.allocator_of(CUDAPlace(0))
    assert isinstance(device.upstream, memory.CachingAllocator) and device.max_bytes == int(0.75 * device.memory_info()[1])
    assert device.stats().allocations > 0 and memory.allocator_of(PinnedPlace()).stats().allocations > 0


@pytest.mark.parametrize("on_device, option, place", [
    (False, "cpu=buddy:min_chunk_size=1KiB,max_chunk_size=4MiB+limit:50%", CPUPlace()), (False, "buddy:max_chunk_size=16MiB", CPUPlace()),
    (True, "cpu=buddy:max_chunk_size=16MiB", CPUPlace()), (True, "buddy:max_chunk_size=16MiB", CUDAPlace(0))])
def test_one_place(train, where, on_device, option, place):
    """That of the device that computes, if the option names none."""
    train("--device", where if on_device else "cpu", "--allocator", option)
    buddy = memory.allocator_of(place)
    assert isinstance(buddy, BuddyAllocator) and (buddy.stats().allocations > 0 or on_device and place == CPUPlace())
    assert "limit" not in option or buddy.min_chunk_size == 1024 and isinstance(buddy.upstream, memory.LimitAllocator)
    others = {CPUPlace(), *([PinnedPlace(), CUDAPlace(0)] if on_device else [])} - {place}
    assert BuddyAllocator not in {type(memory.allocator_of(other)) for other in others}


@pytest.mark.parametrize(("option", "status", "message"), [
    ("gpu=buddy", 2, "'gpu' in 'gpu=buddy' is no place; write cpu=NAME, pinned=NAME or cuda=NAME"),
    ("cpu=budy", 2, "unknown allocator 'budy'; did you mean 'buddy'?"), ("cpu=", 2, "unknown allocator ''"),
    ("cpu=buddy:min_chunk=1KiB", 2, "unknown parameter 'min_chunk'; did you mean 'min_chunk_size' or"),
    ("cpu=plain:alignment=3000", 2, "SystemAllocator.alignment: must be a power of two from 64 to 2^47, got 3000"),
    ("cpu=limit:200B", 1, "the limit is 200 bytes"), ("cpu=limit:0%", 2, "a percentage must be above 0% and at most 100%, got")])
def test_refusals(train, option, status, message):
    assert message in train("--device", "cpu", "--allocator", option, status=status)
