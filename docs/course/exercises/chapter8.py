"""Exercises of chapter 8: replace each `...`, then run ``pytest test_chapter8.py`` here."""


def round_up(nbytes, grain):
    """Return the least multiple of `grain` that is at least `nbytes`."""
    ...


def buddy_of(offset, size):
    """Return the offset of the buddy of the chunk of this size, a power of two, at this offset of a pool."""
    ...


def best_fit(free, nbytes):
    """Return the offset of the free block that the caching allocator takes, or None if there is none.

    Of those that are large enough it takes the smallest, of equal ones the lowest. `free` is a list of (offset, bytes).
    """
    ...


def join(free):
    """Return the free blocks, a list of (offset, bytes) sorted by offset, with neighbours joined into one."""
    ...
