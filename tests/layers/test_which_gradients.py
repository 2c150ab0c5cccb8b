"""Each gradient is computed where it is needed and added where it should be, in any order, by each engine; the others keep their numbers.
Layers compute the same bits on any number of threads, also on more than there were when the net was made."""

import random

import numpy as np
import pytest
from gradient import layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
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
    "few rows": ("CAFFE", ROWS, "InnerProduct", INNER + " }"), "rows": ("CAFFE", MANY, "InnerProduct", INNER + " }"),
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

    def build():
        x = np.random.default_rng(7).uniform(-1, 1, shape)
        net = layer_net(layer_text(kind, "one", "x", "y", fields), [x], Dtype.FLOAT)
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
    for action in [*dice.choices(["clear", "forward", "threads", "read", "backward", "backward", "backward"], k=30), "read"]:
        if action == "clear":
            net.clear_param_diffs()
            times = [0] * len(params)
        elif action == "forward":
            net.forward_from_to(0, 1)
        elif action == "threads":
            set_num_threads(dice.randint(1, 3))
        elif action == "backward":
            learns, needs = [dice.random() < 0.6 for _ in params], dice.random() < 0.6
            if not needs:
                bottom.diff[...] = left = dice.random()
            backward(net, needs, learns)
            times = [n + flag for n, flag in zip(times, learns)]
            near(bottom.cpu_diff, gradients[-1] if needs else np.full(bottom.shape, left), "bottom")
        else:
            for i, (blob, n) in enumerate(zip(params, times)):
                near(blob.cpu_diff, n * gradients[i], f"parameter {i}, added {n} times")


RANDOM = np.random.default_rng(4)
LABELS, INDEX, INTEGERS = RANDOM.integers(0, 7, (3, 90, 91)), RANDOM.integers(0, 50, 3000), RANDOM.integers(-4, 5, (64, 700))
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'
# The fields of a layer; its bottoms, arrays or shapes of random numbers; which of them get a gradient.
ON_THREADS = [
    ('type: "SoftmaxWithLoss"', [(3, 7, 90, 91), LABELS], [0]),
    *((f'type: "Pooling" pooling_param {{ kernel_size: 3 stride: 2 {more} }}', [shape], [0])
      for more in ("pad: 1", "pad: 1 pool: AVE", "pool: STOCHASTIC") for shape in ((1, 1, 150, 131), (3, 7, 41, 33))),
    *((f'type: "LRN" lrn_param {{ norm_region: {region} }}', [(2, 16, 31, 33)], [0]) for region in ("ACROSS_CHANNELS", "WITHIN_CHANNEL")),
    *((f'type: "{kind}" convolution_param {{ num_output: 14 kernel_size: 3 group: 2 stride: 2 {FILLERS} }}', [(13, 4, 11, 9)], [0])
      for kind in ("Convolution", "Deconvolution")),
    (f'type: "Convolution" convolution_param {{ num_output: 3 kernel_size: 3 {FILLERS} }}', [(16, 2, 8, 9)], [0]),
    (f'type: "Embed" embed_param {{ num_output: 33 input_dim: 50 {FILLERS} }}', [INDEX], []),
    ('type: "Softmax"', [(300, 100)], [0]), ('type: "Softmax"', [(3, 20, 1000)], [0]),
    ('type: "InnerProduct" inner_product_param { num_output: 90 weight_filler { value: 3 } bias_filler { value: 1 } }', [INTEGERS], [0]),   # exact sums
    ('type: "Dropout"', [(100001,)], [0]),
    *((f'type: "{kind}"', [shape], [0]) for kind in ("BatchNorm", "MVN") for shape in ((2, 3, 4097), (70000, 2), (3, 5, 64, 65)) if kind == "BatchNorm" or len(shape) > 2),
    *((f'type: "{kind}" {kind.lower()}_param {{ filler {{ type: "uniform" min: 0.5 max: 2 }} }}', [shape], [0]) for kind in ("Scale", "Bias", "PReLU")
      for shape in ((3, 2, 40000), (40000, 3), (2, 50001), (1, 1, 70000))),
    *(('type: "Reduction" reduction_param { axis: 1 }', [shape], [0]) for shape in ((3, 2, 40000), (40000, 3))),
    *((f'type: "Eltwise" eltwise_param {{ operation: {operation} }}', [(65537,), (65537,)], [0, 1]) for operation in ("SUM", "PROD", "MAX")),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, bottoms, gradients", ON_THREADS)
def test_threads_change_no_bit(fields, bottoms, gradients, dtype):
    arrays = [RANDOM.random(bottom) if isinstance(bottom, tuple) else bottom for bottom in bottoms]
    names = " ".join(f'bottom: "b{i}"' for i in range(len(arrays)))
    results = []
    set_num_threads(1)
    net = layer_net(f'layer {{ name: "l" {names} top: "y" {fields} }}', arrays, dtype)
    top = net.tops[-1][0]
    seed = None if "Loss" in fields else np.random.default_rng(5).integers(-4, 5, top.shape)
    for threads in (1, 2, 3):
        set_num_threads(threads)
        net.clear_param_diffs()
        run_forward(net)
        run_backward(net, gradients, [seed])
        results.append([top.cpu_data.copy(), *(net.bottoms[-1][i].cpu_diff.copy() for i in gradients),
                        *(blob.cpu_diff.copy() for blob in net.layers[-1].blobs)])
    assert any(result.any() for result in results[0][1:])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
