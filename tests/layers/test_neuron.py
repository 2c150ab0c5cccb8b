"""Element-wise layers, Dropout among them: values against NumPy in both types, gradients by differences, edge values, in place, wrong fields."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, output_of, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.common import TEST, caffe
from minicaffe.errors import ConfigError


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# name: type, its parameter, the function in NumPy, where the gradient jumps (None: nowhere)
CASES = {
    "relu": ("ReLU", "", lambda x: np.maximum(x, 0), 0),
    "leaky relu": ("ReLU", "relu_param { negative_slope: 0.25 }", lambda x: np.where(x > 0, x, 0.25 * x), 0),
    "sigmoid": ("Sigmoid", "", sigmoid, None), "tanh": ("TanH", "", np.tanh, None), "abs": ("AbsVal", "", np.abs, 0),
    "bnll": ("BNLL", "", lambda x: np.log1p(np.exp(x)), None),
    "clip": ("Clip", "clip_param { min: -0.5 max: 0.75 }", lambda x: np.clip(x, -0.5, 0.75), (-0.5, 0.75)),
    "elu": ("ELU", "", lambda x: np.where(x > 0, x, np.expm1(x)), None),
    "elu zero": ("ELU", "elu_param { alpha: 0 }", lambda x: np.maximum(x, 0), 0),
    "elu alpha": ("ELU", "elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), 0),
    "exp": ("Exp", "", np.exp, None),
    "exp of 2": ("Exp", "exp_param { base: 2 scale: 0.5 shift: -1 }", lambda x: 2 ** (0.5 * x - 1), None),
    "log": ("Log", "log_param { scale: 0.25 shift: 3 }", lambda x: np.log(0.25 * x + 3), None),
    "log of 10": ("Log", "log_param { base: 10 shift: 5 }", lambda x: np.log10(x + 5), None),
    "power": ("Power", "power_param { power: 3 scale: 0.5 shift: 0.25 }", lambda x: (0.5 * x + 0.25) ** 3, None),
    "square": ("Power", "power_param { power: 2 }", np.square, None),
    "line": ("Power", "power_param { scale: -2 shift: 1 }", lambda x: 1 - 2 * x, None),
    "constant": ("Power", "power_param { power: 0 }", np.ones_like, None),
    "root": ("Power", "power_param { power: 0.5 shift: 5 }", lambda x: np.sqrt(x + 5), None),
    "swish": ("Swish", "", lambda x: x * sigmoid(x), None),
    "swish beta": ("Swish", "swish_param { beta: -0.5 }", lambda x: x * sigmoid(-0.5 * x), None),
    "threshold": ("Threshold", "threshold_param { threshold: 0.25 }", lambda x: (x > 0.25) * 1.0, None),
}
# Whether a net may go backward through it in place: its gradient can be had from the top alone, or it keeps the bottom.
IN_PLACE = {"relu", "leaky relu", "sigmoid", "tanh", "elu", "elu zero", "elu alpha", "exp", "exp of 2", "line", "constant", "swish", "swish beta"}


def text_of(name, top="y"):
    return layer_text(CASES[name][0], "f", "x", top, CASES[name][1])


def values(shape, seed=5):
    return np.random.default_rng(seed).uniform(-2.5, 2.5, shape)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype):
    for shape in (), (1,), (3, 5, 7), (4, 4099), (0, 3):
        x = values(shape).astype("f4" if dtype == Dtype.FLOAT else "f8")
        net = forward_net(text_of(name), [x], dtype)
        np.testing.assert_allclose(net.tops[-1][0].cpu_data, CASES[name][2](x.astype("f8")), rtol=4e-6 if dtype == Dtype.FLOAT else 1e-14,
                                   atol=1e-6 if dtype == Dtype.FLOAT else 1e-15, err_msg=f"shape {shape}")
        np.testing.assert_array_equal(net.bottoms[-1][0].cpu_data, x)   # it was not written to


@pytest.mark.parametrize("name", [name for name in CASES if name != "threshold"])
def test_gradient(name):
    kinks = () if CASES[name][3] is None else np.atleast_1d(CASES[name][3])
    x = values((3, 17))
    for kink in kinks:  # away from every kink, as differences across one mean nothing
        x[np.abs(x - kink) < 0.01] += 0.02
    check_gradient(text_of(name), [x])
    if name not in IN_PLACE:
        return
    results = []
    for top in "yx":
        net = forward_net(text_of(name, top), [x])
        y = net.tops[-1][0].cpu_data.copy()
        run_backward(net, [0], [values(x.shape, 6)])
        results.append((y, net.bottoms[-1][0].cpu_diff.copy()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("text", [
    *(text_of(name, "x") for name in sorted(CASES.keys() - IN_PLACE - {"abs", "threshold"})),
    layer_text("ReLU", "f", "x", "x", "relu_param { negative_slope: -0.5 }"),       # the sign is lost
    layer_text("ELU", "f", "x", "x", "elu_param { alpha: -1 }")])
def test_no_gradient_in_place(text):
    net = forward_net(text, [values((4,))])
    with pytest.raises(ConfigError, match=r"layer 'f' \(\w+\): top\[0\]: \w+ cannot go backward in place"):
        run_backward(net, [0], [np.ones(4)])


@pytest.mark.parametrize(("name", "expected"), {
    "relu": [np.nan, np.inf, np.nan, 0, 0],  # Caffe's slope of 0 times -inf
    "sigmoid": [np.nan, 1, 0, 0.5, 0.5], "tanh": [np.nan, 1, -1, 0, -0.0], "abs": [np.nan, np.inf, np.inf, 0, 0],
    "bnll": [np.nan, np.inf, 0, np.log(2), np.log(2)], "clip": [np.nan, 0.75, -0.5, 0, 0], "elu": [np.nan, np.inf, -1, 0, 0],
    "exp": [np.nan, np.inf, 0, 1, 1],
    "threshold": [0, 1, 0, 0, 0]}.items())
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_edges(name, expected, dtype):
    """Not a number stays one, but for a comparison, which it fails."""
    net = forward_net(text_of(name), [np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])], dtype)
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, expected, rtol=1e-6)
    if name == "tanh":
        np.testing.assert_array_equal(np.signbit(net.tops[-1][0].cpu_data[1:]), np.signbit(expected[1:]))


@pytest.mark.parametrize(("name", "gradient"), {"relu": [0, 1], "abs": [0, 1], "elu": [1, 1], "clip": [1, 1]}.items())
def test_gradient_at_the_kink(name, gradient):
    """At 0 as Caffe has it; and of the largest number below the next kink."""
    net = forward_net(text_of(name), [np.array([0.0, 0.75])])
    run_backward(net, [0], [np.ones(2)])
    np.testing.assert_array_equal(net.bottoms[-1][0].cpu_diff, gradient)


def test_large_values_do_not_overflow():
    x = np.array([-800.0, -90.0, 90.0, 800.0])
    for name, expected in (("bnll", [0, 8.194e-40, 90, 800]), ("sigmoid", [0, 8.194e-40, 1, 1]), ("swish", [0, -7.37e-38, 90, 800])):
        np.testing.assert_allclose(output_of(text_of(name), [x]), expected, rtol=1e-3, atol=1e-15)


@pytest.mark.parametrize(("kind", "param", "message"), [
    ("Log", "log_param { base: 1 }", "log_param.base: must not be 1"),
    *(("Dropout", f"dropout_param {{ dropout_ratio: {ratio} }}", "dropout_param.dropout_ratio: must be at least 0") for ratio in (1.0, -0.1, 1.5, "nan")),
    ("Log", "log_param { base: 0 }", "log_param.base: must be -1"),
    ("Exp", "exp_param { base: -2 }", "exp_param.base: must be -1"), ("AbsVal", "", "top.0.: AbsVal cannot work in place")])
def test_what_is_refused(kind, param, message):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'f' \({kind}\): {message}"):
        layer_net(layer_text(kind, "f", "x", "x", param), [np.ones(3)])


@pytest.mark.parametrize("param", ["power: 0", "scale: 0 shift: 1", "scale: 0", "power: 0 scale: 0", "power: 2 scale: 0"])
def test_constant_power_has_no_gradient(param):
    """Whatever the numbers are, as in Caffe: not 0 divided by 0, nor 0 times infinity."""
    net = forward_net(f'layer {{ name: "p" type: "Power" bottom: "x" top: "y" power_param {{ {param} }} }}', [np.array([0.0, 1, -2, 3])])
    run_backward(net, [0], [np.array([1.0, np.inf, np.nan, 2])])
    assert net.blob_by_name("x").cpu_diff.tolist() == [0, 0, 0, 0]


# ---- Dropout

def dropout(ratio=0.5, top="y"):
    return layer_text("Dropout", "d", "x", top, f"dropout_param {{ dropout_ratio: {ratio} }}")


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 0.9])
def test_dropout_keeps_its_share(ratio, dtype):
    y = forward_net(dropout(ratio), [np.ones(40000)], dtype).blob_by_name("y").cpu_data
    np.testing.assert_allclose(np.unique(y)[-1], 1 / (1 - ratio), rtol=1e-6)
    assert len(np.unique(y)) == (2 if ratio else 1)
    kept = (y > 0) - (1 - ratio)
    assert abs(kept.mean()) < 0.013     # five standard deviations of 40000 draws
    for distance in (1, 16, 64):        # neighbours, and elements one vector or one block apart, are independent
        assert abs((kept[distance:] * kept[:-distance]).mean()) < 0.013


@pytest.mark.parametrize("top", ["y", "x"])
def test_dropout_backward_uses_last_mask(top):
    net = forward_net(dropout(top=top), [np.ones((3, 77))])
    mask = net.tops[-1][0].cpu_data.copy()
    caffe.generator.reserve_counters(5)  # other layers draw in between
    run_backward(net, [0], [np.full((3, 77), 2.0)])
    np.testing.assert_array_equal(net.bottoms[-1][0].cpu_diff, 2 * mask)
    net = forward_net(dropout(), [np.zeros((0, 3))])
    run_backward(net, [0])
    assert net.blob_by_name("y").shape == (0, 3)


def test_dropout_follows_seed_and_offset():
    net, masks = forward_net(dropout(), [np.ones(1000)]), []
    masks.append(net.blob_by_name("y").cpu_data.copy())
    offset = caffe.generator.offset
    for start in (None, offset):
        caffe.generator.offset = offset if start is None else start
        net.forward_from_to(0, 1)
        masks.append(net.blob_by_name("y").cpu_data.copy())
    for seed in (1, 2, 1701):
        run_forward(net, seed)
        masks.append(net.blob_by_name("y").cpu_data.copy())
    assert 0.4 < (masks[0] != masks[1]).mean() < 0.6 and (masks[1] == masks[2]).all()
    assert (masks[0] == masks[5]).all() and (masks[3] != masks[4]).any()
    # A count that is no multiple of the block takes its tail one by one: the numbers must be those of a longer blob.
    masks = [forward_net(dropout(), [np.ones(count)]).blob_by_name("y").cpu_data for count in (64 * 3, 64 * 3 - 1, 64 * 2 + 1, 17)]
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0][:mask.size])


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_dropout_passes_all_in_test(ratio):
    x = np.array([1.0, -0.0, np.nan, np.inf])
    net = layer_net(dropout(ratio), [x], phase=TEST)
    offset = caffe.generator.offset
    net.forward_from_to(0, 1)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, x)
    run_backward(net, [0], [x])
    np.testing.assert_array_equal(net.blob_by_name("x").cpu_diff, x)
    assert caffe.generator.offset == offset
