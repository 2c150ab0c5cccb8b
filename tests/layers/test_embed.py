"""Embed, BatchReindex, Filter."""

import re

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

RANDOM = np.random.default_rng(17)


def embed(param="num_output: 3 input_dim: 5 weight_filler { type: 'gaussian' }"):
    return f'layer {{ name: "e" type: "Embed" bottom: "x" top: "y" embed_param {{ {param} }} }}'


REINDEX = 'layer { name: "r" type: "BatchReindex" bottom: "x" bottom: "index" top: "y" }'
FILTER = 'layer { name: "f" type: "Filter" bottom: "x" bottom: "z" bottom: "s" top: "tx" top: "tz" }'


@pytest.mark.parametrize("bias", ["", "bias_term: false"])
def test_embed(bias):
    index = np.array([[0, 4, 4], [1, 0, 4]])
    text = embed(f"num_output: 3 input_dim: 5 {bias} weight_filler {{ type: 'gaussian' }} bias_filler {{ value: 2 }}")
    net = forward_net(text, [index])
    wanted = net.layers[-1].blobs[0].data[index] + (0 if bias else 2)
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, rtol=1e-12)
    check_gradient(text, [index], check=[])


def test_batch_reindex():
    x = RANDOM.standard_normal((4, 2, 3))
    for index in (np.array([3, 0, 0, 2, 0]), np.zeros(0, int)):
        net = forward_net(REINDEX, [x, index])
        np.testing.assert_array_equal(net.blob_by_name("y").data, x[index])
        check_gradient(REINDEX, [x, index], check=[0])


def test_numbers_instead_of_rows():
    """One axis to pick from, one column, one row."""
    net = forward_net(REINDEX, [np.array([5.0, 6, 7]), np.array([2, 0])])
    assert net.blob_by_name("y").data.tolist() == [7, 5]
    net = forward_net(embed("num_output: 1 input_dim: 1 bias_term: false weight_filler { value: 3 }"), [np.zeros(2)])
    assert net.blob_by_name("y").data.tolist() == [[3], [3]]


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


def test_filter():
    x, z = RANDOM.standard_normal((4, 2, 3)), RANDOM.standard_normal((4,))
    net = layer_net(FILTER, [x, z, np.array([0, 2, 0, -1])])
    assert net.blob_by_name("tx").shape == (4, 2, 3)  # before the first forward the selector has no values
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name("tx").data, x[[1, 3]])
    np.testing.assert_array_equal(net.blob_by_name("tz").data, z[[1, 3]])
    diff = RANDOM.standard_normal((2, 2, 3))
    net.blob_by_name("x").diff[...] = 1e9
    run_backward(net, [0], [diff, None])
    np.testing.assert_array_equal(net.blob_by_name("x").diff, [0 * diff[0], diff[0], 0 * diff[0], diff[1]])
    net.blob_by_name("s").data[...] = 0
    run_forward(net)
    run_backward(net, [0, 1])
    assert net.blob_by_name("tx").shape == (0, 2, 3) and not net.blob_by_name("x").diff.any()
    net.blob_by_name("s").data[...] = 1
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name("tx").data, x)


@pytest.mark.parametrize("text, shapes, error, field", [
    (embed("num_output: 0 input_dim: 2"), [(2,)], ConfigError, "embed_param.num_output"),
    (embed("num_output: 2"), [(2,)], ConfigError, "embed_param.input_dim"),
    (FILTER, [(2, 2), (3,), (2,)], ShapeError, r"bottom\[1\]"),
    (FILTER, [(2, 2), (), (2,)], ShapeError, r"bottom\[1\]"),
    (FILTER, [(1, 2), (1,), ()], ShapeError, r"bottom\[2\]"),
    (FILTER, [(2, 2), (2,), (2, 2)], ShapeError, r"bottom\[2\]"),
    (FILTER.replace('top: "tz"', ""), [(2, 2), (2,), (2,)], ConfigError, "top"),
])
def test_wrong_parameters(text, shapes, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*{field}: "):
        layer_net(text, [np.zeros(shape) for shape in shapes])
