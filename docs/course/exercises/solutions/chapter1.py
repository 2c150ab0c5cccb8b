"""Answers to chapter 1."""


def index_of(index, shape):
    at = 0
    for i, size in zip(index, shape):
        at = at * size + i
    return at


def indices_of(at, shape):
    digits = []
    for size in reversed(shape):
        at, digit = divmod(at, size)
        digits.append(digit)
    return tuple(reversed(digits))


def allocations(counts):
    capacity = taken = 0
    for count in counts:
        if count > capacity:
            capacity, taken = count, taken + 1
    return taken
