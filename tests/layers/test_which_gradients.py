"""Each gradient is computed where it is needed and added where it should be, in any order, by each engine; the others keep their numbers."""

import random

import numpy as np
import pytest
from gradient import layer_net

import minicaffe
from minicaffe.blob import Dtype
from minicaffe.engines import engine

IMAGES, PIXELS, ROWS, MANY = (2, 32, 12, 9), (2, 32, 9, 9), (3, 100), (40, 30)
FILLER = 'filler { type: "uniform" min: -1 max: 1 }'
CONV = f"convolution_param {{ num_output: 32 weight_{FILLER} bias_{FILLER}"
INNER = f"inner_product_param {{ num_output: 20 weight_{FILLER} bias_{FILLER}"
CASES = {
    "by sums": ("CAFFE", IMAGES, "Convolution", CONV + " kernel_size: 3 pad: 1 }"),
    "Winograd": ("WINOGRAD", IMAGES, "Convolution", CONV + " kernel_size: 3 pad: 1 }"),
    "Winograd, 5x5 in plain order": ("WINOGRAD", (2, 5, 12, 9), "Convolution", CONV + " kernel_size: 5 }"),
    "oneDNN": ("ONEDNN", IMAGES, "Convolution", CONV + " kernel_size: 3 pad: 1 }"),
    "oneDNN, channels that fill no block": ("ONEDNN", (2, 7, 8, 8), "Convolution", CONV.replace("32", "9") + " kernel_size: 2 }"),
    "depthwise": ("CAFFE", PIXELS, "Convolution", CONV + " kernel_size: 3 group: 32 }"),
    "depthwise by oneDNN": ("ONEDNN", PIXELS, "Convolution", CONV + " kernel_size: 3 group: 32 }"),
    "deconvolution": ("CAFFE", (2, 16, 5, 4), "Deconvolution", CONV + " kernel_size: 3 stride: 2 }"),
    "deconvolution by oneDNN": ("ONEDNN", (2, 16, 5, 4), "Deconvolution", CONV + " kernel_size: 3 stride: 2 }"),
    "few rows": ("CAFFE", ROWS, "InnerProduct", INNER + " }"),
    "rows": ("CAFFE", MANY, "InnerProduct", INNER + " }"),
    "transposed": ("CAFFE", MANY, "InnerProduct", INNER + " transpose: true }"),
    "Scale": ("CAFFE", IMAGES, "Scale", f"scale_param {{ bias_term: true {FILLER} }}"),
    "Scale of one number": ("CAFFE", IMAGES, "Scale", f"scale_param {{ num_axes: 0 bias_term: true {FILLER} }}"),
    "Bias": ("CAFFE", IMAGES, "Bias", f"bias_param {{ {FILLER} }}"),
    "PReLU": ("CAFFE", IMAGES, "PReLU", f"prelu_param {{ {FILLER} }}"),
}


@pytest.fixture(params=CASES)
def make(request, device):
    name, shape, kind, fields = CASES[request.param]
    if device == "cpu":
        if name == "ONEDNN":
            request.getfixturevalue("onednn")
        engine.prefer(name)
    numbers = np.random.default_rng(7)
    x = numbers.uniform(-1, 1, shape).astype(np.float32)

    def build():
        net = layer_net(f'layer {{ name: "one" type: "{kind}" bottom: "x" top: "y" {fields} }}', [x], Dtype.FLOAT)
        for blob in net.layers[-1].blobs:
            blob.data[...] = np.random.default_rng(blob.count).uniform(-1, 1, blob.shape)
        net.forward_from_to(0, 1)
        if device == "cpu" and kind in ("Convolution", "Deconvolution"):
            assert net.engines()[0]["engine"] == name
        return net
    return build


def backward(net, needs, learns):
    node, layer, top = net.nodes[1], net.layers[1], net.tops[1][0]
    node.needs_backward, node.bottom_needs, layer.param_propagate_down = True, [needs], learns
    top.diff[...] = np.random.default_rng(8).uniform(-1, 1, top.shape)
    net.backward_from_to(1, 1)


def near(found, wanted, what):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * max(1, np.abs(wanted).max()), err_msg=what)


def test_any_order(make):
    dice, fresh = random.Random(3), make()
    params = fresh.layers[1].blobs
    fresh.clear_param_diffs()
    backward(fresh, True, [True] * len(params))
    gradients = [blob.cpu_diff.astype(np.float64) for blob in (*params, fresh.blobs["x"])]
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients)

    net = make()
    params, bottom = net.layers[1].blobs, net.blobs["x"]
    net.clear_param_diffs()
    times, left = [0] * len(params), None   # how often each gradient was added; what x.diff holds if not the gradient
    for _ in range(30):
        action = dice.choice(["clear", "forward", "threads", "read", "backward", "backward", "backward"])
        if action == "clear":
            net.clear_param_diffs()
            times = [0] * len(params)
        elif action == "forward":
            net.forward_from_to(0, 1)
        elif action == "threads":
            minicaffe.set_num_threads(dice.randint(1, 3))
        elif action == "backward":
            learns, needs = [dice.random() < 0.6 for _ in params], dice.random() < 0.6
            if not needs:
                bottom.diff[...] = left = dice.random()
            backward(net, needs, learns)
            left = None if needs else left
            times = [n + flag for n, flag in zip(times, learns)]
            near(bottom.cpu_diff, gradients[-1] if needs else np.full(bottom.shape, left), "bottom")
        if action == "read":
            for i, (blob, n) in enumerate(zip(params, times)):
                near(blob.cpu_diff, n * gradients[i], f"parameter {i}, added {n} times")
    for i, (blob, n) in enumerate(zip(params, times)):
        near(blob.cpu_diff, n * gradients[i], f"parameter {i}, added {n} times")
