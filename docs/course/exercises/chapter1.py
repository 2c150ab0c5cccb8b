"""Exercises of chapter 1: replace each `...`, then run ``pytest test_chapter1.py`` here."""


def index_of(index, shape):
    """Return where in memory the element with these indices lies, row-major: (1, 2) in shape (3, 4) is 6."""
    ...


def indices_of(at, shape):
    """Return the indices of element number `at`, as a tuple: the other way round than `index_of`."""
    ...


def allocations(counts):
    """Return how often a blob takes new memory for its data, if it is reshaped to these counts of elements, one after another.

    The data is accessed after each reshape.
    """
    ...
