"""Concat, Slice, Tile, Crop, Eltwise, Split."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(5)


def layer(type, param="", bottoms=1, tops=1):
    names = [" ".join(f"{side}{i}" for i in range(count)) for side, count in (("b", bottoms), ("t", tops))]
    return layer_text(type, "l", *names, param)


def outputs(text, arrays, dtype=Dtype.DOUBLE):
    return [blob.data.copy() for blob in forward_net(text, arrays, dtype).tops[-1]]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("points, concat, slicing, axis", [
    *(([1, 4], f"axis: {axis}", f"axis: {axis} slice_point: 1 slice_point: 4", axis) for axis in (0, 1, 2, -1)),
    (2, "concat_dim: 0", "slice_dim: 0", 0), (3, "", "", 1)])      # the old fields, and equal parts
def test_concat_and_slice(points, concat, slicing, axis, dtype):
    whole = RANDOM.integers(0, 100, (6, 9, 8)).astype(float)
    parts = np.split(whole, points, axis)
    assert np.array_equal(outputs(layer("Concat", f"concat_param {{ {concat} }}", len(parts)), parts, dtype)[0], whole)
    sliced = outputs(layer("Slice", f"slice_param {{ {slicing} }}", 1, len(parts)), [whole], dtype)
    for got, wanted in zip(sliced, parts, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_gradients_and_limits():
    parts = [RANDOM.standard_normal((2, n, 3)) for n in (1, 3, 2)]
    check_gradient(layer("Concat", "", 3), parts)
    check_gradient(layer("Concat", "", 3), parts, check=[1])
    whole = np.concatenate(parts, 1)
    check_gradient(layer("Slice", "slice_param { slice_point: 2 slice_point: 3 }", 1, 3), [whole])
    for axis in range(3):
        check_gradient(layer("Tile", f"tile_param {{ axis: {axis} tiles: 3 }}"), [whole[:, :2]])
    check_gradient(layer("Crop", "crop_param { axis: 1 offset: 2 offset: 1 }", 2), [whole, np.zeros((1, 3, 2))], check=[0])
    net = forward_net(eltwise("operation: MAX", 3), [np.array([1.0, 2, 3, 5]), np.array([1.0, 1, 4, 5]), np.array([1.0, 2, 4, 6])])
    np.testing.assert_array_equal(net.blob_by_name("t0").data, [1, 2, 4, 6])
    run_backward(net, [0, 1, 2], [np.array([10.0, 20, 30, 40])])
    # Of the first two the second wins a tie; a later one must be larger.
    wanted = [[0, 20, 0, 0], [10, 0, 30, 0], [0, 0, 0, 40]]
    np.testing.assert_array_equal([net.blob_by_name(f"b{i}").diff for i in range(3)], wanted)
    arrays = [np.array([0.0, 0.0, 2.0]), np.array([3.0, 0.0, 4.0])]
    for stable, wanted in (("true", [3, 0, 4]), ("false", [np.nan, np.nan, 4])):
        net = forward_net(eltwise(f"operation: PROD stable_prod_grad: {stable}", 2), arrays)
        run_backward(net, [0], [np.ones(3)])
        np.testing.assert_array_equal(net.blob_by_name("b0").diff, wanted)
    assert combined("", [np.array([float(i)]) for i in range(65)]).tolist() == [64 * 65 / 2]
    layer_net(eltwise("operation: MAX", 64), [np.zeros(1)] * 64)
    with pytest.raises(ConfigError, match=r"bottom: a maximum takes at most 64 bottoms, got 65"):
        layer_net(eltwise("operation: MAX", 65), [np.zeros(1)] * 65)


@pytest.mark.parametrize("type", ["Concat", "Slice"])
def test_a_single_part_is_not_copied(type):
    net = forward_net(layer(type, ""), [RANDOM.standard_normal((2, 3))])
    bottom, top = net.blob_by_name("b0"), net.blob_by_name("t0")
    assert top.data.ctypes.data == bottom.data.ctypes.data and top.diff.ctypes.data == bottom.diff.ctypes.data


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2000, 4), (2, 80000)])
def test_sizes_and_threads(shape):
    x = RANDOM.standard_normal(shape)
    x.reshape(-1)[:3] = [np.nan, -np.inf, -0.0][:x.size]
    halves = np.split(x, 2, 1)
    for threads in (1, 2):
        set_num_threads(threads)
        np.testing.assert_array_equal(outputs(layer("Concat", "", 2), halves)[0], x)
        np.testing.assert_array_equal(outputs(layer("Slice", "", 1, 2), [x])[1], halves[1])
        np.testing.assert_array_equal(outputs(layer("Tile", "tile_param { tiles: 2 }"), [x])[0], np.tile(x, (1, 2)))
        crop = outputs(layer("Crop", "crop_param { axis: 1 offset: 1 }", 2), [x, np.zeros((1, 2))])[0]
        np.testing.assert_array_equal(crop, x[:, 1:3])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_tile(axis):
    x = RANDOM.standard_normal((2, 3, 4))
    tiled = outputs(layer("Tile", f"tile_param {{ axis: {axis} tiles: 3 }}"), [x])[0]
    np.testing.assert_array_equal(tiled, np.concatenate([x] * 3, axis))


@pytest.mark.parametrize("param, reference, wanted", [
    ("", (1, 1, 2, 3), np.s_[:, :, :2, :3]), ("offset: 1", (9, 9, 2, 3), np.s_[:, :, 1:3, 1:4]),
    ("axis: 1 offset: 1 offset: 0 offset: 2", (1, 2, 5, 3), np.s_[:, 1:3, :5, 2:5]),
    ("axis: -1 offset: 3", (1, 1, 1, 2), np.s_[..., 3:5]), ("axis: 0 offset: 1", (1, 2, 3, 4), np.s_[1:2, 1:3, 1:4, 1:5]),
])
def test_crop(param, reference, wanted):
    x = RANDOM.standard_normal((2, 3, 5, 6))
    got = outputs(layer("Crop", f"crop_param {{ {param} }}", 2), [x, np.zeros(reference)])[0]
    np.testing.assert_array_equal(got, x[wanted])


@pytest.mark.parametrize("type, param, bottoms, tops, error, field", [
    ("Concat", "concat_param { axis: 5 }", 2, 1, ShapeError, "concat_param.axis"),
    ("Concat", "concat_param { axis: 1 concat_dim: 1 }", 2, 1, ConfigError, "concat_param.concat_dim"),
    ("Slice", "slice_param { axis: -4 }", 1, 2, ShapeError, "slice_param.axis"),
    ("Slice", "slice_param { axis: 1 slice_dim: 1 }", 1, 2, ConfigError, "slice_param.slice_dim"),
    ("Slice", "", 1, 5, ShapeError, "slice_param.slice_point"),
    ("Slice", "slice_param { slice_point: 1 }", 1, 3, ConfigError, "slice_param.slice_point"),
    ("Slice", "slice_param { slice_point: 2 slice_point: 2 }", 1, 3, ShapeError, "slice_param.slice_point"),
    ("Slice", "slice_param { slice_point: 0 }", 1, 2, ShapeError, "slice_param.slice_point"),
    ("Slice", "slice_param { slice_point: 4 }", 1, 2, ShapeError, "slice_param.slice_point"),
    ("Tile", "", 1, 1, ConfigError, "tile_param.tiles"),
    ("Tile", "tile_param { tiles: -2 }", 1, 1, ConfigError, "tile_param.tiles"),
    ("Tile", "tile_param { axis: 3 tiles: 2 }", 1, 1, ShapeError, "tile_param.axis"),
    ("Crop", "crop_param { axis: 3 }", 2, 1, ShapeError, "crop_param.axis"),
    ("Crop", "crop_param { axis: 1 offset: 1 offset: 1 offset: 1 }", 2, 1, ConfigError, "crop_param.offset"),
    ("Crop", "crop_param { axis: 1 offset: 1 }", 2, 1, ShapeError, "crop_param.offset"),
    ("Eltwise", "eltwise_param { operation: PROD coeff: 1 coeff: 1 }", 2, 1, ConfigError, "eltwise_param.coeff"),
    ("Eltwise", "eltwise_param { coeff: 1 }", 2, 1, ConfigError, "eltwise_param.coeff"), ("Eltwise", "", 1, 1, ConfigError, "bottom"),
])
def test_wrong_parameters(type, param, bottoms, tops, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'l' \({type}\): {field}: "):
        layer_net(layer(type, param, bottoms, tops), [np.ones((2, 4, 3))] * bottoms)


# ---- Eltwise and Split

def eltwise(param, bottoms):
    return layer("Eltwise", f"eltwise_param {{ {param} }}", bottoms)


def combined(param, arrays, dtype=Dtype.DOUBLE):
    return outputs(eltwise(param, len(arrays)), arrays, dtype)[0]


@pytest.mark.parametrize("inputs", [2, 3, 4, 5, 9])
def test_sum_and_product_of_many(inputs):
    arrays = list(RANDOM.standard_normal((inputs, 3, 7)))
    weights = RANDOM.standard_normal(inputs).astype(np.float32)
    coeff = " ".join(f"coeff: {w!r}" for w in weights.tolist())
    np.testing.assert_allclose(combined(coeff, arrays), sum(w * a for w, a in zip(weights.tolist(), arrays)), rtol=1e-12)
    np.testing.assert_allclose(combined("", arrays), np.sum(arrays, 0), rtol=1e-12)
    np.testing.assert_allclose(combined("operation: PROD", arrays), np.prod(arrays, 0), rtol=1e-12)
    np.testing.assert_array_equal(combined("operation: MAX", arrays), np.max(arrays, 0))
    check_gradient(eltwise(coeff, inputs), arrays)
    check_gradient(eltwise("operation: PROD", inputs), arrays)
    check_gradient(eltwise("operation: PROD stable_prod_grad: false", inputs), arrays)


@pytest.mark.parametrize("count", [0, 1, 65537])
@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_eltwise_of_special_values(count, operation):
    arrays = [RANDOM.standard_normal(count) for _ in range(2)]
    if count:
        arrays[0][0], arrays[1][-1] = np.nan, np.inf
    y = combined(f"operation: {operation}", arrays, Dtype.FLOAT)
    if count > 1:
        assert np.isinf(y[-1])
    if count and operation != "MAX":
        assert np.isnan(y[0])


@pytest.mark.parametrize("tops", [1, 2, 5])
def test_split_shares_data_and_adds_diffs(tops):
    net = forward_net(layer("Split", tops=tops), [RANDOM.standard_normal((4, 5))])
    diffs = RANDOM.standard_normal((tops, 4, 5))
    for i, diff in enumerate(diffs):
        assert net.blob_by_name(f"t{i}").data.ctypes.data == net.blob_by_name("b0").data.ctypes.data
        net.blob_by_name(f"t{i}").diff[...] = diff
    run_backward(net, [0])
    np.testing.assert_allclose(net.blob_by_name("b0").diff, diffs.sum(0), rtol=1e-12)
    forward_again(net, b0=np.full((7, 5), 5))    # a bottom that grows
    np.testing.assert_array_equal(net.blob_by_name(f"t{tops - 1}").data, np.full((7, 5), 5))
