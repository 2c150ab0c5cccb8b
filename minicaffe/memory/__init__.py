"""Memory: places, allocators, buffers, SyncedMemory, and the reporter that knows every live block.

``alloc(place, nbytes)``, ``free(place, address)`` and ``used(place)`` are PaddlePaddle's; SyncedMemory is Caffe's.
CUDA memory comes with a provider that calls `register`; this room knows no driver.
"""

from minicaffe.memory import reporter
from minicaffe.memory.allocator import Allocator, Buffer, FailAllocator, LimitAllocator, SystemAllocator
from minicaffe.memory.buddy import BuddyAllocator
from minicaffe.memory.place import CPUPlace, CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry as _registry
from minicaffe.memory.reporter import record
from minicaffe.memory.synced import DeviceSide, SyncedHead, SyncedMemory

alloc = _registry.alloc
free = _registry.free
used = _registry.used
stats = _registry.stats
use = _registry.use
register = _registry.register
unregister = _registry.unregister
set_host_place = _registry.set_host_place
set_device_place = _registry.set_device_place

__all__ = [
    "Allocator",
    "BuddyAllocator",
    "Buffer",
    "CPUPlace",
    "CUDAPlace",
    "DeviceSide",
    "FailAllocator",
    "LimitAllocator",
    "PinnedPlace",
    "SyncedHead",
    "SyncedMemory",
    "SystemAllocator",
    "alloc",
    "free",
    "record",
    "register",
    "reporter",
    "set_device_place",
    "set_host_place",
    "stats",
    "unregister",
    "use",
    "used",
]
