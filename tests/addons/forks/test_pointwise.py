"""ReLU6, ReLUX and LabelSpecificAdd of forks."""

import numpy as np
import pytest
from gradient import check_gradient, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.common import TEST
from minicaffe.errors import ConfigError, DataError, ShapeError

RANDOM = np.random.default_rng(12)


def layer(kind, more="", bottoms=("x",), tops=("y",)):
    names = "".join(f' bottom: "{name}"' for name in bottoms) + "".join(f' top: "{name}"' for name in tops)
    return f'layer {{ name: "l" type: "{kind}" {names} {more} }}'


# ---- ReLU6, ReLUX

RELUS = [("ReLU6", "", 0, 6), ("ReLU6", "relu6_param { negative_slope: 0.25 }", 0.25, 6), ("ReLUX", "", 0, 6),
         ("ReLUX", "relux_param { maximal_value: 2 engine: CAFFE }", 0, 2)]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("kind, more, slope, bound", RELUS)
def test_relu(kind, more, slope, bound, top, dtype):
    x = np.concatenate([RANDOM.standard_normal(1000) * 5, [0, -0.0, 6, 2, 1e30, -1e30, np.inf, bound]])
    dy = RANDOM.standard_normal(x.shape)
    net = layer_net(layer(kind, more, tops=(top,)), [x], dtype)
    run_forward(net)
    x, dy = (array.astype(net.blob_by_name("x").data.dtype) for array in (x, dy))
    wanted = np.array([min(max(value, 0) + (slope * min(value, 0) if slope else 0), bound) for value in x])
    np.testing.assert_allclose(net.blob_by_name(top).data, wanted.astype(x.dtype), rtol=1e-6)
    run_backward(net, [0], [dy])
    passed = np.array([(value > 0) + slope * (value <= 0) if value < bound else 0 for value in x])
    np.testing.assert_allclose(net.blob_by_name("x").diff, dy * passed.astype(x.dtype), rtol=1e-6)


@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("slope", [0.5, -0.5])
def test_relux_is_bounded_below(slope, top, caplog):
    net = layer_net(layer("ReLUX", f"relux_param {{ negative_slope: {slope} maximal_value: 2 }}", tops=(top,)), [np.array([-30., -1, 1, 3])])
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name(top).data, [0, 0, 1, 2])
    run_backward(net, [0], [np.full(4, 10.)])
    np.testing.assert_array_equal(net.blob_by_name("x").diff, [10 * slope, 10 * slope, 10, 0])
    assert "layer 'l': relux_param.negative_slope changes the gradient alone" in caplog.text


def test_relu_keeps_nan():
    net = layer_net(layer("ReLU6"), [np.array([np.nan, 7.])])
    run_forward(net)
    assert np.isnan(net.blob_by_name("y").data[0]) and net.blob_by_name("y").data[1] == 6


@pytest.mark.parametrize("kind, more, slope, bound", [*RELUS, ("ReLU6", "relu6_param { negative_slope: -0.5 }", -0.5, 6)])
def test_relu_gradient(kind, more, slope, bound):
    x = RANDOM.uniform(-9, 9, (4, 9))
    x[(np.abs(x) < 0.01) | (np.abs(x - bound) < 0.01)] = 1
    check_gradient(layer(kind, more), [x])


def test_relu_of_a_negative_slope_in_place_has_no_gradient():
    net = layer_net(layer("ReLU6", "relu6_param { negative_slope: -0.5 }", tops=("x",)), [np.ones(3)])
    run_forward(net)
    with pytest.raises(ConfigError, match=r"top\[0\]: ReLU6 cannot go backward in place, its gradient needs the bottom's values"):
        run_backward(net, [0], [np.ones(3)])


# ---- LabelSpecificAdd

def label_add(fields, tops=("y",)):
    return layer("LabelSpecificAdd", f"label_specific_add_param {{ {fields} }}", ("x", "label"), tops)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("bias", [-0.375, 0, 0.25])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 1, 1)])
def test_label_specific_add(shape, bias, top, dtype):
    x, labels, dy = RANDOM.uniform(-1, 1, shape), RANDOM.integers(0, 4, 6).astype(float), RANDOM.standard_normal(shape)
    net = layer_net(label_add(f"bias: {bias} transform_test: true", (top, "bias")), [x, labels], dtype)
    run_forward(net)
    wanted = x.astype(net.blob_by_name("x").data.dtype)
    for i, label in enumerate(labels.astype(int)):
        if wanted[i, label] > -bias:
            wanted[i, label] += bias
    np.testing.assert_array_equal(net.blob_by_name(top).data, wanted)
    assert net.blob_by_name("bias").data.tolist() == [bias]
    run_backward(net, [0, 1], [dy, None])
    np.testing.assert_array_equal(net.blob_by_name("x").diff, dy.astype(wanted.dtype))
    assert (net.blob_by_name("label").diff == 0).all() and not net.layers[-1].allow_force_backward(1)


def test_label_specific_add_gradient():
    check_gradient(label_add("bias: -0.35"), [RANDOM.uniform(0.5, 1, (3, 4)), np.array([0., 3, 1])], check=[0])


def test_label_specific_add_is_the_identity_in_test():
    x = RANDOM.standard_normal((2, 3))
    net = layer_net(label_add("bias: -1 transform_test: true"), [x, np.array([-5., 9])], phase=TEST)
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name("y").data, x)


def test_a_bias_that_changes_and_its_state():
    text = label_add("bias_base: -0.5 bias_gamma: 0.25 bias_power: 2 bias_min: -1 bias_max: 1 iteration: 1", ("y", "bias"))

    def biases(net, count):
        return [run_forward(net) and None or float(net.blob_by_name("bias").data[0]) for _ in range(count)]

    net = layer_net(text, [np.zeros((1, 2)), np.zeros(1)])
    assert biases(net, 3) == [min(-0.5 + (1 + 0.25 * i) ** 2 - 1, 1) for i in (1, 2, 3)]
    state = net.layers[-1].get_state()
    other = layer_net(text, [np.zeros((1, 2)), np.zeros(1)])
    other.layers[-1].set_state(state)
    assert state == {"iteration": 4} and biases(other, 1) == biases(net, 1)
    with pytest.raises(DataError, match="needs a 'iteration' from 0"):
        other.layers[-1].set_state({"iteration": -1})
    fixed = layer_net(label_add("bias: 1"), [np.zeros((1, 2)), np.zeros(1)]).layers[-1]
    assert fixed.get_state() is None
    with pytest.raises(ConfigError, match="keeps no state"):
        fixed.set_state(state)
    one = layer_net(label_add("bias_base: 3 bias_min: -0.5 bias_max: -0.5", ("y", "bias")), [np.zeros((1, 2)), np.zeros(1)])
    assert biases(one, 2) == [-0.5] * 2
    unused = layer_net(label_add("bias: 0.25 bias_min: 2", ("y", "bias")), [np.zeros((1, 2)), np.zeros(1)])
    assert biases(unused, 2) == [0.25] * 2
    still = layer_net(text, [np.zeros((1, 2)), np.zeros(1)], phase=TEST)
    assert len(set(biases(still, 3))) == 1


@pytest.mark.parametrize("label", [-1, 4, 0.5, np.nan])
def test_a_wrong_label(label):
    net = layer_net(label_add("bias: 1"), [np.zeros((2, 4)), np.array([1, label])])
    with pytest.raises(DataError, match=rf"bottom\[1\]: label {label:g} of record 1 must be an integer from 0 to 3"):
        run_forward(net)


@pytest.mark.parametrize("fields, shapes, error, message", [
    ("bias_base: 1 bias_min: 2", [(2, 3), (2,)], ConfigError, r"label_specific_add_param.bias_min: must be at most bias_max, 0, got 2.0"),
    ("iteration: -1", [(2, 3), (2,)], ConfigError, r"label_specific_add_param.iteration: must be at least 0, got -1"),
    ("", [(2, 3, 2), (2,)], ShapeError, r"bottom\[0\]: must have 2 axes \(num, classes\), and further axes of size 1 if any"),
    ("", [(2, 3), (3,)], ShapeError, r"bottom\[1\]: must have a label for each of 2 records, got \[3\]")])
def test_wrong_label_specific_add(fields, shapes, error, message):
    with pytest.raises(error, match=message):
        layer_net(label_add(fields), [np.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("kind, more, shape, error, message", [
    ("ReLUX", "relux_param { maximal_value: 0 }", (2,), ConfigError, r"relux_param.maximal_value: must be above 0, got 0"),
    ("ReLU6", "relu_x_param { slope: 0 }", (2,), ConfigError, r"relu_x_param: unknown field in LayerParameter"),
    ("ReLU6", "relu6_param { slope: 0 }", (2,), ConfigError, r"relu6_param.slope: unknown field"),
    ("ReLU6", "relu6_param { negative_slope: true }", (2,), ConfigError, r"relu6_param.negative_slope: must be a number, got True"),
])
def test_wrong_prototxt(kind, more, shape, error, message):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'l' \({kind}\): {message}"):
        layer_net(layer(kind, more), [np.zeros(shape)])
