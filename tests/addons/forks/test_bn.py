"""BN of SegNet and of PSPNet, against loops over channels and against BatchNorm and Scale."""

import h5py
import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.net import weights
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

RANDOM = np.random.default_rng(13)
SEGNET = 'scale_filler { type: "uniform" min: 0.5 max: 2 } shift_filler { type: "gaussian" std: 1 }'
PSPNET = 'slope_filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "gaussian" std: 1 }'


def layer(fields=None, tops=("y",), more=""):
    return layer_text("BN", "l", "x", " ".join(tops), f"{'' if fields is None else f'bn_param {{ {fields} }}'} {more}")


def bn_loops(x, scale, shift, eps, mean=None, variance=None):
    """The top, and mean and variance of each channel of the batch if they are not given."""
    y, means, variances = np.empty(x.shape), [], []
    for c in range(x.shape[1]):
        values = x[:, c].astype(float)
        means.append(values.mean() if mean is None else mean[c])
        variances.append((values ** 2).mean() - means[-1] ** 2 if variance is None else variance[c])
        y[:, c] = scale[c] * (values - means[-1]) / np.sqrt(variances[-1] + eps) + shift[c]
    return y, np.array(means), np.array(variances)


def blobs_of(net):
    return [blob.data.reshape(-1).copy() for blob in net.layers[-1].blobs]


def fill(net, seed=5):
    random = np.random.default_rng(seed)
    for blob in net.layers[-1].blobs:
        blob.data[...] = random.uniform(0.5, 2, blob.shape)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("tops", [("y",), ("x", "mean", "variance")])
@pytest.mark.parametrize("shape, phase", [((3, 4, 5, 6), TRAIN), ((3, 4, 5, 6), TEST), ((5, 2), TRAIN), ((2, 3, 4), TEST),
                                          ((1, 2, 1, 1), TRAIN)])
def test_segnet(shape, tops, phase, dtype):
    x = RANDOM.standard_normal(shape) + 1
    net = layer_net(layer(SEGNET, tops), [x], dtype, phase)
    x = x.astype(net.blob_by_name("x").data.dtype)
    run_forward(net)
    y, mean, variance = bn_loops(x, *blobs_of(net), 1e-9)
    tolerance = 1e-4 if dtype == Dtype.FLOAT else 1e-9
    if x.size == x.shape[1]:   # the variance of one value is 0, and rounding in the loops would be divided by 3e-5
        y[...] = blobs_of(net)[1].reshape(y.shape)
    np.testing.assert_allclose(net.blob_by_name(tops[0]).data, y, atol=tolerance)
    for name, value in zip(tops[1:], (mean, variance)):
        assert net.blob_by_name(name).shape == (1, shape[1], 1, 1)
        np.testing.assert_allclose(net.blob_by_name(name).data.reshape(-1), value, atol=tolerance)
    assert [blob.shape for blob in net.layers[-1].blobs] == [(1, shape[1], 1, 1)] * 2
    net = forward_net(layer(f"{SEGNET} bn_mode: INFERENCE", tops[:1]), [x], dtype, phase)
    y, _, _ = bn_loops(x, *blobs_of(net), 0, np.zeros(shape[1]), np.ones(shape[1]))
    np.testing.assert_allclose(net.blob_by_name(tops[0]).data, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("phase, fields", [(TRAIN, f"{PSPNET} momentum: 0.75 eps: 0.01"), (TEST, f"{PSPNET} engine: CUDNN"),
                                           (TRAIN, f"{PSPNET} frozen: true"), (TEST, f"{PSPNET} frozen: true icnet: true"),
                                           (TRAIN, None)])
@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (5, 2)])
def test_pspnet(shape, top, phase, fields, dtype):
    x = RANDOM.standard_normal(shape)
    net = layer_net(layer(fields, (top,)), [x], dtype, phase)
    frozen = "frozen" in (fields or "")
    slope, bias, mean, variance = blobs_of(net)
    assert (mean == 0).all() and (variance == frozen).all()
    assert fields is not None or (slope == 0).all() and (bias == 0).all()
    fill(net)
    slope, bias, mean, variance = blobs_of(net)
    run_forward(net)
    of_batch, eps = phase == TRAIN and not frozen, 0.01 if "eps" in (fields or "") else 1e-5
    given = (None, None) if of_batch else (mean, variance)
    y, new_mean, new_variance = bn_loops(x, slope, bias, eps, *given)
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == Dtype.FLOAT else {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(net.blob_by_name(top).data, y, **tolerance)
    if of_batch:
        momentum = 0.75 if fields else 0.9
        mean, variance = (momentum * a + (1 - momentum) * b for a, b in ((mean, new_mean), (variance, new_variance)))
    for blob, value in zip(blobs_of(net), (slope, bias, mean, variance)):
        np.testing.assert_allclose(blob, value, **tolerance if of_batch else {"rtol": 0})       # stored statistics are not rounded


@pytest.mark.parametrize("fields, params", [
    (SEGNET, True), (f"{SEGNET} bn_mode: INFERENCE", True), (PSPNET, True), (f"{PSPNET} frozen: true", False)])
@pytest.mark.parametrize("shape", [(3, 2, 2, 3), (4, 3), (1, 2, 2, 2)])
@pytest.mark.parametrize("top", ["y", "x"])
def test_gradient(fields, params, shape, top):
    check_gradient(layer(fields, (top,)), [RANDOM.standard_normal(shape)], params=params)


def test_rates_and_numbers_of_blobs():
    more = "param { lr_mult: 1 } param { lr_mult: 1 decay_mult: 0 } param { lr_mult: 1 }"
    net = layer_net(layer(PSPNET, more=more), [np.ones((2, 3))])
    assert list(net.params_lr) == [1, 1, 0, 0] and net.param_table.multipliers("decay_mult")[2:] == [0, 0]
    assert net.layers[-1].param_propagate_down == [True, True, False, False]
    frozen = layer_net(layer(f"{PSPNET} frozen: true"), [np.ones((2, 3))])
    assert list(frozen.params_lr) == [0] * 4
    run_forward(frozen)
    run_backward(frozen, [0], [np.ones((2, 3))])
    assert all((blob.diff == 0).all() for blob in frozen.layers[-1].blobs)
    for fields, tops, count in (
            (None, 1, 4), (None, 2, 2), ("icnet: true", 1, 4), ("icnet: false", 1, 2), ("eps: 1e-3", 1, 4), ("bn_mode: LEARN", 1, 2),
            ("shift_filler { value: 1 }", 3, 2), ("engine: CAFFE", 1, 4), ("frozen: false icnet: false", 1, 4), ("momentum: 1", 1, 4)):
        assert len(layer_net(layer(fields, "yab"[:tops]), [np.zeros((1, 2))]).layers[-1].blobs) == count, fields


def test_new_and_empty_shapes():
    net = forward_net(layer(f"{SEGNET}", ("x", "mean")), [np.zeros((2, 3, 4, 4))])
    x = RANDOM.standard_normal((3, 3, 2, 5))
    forward_again(net, x=x)
    np.testing.assert_allclose(net.blob_by_name("x").data, bn_loops(x, *blobs_of(net), 1e-9)[0], rtol=1e-6)
    for shape in (3,), (2, 0, 3, 3):
        with pytest.raises(ShapeError, match=r"bottom\[0\]: needs at least 2 axes, channels are axis 1; the bottom has shape"):
            layer_net(layer(PSPNET), [np.zeros(shape)])
    net.blob_by_name("x").reshape(3, 2, 2, 5)
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs 3 channels, the bottom has shape \[3, 2, 2, 5\]"):
        run_forward(net)
    net = layer_net(layer(PSPNET), [np.zeros((0, 3, 2, 2))])
    fill(net)
    before = blobs_of(net)
    run_forward(net)
    run_backward(net, [0])
    assert all((a == b).all() for a, b in zip(before, blobs_of(net)))


def stored_in_a_net(arrays, fields=None):
    """The definition of a net of Input and BN that has these blobs."""
    param, _ = parse_text(layer(fields), caffe_pb2.NetParameter, keep_layer_fields=True)
    for array in arrays:
        param.layer[0].blobs.add(data=array.reshape(-1)).shape.dim.extend(array.shape)
    param.layer.insert(0, caffe_pb2.LayerParameter(name="x", type="Input", top=["x"]))
    param.layer[0].input_param.shape.add().dim.extend([1, 3, 2, 2])
    return param


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 3), (3,)])
def test_weights_of_three_shapes(shape, tmp_path):
    arrays = [RANDOM.uniform(1, 2, shape).astype(np.float32) for _ in range(4)]
    wanted = [array.reshape(-1) for array in arrays]
    stored = stored_in_a_net(arrays, PSPNET)
    np.testing.assert_array_equal(blobs_of(Net(stored, Dtype.FLOAT)), wanted)
    (tmp_path / "w.caffemodel").write_bytes(stored.SerializeToString())
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i, array in enumerate(arrays):
            file[f"data/l/{i}"] = array
    for name in "w.caffemodel", "w.h5":
        net = layer_net(layer(PSPNET), [np.zeros((1, 3, 2, 2))], Dtype.FLOAT)
        assert weights.load(net, tmp_path / name).taken == ["l"]
        np.testing.assert_array_equal(blobs_of(net), wanted)
        assert [blob.shape for blob in net.layers[-1].blobs] == [(1, 3, 1, 1)] * 4


def test_weights_of_other_forks(tmp_path):
    for shape, count, message in ((1, 4), 4, r"blobs\[0\]: is 1x4, the net needs 1x3x1x1"), \
                                 ((1, 3, 1, 1), 2, "the file has 2 parameter blobs, the net needs 4"):
        (tmp_path / "w.caffemodel").write_bytes(stored_in_a_net([np.ones(shape)] * count).SerializeToString())
        with pytest.raises(ShapeError, match=message):
            weights.load(layer_net(layer(PSPNET), [np.zeros((1, 3))]), tmp_path / "w.caffemodel")
    for count in 2, 4:      # the number of embedded blobs says whose BN it is
        arrays = [np.full((1, 3, 1, 1), i + 1.0) for i in range(count)]
        np.testing.assert_array_equal(blobs_of(Net(stored_in_a_net(arrays), Dtype.FLOAT)), [[i + 1] * 3 for i in range(count)])


@pytest.mark.parametrize("fields, tops, message", [
    ("bn_mode: INFER", "y", "bn_param.bn_mode: must be LEARN or INFERENCE, got INFER"),
    ("bn_mode: LEARN frozen: true", "y", "bn_param.frozen: belongs to PSPNet's BN, bn_mode to SegNet's; give fields of one"),
    ("icnet: true scale_filler {}", "y", "bn_param.icnet: belongs to PSPNet's BN, scale_filler to SegNet's"),
    ("momentum: 1.5", "y", "bn_param.momentum: must be at most 1, got 1.5"), ("eps: -1", "y", "bn_param.eps: must be at least 0, got -1.0"),
    ("} bn_parm { eps: 1", "y", "bn_parm: unknown field in LayerParameter"), ("var_eps: 1", "y", "bn_param.var_eps: unknown field"),
    ("slope_filler: 1", "y", "bn_param.slope_filler: must be a message in braces, got 1"),
    ('slope_filler { type: "none" }', "y", "bn_param.slope_filler.type: unknown filler 'none'"),
    ("slope_filler { kind: 1 }", "y", "bn_param.slope_filler.*kind"), ("frozen: true", "ya", "top: only SegNet's BN with bn_mode LEARN"),
    ("bn_mode: INFERENCE", "yab", "top: only SegNet's BN with bn_mode LEARN has mean and variance as further tops, got 3")])
def test_wrong_prototxt(fields, tops, message):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(BN\): {message}"):
        layer_net(layer(fields, tops), [np.zeros((2, 3))])
