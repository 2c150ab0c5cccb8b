"""Host and device allocators that belong to one test."""

import gc

import pytest
from doubles import HostDouble

from minicaffe import memory
from minicaffe.memory import CPUPlace, CUDAPlace, PinnedPlace, SystemAllocator


@pytest.fixture
def host():
    """The allocator of CPUPlace() for this test alone, so that its counters start at 0."""
    allocator = SystemAllocator()
    before = memory.use(CPUPlace(), allocator)
    yield allocator
    memory.use(CPUPlace(), before)


@pytest.fixture
def device():
    """The double of CUDAPlace(0), registered like a real provider."""
    side = HostDouble(CUDAPlace(0))
    side.device_of = lambda address: 0
    memory.register(CUDAPlace, SystemAllocator, lambda place: side)
    yield side
    memory.unregister(CUDAPlace)


@pytest.fixture(scope="module", autouse=True)
def old_objects():
    """As that of all tests, and collect what was garbage only after it was frozen: it may hold blocks, which these tests count."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def providers_come_back():
    """These tests put doubles in the place of a device: what was registered before serves again after each."""
    from minicaffe.memory.registry import registry
    names = ("_providers", "_allocators", "_sides")
    before = {name: dict(getattr(registry, name)) for name in names}
    places = registry.host_place, registry.device_place
    registry.set_host_place(CPUPlace())
    for place_type in (PinnedPlace, CUDAPlace):
        registry.unregister(place_type)
    gc.collect()  # so that no block of an earlier test lives on
    yield
    for name in names:
        getattr(registry, name).clear()
        getattr(registry, name).update(before[name])
    registry.set_host_place(places[0])
    registry.set_device_place(places[1])
