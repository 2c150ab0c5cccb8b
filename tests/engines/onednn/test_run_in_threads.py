"""Nets of engine ONEDNN that are made in one thread and run in another.

oneDNN's own scratch memory belongs to a thread, and has the size that the primitives made in this thread need: with it a net that another thread
runs writes past the end of that thread's block, or through a null pointer. Every block of memory is followed by a guard here.
"""

import ctypes

import numpy as np
import pytest
from helpers import in_threads
from test_engine_onednn import POOLINGS, SHAPES, conv, engines, input_layer, layer, make, numbers, step

from minicaffe import memory
from minicaffe.device import threads
from minicaffe.engines import engine
from minicaffe.engines.onednn import library
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
    """Memory with guards, which are looked at when the test ends."""
    allocator = Guarded(memory.SystemAllocator())
    before = memory.use(memory.CPUPlace(), allocator)
    yield allocator
    memory.use(memory.CPUPlace(), before)
    assert not allocator.broken, "something was written past the end of blocks of these sizes"


@pytest.fixture(params=["float32", "bf16"])
def precision(request, onednn):
    if request.param == "bf16":
        try:
            library.check_bf16()
        except DependencyError as error:
            pytest.skip(str(error))
    engine.set_precision(request.param)
    yield request.param
    engine.set_precision("float32")


@pytest.fixture(params=[1, 2])
def thread_count(request):
    threads.set_num_threads(request.param)
    return request.param


def in_thread(work, *arguments):
    """Return what work(*arguments) returns in a new thread; raise what it raises."""
    return in_threads(lambda _: work(*arguments), [None])[None]


def one_step(net):
    """All numbers of a step from zero gradients."""
    for one in net.layers:
        for blob in one.blobs:
            blob.fill_diff(0)
    step(net)
    return numbers(net)


def larger(text):
    """The same net for more and larger images."""
    net = make(text)
    blob = net.blob_by_name("x")
    blob.reshape_to((blob.shape[0] * 3, blob.shape[1], *(3 * size for size in blob.shape[2:])))
    blob.data[...] = np.random.default_rng(1).standard_normal(blob.shape)
    return net


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_net_run_in_other_thread(guarded, precision, thread_count, case):
    """Small and large nets by turns, each thread with primitives of its own and of the other; bit for bit what one thread computes."""
    def small_and_large():
        nets = make(CASES[case]), larger(CASES[case])
        return nets, [one_step(net) for net in nets]

    here, expected = small_and_large()
    there, found = in_thread(small_and_large)
    in_onednn = any("ONEDNN" in name for name in engines(here[0]))
    assert in_onednn or (case == "InnerProduct" and precision == "float32")
    for values, wanted in zip(found, expected):
        same(values, wanted)
    for _ in range(2):
        for i in (0, 1, 0):
            same(in_thread(one_step, here[i]), expected[i])
            same(one_step(there[i]), expected[i])


def random_net(random):
    """Convolutions of any kind with what follows them in their layouts, some branches, and an inner product."""
    channels, height, width = int(random.choice([1, 3, 16, 24, 32])), *map(int, random.integers(9, 28, 2))
    text, top = input_layer((int(random.integers(1, 5)), channels, height, width)), "x"
    for i in range(int(random.integers(2, 6))):
        kernel = random.integers(1, 6, 2)
        outputs = int(random.choice([16, 24, 32, 64]))
        fields = (f"num_output: {outputs} kernel_h: {kernel[0]} kernel_w: {kernel[1]} pad: {random.integers(2, 5)} "
                  f"stride: {random.integers(1, 3)}")
        if not random.integers(3) and i:
            fields += f" group: {random.choice([2, 4, 8])}"
        text, top = text + conv(f"conv{i}", top, f"c{i}", fields), f"c{i}"
        follower = random.integers(5)
        if follower == 0:
            text += layer("ReLU", top, top)
        elif follower == 1:
            text, top = text + layer("Pooling", top, f"p{i}", "pooling_param { kernel_size: 3 stride: 2 pool: "
                                     f"{random.choice(['MAX', 'AVE'])} }}"), f"p{i}"
        elif follower == 2:
            text, top = text + layer("LRN", top, f"n{i}"), f"n{i}"
        elif follower == 3:
            text += conv(f"side{i}", top, f"s{i}", f"num_output: {outputs} kernel_size: 3 pad: 1") + layer("Eltwise", f"s{i} {top}", f"e{i}")
            top = f"e{i}"
    return text + layer("InnerProduct", top, "y", 'inner_product_param { num_output: 10 weight_filler { type: "xavier" } }')


@pytest.mark.parametrize("asked", ["", "ONEDNN"])
@pytest.mark.parametrize("seed", range(4))
def test_random_nets_in_four_threads(guarded, asked, seed):
    """Each net by one thread at a time, but by another one each time."""
    engine.prefer(asked)
    random = np.random.default_rng(seed)
    nets = [make(random_net(random)) for _ in range(6)]
    expected = [one_step(net) for net in nets]

    def work(number):
        for i in np.random.default_rng([seed, number]).permutation(np.repeat(np.arange(len(nets)), 3)):
            with nets[i].lock:
                same(one_step(nets[i]), expected[i])

    in_threads(work, range(4))
