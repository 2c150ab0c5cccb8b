"""What tests of layers that are computed at once have in common: a net that may do so, and one that is observed."""

import numpy as np

import minicaffe as caffe
from minicaffe.net.run import AFTER_FORWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

# Layers in place on y
FILLED = 'filler { type: "uniform" min: -1 max: 2 }'
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" }'
SCALE = f'layer {{ name: "scale" type: "Scale" bottom: "y" top: "y" scale_param {{ bias_term: true {FILLED} bias_{FILLED} }} }}'
BIAS = f'layer {{ name: "bias" type: "Bias" bottom: "y" top: "y" bias_param {{ {FILLED} }} }}'
PRELU = f'layer {{ name: "prelu" type: "PReLU" bottom: "y" top: "y" prelu_param {{ {FILLED} }} }}'
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
LEAKY = 'layer { name: "leaky" type: "ReLU" bottom: "y" top: "y" relu_param { negative_slope: 0.25 } }'
LOSS = 'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 reduction_param { operation: SUMSQ } }'


def net_of(text, phase=caffe.TEST, **how):
    """Return the net of a text, as pycaffe has it."""
    return caffe.Net(parse_text(text, caffe_pb2.NetParameter, "net.prototxt", keep_layer_fields=True)[0], phase, **how)


def with_one_watched(nets):
    """Give two nets the same values, observe the second between its layers, and return both."""
    values = np.random.default_rng(3)
    for blob, other in zip(*([*net.input_blobs, *(blob for layer in net.layers for blob in layer.blobs)] for net in nets)):
        blob.data[...] = other.data[...] = values.uniform(-1, 2, blob.shape)
    for layer, other in zip(*(net.layers for net in nets)):
        if layer.type == "BatchNorm":
            layer.blobs[1].data[...] = other.blobs[1].data[...] = values.uniform(1, 4, layer.blobs[1].shape)
            layer.blobs[2].data[...] = other.blobs[2].data[...] = 2
    nets[1].add_hook(AFTER_FORWARD, lambda index: None)
    return nets


def step(net):
    """Forward and backward of all layers; gradients of parameters are added."""
    last = len(net.layers) - 1
    net.forward_from_to(0, last)
    net.backward_from_to(last, 0)


def fused(net):
    """Return the names of the layers that others computed, too, by those."""
    return {row["layer"]: row["fused"] for row in net.engines() if row["fused"]}
