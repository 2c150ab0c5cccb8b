"""BN of SegNet and of PSPNet, against loops over channels and against BatchNorm and Scale."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward

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
    names = "".join(f' top: "{name}"' for name in tops)
    return f'layer {{ name: "l" type: "BN" bottom: "x" {names} {"" if fields is None else f"bn_param {{ {fields} }}"} {more} }}'


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
def test_segnet_learn(shape, tops, phase, dtype):
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


@pytest.mark.parametrize("top", ["y", "x"])
def test_segnet_inference(top):
    x, dy = RANDOM.standard_normal((2, 3, 4, 5)), RANDOM.standard_normal((2, 3, 4, 5))
    net = forward_net(layer(f"{SEGNET} bn_mode: INFERENCE", (top,)), [x])
    scale, shift = blobs_of(net)
    y, _, _ = bn_loops(x, scale, shift, 0, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(net.blob_by_name(top).data, y, rtol=1e-12)
    run_backward(net, [0], [dy])
    np.testing.assert_allclose(net.blob_by_name("x").diff, dy * scale[:, None, None], rtol=1e-12)
    for blob, wanted in zip(net.layers[-1].blobs, ((dy * x).sum(axis=(0, 2, 3)), dy.sum(axis=(0, 2, 3)))):
        np.testing.assert_allclose(blob.diff.reshape(-1), wanted, rtol=1e-10)
    run_backward(net, [], [dy])   # as the second pass of iter_size
    np.testing.assert_allclose(net.layers[-1].blobs[1].diff.reshape(-1), 2 * dy.sum(axis=(0, 2, 3)), rtol=1e-10)


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
        np.testing.assert_allclose(blob, value, **tolerance)


@pytest.mark.parametrize("phase, fields", [(TEST, PSPNET), (TRAIN, f"{PSPNET} frozen: true")])
def test_stored_statistics_are_not_rounded(phase, fields):
    net = layer_net(layer(fields), [RANDOM.standard_normal((2, 40, 3))], Dtype.FLOAT, phase)
    fill(net)
    before = blobs_of(net)
    run_forward(net)
    np.testing.assert_array_equal(blobs_of(net), before)


@pytest.mark.parametrize("fields, params", [
    (SEGNET, True), (f"{SEGNET} bn_mode: INFERENCE", True), (PSPNET, True), (f"{PSPNET} frozen: true", False)])
@pytest.mark.parametrize("shape", [(3, 2, 2, 3), (4, 3), (1, 2, 2, 2)])
@pytest.mark.parametrize("top", ["y", "x"])
def test_gradient(fields, params, shape, top):
    check_gradient(layer(fields, (top,)), [RANDOM.standard_normal(shape)], params=params)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("top", ["y", "x"])
def test_pspnet_is_batch_norm_and_scale(top, dtype, phase):
    shape = (4, 3, 5, 2)
    text = f'''layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {list(shape)} }} }} }}
    layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "{top}" batch_norm_param {{ eps: 0.001 }} }}
    layer {{ name: "scale" type: "Scale" bottom: "{top}" top: "{top}" scale_param {{ bias_term: true }} }}'''
    param, _ = parse_text(text, caffe_pb2.NetParameter)
    param.state.phase = phase
    two, x, dy = Net(param, dtype), RANDOM.standard_normal(shape), RANDOM.standard_normal(shape)
    two.blob_by_name("x").data[...] = x
    net = layer_net(layer(f"{PSPNET} eps: 0.001 momentum: 0", (top,)), [x], dtype, phase)
    fill(net)
    for target, values in zip([*two.layers[2].blobs, *two.layers[1].blobs], [*blobs_of(net), 1]):
        target.data[...] = values
    run_forward(net)
    for i in range(3):   # one layer at a time, so that Scale is not fused into BatchNorm
        two.forward_from_to(i, i)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == Dtype.FLOAT else {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(net.blob_by_name(top).data, two.blob_by_name(top).data, **tolerance)
    run_backward(net, [0], [dy])
    two.blob_by_name(top).diff[...] = dy
    for node in two.nodes[1:]:
        node.needs_backward, node.bottom_needs = True, [True]
    two.backward_from_to(2, 1)
    np.testing.assert_allclose(net.blob_by_name("x").diff, two.blob_by_name("x").diff, **tolerance)
    for ours, theirs in zip(net.layers[-1].blobs, two.layers[2].blobs):
        np.testing.assert_allclose(ours.diff.reshape(-1), theirs.diff, **tolerance)
    if phase == TRAIN:
        np.testing.assert_allclose(blobs_of(net)[2], x.mean(axis=(0, 2, 3)), **tolerance)
        np.testing.assert_allclose(blobs_of(net)[3], x.var(axis=(0, 2, 3)), **tolerance)


def test_rates_and_gradients_unasked():
    more = "param { lr_mult: 1 } param { lr_mult: 1 decay_mult: 0 } param { lr_mult: 1 }"
    net = layer_net(layer(PSPNET, more=more), [np.ones((2, 3))])
    assert list(net.params_lr) == [1, 1, 0, 0] and net.param_table.multipliers("decay_mult")[2:] == [0, 0]
    assert net.layers[-1].param_propagate_down == [True, True, False, False]
    frozen = layer_net(layer(f"{PSPNET} frozen: true"), [np.ones((2, 3))])
    assert list(frozen.params_lr) == [0] * 4
    run_forward(frozen)
    run_backward(frozen, [0], [np.ones((2, 3))])
    assert all((blob.diff == 0).all() for blob in frozen.layers[-1].blobs)
    net = forward_net(layer(PSPNET, more="param { lr_mult: 0 }"), [RANDOM.standard_normal((2, 3))])
    net.blob_by_name("x").diff[...] = 7
    index = len(net.layers) - 1
    net.nodes[index].needs_backward = True
    net.blob_by_name("y").diff[...] = 1
    net.backward_from_to(index, index)
    scale, shift, *_ = net.layers[-1].blobs
    assert (net.blob_by_name("x").diff == 7).all() and (scale.diff == 0).all() and (shift.diff == 2).all()


def test_new_and_empty_shapes():
    net = forward_net(layer(f"{SEGNET}", ("x", "mean")), [np.zeros((2, 3, 4, 4))])
    x = RANDOM.standard_normal((3, 3, 2, 5))
    forward_again(net, x=x)
    np.testing.assert_allclose(net.blob_by_name("x").data, bn_loops(x, *blobs_of(net), 1e-9)[0], rtol=1e-6)
    net.blob_by_name("x").reshape(3, 2, 2, 5)
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs 3 channels, the bottom has shape \[3, 2, 2, 5\]"):
        run_forward(net)
    net = layer_net(layer(PSPNET), [np.zeros((0, 3, 2, 2))])
    fill(net)
    before = blobs_of(net)
    run_forward(net)
    run_backward(net, [0])
    assert all((a == b).all() for a, b in zip(before, blobs_of(net)))


@pytest.mark.parametrize("kind", ["caffemodel", "h5"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 3), (3,)])
def test_weights_of_three_shapes(shape, kind, tmp_path):
    arrays = [RANDOM.uniform(1, 2, shape).astype(np.float32) for _ in range(4)]
    net, path = layer_net(layer(PSPNET), [np.zeros((1, 3, 2, 2))], Dtype.FLOAT), tmp_path / f"w.{kind}"
    if kind == "h5":
        import h5py
        with h5py.File(path, "w") as file:
            for i, array in enumerate(arrays):
                file[f"data/l/{i}"] = array
    else:
        stored = caffe_pb2.NetParameter()
        part = stored.layer.add(name="l", type="BN")
        for array in arrays:
            blob = part.blobs.add(data=array.reshape(-1))
            blob.shape.dim.extend(array.shape)
        path.write_bytes(stored.SerializeToString())
        param, _ = parse_text(layer(PSPNET), caffe_pb2.NetParameter, keep_layer_fields=True)
        param.layer[0].blobs.extend(part.blobs)
        param.layer.insert(0, caffe_pb2.LayerParameter(name="x", type="Input", top=["x"]))
        param.layer[0].input_param.shape.add().dim.extend([1, 3, 2, 2])
        embedded = Net(param, Dtype.FLOAT)
        np.testing.assert_array_equal(blobs_of(embedded), [array.reshape(-1) for array in arrays])
    assert weights.load(net, path).taken == ["l"]
    np.testing.assert_array_equal(blobs_of(net), [array.reshape(-1) for array in arrays])
    assert [blob.shape for blob in net.layers[-1].blobs] == [(1, 3, 1, 1)] * 4


def test_weights_of_other_forks(tmp_path):
    for shape, count, message in ((1, 4), 4, r"blobs\[0\]: is 1x4, the net needs 1x3x1x1"), \
                                 ((1, 3, 1, 1), 2, "the file has 2 parameter blobs, the net needs 4"):
        stored = caffe_pb2.NetParameter()
        part = stored.layer.add(name="l", type="BN")
        for _ in range(count):
            part.blobs.add(data=np.ones(shape).reshape(-1)).shape.dim.extend(shape)
        (tmp_path / "w.caffemodel").write_bytes(stored.SerializeToString())
        net = layer_net(layer(PSPNET), [np.zeros((1, 3))])
        with pytest.raises(ShapeError, match=message):
            weights.load(net, tmp_path / "w.caffemodel")


@pytest.mark.parametrize("fields, tops, count", [
    (None, 1, 4), (None, 2, 2), ("icnet: true", 1, 4), ("icnet: false", 1, 2), ("eps: 1e-3", 1, 4), ("bn_mode: LEARN", 1, 2),
    ("shift_filler { value: 1 }", 3, 2), ("engine: CAFFE", 1, 4), ("frozen: false icnet: false", 1, 4), ("momentum: 1", 1, 4)])
def test_which_fork(fields, tops, count):
    net = layer_net(layer(fields, "yab"[:tops]), [np.zeros((1, 2))])
    assert len(net.layers[-1].blobs) == count


@pytest.mark.parametrize("count", [2, 4])
def test_fork_of_embedded_blobs(count):
    param, _ = parse_text(layer(), caffe_pb2.NetParameter, keep_layer_fields=True)
    for i in range(count):
        blob = param.layer[0].blobs.add(data=[i + 1.0] * 3)
        blob.shape.dim.extend([1, 3, 1, 1])
    param.layer.insert(0, caffe_pb2.LayerParameter(name="x", type="Input", top=["x"]))
    param.layer[0].input_param.shape.add().dim.extend([1, 3, 2, 2])
    np.testing.assert_array_equal(blobs_of(Net(param, Dtype.FLOAT)), [[i + 1] * 3 for i in range(count)])


@pytest.mark.parametrize("fields, tops, error, message", [
    ("bn_mode: INFER", "y", ConfigError, "bn_param.bn_mode: must be LEARN or INFERENCE, got INFER"),
    ("bn_mode: LEARN frozen: true", "y", ConfigError, "bn_param.frozen: belongs to PSPNet's BN, bn_mode to SegNet's; give fields of one"),
    ("icnet: true scale_filler {}", "y", ConfigError, "bn_param.icnet: belongs to PSPNet's BN, scale_filler to SegNet's"),
    ("momentum: 1.5", "y", ConfigError, "bn_param.momentum: must be at most 1, got 1.5"),
    ("eps: -1", "y", ConfigError, "bn_param.eps: must be at least 0, got -1.0"),
    ("} bn_parm { eps: 1", "y", ConfigError, "bn_parm: unknown field in LayerParameter"),
    ("var_eps: 1", "y", ConfigError, "bn_param.var_eps: unknown field"),
    ("slope_filler: 1", "y", ConfigError, "bn_param.slope_filler: must be a message in braces, got 1"),
    ('slope_filler { type: "none" }', "y", ConfigError, "bn_param.slope_filler.type: unknown filler 'none'"),
    ("slope_filler { kind: 1 }", "y", ConfigError, "bn_param.slope_filler.*kind"),
    ("bn_mode: INFERENCE", "yab", ConfigError, "top: only SegNet's BN with bn_mode LEARN has mean and variance as further tops, got 3"),
    ("frozen: true", "ya", ConfigError, "top: only SegNet's BN with bn_mode LEARN")])
def test_wrong_prototxt(fields, tops, error, message):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'l' \(BN\): {message}"):
        layer_net(layer(fields, tops), [np.zeros((2, 3))])


@pytest.mark.parametrize("shape", [(3,), (2, 0, 3, 3)])
def test_wrong_shapes(shape):
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs at least 2 axes, channels are axis 1; the bottom has shape"):
        layer_net(layer(PSPNET), [np.zeros(shape)])
