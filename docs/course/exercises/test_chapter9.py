"""Checks the answers of chapter9.py."""

import numpy as np
from chapter9 import attainable, convolution_cost, lane_index, reorders


def test_convolution_cost():
    assert convolution_cost((1, 1, 28, 28), 20, kernel=5, stride=1, pad=0) == (576_000, 4 * (784 + 500 + 11_520))     # LeNet's conv1
    operations, nbytes = convolution_cost((64, 3, 227, 227), 96, kernel=11, stride=4, pad=0)                          # CaffeNet's
    assert (operations, nbytes) == (2 * 96 * 3 * 121 * 64 * 55 * 55, 4 * (64 * 3 * 227 ** 2 + 96 * 3 * 121 + 64 * 96 * 55 ** 2))
    assert convolution_cost((2, 4, 5, 6), 8, kernel=3, stride=2, pad=1)[0] == 2 * 8 * 4 * 9 * 2 * 3 * 3


def test_attainable():
    assert attainable(1000, 2000, peak=1e12, bandwidth=5e10) == 2.5e10       # memory decides
    assert attainable(1_000_000, 2000, peak=1e12, bandwidth=5e10) == 1e12    # arithmetic decides


def test_lane_index():
    for shape, lanes in (((2, 20, 3, 2), 16), ((1, 8, 2, 2), 8), ((3, 3, 1, 2), 4)):
        n, c, h, w = shape
        groups = -(-c // lanes)
        padded = np.full((n, groups * lanes, h, w), -1)
        padded[:, :c] = np.arange(n * c * h * w).reshape(shape)
        memory = padded.reshape(n, groups, lanes, h, w).transpose(0, 1, 3, 4, 2).ravel()
        for at, index in enumerate(np.ndindex(shape)):
            assert memory[lane_index(*index, shape, lanes)] == at


def test_reorders():
    assert reorders(["nChw16c", "nChw16c", "plain", "nChw16c"]) == 1
    assert reorders(["plain", "plain"]) == 0
    assert reorders(["nChw16c", "nhwc", "nChw16c"]) == 3
