"""Exercises of chapter 10: replace each `...`, then run ``pytest test_chapter10.py`` here."""


def mean_picture(pictures):
    """Return the mean of pictures, an iterable of uint8 arrays (C, H, W), as float64 of (C, H, W).

    The pictures may be more than memory holds: read each once, and keep none.
    """
    ...


def crop_corner(height, width, size, phase, draw):
    """Return the corner (top, left) of a square crop of a picture (height, width).

    `phase` is "TRAIN" or "TEST". draw(n) returns a random integer from 0 to n - 1; draw the row first.
    """
    ...


def records_of(step, batch, rank, ranks, count):
    """Return the places in the database, in order, that a rank reads in a training step.

    Steps begin at 0. Each of `ranks` processes has a batch of `batch` records; the database has `count` records.
    """
    ...


def decode_datum(record):
    """Return (pixels, label) of a serialized Datum with raw data: pixels are uint8 of (C, H, W), label is an int.

    Fields may have any order; skip those that are not needed. A label that is not there is 0.
    """
    ...
