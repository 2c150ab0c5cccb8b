"""Eltwise and Split."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError

RANDOM = np.random.default_rng(3)


def eltwise(param, bottoms):
    names = " ".join(f'bottom: "b{i}"' for i in range(bottoms))
    return f'layer {{ name: "e" type: "Eltwise" {names} top: "y" eltwise_param {{ {param} }} }}'


def output(param, arrays, dtype=Dtype.DOUBLE):
    return forward_net(eltwise(param, len(arrays)), arrays, dtype).blob_by_name("y").data.copy()


@pytest.mark.parametrize("inputs", [2, 3, 4, 5, 9])
def test_sum_and_product_of_many(inputs):
    arrays = list(RANDOM.standard_normal((inputs, 3, 7)))
    weights = RANDOM.standard_normal(inputs).astype(np.float32)
    coeff = " ".join(f"coeff: {w!r}" for w in weights.tolist())
    np.testing.assert_allclose(output(coeff, arrays), sum(w * a for w, a in zip(weights.tolist(), arrays)), rtol=1e-12)
    np.testing.assert_allclose(output("", arrays), np.sum(arrays, 0), rtol=1e-12)
    np.testing.assert_allclose(output("operation: PROD", arrays), np.prod(arrays, 0), rtol=1e-12)
    np.testing.assert_array_equal(output("operation: MAX", arrays), np.max(arrays, 0))
    check_gradient(eltwise(coeff, inputs), arrays)
    check_gradient(eltwise("operation: PROD", inputs), arrays)
    check_gradient(eltwise("operation: PROD stable_prod_grad: false", inputs), arrays)


def test_more_bottoms_than_a_maximum_takes():
    net = forward_net(eltwise("", 65), [np.array([float(i)]) for i in range(65)])
    assert net.blob_by_name("y").data.tolist() == [64 * 65 / 2]
    layer_net(eltwise("operation: MAX", 64), [np.zeros(1)] * 64)
    with pytest.raises(ConfigError, match=r"bottom: a maximum takes at most 64 bottoms, got 65"):
        layer_net(eltwise("operation: MAX", 65), [np.zeros(1)] * 65)


def test_maximum_gradient_to_one_winner():
    a, b, c = np.array([1.0, 2, 3, 5]), np.array([1.0, 1, 4, 5]), np.array([1.0, 2, 4, 6])
    net = forward_net(eltwise("operation: MAX", 3), [a, b, c])
    np.testing.assert_array_equal(net.blob_by_name("y").data, [1, 2, 4, 6])
    run_backward(net, [0, 1, 2], [np.array([10.0, 20, 30, 40])])
    # Of the first two the second wins a tie; a later one must be larger.
    wanted = [[0, 20, 0, 0], [10, 0, 30, 0], [0, 0, 0, 40]]
    np.testing.assert_array_equal([net.blob_by_name(f"b{i}").diff for i in range(3)], wanted)


def test_product_gradient_at_zeros():
    arrays = [np.array([0.0, 0.0, 2.0]), np.array([3.0, 0.0, 4.0])]
    for stable, wanted in (("true", [3, 0, 4]), ("false", [np.nan, np.nan, 4])):
        net = forward_net(eltwise(f"operation: PROD stable_prod_grad: {stable}", 2), arrays)
        run_backward(net, [0], [np.ones(3)])
        np.testing.assert_array_equal(net.blob_by_name("b0").diff, wanted)


@pytest.mark.parametrize("count", [0, 1, 65537])
@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_sizes_and_special_values(count, operation):
    arrays = [RANDOM.standard_normal(count) for _ in range(2)]
    if count:
        arrays[0][0], arrays[1][-1] = np.nan, np.inf
    y = output(f"operation: {operation}", arrays, Dtype.FLOAT)
    if count > 1:
        assert np.isinf(y[-1])
    if count and operation != "MAX":
        assert np.isnan(y[0])


@pytest.mark.parametrize("param, bottoms, field", [
    ("operation: PROD coeff: 1 coeff: 1", 2, "eltwise_param.coeff"), ("coeff: 1", 2, "eltwise_param.coeff"), ("", 1, "bottom")])
def test_what_is_refused(param, bottoms, field):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'e' \(Eltwise\): {field}"):
        layer_net(eltwise(param, bottoms), [np.ones(2)] * bottoms)


@pytest.mark.parametrize("tops", [1, 2, 5])
def test_split_shares_data_and_adds_diffs(tops):
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    x = RANDOM.standard_normal((4, 5))
    net = forward_net(f'layer {{ name: "s" type: "Split" bottom: "x" {names} }}', [x])
    diffs = RANDOM.standard_normal((tops, 4, 5))
    for i, diff in enumerate(diffs):
        assert net.blob_by_name(f"t{i}").data.ctypes.data == net.blob_by_name("x").data.ctypes.data
        net.blob_by_name(f"t{i}").diff[...] = diff
    run_backward(net, [0])
    np.testing.assert_allclose(net.blob_by_name("x").diff, diffs.sum(0), rtol=1e-12)
    forward_again(net, x=np.full((7, 5), 5))    # a bottom that grows
    np.testing.assert_array_equal(net.blob_by_name(f"t{tops - 1}").data, np.full((7, 5), 5))
