"""Exercises of chapter 6: replace each `...`, then run ``pytest test_chapter6.py`` here."""


def rate_inv(base_lr, gamma, power, iteration):
    """Return the learning rate of policy "inv" (minicaffe/solver/policy.py says what it is)."""
    ...


def momentum_step(w, v, gradient, rate, momentum, decay):
    """Return the new (w, v) after one step of SGD; the arrays that were given stay as they are."""
    ...


def read_twice(layers):
    """Return the names, in the order in which they are made, of the blobs that need a Split: those read by more than one layer.

    `layers` is a list of (bottoms, tops), both lists of names, in the order of the file. A layer that works in place reads the old
    blob and makes a new one of the same name.
    """
    ...
