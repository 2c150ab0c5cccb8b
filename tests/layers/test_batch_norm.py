"""BatchNorm, MVN and LRN against the formulas written out in NumPy."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(13)
X = RANDOM.standard_normal((4, 3, 2, 5)) * 3 + 1


def batch_norm(param="", top="y", more=""):
    return layer_text("BatchNorm", "bn", "x", top, f"batch_norm_param {{ {param} }} {more}")


def mvn(param=""):
    return layer_text("MVN", "m", "x", "y", f"mvn_param {{ {param} }}")


def standardized(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize("x", [X, X[:, :, 0, 0], X[:, :, 0], X[:1], X[:, :1]], ids=lambda x: str(x.shape))
def test_batch_statistics(x):
    axes = (0, *range(2, x.ndim))
    for param, phase in ("use_global_stats: false", TEST), ("moving_average_fraction: 0.9", TRAIN):
        net = forward_net(batch_norm(param), [x], Dtype.DOUBLE, phase)
        np.testing.assert_allclose(net.blob_by_name("y").data, standardized(x, axes), rtol=1e-9, atol=1e-12)
    run_forward(net)
    mean, variance, weight = (blob.data for blob in net.layers[-1].blobs)
    count = x.size // x.shape[1]
    fraction = np.float64(np.float32(0.9))
    np.testing.assert_allclose(weight, [1 + fraction])
    np.testing.assert_allclose(mean, (1 + fraction) * x.mean(axes))
    np.testing.assert_allclose(variance, (1 + fraction) * x.var(axes) * count / (count - 1))
    check_gradient(batch_norm(), [x], params=False, tolerance=1e-5)


@pytest.mark.parametrize("layer, shape, axes, eps", [(batch_norm(), (6, 3, 40, 50), (0, 2, 3), 1e-5),
                                                     (batch_norm(), (4000, 20), 0, 1e-5), (mvn(), (2, 3, 100, 90), (2, 3), 0)])
def test_large_mean_small_variance(layer, shape, axes, eps):
    """In float32 the mean of squares less the square of the mean would be all rounding: a million against a hundredth."""
    x = (1000 + 0.1 * RANDOM.standard_normal(shape)).astype(np.float32)
    net = forward_net(layer, [x], Dtype.FLOAT)
    np.testing.assert_allclose(net.blob_by_name("y").data, standardized(x.astype(float), axes, eps), atol=2e-3)  # of the mean: 3e-5


def test_edge_batches_and_parameters():
    net = forward_net(batch_norm(), [np.array([[2.0, -3.0]])])
    assert net.blob_by_name("y").data.tolist() == [[0, 0]]
    assert [blob.data.tolist() for blob in net.layers[-1].blobs] == [[2, -3], [0, 0], [1]]
    # An empty batch leaves the sums as they are
    net = forward_net(batch_norm(), [np.zeros((0, 3, 2))])
    run_backward(net, [0])
    assert [blob.data.tolist() for blob in net.layers[-1].blobs] == [[0, 0, 0], [0, 0, 0], [0]]
    net = layer_net(batch_norm(more="param { lr_mult: 0 decay_mult: 0 }"), [X])
    assert [spec.lr_mult for spec in net.layers[-1].param.param] == [0, 0, 0] == list(net.params_lr)
    with pytest.raises(ConfigError, match=r"test.prototxt.*layer 'bn' \(BatchNorm\): param\[1\].lr_mult: must be 0, got 1"):
        layer_net(batch_norm(more="param { lr_mult: 0 } param {}"), [X])
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs at least 2 axes"):
        layer_net(batch_norm(), [np.ones(3)])
    with pytest.raises(ShapeError, match="at most 4 axes"):
        layer_net(mvn(), [np.ones((1, 2, 1, 2, 1))])


@pytest.mark.parametrize("phase, param", [(TEST, ""), (TRAIN, "use_global_stats: true")])
def test_global_statistics(phase, param):
    net = forward_net(batch_norm(param), [X], Dtype.DOUBLE, phase)
    np.testing.assert_allclose(net.blob_by_name("y").data, X / np.sqrt(np.float64(np.float32(1e-5))))  # never trained
    for blob, values in zip(net.layers[-1].blobs, ([2, 4, 6], [8, 18, 32], [2])):
        blob.data[...] = values
    run_forward(net)
    mean, std = (np.reshape(v, (3, 1, 1)) for v in ([1, 2, 3], [2, 3, 4]))
    np.testing.assert_allclose(net.blob_by_name("y").data, (X - mean) / std, rtol=1e-5, atol=1e-6)
    assert net.layers[-1].blobs[2].data[0] == 2
    net.blob_by_name("x").data[0, 0, 0, 0] = np.inf
    run_backward(net, [0], [X])
    np.testing.assert_allclose(net.blob_by_name("x").diff, X / std, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 3, 40, 50), (9000, 5), (9000, 4)])
def test_variance_millionth_of_squares(shape):
    x = (1000 + RANDOM.standard_normal(shape)).astype(np.float32)
    x[0, 1] = 0
    net = forward_net(batch_norm(), [x], Dtype.FLOAT)
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(net.layers[-1].blobs[0].data, x.mean(axes, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(net.layers[-1].blobs[1].data, x.var(axes, dtype=float, ddof=1), rtol=1e-4)


@pytest.mark.parametrize(("shape", "most"), [((2, 3, 5, 7), 2), ((1, 2, 100, 100), 3)])
def test_launches(device, shape, most):
    """On a device one pass gives both sums, one applies them; partial sums take a launch between."""
    if device == "cpu":
        pytest.skip("kernels are launched on devices: pytest --device sim")
    from minicaffe import cuda
    net = layer_net(mvn(), [RANDOM.standard_normal(shape)], Dtype.FLOAT)
    counts = [cuda.current().launches]
    for run in run_forward, lambda net: run_backward(net, [0], [RANDOM.standard_normal(shape)]):
        run(net)
        counts.append(cuda.current().launches)
    assert np.diff(counts).tolist() == [most, most]


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 3, 4097), (70000, 2), (3, 5, 64, 65)])
@pytest.mark.parametrize("text", [batch_norm, mvn])
def test_nan_stays_in_its_channel(text, shape):
    x = RANDOM.standard_normal(shape).astype(np.float32)
    x[:1, 1] = np.nan
    net = forward_net(text(), [x], Dtype.FLOAT)
    run_backward(net, [0], [np.ones(net.blob_by_name("y").shape)])
    y = net.blob_by_name("y").data
    assert np.isnan(y[:1, 1]).all() and not np.isnan(y[:, 0]).any()


@pytest.mark.parametrize("across, axes", [("false", (2, 3)), ("true", (1, 2, 3))])
@pytest.mark.parametrize("variance", ["true", "false"])
def test_mvn(across, axes, variance):
    param = f"across_channels: {across} normalize_variance: {variance} eps: 0.01"
    net = forward_net(mvn(param), [X])
    wanted = X - X.mean(axes, keepdims=True)
    if variance == "true":
        wanted /= X.std(axes, keepdims=True) + np.float64(np.float32(0.01))
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, rtol=1e-9, atol=1e-12)
    # Caffe's gradient leaves the eps next to the deviation out, so differences need one that is small.
    check_gradient(mvn(param.replace("0.01", "1e-9")), [X], tolerance=1e-5)
    net = forward_net(mvn("across_channels: true"), [X[:, :, 0, 0]])
    assert net.blob_by_name("y").shape == (4, 3, 1, 1)      # it makes four axes
    np.testing.assert_allclose(net.blob_by_name("y").data[..., 0, 0], standardized(X[:, :, 0, 0], 1, 0), rtol=1e-6)


# ---- LRN

def lrn(fields):
    return layer_text("LRN", "n", "x", "y", f"lrn_param {{ {fields} }}")


def lrn_reference(x, size=5, alpha=1.0, beta=0.75, k=1.0, within=False):
    padded = np.pad(x * x, [(0, 0), (0, 0), (size // 2,) * 2, (size // 2,) * 2] if within else [(0, 0), (size // 2,) * 2, (0, 0), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size) if within else size, (2, 3) if within else 1)
    total = windows.reshape(*x.shape, -1).sum(-1)
    return x * (1 + alpha / size**2 * total if within else k + alpha / size * total) ** -beta


LRN = [
    ("", {}), ("alpha: 0.0001 beta: 0.75 k: 2", {"alpha": 1e-4, "k": 2.0}),
    ("local_size: 3 alpha: 2 beta: 0.5", {"size": 3, "alpha": 2.0, "beta": 0.5}),
    ("local_size: 1 beta: 1.3", {"size": 1, "beta": 1.3}),
    ("local_size: 3 norm_region: WITHIN_CHANNEL k: 9", {"size": 3, "within": True}),
    ("local_size: 5 norm_region: WITHIN_CHANNEL alpha: 3 beta: 0.6", {"alpha": 3.0, "beta": 0.6, "within": True}),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape", [(2, 7, 3, 4), (1, 3, 1, 1), (1, 2, 11, 12), (2, 4, 129, 1), (1, 9, 2, 150)])
@pytest.mark.parametrize("fields, keywords", LRN)
def test_lrn(fields, keywords, shape, dtype):
    x = np.random.default_rng(11).standard_normal(shape)
    net = forward_net(lrn(fields), [x], dtype)
    # float32: sum, roots and quotient round about ten times by 6e-8; float64: the fields themselves are float32
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, lrn_reference(x, **keywords), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fields, keywords", LRN)
def test_lrn_gradient(fields, keywords):
    check_gradient(lrn(fields), [np.random.default_rng(12).standard_normal((2, 6, 3, 4))], tolerance=1e-5)


def test_nan_stays_in_windows_of_lrn():
    x = np.random.default_rng(15).standard_normal((1, 9, 2, 2))
    x[0, 3, 0, 0], x[0, 8, 1, 1] = np.nan, np.inf
    net = forward_net(lrn("local_size: 3"), [x])
    bad = ~np.isfinite(net.blob_by_name("y").cpu_data)
    # cuDNN's sums over channels lose the NaN in the window that begins with it.
    lost = {(0, 4, 0, 0)} if net.engines()[0]["engine"] == "CUDNN" else set()
    assert set(zip(*np.nonzero(bad))) | lost == {(0, 2, 0, 0), (0, 3, 0, 0), (0, 4, 0, 0), (0, 8, 1, 1)}
    assert net.blob_by_name("y").cpu_data[0, 7, 1, 1] == 0  # divided by an infinite scale


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_lrn_of_nothing_and_even_sizes(region):
    for shape in (0, 3, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0), (2, 0, 4, 4):
        net = forward_net(lrn(f"norm_region: {region}"), [np.zeros(shape)])
        run_backward(net, [0])
        assert net.blob_by_name("y").shape == shape
    with pytest.raises(ConfigError, match=r"layer 'n' \(LRN\): lrn_param.local_size: must be odd"):
        layer_net(lrn(f"norm_region: {region} local_size: 4"), [np.zeros((1, 2, 3, 3))])
