"""Layers whose backward uses what their forward kept: the mode may change between the two."""

import numpy as np
import pytest

import minicaffe
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

LAYERS = {
    "Interp": "interp_param { height: 9 width: 7 }",
    "Resize": "resize_param { height: 11 width: 8 }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Normalize": "norm_param { across_spatial: false channel_shared: false scale_filler { type: 'constant' value: 2 } }",
    "MVN": "",
    "Crop": "crop_param { axis: 2 offset: 1 }",
    "LRN": "",
    "Pooling": "pooling_param { kernel_size: 3 stride: 2 }"}
CROPPED = 'layer { name: "size" type: "Input" top: "size" input_param { shape { dim: [2, 4, 3, 3] } } }'


def results(net, forward, backward):
    """Return the top and the gradient of the bottom, forward and backward in these modes."""
    modes = {"cpu": minicaffe.set_mode_cpu, "gpu": minicaffe.set_mode_gpu}
    modes[forward]()
    net.forward_from_to(0, len(net.nodes) - 1)
    modes[backward]()
    top = net.tops[-1][0]
    top.diff[...] = np.random.default_rng(2).normal(size=top.shape)
    net.backward_from_to(len(net.nodes) - 1, 0)
    return top.cpu_data.copy(), net.blobs["x"].cpu_diff.copy()


@pytest.mark.parametrize("kind", LAYERS)
def test_tops_and_gradients_are_the_same(kind):
    text = ('force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 4, 6, 5] } } } '
            + (CROPPED if kind == "Crop" else "") + f'layer {{ name: "l" type: "{kind}" bottom: "x" '
            + ('bottom: "size" ' if kind == "Crop" else "") + f'top: "y" {LAYERS[kind]} }}')
    values = np.random.default_rng(1).normal(size=(2, 4, 6, 5))

    def made():
        net = Net(parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0])
        net.blobs["x"].data[...] = values
        return net

    wanted = results(made(), "cpu", "cpu")
    assert np.abs(wanted[1]).max() > 0.01
    for pairs in ([("cpu", "gpu")], [("gpu", "cpu")], [("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "gpu")]):
        net = made()
        for pair in pairs:
            for found, want in zip(results(net, *pair), wanted):
                np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5, err_msg=str(pair))
