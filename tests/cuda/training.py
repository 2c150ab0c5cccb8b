"""Small nets to train in these tests."""

import contextlib

import helpers
import numpy as np
from helpers import layer_text

import minicaffe
from minicaffe import cuda, memory

XAVIER = 'weight_filler { type: "xavier" }'
NET = 'name: "small"\n' + layer_text("DummyData", "in", "", "data label", """dummy_data_param { shape { dim: 8 dim: 1 dim: 12 dim: 12 } shape { dim: 8 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } }""") + (
    layer_text("Convolution", "conv", "data", "conv", f"convolution_param {{ num_output: 4 kernel_size: 3 {XAVIER} }}")
    + layer_text("Pooling", "pool", "conv", "pool", "pooling_param { kernel_size: 2 stride: 2 }") + layer_text("ReLU", "relu", "pool", "pool")
    + layer_text("InnerProduct", "ip", "pool", "ip", f"inner_product_param {{ num_output: 5 {XAVIER} }}")
    + layer_text("SoftmaxWithLoss", "loss", "ip label"))


def product(name, bottom, more="", before=""):
    return layer_text("InnerProduct", name, bottom, name, f"{before} inner_product_param {{ num_output: 5 {XAVIER} {more} }}")


def convolution(type, name, bottom, fields):
    return layer_text(type, name, bottom, name, f'convolution_param {{ {fields} weight_filler {{ type: "msra" }} }}')


# All layer types that overwrite a first gradient, a layer that adds (Embed), weights that two layers share, weights without a gradient.
ALL = (layer_text("Input", "in", "", "x words label", "input_param { shape { dim: [6, 3, 8, 7] } shape { dim: 6 } shape { dim: 6 } }")
       + convolution("Convolution", "conv", "x", "num_output: 6 kernel_size: 3 pad: 1") + layer_text("BatchNorm", "norm", "conv", "conv")
       + layer_text("Scale", "scale", "conv", "conv", "scale_param { bias_term: true }") + layer_text("ReLU", "relu", "conv", "conv")
       + convolution("Convolution", "groups", "conv", "num_output: 4 kernel_size: 3 group: 2") + layer_text("PReLU", "slopes", "groups", "groups")
       + convolution("Deconvolution", "up", "groups", "num_output: 3 kernel_size: 2 stride: 2")
       + layer_text("Scale", "alone", "up", "alone", 'scale_param { filler { type: "gaussian" std: 1 } }') + layer_text("Bias", "shift", "alone")
       + layer_text("Embed", "embed", "words", "embed", 'embed_param { num_output: 5 input_dim: 9 weight_filler { type: "gaussian" } }')
       + product("ip", "shift") + layer_text("Eltwise", "sum", "ip embed") + product("turned", "sum", "transpose: true")
       + product("once", "turned", "bias_term: false", 'param { name: "w" }') + product("twice", "once", "bias_term: false", 'param { name: "w" }')
       + product("fixed", "twice", before="param { lr_mult: 0 }") + layer_text("SoftmaxWithLoss", "loss", "fixed label"))


def make_solver(net=NET, plan=None, **fields):
    """Return a solver for the text of a net; `fields` are those of SolverParameter."""
    if fields.get("type", "SGD") != "SGD":
        fields.setdefault("momentum", None)
    return helpers.net_solver(net, plan, **{"random_seed": 1, **fields})


def losses(solver, n):
    """Train `n` iterations; return their losses."""
    found = []
    for _ in range(n):
        solver.step(1)
        found.append(solver.smoothed_loss)
    return found


def make_net():
    minicaffe.set_random_seed(4)
    net, rng = helpers.make_net(ALL), np.random.default_rng(0)
    net.blob_by_name("x").data[...] = rng.standard_normal((6, 3, 8, 7))
    net.blob_by_name("words").data[...] = rng.integers(0, 9, 6)
    net.blob_by_name("label").data[...] = rng.integers(0, 4, 6)
    return net


def gradients(net):
    return [np.array(blob.cpu_diff) for blob in net.learnable_params]


def iteration(net):
    net.clear_param_diffs()
    net.forward_backward()


@contextlib.contextmanager
def recorded_launches():
    """Record events with each launch of a kernel among them; gives their list."""
    device = cuda.current()
    device.record_launches(True)
    try:
        with memory.record() as events:
            yield events
    finally:
        device.record_launches(False)
