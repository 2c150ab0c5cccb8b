"""Nets for the machines: text of layers, a layer in Python that raises where a test says, and the plainest way to compute."""

import contextlib

import pytest
from helpers import layer_text
from hypothesis import strategies as st
from hypothesis.stateful import rule

import minicaffe
from minicaffe import memory
from minicaffe.common import caffe
from minicaffe.engines import engine
from minicaffe.layer import Layer, register_layer
from minicaffe.memory import FailAllocator
from minicaffe.memory.registry import registry

NEVER = 1 << 40
THEN = st.sampled_from([0, 1, 3])     # so many steps follow a change


class FragileLayer(Layer):
    """Doubles its bottom, or raises where `fails` says; a CUDA graph may hold it."""

    exact_num_bottom_blobs = exact_num_top_blobs = 1
    fails = None

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def capture_obstacle(self):
        return None

    def forward_cpu(self, bottom, top):
        self.meet("forward")
        top[0].data[...] = 2 * bottom[0].cpu_data

    def forward_gpu(self, bottom, top):
        self.meet("forward")
        top[0].copy_from(bottom[0])
        top[0].scale_data(2)

    def backward_cpu(self, top, propagate_down, bottom):
        self.meet("backward")
        bottom[0].diff[...] = 2 * top[0].cpu_diff

    def backward_gpu(self, top, propagate_down, bottom):
        self.meet("backward")
        bottom[0].copy_from(top[0], copy_diff=True)
        bottom[0].scale_diff(2)

    def meet(self, where):
        if FragileLayer.fails == where:
            raise ArithmeticError(where)


register_layer("SecondUseFragile", FragileLayer)


@contextlib.contextmanager
def failing(where):
    """Let the layer raise in "forward" or "backward"."""
    FragileLayer.fails = where
    try:
        yield
    finally:
        FragileLayer.fails = None


@contextlib.contextmanager
def failing_allocator(place, n):
    """Refuse block number `n` from now on; gives a function, whether this has happened."""
    before = registry.allocator(place)
    failing = FailAllocator(before, n)
    memory.use(place, failing)
    try:
        yield lambda: failing.nth > NEVER       # it has counted below 0
    finally:
        if failing.nth <= NEVER:
            failing.nth = NEVER      # blocks of a pool may come from it later
        memory.use(place, before)


@contextlib.contextmanager
def may_raise(kind, words):
    """What is inside raises; on a GPU the replay of a CUDA graph may run in its place, which calls no Python."""
    if caffe.mode == "gpu":
        with contextlib.suppress(kind):
            yield
    else:
        with pytest.raises(kind, match=words):
            yield


@contextlib.contextmanager
def plainest():
    """Run what is inside in the plainest way; random numbers continue afterwards where they were."""
    generator = caffe.generator
    before = caffe.mode, minicaffe.get_num_threads(), engine.preferred(), generator.seed, generator.offset
    minicaffe.set_mode_cpu()
    minicaffe.set_num_threads(1)
    engine.prefer("CAFFE")
    try:
        yield
    finally:
        minicaffe.set_mode_cpu() if before[0] == "cpu" else minicaffe.set_mode_gpu()
        minicaffe.set_num_threads(before[1])
        engine.prefer(before[2])
        generator.seed, generator.offset = before[3:]


def change(name, values, work):
    """Return a rule that calls ``work(machine, value)`` and takes some steps, as what is wrong shows there."""
    def run(machine, value, then=0):
        work(machine, value)
        machine.step(then)
    run.__name__ = name     # by which Hypothesis chooses among rules, and prints them
    return rule(value=st.sampled_from(values), then=THEN)(run)


def look(index):
    """A hook."""


def layer(name, kind, bottoms, tops, param=""):
    return layer_text(kind, name, bottoms, tops, param)


def conv(name, bottom, count=16):
    return layer(name, "Convolution", bottom, name, f"""convolution_param {{ num_output: {count} kernel_size: 3 pad: 1
      weight_filler {{ type: "xavier" }} bias_filler {{ type: "gaussian" std: 0.1 }} }}""")


def product(name, bottom, top, param="", axis=1):
    return layer(name, "InnerProduct", bottom, top, f"""{param} inner_product_param {{ num_output: 5 axis: {axis}
      weight_filler {{ type: "xavier" }} bias_filler {{ type: "gaussian" std: 0.1 }} }}""")
