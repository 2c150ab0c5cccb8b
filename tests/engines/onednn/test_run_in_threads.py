"""Nets of engine ONEDNN that are made in one thread and run in another.

oneDNN's own scratch memory belongs to a thread, and has the size that the primitives made in this thread need: with it a net that another thread
runs writes past the end of that thread's block, or through a null pointer. Every block of memory is followed by a guard here.
"""

import ctypes

import numpy as np
import pytest
from helpers import in_threads
from test_engine_onednn import POOLINGS, SHAPES, STACK, conv, engines, input_layer, layer, make, numbers, step

from minicaffe import memory
from minicaffe.device import threads
from minicaffe.engines import engine
from minicaffe.errors import DependencyError

pytestmark = pytest.mark.slow(24)    # all together

GUARD = bytes(range(1, 256)) * 16

IMAGE = input_layer((2, 3, 14, 15)) + conv("first", "x", "a", "num_output: 32 kernel_size: 3 pad: 1")
CASES = {f"Convolution {name}": input_layer(shape) + conv("conv", "x", "y", fields) for name, (shape, fields) in SHAPES.items()}
CASES |= {name.replace("Con", "Decon"): text.replace('"Convolution"', '"Deconvolution"') for name, text in CASES.items()}
CASES["Convolution 1x5, padded, dilated"] = input_layer((2, 64, 20, 23)) + conv(
    "conv", "x", "y", "num_output: 64 kernel_h: 1 kernel_w: 5 pad: 4 stride: 2 dilation: 2")
CASES["Convolution and ReLU"] = IMAGE + layer("ReLU", "a", "a")
CASES |= {f"Pooling {name}": IMAGE + layer("Pooling", "a", "y", f"pooling_param {{ {fields} }}") for name, fields in POOLINGS.items()}
CASES["LRN"] = IMAGE + layer("LRN", "a", "y")
CASES["InnerProduct"] = input_layer((9, 40)) + layer("InnerProduct", "x", "y",
                                                     'inner_product_param { num_output: 33 weight_filler { type: "xavier" } }')


class Guarded(memory.Allocator):
    """Blocks with a guard behind them, which must be whole when the block is freed."""

    def __init__(self, upstream):
        super().__init__(upstream.place, upstream)
        self.sizes, self.broken = {}, []

    def alloc(self, nbytes):
        address = super().alloc(nbytes + len(GUARD))
        ctypes.memmove(address + nbytes, GUARD, len(GUARD))
        self.sizes[address] = nbytes
        return address

    def free(self, address):
        nbytes = self.sizes.pop(address)
        if ctypes.string_at(address + nbytes, len(GUARD)) != GUARD:
            self.broken.append(nbytes)
        super().free(address)


@pytest.fixture
def guarded(onednn):
    allocator = Guarded(memory.SystemAllocator())
    before = memory.use(memory.CPUPlace(), allocator)
    yield allocator
    memory.use(memory.CPUPlace(), before)
    assert not allocator.broken, "something was written past the end of blocks of these sizes"


def one_step(net):
    for blob in net.learnable_params:
        blob.fill_diff(0)
    step(net)
    return numbers(net)


def larger(text):
    net = make(text)
    blob = net.blob_by_name("x")
    blob.reshape_to((blob.shape[0] * 3, blob.shape[1], *(3 * size for size in blob.shape[2:])))
    blob.data[...] = np.random.default_rng(1).standard_normal(blob.shape)
    return net


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("thread_count", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_net_run_in_other_thread(guarded, precision, thread_count, case):
    """Small and large nets by turns, each thread with primitives of its own and of the other; bit for bit what one thread computes."""
    try:
        engine.set_precision(precision)
    except DependencyError as error:
        pytest.skip(str(error))
    threads.set_num_threads(thread_count)

    def small_and_large(_=None):
        nets = make(CASES[case]), larger(CASES[case])
        return nets, [one_step(net) for net in nets]
    here, expected = small_and_large()
    there, found = in_threads(small_and_large, [None])[None]
    in_onednn = any("ONEDNN" in name for name in engines(here[0]))
    assert in_onednn or (case == "InnerProduct" and precision == "float32")
    for values, wanted in zip(found, expected):
        same(values, wanted)
    for _ in range(2):
        for i in (0, 1, 0):
            same(in_threads(one_step, [here[i]])[here[i]], expected[i])
            same(one_step(there[i]), expected[i])


@pytest.mark.parametrize("asked", ["", "ONEDNN"])
@pytest.mark.parametrize("part", range(4))
def test_nets_by_turns_in_four_threads(guarded, asked, part):
    engine.prefer(asked)
    nets = [make(text) for text in [STACK, *list(CASES.values())[part::4]]]
    expected = [one_step(net) for net in nets]

    def work(number):
        for i in np.random.default_rng([part, number]).permutation(np.repeat(np.arange(len(nets)), 3)):
            with nets[i].lock:
                same(one_step(nets[i]), expected[i])
    in_threads(work, range(4))
