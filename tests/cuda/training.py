"""Small nets to train in these tests."""

import contextlib

import numpy as np

import minicaffe
from minicaffe import cuda, memory
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver

NET = """
name: "small"
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 8 dim: 1 dim: 12 dim: 12 } shape { dim: 8 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

# All layer types that overwrite a first gradient, a layer that adds (Embed), weights that two layers share, weights without a gradient.
ALL = """
layer { name: "in" type: "Input" top: "x" top: "words" top: "label" input_param {
  shape { dim: 6 dim: 3 dim: 8 dim: 7 } shape { dim: 6 } shape { dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "norm" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "groups" type: "Convolution" bottom: "c" top: "g" convolution_param {
  num_output: 4 kernel_size: 3 group: 2 weight_filler { type: "msra" } } }
layer { name: "slopes" type: "PReLU" bottom: "g" top: "g" }
layer { name: "up" type: "Deconvolution" bottom: "g" top: "u" convolution_param {
  num_output: 3 kernel_size: 2 stride: 2 weight_filler { type: "msra" } } }
layer { name: "alone" type: "Scale" bottom: "u" top: "s" scale_param { filler { type: "gaussian" std: 1 } } }
layer { name: "shift" type: "Bias" bottom: "s" top: "b" }
layer { name: "embed" type: "Embed" bottom: "words" top: "e" embed_param { num_output: 5 input_dim: 9 weight_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "i" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "i" bottom: "e" top: "z" }
layer { name: "turned" type: "InnerProduct" bottom: "z" top: "t" inner_product_param {
  num_output: 5 transpose: true weight_filler { type: "xavier" } } }
layer { name: "once" type: "InnerProduct" bottom: "t" top: "o" param { name: "w" } inner_product_param {
  num_output: 5 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "twice" type: "InnerProduct" bottom: "o" top: "p" param { name: "w" } inner_product_param {
  num_output: 5 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "fixed" type: "InnerProduct" bottom: "p" top: "f" param { lr_mult: 0 } inner_product_param {
  num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "label" top: "loss" }
"""


def make_solver(net=NET, plan=None, **fields):
    """Return a solver for the text of a net; `fields` are those of SolverParameter."""
    fields = {"type": "SGD", "base_lr": 0.05, "lr_policy": "fixed", "random_seed": 1, "snapshot_after_train": False, **fields}
    if fields["type"] == "SGD":
        fields.setdefault("momentum", 0.9)
    param = caffe_pb2.SolverParameter(**fields)
    param.net_param.CopyFrom(text.parse_text(net, caffe_pb2.NetParameter)[0])
    return create_solver(param, plan=plan)


def losses(solver, n):
    """Train `n` iterations; return their losses."""
    found = []
    for _ in range(n):
        solver.step(1)
        found.append(solver.smoothed_loss)
    return found


def make_net(images=6):
    minicaffe.set_random_seed(4)
    param = text.parse_text(ALL, caffe_pb2.NetParameter)[0]
    for shape in param.layer[0].input_param.shape:
        shape.dim[0] = images
    net = Net(param)
    rng = np.random.default_rng(0)
    net.blob_by_name("x").data[...] = rng.standard_normal((images, 3, 8, 7))
    net.blob_by_name("words").data[...] = rng.integers(0, 9, images)
    net.blob_by_name("label").data[...] = rng.integers(0, 4, images)
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
