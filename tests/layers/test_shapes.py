"""Layers that move no elements: Input, DummyData, Flatten, Reshape, Silence, Parameter."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN
from minicaffe.errors import ConfigError, Error, ShapeError

X = np.arange(24.0).reshape(2, 3, 2, 2)


def build(text):
    return make_net(text, TRAIN, Dtype.DOUBLE, file="test.prototxt")


@pytest.mark.parametrize("shapes, wanted", [
    ("", [(), ()]),
    ("shape { dim: 2 dim: 3 }", [(2, 3), (2, 3)]),
    ("shape { dim: 2 } shape {}", [(2,), ()]),
])
def test_input(shapes, wanted):
    net = build(f'layer {{ name: "i" type: "Input" top: "a" top: "b" input_param {{ {shapes} }} }}')
    assert [blob.shape for blob in net.blob_list] == wanted
    net.blob_by_name("a").reshape(5, 1)
    net.blob_by_name("a").data[...] = 3
    run_forward(net)
    assert net.blob_by_name("a").shape == (5, 1) and (net.blob_by_name("a").data == 3).all()


@pytest.mark.parametrize("param, shapes, values", [
    ("shape { dim: 2 }", [(2,), (2,)], [0, 0]), ("shape { dim: 2 } data_filler { value: 4 }", [(2,), (2,)], [4, 4]),
    ("shape { dim: 2 } shape { dim: 1 dim: 3 } data_filler { value: 4 } data_filler { value: 5 }", [(2,), (1, 3)], [4, 5]),
    ("num: 1 channels: 2 height: 3 width: 4", [(1, 2, 3, 4)] * 2, [0, 0]),
    ("num: 1 num: 5 channels: 2 height: 3 width: 4 width: 6", [(1, 2, 3, 4), (5, 2, 3, 6)], [0, 0]),
])
def test_dummy_data_constants(param, shapes, values):
    net = build(f'layer {{ name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param {{ {param} }} }}')
    run_forward(net)
    assert [blob.shape for blob in net.blob_list] == shapes
    assert [set(blob.data.ravel()) for blob in net.blob_list] == [{value} for value in values]


def test_dummy_data_refills_random_values_only():
    net = build('layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param { shape { dim: 9 } '
                'data_filler { type: "gaussian" } data_filler { value: 1 } } }')
    a, b = net.blob_list
    seen = []
    for _ in range(3):
        net.forward_from_to(0, 0)
        seen.append(a.data.copy())
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])
    b.data[...] = 8  # as a layer in place would
    net.forward_from_to(0, 0)
    assert (b.data == 8).all()
    b.reshape(20)
    net.forward_from_to(0, 0)
    assert (b.data == 1).all()


@pytest.mark.parametrize("type, param, field", [
    ("Input", "input_param { shape {} shape {} shape {} }", "input_param.shape"),
    ("Input", "input_param { shape { dim: -1 } }", r"input_param.shape\[0\]"), ("DummyData", "", "dummy_data_param.shape"),
    ("DummyData", "dummy_data_param { shape {} shape {} shape {} }", "dummy_data_param.shape"),
    ("DummyData", "dummy_data_param { shape { dim: 1 } num: 1 channels: 1 height: 1 width: 1 }", "dummy_data_param.shape"),
    ("DummyData", "dummy_data_param { num: 1 channels: 1 height: 1 }", "dummy_data_param.width"),
    ("DummyData", "dummy_data_param { shape { dim: 1 } data_filler { type: 'x' } }", r"dummy_data_param.data_filler\[0\].type"),
    ("DummyData", "dummy_data_param { shape { dim: 0 } }", r"dummy_data_param.data_filler\[0\]"),
    ("DummyData", "dummy_data_param { shape { dim: 3000000000 } }", r"dummy_data_param.shape\[0\]"),
    ("Parameter", "", "parameter_param.shape: must be given"),
    ("Parameter", "parameter_param { shape { dim: 2 dim: -1 } }", "parameter_param.shape: axis 1 must have a size from 0"),
])
def test_wrong_sources(type, param, field):
    with pytest.raises(Error, match=rf"test.prototxt.*layer 'l' \({type}\): {field}"):
        build(layer_text(type, "l", tops="w" if type == "Parameter" else "a b", more=param))


def view(type, param, top="y"):
    return layer_text(type, "v", "x", top, f"{type.lower()}_param {{ {param} }}")


@pytest.mark.parametrize("type, param, wanted", [
    ("Flatten", "", (2, 12)), ("Flatten", "axis: 0", (24,)), ("Flatten", "axis: -3 end_axis: -2", (2, 6, 2)),
    ("Flatten", "axis: 2 end_axis: 1", (2, 3, 1, 2, 2)), ("Reshape", "shape { dim: 6 dim: 4 }", (6, 4)),
    ("Reshape", "shape { dim: 0 dim: -1 }", (2, 12)), ("Reshape", "shape { dim: 0 dim: 0 dim: 1 dim: -1 }", (2, 3, 1, 4)),
    ("Reshape", "axis: 1 num_axes: 2 shape { dim: 2 dim: 3 }", (2, 2, 3, 2)),
    ("Reshape", "axis: 1 num_axes: 0 shape { dim: 1 dim: 1 }", (2, 1, 1, 3, 2, 2)),
    ("Reshape", "axis: -1 shape { dim: 1 }", (2, 3, 2, 2, 1)), ("Reshape", "axis: 2 shape { dim: -1 }", (2, 3, 4)),
])
def test_views_share_bottom_memory(type, param, wanted):
    net = forward_net(view(type, param), [X])
    x, y = net.blob_by_name("x"), net.blob_by_name("y")
    assert y.shape == wanted
    assert y.data.ctypes.data == x.data.ctypes.data
    net.blob_by_name("y").diff[...] = X.reshape(wanted)
    run_backward(net, [0])
    np.testing.assert_array_equal(x.diff, X)
    check_gradient(view(type, param), [X])


@pytest.mark.parametrize("type, param", [("Flatten", ""), ("Reshape", "shape { dim: 0 dim: -1 }")])
def test_views_follow_their_bottom(type, param):
    net = layer_net(view(type, param), [X])
    for batch in (1, 7) if type == "Reshape" else (1, 7, 0):
        forward_again(net, x=np.full((batch, 3, 2, 2), batch))
        np.testing.assert_array_equal(net.blob_by_name("y").data, np.full((batch, 12), batch))
    if type == "Reshape":
        with pytest.raises(ShapeError, match="cannot be inferred"):  # any size fits an empty blob
            forward_again(net, x=np.zeros((0, 3, 2, 2)))


@pytest.mark.parametrize("type, param, error, field", [
    ("Flatten", "axis: 4", ShapeError, "flatten_param.axis"),
    ("Flatten", "axis: 3 end_axis: 1", ShapeError, "flatten_param.end_axis"),
    ("Reshape", "shape { dim: 5 dim: 5 }", ShapeError, "reshape_param.shape"),
    ("Reshape", "shape { dim: 5 dim: -1 }", ShapeError, "reshape_param.shape"),
    ("Reshape", "shape { dim: -1 dim: -1 }", ConfigError, "reshape_param.shape"),
    ("Reshape", "shape { dim: -2 }", ConfigError, "reshape_param.shape"),
    ("Reshape", "axis: 4 shape { dim: 0 }", ShapeError, "reshape_param.shape"),
    ("Reshape", "axis: 5", ShapeError, "reshape_param.axis"),
    ("Reshape", "axis: 3 num_axes: 2", ShapeError, "reshape_param.num_axes"),
    ("Reshape", "num_axes: -2", ConfigError, "reshape_param.num_axes"),
])
def test_wrong_views(type, param, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'v' \({type}\): {field}: "):
        layer_net(view(type, param), [X])
    with pytest.raises(ConfigError, match=r"top\[0\]: .* cannot work in place"):
        layer_net(view(type, param, "x"), [X])


def test_silence_and_parameter():
    net = forward_net('layer { name: "s" type: "Silence" bottom: "a" bottom: "b" }', [X, X], Dtype.FLOAT)
    for blob in net.bottoms[-1]:
        blob.diff[...] = 5
    run_backward(net, [1])
    assert (net.blob_by_name("a").diff == 5).all() and (net.blob_by_name("b").diff == 0).all()
    assert net.output_blobs == []
    net = build('layer { name: "p" type: "Parameter" top: "w" parameter_param { shape { dim: 2 dim: 2 } } }')
    param, top = net.layers[0].blobs[0], net.blob_by_name("w")
    assert net.params_lr == [1.0] and not param.data.any()
    param.data[...] = [[1, 2], [3, 4]]
    net.forward_from_to(0, 0)
    np.testing.assert_array_equal(top.data, [[1, 2], [3, 4]])
    for _ in range(2):
        run_backward(net, [], [np.ones((2, 2))])
    np.testing.assert_array_equal(param.diff, np.full((2, 2), 2))
    net = build("".join(f'layer {{ name: "p{i}" type: "Parameter" top: "w{i}" param {{ name: "w" }} '
                        'parameter_param { shape { dim: 2 } } }' for i in range(2)))
    net.layers[0].blobs[0].data[...] = [7, 8]
    run_forward(net)
    assert net.blob_by_name("w1").data.tolist() == [7, 8]
