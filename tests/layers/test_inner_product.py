import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward

from minicaffe.blob import Dtype
from minicaffe.device import threads
from minicaffe.errors import ConfigError, ShapeError

DOUBLE, FLOAT = Dtype.DOUBLE, Dtype.FLOAT
RANDOM = np.random.default_rng(11)
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'


def layer(fields, extra=""):
    return f'layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ {fields} }} {extra} }}'


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=["float", "double"])
@pytest.mark.parametrize("transpose", ["false", "true"])
@pytest.mark.parametrize("shape, axis", [((3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), 0), ((2, 3, 4), -2), ((70, 33), 1),
                                         ((1, 300), 1)])
def test_forward(shape, axis, transpose, dtype):
    x = RANDOM.standard_normal(shape)
    net = forward_net(layer(f"num_output: 5 axis: {axis} transpose: {transpose} {FILLERS}"), [x], dtype)
    w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
    lead = shape[:axis]
    matrix = w if transpose == "true" else w.T
    assert matrix.shape == (int(np.prod(shape[axis:])), 5)
    expected = (x.reshape(-1, matrix.shape[0]) @ matrix + b).reshape(*lead, 5)
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, expected, atol=1e-4 if dtype == FLOAT else 1e-12)


@pytest.mark.parametrize("fields", ["", "transpose: true", "bias_term: false", "axis: 2"])
def test_gradient(fields):
    # The layer is linear, so that differences are exact but for rounding.
    check_gradient(layer(f"num_output: 3 {fields} {FILLERS}"), [RANDOM.standard_normal((4, 3, 2))], tolerance=1e-9)


@pytest.mark.parametrize("rows, inputs, outputs", [(1, 40, 7), (1, 15, 9), (2, 35, 50), (2, 31, 50), (5, 530, 6), (32, 65, 100), (32, 517, 100),
                                                   (33, 65, 100)])
@pytest.mark.parametrize("number", [1, 2])
def test_few_rows_and_many(rows, inputs, outputs, number):
    # Gradients of small integers are exact in float32, forward's sums but for rounding.
    threads.set_num_threads(number)
    x, dy = RANDOM.integers(-4, 5, (rows, inputs)), RANDOM.integers(-4, 5, (rows, outputs))
    net = forward_net(layer(f"num_output: {outputs} {FILLERS}"), [x])
    weight, bias = net.layers[-1].blobs
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, x @ weight.cpu_data.T.astype(float) + bias.cpu_data, atol=2e-4)
    net.clear_param_diffs()
    for times in (1, 2):   # the second batch of an iteration is added
        run_backward(net, [0], [dy])
        np.testing.assert_array_equal(weight.cpu_diff, times * (dy.T @ x))
        np.testing.assert_array_equal(bias.cpu_diff, times * dy.sum(0))
        np.testing.assert_allclose(net.bottoms[-1][0].cpu_diff, dy @ weight.cpu_data.astype(float), atol=2e-4)
    net.clear_param_diffs()
    run_backward(net, [0], [dy])
    np.testing.assert_array_equal(weight.cpu_diff, dy.T @ x)
    net.clear_param_diffs()
    assert not weight.cpu_diff.any()


def test_batches_of_other_kinds():
    x = np.ones((3, 4))
    x[1, 2], x[2, 0] = np.nan, np.inf
    y = forward_net(layer('num_output: 2 weight_filler { type: "constant" value: 1 }'), [x]).tops[-1][0].cpu_data
    assert (y[0] == 4).all() and np.isnan(y[1]).all() and np.isposinf(y[2]).all()
    net = forward_net(layer(f"num_output: 3 {FILLERS}"), [np.zeros((0, 4))])
    run_backward(net, [0])
    assert net.tops[-1][0].shape == (0, 3)
    assert not net.layers[-1].blobs[0].cpu_diff.any() and not net.layers[-1].blobs[1].cpu_diff.any()


@pytest.mark.parametrize("fields, field, message", [
    ("", "num_output", "must be at least 1, got 0"),
    ("num_output: 4000000000", "num_output", "must be at most"),
    ("num_output: 2000000000", "num_output", "more than 2"),
    ("num_output: 3 axis: 2", "axis", "out of range"),
    ('num_output: 3 weight_filler { type: "xavierr" }', "weight_filler.type", "unknown filler"),
])
def test_faults_name_the_field(fields, field, message):
    with pytest.raises((ConfigError, ShapeError), match=message) as caught:
        layer_net(layer(fields), [np.zeros((2, 4))])
    text = str(caught.value)
    assert text.startswith("test.prototxt") and "layer 'ip' (InnerProduct)" in text and f"inner_product_param.{field}" in text
