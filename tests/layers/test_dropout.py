"""Dropout: the share kept, the same mask backward, resuming, and TEST."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.common import TEST, caffe
from minicaffe.errors import ConfigError


def layer_text(ratio=0.5, top="y"):
    return f'layer {{ name: "d" type: "Dropout" bottom: "x" top: "{top}" dropout_param {{ dropout_ratio: {ratio} }} }}'


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 0.9])
def test_keeps_its_share_and_scales_it(ratio, dtype):
    net = forward_net(layer_text(ratio), [np.ones(40000)], dtype)
    y = net.blob_by_name("y").cpu_data
    np.testing.assert_allclose(np.unique(y)[-1], 1 / (1 - ratio), rtol=1e-6)
    assert set(np.unique(y > 0)) <= {False, True} and len(np.unique(y)) == (2 if ratio else 1)
    assert abs((y > 0).mean() - (1 - ratio)) < 0.013  # five standard deviations of 40000 draws
    # neighbours, and elements one vector or one block apart, are independent
    kept = (y > 0) - (1 - ratio)
    for distance in (1, 16, 64):
        assert abs((kept[distance:] * kept[:-distance]).mean()) < 0.013


@pytest.mark.parametrize("top", ["y", "x"])
def test_backward_uses_last_mask(top):
    net = forward_net(layer_text(top=top), [np.ones((3, 77))])
    mask = net.tops[-1][0].cpu_data.copy()
    caffe.generator.reserve_counters(5)  # other layers draw in between
    run_backward(net, [0], [np.full((3, 77), 2.0)])
    np.testing.assert_array_equal(net.bottoms[-1][0].cpu_diff, 2 * mask)


def test_gradient():
    check_gradient(layer_text(0.4), [np.random.default_rng(1).standard_normal((3, 30))])
    net = forward_net(layer_text(), [np.zeros((0, 3))])
    run_backward(net, [0])
    assert net.blob_by_name("y").shape == (0, 3)


def test_the_mask_follows_seed_and_offset():
    net = forward_net(layer_text(), [np.ones(1000)])
    first = net.blob_by_name("y").cpu_data.copy()
    offset = caffe.generator.offset
    net.forward_from_to(0, 1)
    second = net.blob_by_name("y").cpu_data.copy()
    assert 0.4 < (first != second).mean() < 0.6
    caffe.generator.offset = offset
    net.forward_from_to(0, 1)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, second)
    net, masks = layer_net(layer_text(), [np.ones(64)]), []
    for seed in (1, 2, 1):
        run_forward(net, seed)
        masks.append(net.blob_by_name("y").cpu_data.copy())
    assert (masks[0] == masks[2]).all() and (masks[0] != masks[1]).any()


def test_element_and_vector_draw_alike():
    """A count that is no multiple of the block takes its tail one by one: the numbers must be those of a longer blob."""
    masks = [forward_net(layer_text(), [np.ones(count)]).blob_by_name("y").cpu_data for count in (64 * 3, 64 * 3 - 1, 64 * 2 + 1, 17)]
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0][:mask.size])


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_test_phase_is_the_identity(ratio):
    x = np.array([1.0, -0.0, np.nan, np.inf])
    net = layer_net(layer_text(ratio), [x], phase=TEST)
    offset = caffe.generator.offset
    net.forward_from_to(0, 1)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, x)
    run_backward(net, [0], [x])
    np.testing.assert_array_equal(net.blob_by_name("x").cpu_diff, x)
    assert caffe.generator.offset == offset


@pytest.mark.parametrize("ratio", [1.0, -0.1, 1.5, "nan"])
def test_wrong_ratio_names_the_field(ratio):
    with pytest.raises(ConfigError, match="layer 'd' \\(Dropout\\): dropout_param.dropout_ratio: must be at least 0"):
        layer_net(layer_text(ratio), [np.zeros(3)])
