"""Engine PLAIN, the formulas (minicaffe/ops/*/plain.hpp), and the engines that compute by default give the same numbers."""

import logging

import numpy as np
import pytest
from gradient import layer_net, run_backward, run_forward
from helpers import make_net

import minicaffe as caffe
from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN
from minicaffe.common import caffe as settings
from minicaffe.engines import engine

FILL = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'
CONVOLUTIONS = [((2, 3, 6, 7), "num_output: 4 kernel_size: 3"), ((2, 4, 9, 8), "num_output: 6 kernel_size: 2 group: 2 dilation: 2 pad: 1"),
                ((2, 2, 6, 9), "num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 0 pad_w: 2"),
                ((2, 4, 9, 8), "num_output: 4 kernel_size: 3 group: 4 stride: 2 pad: 2"), ((3, 5, 4, 4), "num_output: 11 kernel_size: 1"),
                ((1, 2, 4, 3, 5), "num_output: 3 kernel_size: 2 pad: 1 stride: 2"), ((2, 3, 12), "num_output: 4 kernel_size: 5 stride: 3 pad: 4"),
                ((5, 4), "num_output: 3"), ((2, 16, 12, 12), "num_output: 16 kernel_size: 3 pad: 1 bias_term: false"),
                ((2, 3, 7, 9), "num_output: 3 kernel_size: 3 group: 3 pad: 1 stride: 2"),
                ((2, 4, 9, 8), "num_output: 4 kernel_h: 5 kernel_w: 2 group: 4 pad_h: 3 stride_h: 3 stride_w: 2 dilation: 2"),
                ((1, 2, 3, 150), "num_output: 2 kernel_size: 4 group: 2 pad: 2"),
                ((1, 2, 2, 4), "num_output: 2 kernel_size: 3 stride: 2 group: 2"),
                ((2, 3, 7, 11), "num_output: 2 kernel_h: 1 kernel_w: 2 stride_h: 2 stride_w: 4 pad_w: 1"),
                ((2, 2, 30), "num_output: 2 kernel_size: 2 dilation: 40 pad: 20"),
                ((2, 1, 800), "num_output: 2 kernel_size: 3 pad: 1"), ((3, 2, 10, 10), "num_output: 5 kernel_size: 3"),
                # more images, outputs, channels and positions than one tile, panel, block of channels or chunk of columns holds
                ((13, 3, 9, 9), "num_output: 37 kernel_size: 3 pad: 1"), ((1, 70, 18, 18), "num_output: 21 kernel_size: 3"),
                ((5, 4, 7, 7), "num_output: 300 kernel_size: 7 group: 2"), ((20, 300, 2, 2), "num_output: 9 kernel_size: 2 pad: 1")]
POOLINGS = [((2, 3, 7, 6), "kernel_size: 2 stride: 2"), ((2, 3, 8, 9), "kernel_size: 3 stride: 2 pad: 1"), ((2, 2, 5, 7), "global_pooling: true"),
            ((1, 2, 9, 7), "kernel_h: 2 kernel_w: 3 stride_h: 3 stride_w: 1 pad_h: 0 pad_w: 1"), ((2, 2, 6, 6), "kernel_size: 3 round_mode: FLOOR"),
            ((1, 1, 4, 4), "kernel_size: 1 stride: 3"), ((1, 2, 20, 33), "kernel_size: 3"),
            # side by side, several at once
            *(((2, 3, *size), "kernel_size: 2 stride: 2") for size in ((2, 6), (4, 8), (6, 14), (2, 16), (8, 24), (4, 42), (5, 24), (6, 25)))]
# Of each number of channels rows of channels and planes, whole vectors and not, one block to a channel and many.
CHANNELS = [(1, 5), (1, 1, 7), (1, 3, 70, 90), (300, 1), (9000, 3), (4000, 4), (7000, 5), (3000, 64), (1000, 257), (5, 257, 7, 7),
            (2, 64, 40, 41), (20, 4, 30, 32), (6, 5, 60, 60), (3, 2, 200, 200)]
ROWS = [(1, 40, 7), (1, 15, 9), (2, 35, 50), (2, 31, 50), (5, 530, 6), (32, 65, 100), (32, 517, 100), (33, 65, 100)]
FUNCTIONS = [("ReLU", ""), ("ReLU", "relu_param { negative_slope: 0.3 }"), ("Sigmoid", ""), ("TanH", ""), ("AbsVal", ""), ("BNLL", ""),
             ("ELU", "elu_param { alpha: 0.7 }"), ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"), ("Swish", "swish_param { beta: 1.5 }"),
             ("Power", "power_param { power: 2 scale: 3 shift: 1 }"), ("Power", "power_param { power: 3 scale: 0.5 shift: 2 }"),
             ("Power", "power_param { scale: 2 }"), ("Clip", "clip_param { min: -0.5 max: 0.25 }")]
CASES = [("Input", shape, f'type: "{kind}" convolution_param {{ {fields} {FILL} }}') for kind in ("Convolution", "Deconvolution")
         for shape, fields in CONVOLUTIONS if kind == "Convolution" or len(shape) != 2 and "300" not in fields]
CASES += [("Input", shape, f'type: "Pooling" pooling_param {{ pool: {pool} {fields} }}') for pool in ("MAX", "AVE") for shape, fields in POOLINGS]
CASES += [("Input", (3, 5, 7), f'type: "{kind}" {fields}') for kind, fields in FUNCTIONS]
CASES += [("positive", (3, 5, 7), 'type: "Log" log_param { base: 3 scale: 2 shift: 1 }')]
CASES += [("Input", (3, 4, 5), f'type: "InnerProduct" inner_product_param {{ {fields} {FILL} }}') for fields in (
    "num_output: 7", "num_output: 2 bias_term: false", "num_output: 7 transpose: true", "num_output: 3 axis: 2")]
CASES += [("Input", (rows, inputs), f'type: "InnerProduct" inner_product_param {{ num_output: {outputs} {FILL} }}') for rows, inputs, outputs in ROWS]
CASES += [("Input", (2, 7, 5, 6), f'type: "LRN" lrn_param {{ alpha: 0.7 {fields} }}') for fields in (
    "local_size: 5", "local_size: 3 beta: 0.4 k: 2", "local_size: 3 norm_region: WITHIN_CHANNEL", "local_size: 9")]
CASES += [("Input", shape, f'type: "LRN" lrn_param {{ alpha: 0.3 k: 1.5 local_size: {size} }}') for shape, size in (
    ((1, 1, 1, 1), 1), ((2, 7, 5, 6), 5), ((3, 20, 3, 3), 3), ((1, 3, 40, 50), 11), ((1, 17, 5, 1), 1))]
CASES += [("Input", (2, 5, 3, 4), f'type: "Softmax" softmax_param {{ axis: {axis} }}') for axis in (0, 1, 3)]
CASES += [("Input", shape, 'type: "Softmax"') for shape in (
    (1, 1), (5, 10), (3, 32), (3, 33), (4, 256), (2, 1000), (3, 21, 35), (2, 1, 300), (2, 300, 3), (1, 40, 2100))]
CASES += [("Input", (4, 3, 5), 'type: "BatchNorm"'), ("Input", (6, 5), 'type: "BatchNorm" batch_norm_param { eps: 0.1 }'),
          ("Input", (4, 3, 5), 'type: "BatchNorm" batch_norm_param { use_global_stats: true }')]
CASES += [("Input", shape, 'type: "BatchNorm" batch_norm_param { eps: 0.01 }') for shape in CHANNELS]
CASES += [("Input", (3, 2, 5, 4), f'type: "MVN" mvn_param {{ {fields} }}') for fields in (
    "", "normalize_variance: false", "across_channels: true eps: 0.01")]


def compute(values, shape, fields, dtype):
    """Return the numbers of forward and backward by the preferred engine, and the engines that computed them."""
    random = np.random.default_rng(3)
    x = random.standard_normal(shape)
    net = layer_net(f'layer {{ name: "one" bottom: "x" top: "y" {fields} }}', [np.abs(x) if values == "positive" else x], dtype)
    top, weights = net.tops[-1][0], net.layers[-1].blobs
    if "use_global_stats" in fields:
        for blob, value in zip(weights, (0.3, 1.7, 2)):
            blob.data[...] = value
    run_forward(net)
    results = [blob.data.copy() for blob in (top, *weights)]
    net.clear_param_diffs()
    for times in 1, 2:      # the second batch of an iteration is added
        run_backward(net, [0], [np.random.default_rng(4).standard_normal(top.shape)])
        results += [blob.diff / times if blob in weights else blob.diff.copy() for blob in (net.bottoms[-1][0], *weights)]
    return results, {row["engine"] for row in net.engines()}


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize(("values", "shape", "fields"), CASES)
def test_the_formula_and_the_fast_ways(values, shape, fields, dtype, device):
    caffe.set_mode_cpu()
    engine.prefer("PLAIN")
    expected, engines = compute(values, shape, fields, dtype)
    assert engines == {"PLAIN"}
    (caffe.set_mode_cpu if device == "cpu" else caffe.set_mode_gpu)()
    for name, threads in ("CAFFE", 1), ("", 2):
        engine.prefer(name)
        caffe.set_num_threads(threads)
        found, engines = compute(values, shape, fields, dtype)
        assert "PLAIN" not in engines
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=(2e-5 if dtype == Dtype.FLOAT else 1e-11) * max(1, np.abs(b).max()))


@pytest.mark.parametrize("power", ["power: 0.5", "power: -1", "power: 3", "power: 0", "power: 0.5 scale: 0", "power: 2", ""])
def test_gradient_of_power_at_zero(power, on_cpu):
    """It is the power over the base, as in Caffe: NaN for exponents other than 1 and 2, and 0 where the scale or the exponent is 0."""
    gradients = []
    for name in "PLAIN", "CAFFE":
        engine.prefer(name)
        net = layer_net(f'layer {{ name: "one" type: "Power" bottom: "x" top: "y" power_param {{ {power} }} }}', [np.array([0.0, 4])])
        run_forward(net)
        run_backward(net, [0], [np.array([3.0, 3])])
        gradients.append(net.bottoms[-1][0].cpu_diff.copy())
    np.testing.assert_array_equal(*gradients)
    assert np.isfinite(gradients[0][0]) == (power not in ("power: 0.5", "power: -1", "power: 3"))


NET = """
    force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [3, 4, 9, 9] } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c"
            convolution_param { num_output: 6 kernel_size: 3 engine: CAFFE weight_filler { type: "xavier" } } }
    layer { name: "n" type: "BatchNorm" bottom: "c" top: "c" } layer { name: "s" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
    layer { name: "r" type: "ReLU" bottom: "c" top: "c" } layer { name: "m" type: "Pooling" bottom: "c" top: "m" pooling_param { kernel_size: 2 } }
    layer { name: "p" type: "Pooling" bottom: "m" top: "p" pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }
    layer { name: "i" type: "InnerProduct" bottom: "p" top: "i" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }"""


@pytest.mark.parametrize("plan", [None, "memory"])
def test_the_setting_is_obeyed(caplog, plan):
    """Also by a layer that names engine CAFFE. Nothing is fused, a plan of memory works, and a refusal is reported."""
    if settings.mode != "cpu":
        pytest.skip("engine PLAIN computes on the CPU alone")
    engine._logged_refusals.clear()
    results = {}
    for name in "PLAIN", "CAFFE":
        engine.prefer(name)
        caffe.set_random_seed(5)
        net = make_net(NET, TRAIN, plan=plan)
        net.blob_by_name("x").data[...] = np.random.default_rng(0).standard_normal((3, 4, 9, 9))
        with caplog.at_level(logging.WARNING):
            net.forward_from_to(0, len(net.layers) - 1)
        net.blob_by_name("i").diff[...] = 1
        net.backward_from_to(len(net.layers) - 1, 0)
        results[name] = [blob.diff.copy() for layer in net.layers for blob in layer.blobs]
        if name == "PLAIN":
            assert {row["layer"]: row["engine"] for row in net.engines()} == dict(zip("cnrmpi", [*4 * ["PLAIN"], "CAFFE", "PLAIN"]))
            assert not any(row["fused"] for row in net.engines())
    assert [record.getMessage() for record in caplog.records] == [
        "engine PLAIN refuses: STOCHASTIC pooling; engine CAFFE computes instead"]
    for a, b in zip(results["PLAIN"], results["CAFFE"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_the_engine_changes_between_two_passes():
    net = make_net(NET.replace("STOCHASTIC", "AVE").replace("engine: CAFFE", ""), TEST)
    net.blob_by_name("x").data[...] = np.random.default_rng(0).standard_normal((3, 4, 9, 9))
    found = []
    for name in "", "PLAIN", "CAFFE", "PLAIN":
        engine.prefer(name)
        net.forward_from_to(0, len(net.layers) - 1)
        found.append(net.blob_by_name("i").data.copy())
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], rtol=1e-4)
