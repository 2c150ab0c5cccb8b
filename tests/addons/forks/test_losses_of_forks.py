"""SmoothL1LossOHEM and SoftmaxWithLossOHEM of forks, against plain loops."""

import math

import numpy as np
import pytest
from gradient import check_gradient, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

SEED = 7
RANDOM = np.random.default_rng(SEED)
DTYPES = pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])


@pytest.fixture(autouse=True)
def same_numbers():
    """Give each test the same random numbers, whichever tests run."""
    RANDOM.bit_generator.state = np.random.default_rng(SEED).bit_generator.state


def layer(kind, bottoms, fields="", tops=1, more=""):
    names = " ".join(f'bottom: "b{i}"' for i in range(bottoms)) + " " + " ".join(f'top: "t{i}"' for i in range(tops))
    return f'layer {{ name: "l" type: "{kind}" {names} {fields} {more} }}'


def numbers(*shape):
    return RANDOM.standard_normal(shape).round(2)


def loss(text, arrays, dtype=Dtype.DOUBLE):
    """The net after a forward, and its loss."""
    net = layer_net(text, arrays, dtype)
    return net, run_forward(net)


def smooth(d):
    return d * d / 2 if abs(d) < 1 else abs(d) - 0.5


@DTYPES
@pytest.mark.parametrize("fields, divisor", [
    ("", 24), ("normalization: FULL", 24), ("normalization: VALID", 24), ("normalization: BATCH_SIZE", 2), ("normalization: NONE", 1),
    ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128), ("normalization: PRE_FIXED pre_fixed_normalizer: 0.5", 1),
    ("normalization: PRE_FIXED", 1), ("normalize: true", 24), ("normalize: false", 2), ("normalize: false normalization: NONE", 1),
])
def test_smooth_l1_ohem_against_the_definition(fields, divisor, dtype):
    a, b, w = numbers(2, 5, 3, 4), numbers(2, 5, 3, 4), numbers(2, 5, 3, 4)
    for weights in ([], [w]):
        net, value = loss(layer("SmoothL1LossOHEM", 2 + len(weights), f"loss_param {{ {fields} }}", 2), [a, b, *weights], dtype)
        terms = np.vectorize(smooth)((a - b) * (w if weights else 1))
        assert value == pytest.approx(terms.sum() / divisor, rel=1e-5)
        np.testing.assert_allclose(net.blob_by_name("t1").data, terms.sum(1, keepdims=True), rtol=1e-5)


def test_smooth_l1_ohem_of_rows():
    a, b = numbers(6, 8), numbers(6, 8)
    net, value = loss(layer("SmoothL1LossOHEM", 2, tops=2), [a, b])
    assert value == pytest.approx(np.vectorize(smooth)(a - b).sum() / 6) and net.blob_by_name("t1").shape == (6, 1)


def slow_softmax(x, labels, axis, ignore):
    x = np.moveaxis(x, axis, -1)
    terms = []
    for row, label in zip(x.reshape(-1, x.shape[-1]), labels.ravel()):
        terms.append(0.0 if label == ignore else math.log(sum(math.exp(v) for v in row)) - row[int(label)])
    return np.array(terms).reshape(labels.shape)


@DTYPES
@pytest.mark.parametrize("axis, shape, labels_shape", [(1, (3, 5), (3,)), (1, (2, 4, 3, 2), (2, 1, 3, 2)), (-1, (2, 3, 6), (2, 3))])
def test_softmax_ohem_against_the_definition(axis, shape, labels_shape, dtype):
    x, labels = numbers(*shape), RANDOM.integers(shape[axis], size=labels_shape).astype(float)
    labels.flat[1] = 9
    for mode, divisor in (("VALID", labels.size - 1), ("FULL", labels.size), ("BATCH_SIZE", None), ("NONE", 1)):
        fields = f"softmax_param {{ axis: {axis} }} loss_param {{ ignore_label: 9 normalization: {mode} }}"
        net, value = loss(layer("SoftmaxWithLossOHEM", 2, fields, 3), [x, labels], dtype)
        terms = slow_softmax(x, labels, axis, 9)
        outer = math.prod(shape[:axis % len(shape)])
        assert value == pytest.approx(terms.sum() / (divisor or outer), rel=1e-5)
        assert net.blob_by_name("t2").shape == labels_shape
        np.testing.assert_allclose(net.blob_by_name("t2").data, terms, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(net.blob_by_name("t1").data.sum(axis), 1, rtol=1e-5)
        plain = loss(layer("SoftmaxWithLoss", 2, fields), [x, labels], dtype)[1]
        assert value == plain


@pytest.mark.parametrize("tops", [0, 1, 2, 3])
def test_softmax_ohem_has_the_same_loss_and_gradient_with_any_number_of_tops(tops):
    x, labels = numbers(3, 4, 2), RANDOM.integers(4, size=(3, 2)).astype(float)
    nets = [loss(layer(kind, 2, tops=count), [x, labels]) for kind, count in (("SoftmaxWithLossOHEM", tops), ("SoftmaxWithLoss", 1))]
    for net, _ in nets:
        run_backward(net, [0])
    assert nets[0][1] == nets[1][1]
    np.testing.assert_array_equal(*(net.bottoms[-1][0].diff for net, _ in nets))
    assert nets[0][0].bottoms[-1][0].diff.any()
    assert nets[0][0].layers[-1].capture_obstacle() == ("the third top is computed on the CPU" if tops == 3 else None)


def test_softmax_ohem_follows_a_new_shape_and_takes_an_impossible_label():
    net = layer_net(layer("SoftmaxWithLossOHEM", 2, tops=3), [numbers(2, 3), [0, 1]])
    x, labels = np.array([[0, 1e4, 0], [0.5, 0, 0], [0, 0, 0], [1, 2, 3]]), np.array([0, 0, 1, 2.0])
    for blob, array in zip(net.bottoms[-1], (x, labels)):
        blob.reshape(*array.shape)
        blob.data[...] = array
    value = run_forward(net)
    each = net.blob_by_name("t2").data
    assert each[0] == pytest.approx(-math.log(1.17549435e-38)) and value == pytest.approx(each.mean())


def test_gradients():
    a, b, w = numbers(2, 3, 2, 2), numbers(2, 3, 2, 2), numbers(2, 3, 2, 2)
    for mode in ("BATCH_SIZE", "PRE_FIXED pre_fixed_normalizer: 7"):
        check_gradient(layer("SmoothL1LossOHEM", 2, f"loss_param {{ normalization: {mode} }}"), [a, b])
        check_gradient(layer("SmoothL1LossOHEM", 3, f"loss_param {{ normalization: {mode} }}"), [a, b, w], [0, 1])
    check_gradient(layer("SoftmaxWithLossOHEM", 2, "loss_param { ignore_label: 1 }"), [a, RANDOM.integers(3, size=(2, 2, 2))], [0])


@pytest.mark.parametrize("kind, bottoms, tops", [("SmoothL1LossOHEM", 3, 2), ("SoftmaxWithLossOHEM", 2, 3)])
def test_the_gradient_has_the_loss_weight_and_goes_where_it_is_needed(kind, bottoms, tops):
    arrays = [numbers(2, 3, 2, 2) for _ in range(bottoms)]
    if kind == "SoftmaxWithLossOHEM":
        arrays[1] = RANDOM.integers(3, size=(2, 2, 2))
    gradients = []
    for weight in (1, 2.5, 0):
        more = " ".join(f"loss_weight: {w}" for w in [weight] + [0] * (tops - 1))
        net, value = loss(layer(kind, bottoms, tops=tops, more=more), arrays)
        assert value == pytest.approx(weight * float(net.blob_by_name("t0").data))
        for blob in net.bottoms[-1]:
            blob.diff[...] = 7
        run_backward(net, [0])
        gradients.append(net.bottoms[-1][0].diff.copy())
        assert all((blob.diff == 7).all() for blob in net.bottoms[-1][1:])
    assert gradients[0].any() and not gradients[2].any()
    np.testing.assert_allclose(gradients[1], 2.5 * gradients[0])


def test_an_empty_batch_has_loss_0():
    for kind, shapes in (("SmoothL1LossOHEM", [(0, 3, 2)] * 3), ("SoftmaxWithLossOHEM", [(0, 3), (0,)])):
        net, value = loss(layer(kind, len(shapes), tops=3 if "Soft" in kind else 1), [np.zeros(shape) for shape in shapes])
        assert value == 0
        run_backward(net, [0])
        assert net.bottoms[-1][0].diff.size == 0


def test_a_loss_needs_no_top():
    assert loss(layer("SmoothL1LossOHEM", 2, tops=0), [numbers(2, 3) for _ in range(2)])[1] > 0


@pytest.mark.parametrize("kind, shapes, fields, message", [
    ("SmoothL1LossOHEM", [(2,)] * 2, "", r"bottom\[0\]: must have axes \(num, channels, ...\), got \[2\]"),
    ("SmoothL1LossOHEM", [(2, 3), (2, 3), (2, 1)], "", r"bottom\[2\]: has shape \[2, 1\], bottom\[0\] has \[2, 3\]"),
    ("SmoothL1LossOHEM", [(2, 3)] * 2, "loss_param { normalization: FIXED }", r"loss_param.normalization: must be one of FULL, .* got FIXED"),
    ("SmoothL1LossOHEM", [(2, 3)] * 2, "loss_param { ignore_label: 1 }", r"loss_param.ignore_label: unknown field"),
    ("SmoothL1LossOHEM", [(2, 3)] * 2, "loss_param { pre_fixed_normalizer: inf }", r"loss_param.pre_fixed_normalizer: must be finite"),
    ("SoftmaxWithLossOHEM", [(2, 3), (3,)], "", r"bottom\[1\]: the predictions|the predictions \[2, 3\] and the labels \[3\]"),
    ("SoftmaxWithLossOHEM", [(2, 3), (2,)], "loss_param { normalization: PRE_FIXED }", r"loss_param.normalization: "),
])
def test_wrong_prototxt(kind, shapes, fields, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \({kind}\): .*({message})"):
        layer_net(layer(kind, len(shapes), fields), [np.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("kind, tops, weights, message", [
    ("SmoothL1LossOHEM", 2, (1, 1), r"loss_weight: top\[1\] gives no gradient, its loss weight must be 0"),
    ("SoftmaxWithLossOHEM", 3, (1, 1, 0), r"loss_weight: the probabilities give no gradient"),
    ("SoftmaxWithLossOHEM", 3, (1, 0, 1), r"loss_weight: the loss of positions gives no gradient, its loss weight must be 0"),
])
def test_only_the_loss_may_have_a_weight(kind, tops, weights, message):
    more = " ".join(f"loss_weight: {weight}" for weight in weights)
    with pytest.raises(ConfigError, match=message):
        layer_net(layer(kind, 2, tops=tops, more=more), [np.zeros((2, 3)), np.zeros((2, 3) if "Smooth" in kind else 2)])


def test_wrong_labels_and_weights_without_gradient():
    net = layer_net(layer("SoftmaxWithLossOHEM", 2, tops=3), [np.zeros((2, 3)), [0, 3]])
    with pytest.raises(DataError, match=r"layer 'l' \(SoftmaxWithLossOHEM\): bottom\[1\]: label 3 of record 1 is outside 0..2"):
        run_forward(net)
    net = layer_net(layer("SmoothL1LossOHEM", 3), [np.zeros((2, 3))] * 3)
    run_forward(net)
    with pytest.raises(ConfigError, match=r"bottom\[2\]: SmoothL1LossOHEM has no gradient for weights"):
        run_backward(net, [2])
