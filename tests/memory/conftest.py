"""Host and device allocators that belong to one test."""

import pytest
from host_double import HostDouble

from minicaffe import memory
from minicaffe.memory import CPUPlace, CUDAPlace, SystemAllocator


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
    memory.register(CUDAPlace, SystemAllocator, lambda place: side)
    yield side
    memory.unregister(CUDAPlace)
