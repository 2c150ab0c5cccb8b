"""coord_map: where pixels of one Top lie in another, and the crops made from it (after Caffe's test_coord_map.py)."""

import numpy as np
import pytest

from minicaffe import layers as L
from minicaffe.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    conv_params,
    coord_map,
    coord_map_from_to,
    crop,
    inverse,
)


def data():
    return L.Input(shape=dict(dim=[2, 1, 100, 100]))


def conv(x, **fields):
    return L.Convolution(x, num_output=10, **fields)


def test_shifts_and_sizes():
    x = data()
    assert coord_map_from_to(conv(x, kernel_size=1, pad=4), x)[2] == -4
    assert coord_map_from_to(L.Deconvolution(x, kernel_size=1, pad=4), x)[2] == 4
    assert coord_map_from_to(L.Deconvolution(conv(x, kernel_size=1, pad=4), kernel_size=1, pad=4), x)[2] == 0
    x = data()
    axis, a, b = coord_map_from_to(conv(x, kernel_size=[3, 5, 7], stride=[1, 2, 1], pad=[0, 2, 3]), x)
    np.testing.assert_array_equal(a, [1, 2, 1])
    np.testing.assert_array_equal(b, [1, 0, 0])
    assert conv_params(conv(x, kernel_size=3, dilation=2).fn)[2] == 5
    inside = L.Convolution(x, convolution_param=dict(num_output=1, kernel_size=3, stride=2))
    assert conv_params(inside.fn)[1] == 2
    x = data()
    y = conv(L.Dropout(L.ReLU(x, in_place=True)), kernel_size=1)
    axis, a, b = coord_map_from_to(y, x)
    assert a == 1 and b == 0
    assert coord_map(L.ReLU(x).fn) == (None, 1, 0)


def test_axes_and_bottoms_of_a_crop():
    """Maps begin at the axis behind the channels; layers that pass through represent any."""
    x = data()
    assert coord_map(conv(x, kernel_size=1).fn)[0] == 1 and coord_map(L.Crop(x, x).fn)[0] == 1 and coord_map(L.Crop(x, x, axis=1).fn)[0] == 0
    deep = L.Convolution(x, convolution_param=dict(num_output=1, kernel_size=3, pad=1, axis=2))
    assert coord_map(deep.fn)[0] == coord_map_from_to(L.ReLU(deep), x)[0] == 2
    assert crop(deep, x).fn.params["crop_param"] == {"axis": 3, "offset": [0]}
    assert crop(L.ReLU(x), x).fn.params["crop_param"] == {"axis": 2, "offset": [0]}
    inside = L.Crop(x, x, crop_param=dict(axis=3, offset=[4]))
    assert coord_map(inside.fn) == (2, 1, -4)
    with pytest.raises(AxisMismatchException, match="axis 1 and from axis 2"):
        coord_map_from_to(L.Convolution(deep, num_output=1, kernel_size=1), x)
    x, other = data(), data()
    assert coord_map_from_to(L.Crop(x, other, offset=7), x)[2] == 7
    with pytest.raises(RuntimeError, match="no common ancestor"):
        coord_map_from_to(L.Crop(x, other), other)


def test_maps_of_two_ways():
    x, y = data(), data()
    joined = L.Eltwise(conv(y, kernel_size=1), conv(x, kernel_size=1, pad=3))
    assert coord_map_from_to(joined, x)[2] == -3 and coord_map_from_to(joined, y)[2] == 0
    assert coord_map_from_to(conv(x, kernel_size=1, pad=5), conv(x, kernel_size=1, pad=3))[2] == -2
    up = L.Deconvolution(conv(x, kernel_size=2, stride=2), num_output=1, kernel_size=5, stride=4)
    assert coord_map_from_to(up, x)[1:] == (0.5, -0.5)
    x = data()
    down = L.Pooling(conv(x, kernel_size=3, stride=2, pad=1), kernel_size=1, stride=1)
    up = L.Deconvolution(down, num_output=10, kernel_size=3, stride=2, pad=1)
    axis, a, b = coord_map_from_to(up, x)
    assert (axis, a, b) == (1, 1, 0)
    wide = L.Deconvolution(down, num_output=10, kernel_size=4, stride=2, pad=0)
    assert coord_map_from_to(wide, x)[2] == -1.5 + 0
    x = data()
    with pytest.raises(RuntimeError, match="no common ancestor"):
        coord_map_from_to(L.InnerProduct(x, num_output=2), x)
    with pytest.raises(UndefinedMapException):
        coord_map(L.InnerProduct(x, num_output=2).fn)
    with pytest.raises(AxisMismatchException):
        compose((1, 1, 0), (2, 1, 0))
    assert inverse((1, 2, 4)) == (1, 0.5, -2)


def test_crops():
    x = data()
    y = conv(x, kernel_size=5, pad=100)
    made = crop(y, x)
    assert made.fn.type_name == "Crop" and made.fn.params["crop_param"] == {"axis": 2, "offset": [98]}
    once = L.Crop(x, y, axis=2, offset=2)
    assert coord_map_from_to(L.Crop(once, y, axis=2, offset=3), x)[2] == 5
    with pytest.raises(AssertionError, match="kernel_h"):
        crop(conv(x, kernel_h=3, kernel_w=3), x)
    x = L.Input(shape={"dim": [1, 1, 20, 20]})
    y = L.Convolution(x, num_output=1, kernel_size=[1, 5], pad=[2, 2])      # two rows more at each end, and no column
    made = crop(y, x).fn
    assert made.inputs == (y, x) and made.params["crop_param"] == {"axis": 2, "offset": [2, 0]}
    for top, message in ((L.Convolution(x, num_output=1, kernel_size=[1, 5], pad=[2, 1]), "cannot crop negative offset (b = [-2.  1.]): pad the layers before"),
                         (L.Convolution(x, num_output=1, kernel_size=[1, 4], pad=[0, 3]), "cannot crop noninteger offset (b = [ 0.  -1.5])"),
                         (L.Convolution(x, num_output=1, kernel_size=1, stride=[1, 2]), "scale mismatch on crop (a = [1. 2.]): up- or downsample one of the two first")):
        with pytest.raises(AssertionError) as caught:
            crop(top, x)
        assert str(caught.value) == message
    with pytest.raises(AssertionError, match="has no kernel_size, so its coordinates have no map") as caught:
        crop(L.Convolution(x, num_output=1), x)
    assert caught.value.layer_type == "Convolution"
