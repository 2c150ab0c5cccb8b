"""Exercises of chapter 9: replace each `...`, then run ``pytest test_chapter9.py`` here."""


def convolution_cost(shape, num_output, kernel, stride, pad):
    """Return (operations, bytes) of a convolution's forward pass, with a square kernel and no bias.

    `shape` is the bottom's, (N, C, H, W). A multiplication and an addition are two operations. Bottom, weights and top are each
    moved once, 4 bytes an element.
    """
    ...


def attainable(operations, nbytes, peak, bandwidth):
    """Return how many operations in a second a layer attains at most (the roofline).

    The machine does at most `peak` operations and moves at most `bandwidth` bytes in a second.
    """
    ...


def lane_index(n, c, h, w, shape, lanes):
    """Return where element (n, c, h, w) of an array lies if channels are kept in groups of `lanes`, the last filled up."""
    ...


def reorders(layouts):
    """Return how often an array is reordered that layers read in these layouts, one after another, none of them writing.

    It starts in "plain" order. It is kept in plain order and in one more layout at most, and only from plain order is another
    layout made; what is there already is not made again.
    """
    ...
