"""Print the mean nanoseconds of one alloc and one free, called from C, for each host allocator and some sizes."""

from minicaffe.memory import BuddyAllocator, LimitAllocator, SystemAllocator
from minicaffe.memory.allocator import nanoseconds

ALLOCATORS = {
    "system": SystemAllocator(),
    "limit over system": LimitAllocator(SystemAllocator(), 1 << 30),
    "buddy over system": BuddyAllocator(SystemAllocator()),
}
SIZES = [64, 1 << 10, 1 << 16, 1 << 20, 1 << 25]

print(f"{'allocator':<20}" + "".join(f"{size:>12,}" for size in SIZES))
for name, allocator in ALLOCATORS.items():
    nanoseconds(allocator, SIZES[-1], 1)  # the buddy takes its largest pool before the clock runs
    print(f"{name:<20}" + "".join(f"{nanoseconds(allocator, size, 200_000):>12.0f}" for size in SIZES))
