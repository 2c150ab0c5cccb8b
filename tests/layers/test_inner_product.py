"""InnerProduct, and the layers that pick rows: Embed, BatchReindex, Filter."""

import re

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, output_of, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

DOUBLE, FLOAT = Dtype.DOUBLE, Dtype.FLOAT
RANDOM = np.random.default_rng(11)
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'


def layer(fields):
    return layer_text("InnerProduct", "ip", "x", "y", f"inner_product_param {{ {fields} }}")


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


def test_batches_of_other_kinds():
    x = np.ones((3, 4))
    x[1, 2], x[2, 0] = np.nan, np.inf
    y = forward_net(layer('num_output: 2 weight_filler { type: "constant" value: 1 }'), [x]).tops[-1][0].cpu_data
    assert (y[0] == 4).all() and np.isnan(y[1]).all() and np.isposinf(y[2]).all()
    net = forward_net(layer(f"num_output: 3 {FILLERS}"), [np.zeros((0, 4))])
    run_backward(net, [0])
    assert net.tops[-1][0].shape == (0, 3)
    assert not net.layers[-1].blobs[0].cpu_diff.any() and not net.layers[-1].blobs[1].cpu_diff.any()


# ---- rows by numbers: Embed, BatchReindex, Filter

def embed(param):
    return layer_text("Embed", "e", "x", "y", f"embed_param {{ {param} }}")


REINDEX = layer_text("BatchReindex", "r", "x index", "y")
FILTER = layer_text("Filter", "f", "x z s", "tx tz")


@pytest.mark.parametrize("bias", ["", "bias_term: false"])
def test_embed(bias):
    index = np.array([[0, 4, 4], [1, 0, 4]])
    text = embed(f"num_output: 3 input_dim: 5 {bias} weight_filler {{ type: 'gaussian' }} bias_filler {{ value: 2 }}")
    net = forward_net(text, [index])
    wanted = net.layers[-1].blobs[0].data[index] + (0 if bias else 2)
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, rtol=1e-12)
    check_gradient(text, [index], check=[])


def test_reindex_and_filter():
    x = RANDOM.standard_normal((4, 2, 3))
    for index in (np.array([3, 0, 0, 2, 0]), np.zeros(0, int)):
        np.testing.assert_array_equal(output_of(REINDEX, [x, index]), x[index])
        check_gradient(REINDEX, [x, index], check=[0])
    net = forward_net(REINDEX, [np.array([5.0, 6, 7]), np.array([2, 0])])       # numbers instead of rows
    assert net.blob_by_name("y").data.tolist() == [7, 5]
    net = forward_net(embed("num_output: 1 input_dim: 1 bias_term: false weight_filler { value: 3 }"), [np.zeros(2)])
    assert net.blob_by_name("y").data.tolist() == [[3], [3]]
    x, z, diff = RANDOM.standard_normal((4, 2, 3)), RANDOM.standard_normal((4,)), RANDOM.standard_normal((2, 2, 3))
    net = layer_net(FILTER, [x, z, np.array([0, 2, 0, -1])])
    assert net.blob_by_name("tx").shape == (4, 2, 3)  # before the first forward the selector has no values
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name("tx").data, x[[1, 3]])
    np.testing.assert_array_equal(net.blob_by_name("tz").data, z[[1, 3]])
    net.blob_by_name("x").diff[...] = 1e9
    run_backward(net, [0], [diff, None])
    np.testing.assert_array_equal(net.blob_by_name("x").diff, [0 * diff[0], diff[0], 0 * diff[0], diff[1]])
    forward_again(net, s=np.zeros(4))
    run_backward(net, [0, 1])
    assert net.blob_by_name("tx").shape == (0, 2, 3) and not net.blob_by_name("x").diff.any()
    forward_again(net, s=np.ones(4))
    np.testing.assert_array_equal(net.blob_by_name("tx").data, x)


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("value, fault", [
    *((value, f"{value:g}, an index must be from 0 to 3") for value in (-1, 4, np.nan, np.inf, 1e12)),
    *((value, f"{value}, an index must be an integer; round it in the data") for value in (1.5, -0.5, 2.9999998)),
])
def test_wrong_index(value, fault, place):
    index = np.array([0, 1.0, 2])
    index[place] = value
    for text, arrays, field in ((embed("num_output: 2 input_dim: 4"), [index], r"\(Embed\): bottom\[0\]"),
                                (REINDEX, [np.ones((4, 2)), index], r"\(BatchReindex\): bottom\[1\]")):
        with pytest.raises(DataError, match=f"{field}: " + re.escape(f"value {place} is {fault}")):
            run_forward(layer_net(text, arrays, Dtype.FLOAT))


@pytest.mark.parametrize("text, shapes, error, field", [
    (layer(""), [(2, 4)], ConfigError, "'ip' .InnerProduct.: inner_product_param.num_output: must be at least 1, got 0"),
    (layer("num_output: 4000000000"), [(2, 4)], ConfigError, "inner_product_param.num_output: must be at most"),
    (layer("num_output: 2000000000"), [(2, 4)], (ConfigError, ShapeError), "inner_product_param.num_output: .*more than 2"),
    (layer("num_output: 3 axis: 2"), [(2, 4)], ShapeError, "inner_product_param.axis: .*out of range"),
    (layer('num_output: 3 weight_filler { type: "xavierr" }'), [(2, 4)], ConfigError, "inner_product_param.weight_filler.type: unknown filler"),
    (embed("num_output: 0 input_dim: 2"), [(2,)], ConfigError, "embed_param.num_output: "),
    (embed("num_output: 2"), [(2,)], ConfigError, "embed_param.input_dim: "),
    (FILTER, [(2, 2), (3,), (2,)], ShapeError, r"bottom\[1\]: "), (FILTER, [(2, 2), (), (2,)], ShapeError, r"bottom\[1\]: "),
    (FILTER, [(1, 2), (1,), ()], ShapeError, r"bottom\[2\]: "), (FILTER, [(2, 2), (2,), (2, 2)], ShapeError, r"bottom\[2\]: "),
    (FILTER.replace('top: "tz"', ""), [(2, 2), (2,), (2,)], ConfigError, "top: "),
])
def test_wrong_fields_and_selectors(text, shapes, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*{field}"):
        layer_net(text, [np.zeros(shape) for shape in shapes])
