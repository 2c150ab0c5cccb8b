"""Concat, Slice, Tile, Crop."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(5)


def layer(type, param, bottoms=1, tops=1):
    blobs = " ".join([f'bottom: "b{i}"' for i in range(bottoms)] + [f'top: "t{i}"' for i in range(tops)])
    return f'layer {{ name: "l" type: "{type}" {blobs} {param} }}'


def outputs(text, arrays, dtype=Dtype.DOUBLE):
    return [blob.data.copy() for blob in forward_net(text, arrays, dtype).tops[-1]]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_and_slice(axis, dtype):
    whole = RANDOM.integers(0, 100, (6, 7, 8)).astype(float)
    parts = np.split(whole, [1, 4], axis)
    assert np.array_equal(outputs(layer("Concat", f"concat_param {{ axis: {axis} }}", 3), parts, dtype)[0], whole)
    sliced = outputs(layer("Slice", f"slice_param {{ axis: {axis} slice_point: 1 slice_point: 4 }}", 1, 3), [whole], dtype)
    for got, wanted in zip(sliced, parts):
        np.testing.assert_array_equal(got, wanted)


def test_legacy_axes_and_equal_parts():
    whole = RANDOM.standard_normal((4, 6))
    assert np.array_equal(outputs(layer("Concat", "concat_param { concat_dim: 0 }", 2), np.split(whole, 2))[0], whole)
    for got, wanted in zip(outputs(layer("Slice", "slice_param { slice_dim: 0 }", 1, 2), [whole]), np.split(whole, 2)):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(outputs(layer("Slice", "", 1, 3), [whole]), np.split(whole, 3, 1)):
        np.testing.assert_array_equal(got, wanted)


def test_gradients():
    parts = [RANDOM.standard_normal((2, n, 3)) for n in (1, 3, 2)]
    check_gradient(layer("Concat", "", 3), parts)
    check_gradient(layer("Concat", "", 3), parts, check=[1])
    whole = np.concatenate(parts, 1)
    check_gradient(layer("Slice", "slice_param { slice_point: 2 slice_point: 3 }", 1, 3), [whole])
    for axis in range(3):
        check_gradient(layer("Tile", f"tile_param {{ axis: {axis} tiles: 3 }}"), [whole[:, :2]])
    check_gradient(layer("Crop", "crop_param { axis: 1 offset: 2 offset: 1 }", 2), [whole, np.zeros((1, 3, 2))], check=[0])


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
    reps = [1, 1, 1]
    reps[axis] = 3
    np.testing.assert_array_equal(outputs(layer("Tile", f"tile_param {{ axis: {axis} tiles: 3 }}"), [x])[0], np.tile(x, reps))


@pytest.mark.parametrize("param, reference, wanted", [
    ("", (1, 1, 2, 3), np.s_[:, :, :2, :3]),
    ("offset: 1", (9, 9, 2, 3), np.s_[:, :, 1:3, 1:4]),
    ("axis: 1 offset: 1 offset: 0 offset: 2", (1, 2, 5, 3), np.s_[:, 1:3, :5, 2:5]),
    ("axis: -1 offset: 3", (1, 1, 1, 2), np.s_[..., 3:5]),
    ("axis: 0 offset: 1", (1, 2, 3, 4), np.s_[1:2, 1:3, 1:4, 1:5]),
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
])
def test_wrong_parameters(type, param, bottoms, tops, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'l' \({type}\): {field}: "):
        layer_net(layer(type, param, bottoms, tops), [np.ones((2, 4, 3))] * bottoms)
