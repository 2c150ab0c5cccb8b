"""Exercises of chapter 7: replace each `...`, then run ``pytest test_chapter7.py`` here."""


def elements_of(block, thread, blocks, threads, n):
    """Return the elements, as a list, that a grid-stride loop over n elements gives to one thread of one block.

    There are `blocks` blocks of `threads` threads.
    """
    ...


def element_at(i, shape, strides):
    """Return how far from the start of a view its i-th element lies, in row-major order of its indices; strides are in elements."""
    ...


def magic_number(d):
    """Return (m, s) with ``i // d == ((i * m >> 32) + i) >> s`` for all 0 <= i < 2**31, where m < 2**32 and s < 32."""
    ...


# One line of C++ that sets y to x, but not below -1 and not above 1; both are float. NaN stays NaN.
SATURATE = "..."
