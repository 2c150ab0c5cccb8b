"""Checks the answers of chapter7.py: in NumPy, and SATURATE as a kernel of the simulated device."""

import os
import random

os.environ["MINICAFFE_DEVICE"] = "sim"

import numpy as np
from chapter7 import SATURATE, element_at, elements_of, magic_number

import minicaffe as caffe
from minicaffe import cuda
from minicaffe.blob import Blob


def test_elements_of():
    assert elements_of(1, 2, blocks=2, threads=4, n=20) == [6, 14]
    for n in (0, 1, 7, 24, 100):
        taken = [i for block in range(3) for thread in range(8) for i in elements_of(block, thread, 3, 8, n)]
        assert sorted(taken) == list(range(n)), "an element is left out or computed twice"


def test_element_at():
    host = np.arange(60).reshape(3, 4, 5)
    for view in (host, host.T, host[1:, ::2], host.transpose(1, 0, 2)[:, :, 1:4], host[::-1]):
        start = view.ravel()[0]
        strides = [stride // host.itemsize for stride in view.strides]
        assert [start + element_at(i, view.shape, strides) for i in range(view.size)] == view.ravel().tolist()


def test_magic_number():
    draw = random.Random(0)
    for d in [1, 2, 3, 5, 7, 10, 64, 1000, 2**20 + 1, 2**31 - 1, *(draw.randrange(1, 2**31) for _ in range(50))]:
        m, s = magic_number(d)
        assert 0 <= m < 2**32 and 0 <= s < 32
        for i in [0, 1, d - 1, d, min(2 * d, 2**31 - 1), 2**31 - 1, *(draw.randrange(2**31) for _ in range(50))]:
            assert ((i * m >> 32) + i) >> s == i // d, (i, d)


def test_saturate():
    caffe.set_mode_gpu()
    try:
        x, y = Blob((6,)), Blob((6,))
        x.data[...] = [-3, -1, -0.5, 0.25, 2, np.nan]
        cuda.elementwise("T x", "T y", SATURATE, "saturate")(x, y)
        np.testing.assert_array_equal(y.cpu_data, np.array([-1, -1, -0.5, 0.25, 1, np.nan], np.float32))
    finally:
        caffe.set_mode_cpu()
