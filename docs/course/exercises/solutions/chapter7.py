"""Answers to chapter 7."""


def elements_of(block, thread, blocks, threads, n):
    return list(range(block * threads + thread, n, blocks * threads))


def element_at(i, shape, strides):
    at = 0
    for size, stride in zip(reversed(shape), reversed(strides)):
        i, digit = divmod(i, size)
        at += digit * stride
    return at


def magic_number(d):
    s = (d - 1).bit_length()
    return (1 << 32) * ((1 << s) - d) // d + 1, s


SATURATE = "y = x < -1 ? -1 : x > 1 ? 1 : x"
