"""Print the mean nanoseconds of one alloc and one free, called from C, for each allocator and some sizes."""

from minicaffe.memory import (
    BuddyAllocator,
    CachingAllocator,
    CachingHostAllocator,
    CUDAPlace,
    LimitAllocator,
    PinnedPlace,
    SystemAllocator,
)
from minicaffe.memory.allocator import nanoseconds

ALLOCATORS = {
    "system": SystemAllocator(),
    "limit over system": LimitAllocator(SystemAllocator(), 1 << 30),
    "buddy, host": BuddyAllocator(SystemAllocator()),
    "buddy, device": BuddyAllocator(SystemAllocator(CUDAPlace(0))),  # host memory that is treated like a device's
    "caching": CachingAllocator(SystemAllocator()),
    "caching, host": CachingHostAllocator(SystemAllocator(PinnedPlace())),
}
SIZES = [64, 1 << 10, 1 << 16, 1 << 20, 1 << 25]

print(f"{'allocator':<20}" + "".join(f"{size:>12,}" for size in SIZES))
for name, allocator in ALLOCATORS.items():
    nanoseconds(allocator, SIZES[-1], 1)  # the buddy takes its largest pool before the clock runs
    best = (min(nanoseconds(allocator, size, 100_000) for _ in range(5)) for size in SIZES)
    print(f"{name:<20}" + "".join(f"{ns:>12.0f}" for ns in best))
