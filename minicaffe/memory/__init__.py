"""Memory: places, allocators, buffers, SyncedMemory, and the reporter that lists every live block.

``alloc(place, nbytes)``, ``free(place, address)`` and ``used(place)`` are PaddlePaddle's; SyncedMemory is Caffe's; ``copy`` is
Caffe2's. The provider of CUDA memory calls `register`; this folder does not depend on a driver.
"""

from minicaffe.memory import reporter
from minicaffe.memory.allocator import Allocator, FailAllocator, LimitAllocator, SystemAllocator
from minicaffe.memory.buddy import BuddyAllocator
from minicaffe.memory.buffer import Buffer
from minicaffe.memory.caching import CachingAllocator, CachingHostAllocator
from minicaffe.memory.copy import copy
from minicaffe.memory.layout import Layout
from minicaffe.memory.named import make_allocator
from minicaffe.memory.place import CPUPlace, CUDAPlace, PinnedPlace
from minicaffe.memory.provider import DeviceSide, StreamOrder
from minicaffe.memory.registry import registry as _registry
from minicaffe.memory.reporter import record
from minicaffe.memory.states import SyncedHead
from minicaffe.memory.synced import SyncedMemory

alloc = _registry.alloc
free = _registry.free
allocator_of = _registry.allocator
used = _registry.used
stats = _registry.stats
empty_cache = _registry.empty_cache
use = _registry.use
register = _registry.register
unregister = _registry.unregister
set_host_place = _registry.set_host_place
set_device_place = _registry.set_device_place

__all__ = [
    "Allocator", "BuddyAllocator", "Buffer", "CPUPlace", "CachingAllocator", "CachingHostAllocator", "CUDAPlace", "DeviceSide",
    "FailAllocator", "Layout", "LimitAllocator", "PinnedPlace", "StreamOrder", "SyncedHead", "SyncedMemory", "SystemAllocator",
    "alloc", "allocator_of", "copy", "empty_cache", "free", "make_allocator", "record", "register", "reporter", "set_device_place",
    "set_host_place", "stats", "unregister", "use", "used",
]
