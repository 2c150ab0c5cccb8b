"""Exercises of chapter 2: replace each `...`, then run ``pytest test_chapter2.py`` here."""


def next_head(head, call):
    """Return what a call does to the head: the new head, and whether anything was copied.

    `head` is "UNINITIALIZED", "HEAD_AT_CPU", "HEAD_AT_GPU" or "SYNCED", `call` is "cpu_data", "mutable_cpu_data", "gpu_data" or
    "mutable_gpu_data". For example ("HEAD_AT_CPU", "gpu_data") gives ("SYNCED", True).
    """
    ...


def copies(calls):
    """Return how many copies these calls make, one after another, on memory without any access so far."""
    ...


def mean(blob):
    """Return the mean of a blob's data, so that afterwards what lies on the device is still valid."""
    ...
