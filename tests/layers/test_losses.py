"""Softmax and the losses against NumPy, their gradients by differences, labels out of range, and the errors of their parameters."""

import helpers
import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, output_of, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.proto import caffe_pb2

RANDOM = np.random.default_rng(20)


def layer_text(kind, fields="", bottoms=2, tops=1):
    return helpers.layer_text(kind, "loss", " ".join("xlh"[:bottoms]), "y p" if tops == 2 else "y", fields)


def without(shape, axis):
    return np.delete(np.array(shape), axis)


def loss_of(text, arrays, dtype=Dtype.DOUBLE):
    return run_forward(layer_net(text, arrays, dtype))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def divisor(mode, outer, inner, valid):
    return max(1, {"FULL": outer * inner, "VALID": valid, "BATCH_SIZE": outer, "NONE": 1}[mode])


# ---- Softmax, along any axis, in both of its memory orders

def softmax_text(axis=1):
    return layer_text("Softmax", f"softmax_param {{ axis: {axis} }}", 1)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, axis", [((64, 10), 1), ((3, 1), 1), ((2, 17), 0), ((4, 1000), -1), ((2, 5, 3, 4), 1),
                                         ((2, 3, 130), 1), ((2, 3, 4), 2), ((7,), 0), ((3, 4, 1, 1), 1)])
def test_softmax(shape, axis, dtype):
    x = np.random.default_rng(1).standard_normal(shape) * 5
    net = forward_net(softmax_text(axis), [x], dtype)
    # float32: the rounding of x - max moves the exponential by up to 20 * 6e-8
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, softmax(x, axis), rtol=3e-6 if dtype == Dtype.FLOAT else 1e-12, atol=1e-12)
    if x.size < 30:
        check_gradient(softmax_text(axis), [x / 5])


def test_softmax_of_special_values():
    """The vectorised float32 exponential keeps 2 units in the last place down to the smallest normal number."""
    x = np.concatenate([[0.0], -np.linspace(0, 110, 20011, dtype=np.float32)]).astype(np.float32)[None]
    y = forward_net(softmax_text(), [x], Dtype.FLOAT).blob_by_name("y").cpu_data[0].astype(np.float64)
    wanted = np.exp(x[0].astype(np.float64))
    normal = wanted > 1.2e-38 * wanted.sum()
    assert np.abs((y / y[0] / wanted)[normal] - 1).max() < 6e-7  # 2 units of the exponential and 1 of the quotient, at both ends
    assert (y[~normal] <= 1.3e-38).all() and y[-1] == 0
    # A maximum begins with an element, in each of the ways to find it; NaN and infinities stay in position.
    np.testing.assert_array_equal(output_of(softmax_text(), [np.array([[1e30, -1e30, 1e30]])], Dtype.FLOAT), [[0.5, 0, 0.5]])
    one = np.eye(100)       # the largest of a row, in each of its places
    np.testing.assert_array_equal(output_of(softmax_text(), [1000 * one], Dtype.FLOAT), one)
    for shape in ((3, 7), (3, 100), (2, 7, 5), (2, 100, 5), (1, 40, 3000)):
        x = np.random.default_rng(5).standard_normal(shape) - 1e4
        np.testing.assert_allclose(output_of(softmax_text(), [x], Dtype.DOUBLE), softmax(x, 1), rtol=1e-9)
    for shape in ((2, 40, 1), (2, 40, 300)):
        x = np.zeros(shape)
        x[0, 33, 0], x[1, 0] = np.nan, -np.inf
        y = forward_net(softmax_text(), [x], Dtype.FLOAT).blob_by_name("y").cpu_data
        assert np.isnan(y[0, :, 0]).all() and not np.isnan(y[0, :, 1:]).any() and not np.isnan(y[1]).any() and (y[1, 0] == 0).all()
    for shape in ((0, 3), (3, 0), (2, 3, 0)):
        net = forward_net(softmax_text(), [np.zeros(shape)])
        run_backward(net, [0])
        assert net.blob_by_name("y").shape == shape


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("mode", ["FULL", "VALID", "BATCH_SIZE", "NONE"])
@pytest.mark.parametrize("ignore", [None, 1])
@pytest.mark.parametrize("shape, axis", [((6, 5), 1), ((2, 5, 3, 4), 1), ((3, 2, 5), -1)])
def test_softmax_loss(shape, axis, ignore, mode, dtype):
    x, labels = RANDOM.standard_normal(shape), RANDOM.integers(0, 5, without(shape, axis))
    fields = f"softmax_param {{ axis: {axis} }} loss_param {{ normalization: {mode} {'' if ignore is None else f'ignore_label: {ignore}'} }}"
    p = np.moveaxis(softmax(x, axis), axis, -1).reshape(-1, 5)
    taken = [-np.log(row[label]) for row, label in zip(p, labels.ravel()) if label != ignore]
    outer = int(np.prod(shape[:axis]))
    net = layer_net(layer_text("SoftmaxWithLoss", fields, tops=2), [x, labels], dtype)
    assert run_forward(net) == pytest.approx(sum(taken) / divisor(mode, outer, labels.size // outer, len(taken)), rel=2e-6)
    np.testing.assert_allclose(net.blob_by_name("p").cpu_data, softmax(x, axis), rtol=2e-6)
    if dtype == Dtype.DOUBLE:
        check_gradient(layer_text("SoftmaxWithLoss", fields + " loss_weight: 3"), [x, labels], check=[0])


@pytest.mark.parametrize("fields, mode", [("normalize: true", "VALID"), ("normalize: false", "BATCH_SIZE"), ("", "VALID"),
                                          ("normalize: false normalization: FULL", "FULL")])
def test_old_normalize_field(fields, mode):
    x, labels = np.zeros((2, 3, 4)), np.zeros((2, 4))
    labels[0, 0] = 2
    got = loss_of(layer_text("SoftmaxWithLoss", f"loss_param {{ ignore_label: 2 {fields} }}"), [x, labels])
    assert got == pytest.approx(7 * np.log(3) / divisor(mode, 2, 4, 7), rel=1e-12)


@pytest.mark.parametrize("kind, target, fields", [
    ("SoftmaxWithLoss", [0], ""), ("HingeLoss", [0], ""), ("MultinomialLogisticLoss", [1], ""), ("EuclideanLoss", [[0, 0]], ""),
    ("SigmoidCrossEntropyLoss", [[0, 1]], ""),
    *(("ContrastiveLoss", np.zeros((1, 2)), f"contrastive_loss_param {{ {fields} }}") for fields in ("", "legacy_version: true")),
])
def test_nan_shows(kind, target, fields):
    for similar in ([0], [1])[:1 + bool(fields)]:
        arrays = [np.array([[0.5, np.nan]]), target] + [similar] * bool(fields)
        assert np.isnan(loss_of(layer_text(kind, fields, len(arrays)), arrays))


@pytest.mark.parametrize("kind", ["EuclideanLoss", "SmoothL1Loss", "SigmoidCrossEntropyLoss"])
def test_a_target_that_is_nan_shows(kind):
    net = layer_net(layer_text(kind), [np.array([[0.5, 0.5]]), np.array([[1.0, np.nan]])])
    assert np.isnan(run_forward(net))
    run_backward(net, [0])
    assert np.isnan(net.bottoms[-1][0].cpu_diff).tolist() == [[False, True]]


def test_ignored_and_wrong_labels():
    for arrays in ([np.ones((3, 4)), np.full(3, 1.0)], [np.ones((0, 4)), np.ones(0)]):
        net = layer_net(layer_text("SoftmaxWithLoss", "loss_param { ignore_label: 1 }"), arrays)
        assert run_forward(net) == 0
        net.blob_by_name("x").diff[...] = 9
        run_backward(net, [0])
        assert not net.blob_by_name("x").cpu_diff.any()
    sigmoid, ignored = layer_text("SigmoidCrossEntropyLoss", "loss_param { ignore_label: 0 %s }"), "loss_param { ignore_label: 255 }"
    target, cut = np.array([[1, 0, 1], [0, 0.25, 1]]), r"target 0.25 of record 1, position 1 is ignore_label 0 when it is cut to an integer"
    in_map = np.zeros((2, 3, 3))
    in_map[1, 1, 2] = 1
    for text, x, labels, fault in (
            (layer_text("SoftmaxWithLoss", ignored), (2, 4, 3, 3), 255 + in_map / 2, "label 255.5 of record 1, position 5 is not an integer"),
            (layer_text("SoftmaxWithLoss"), (2, 4, 3, 3), 6 * in_map, "label 6 of record 1, position 5 is outside 0..3"),
            (sigmoid % "", (2, 3), target, cut), (sigmoid % "normalization: VALID", (2, 3), target, cut)):
        with pytest.raises(DataError, match=rf"bottom\[1\]: {fault}"):
            loss_of(text, [np.zeros(x), labels])
    loss_of((sigmoid % "").replace("ignore_label: 0", "ignore_label: -1"), [np.zeros((2, 3)), np.full((2, 3), 0.25)])
    with pytest.raises(ConfigError, match="loss_weight: "):
        layer_net(layer_text("SoftmaxWithLoss", "loss_weight: 1 loss_weight: 1", tops=2), [np.zeros((2, 3)), np.zeros(2)])
    layer_net(layer_text("SoftmaxWithLoss", "loss_weight: 1 loss_weight: 0", tops=2), [np.zeros((2, 3)), np.zeros(2)])


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss", "InfogainLoss"])
@pytest.mark.parametrize("label", [4, -1, np.nan, np.inf, 2.883, 0.5, -0.5, 2.9999998])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_wrong_label(kind, label, dtype):
    fault = f"label {label} of record %d is not an integer; round it in the data. EuclideanLoss and SmoothL1Loss take real numbers"
    for record in range(3):
        labels = np.array([0.0, 3, 1])
        labels[record] = label
        arrays = [np.full((3, 4), 0.25), labels] + [np.eye(4)] * (kind == "InfogainLoss")
        message = fault % record if label in (2.883, 0.5, -0.5, 2.9999998) else f"label .* of record {record} is outside 0..3"
        with pytest.raises(DataError, match=rf"layer 'loss' \({kind}\): bottom\[1\]: {message}"):
            loss_of(layer_text(kind, bottoms=len(arrays)), arrays, dtype)


@pytest.mark.parametrize("value", [0.9, -0.5, np.nan])
def test_a_similarity_that_is_no_integer(value):
    for pair, similar in enumerate(np.where(np.eye(3), value, [1.0, 0, 1])):
        with pytest.raises(DataError, match=rf"\(ContrastiveLoss\): bottom\[2\]: similarity {value} of pair {pair} is not an integer; give 0"):
            loss_of(layer_text("ContrastiveLoss", bottoms=3), [np.ones((3, 3)), np.ones((3, 3)), similar])


@pytest.mark.parametrize("mode", ["FULL", "VALID", "BATCH_SIZE", "NONE"])
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 2, 2)])
def test_infogain(shape, mode):
    x, h, labels = RANDOM.standard_normal(shape), RANDOM.random((3, 3)), RANDOM.integers(0, 3, without(shape, 1))
    p = np.moveaxis(softmax(x, 1), 1, -1).reshape(-1, 3)
    taken = [-(h[label] * np.log(row)).sum() for row, label in zip(p, labels.ravel()) if label != 0]
    wanted = sum(taken) / divisor(mode, shape[0], labels.size // shape[0], len(taken))
    text = layer_text("InfogainLoss", f"loss_param {{ ignore_label: 0 normalization: {mode} }}", bottoms=3)
    assert loss_of(text, [x, labels, h]) == pytest.approx(wanted, rel=1e-12)
    check_gradient(text, [x, labels, h], check=[0])


def test_infogain_matrix_from_a_file(tmp_path):
    h, path = np.arange(9.0).reshape(3, 3), tmp_path / "h.binaryproto"
    path.write_bytes(caffe_pb2.BlobProto(num=1, channels=1, height=3, width=3, data=h.ravel()).SerializeToString())
    x, labels = RANDOM.standard_normal((4, 3)), np.array([0, 1, 2, 1])
    text = layer_text("InfogainLoss", f'infogain_loss_param {{ source: "{path}" }}')
    assert loss_of(text, [x, labels]) == pytest.approx(loss_of(layer_text("InfogainLoss", bottoms=3), [x, labels, h]), rel=1e-12)
    for wrong, arrays, error in ((text, [x[:, :2], labels], "infogain_loss_param.source: H needs 2 x 2 elements"),
                                 (layer_text("InfogainLoss"), [x, labels], "infogain_loss_param.source: name a file"),
                                 (layer_text("InfogainLoss", "loss_param { normalize: true }", 3), [x, labels, h], "loss_param.normalize: ")):
        with pytest.raises((ConfigError, ShapeError), match=error):
            layer_net(wrong, arrays)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_euclidean(dtype):
    a, b = RANDOM.standard_normal((4, 3, 5)), RANDOM.standard_normal((4, 15))
    assert loss_of(layer_text("EuclideanLoss"), [a, b], dtype) == pytest.approx(((a.reshape(4, 15) - b)**2).sum() / 8, rel=1e-6)
    if dtype == Dtype.DOUBLE:
        check_gradient(layer_text("EuclideanLoss", "loss_weight: 0.5"), [a, b])
        check_gradient(layer_text("EuclideanLoss"), [a, b], check=[1])


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_hinge(norm):
    x, labels = RANDOM.standard_normal((6, 2, 3)) * 2, RANDOM.integers(0, 6, 6)
    x[np.abs(np.abs(x) - 1) < 0.01] = 0.5  # away from the kinks
    sign = np.ones((6, 6))
    sign[np.arange(6), labels] = -1
    m = np.maximum(0, 1 + sign * x.reshape(6, 6))
    text = layer_text("HingeLoss", f"hinge_loss_param {{ norm: {norm} }}")
    assert loss_of(text, [x, labels]) == pytest.approx((m if norm == "L1" else m * m).sum() / 6, rel=1e-12)
    check_gradient(text, [x, labels], check=[0])


def test_multinomial_logistic_and_huge_inputs():
    p, labels = RANDOM.random((5, 4)) + 0.1, RANDOM.integers(0, 4, 5)
    text = layer_text("MultinomialLogisticLoss")
    assert loss_of(text, [p, labels]) == pytest.approx(-np.log(p[np.arange(5), labels]).mean(), rel=1e-12)
    check_gradient(text, [p, labels], check=[0], tolerance=1e-4)  # the third derivative of log near 0.1
    assert loss_of(text, [np.array([[0.0, 1.0]]), [0]]) == pytest.approx(-np.log(1e-20), rel=1e-7)
    assert loss_of(layer_text("SigmoidCrossEntropyLoss"), [np.array([[1e4, -1e4]]), np.array([[0.0, 0.0]])], Dtype.FLOAT) == 1e4
    # A probability of 0 is cut at the smallest float
    assert loss_of(layer_text("SoftmaxWithLoss"), [np.array([[0.0, 1e4]]), [0]]) == pytest.approx(-np.log(1.17549435e-38), rel=1e-7)


@pytest.mark.parametrize("fields, mode", [("", "BATCH_SIZE"), ("normalization: VALID", "VALID"), ("normalization: FULL", "FULL"),
                                          ("normalization: NONE", "NONE"), ("normalize: true", "VALID")])
@pytest.mark.parametrize("ignore", [None, 1])
def test_sigmoid_cross_entropy(fields, mode, ignore):
    x, t = RANDOM.standard_normal((4, 6)) * 3, RANDOM.random((4, 6))
    t[0, :3] = 1
    p = 1 / (1 + np.exp(-x))
    terms = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    used = np.ones_like(t, bool) if ignore is None else t.astype(int) != ignore
    text = layer_text("SigmoidCrossEntropyLoss", f"loss_param {{ {fields} {'' if ignore is None else f'ignore_label: {ignore}'} }}")
    assert loss_of(text, [x, t]) == pytest.approx(terms[used].sum() / divisor(mode, 4, 6, used.sum()), rel=1e-9)
    check_gradient(text, [x, t], check=[0])


@pytest.mark.parametrize("legacy", ["false", "true"])
@pytest.mark.parametrize("trailing", [(), (1, 1)])
def test_contrastive(legacy, trailing):
    a, b = np.random.default_rng(1).standard_normal((2, 8, 3, *trailing))
    similar = np.array([1, 0, 0, 1, 0, 0, 2, 0])
    d2 = ((a - b)**2).reshape(8, -1).sum(1)
    far = np.maximum(2 - d2, 0) if legacy == "true" else np.maximum(2 - np.sqrt(d2), 0)**2
    text = layer_text("ContrastiveLoss", f"contrastive_loss_param {{ margin: 2 legacy_version: {legacy} }}", bottoms=3)
    assert loss_of(text, [a, b, similar]) == pytest.approx(np.where(similar, d2, far).sum() / 16, rel=1e-12)
    # Caffe divides by d + 1e-4 instead of d
    check_gradient(text, [a, b, similar], check=[0, 1], tolerance=1e-4)
    check_gradient(text, [a, b, similar], check=[1], tolerance=1e-4)


def test_nearly_equal_rows_have_caffes_gradient():
    for distance in (0, 1e-6, 1e-4, 1e-2):
        net = forward_net(layer_text("ContrastiveLoss", "contrastive_loss_param { margin: 2 }", bottoms=3),
                          [np.array([[1.0, distance, 2]]), np.array([[1.0, 0, 2]]), np.zeros(1)])
        run_backward(net, [0, 1], [np.array(1.0)])
        expected = -(2 - distance) * distance / (distance + 1e-4)
        np.testing.assert_allclose(net.blob_by_name("x").cpu_diff, [[0, expected, 0]], rtol=1e-9)


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "InfogainLoss", "SigmoidCrossEntropyLoss", "HingeLoss", "MultinomialLogisticLoss"])
def test_label_divisor_prevents_graph(kind):
    arrays = [np.zeros((2, 3)), np.zeros((2, 3) if kind == "SigmoidCrossEntropyLoss" else 2), np.ones((3, 3))][:3 if kind == "InfogainLoss" else 2]
    ignores, counts = "ignore_label: 1", kind in ("SoftmaxWithLoss", "InfogainLoss")     # those whose default is VALID
    what = "targets" if kind == "SigmoidCrossEntropyLoss" else "labels"
    for fields, depends in (("", False), (ignores, counts), ("normalization: VALID", False), (f"{ignores} normalization: BATCH_SIZE", False),
                            (f"{ignores} normalization: VALID", counts or what == "targets"), (f"{ignores} normalization: FULL", False)):
        layer = layer_net(layer_text(kind, f"loss_param {{ {fields} }}", len(arrays)), arrays).layers[-1]
        assert layer.capture_obstacle() == (f"its divisor is the number of {what} that are not ignored" if depends else None), fields


@pytest.mark.parametrize("kind, shapes, message", [
    *(("EuclideanLoss", shapes, "bottom\\[1\\]: .*same axis 0")
      for shapes in ([(), ()], [(0,), ()], [(), (0,)], [(), (2,)], [(2,), ()])),
    ("SoftmaxWithLoss", [(2, 3), (3,)], "bottom\\[1\\]: .*same axis 0"),
    ("SoftmaxWithLoss", [(2, 3, 4), (2,)], "bottom\\[1\\]: needs one label for each of the 8"),
    ("HingeLoss", [(2, 3), (2, 3)], "bottom\\[1\\]: needs one label for each of the 2"),
    ("EuclideanLoss", [(2, 3), (2, 4)], "bottom\\[1\\]: has 8 elements"),
    ("SigmoidCrossEntropyLoss", [(2, 3), (2, 4)], "bottom\\[1\\]: has 8 elements"),
])
def test_wrong_shapes_name_the_bottom(kind, shapes, message):
    with pytest.raises(ShapeError, match=f"layer 'loss' \\({kind}\\): {message}"):
        layer_net(layer_text(kind, bottoms=len(shapes)), [np.zeros(shape) for shape in shapes])
    with pytest.raises(ShapeError, match="softmax_param.axis: axis 4"):
        layer_net(layer_text("SoftmaxWithLoss", "softmax_param { axis: 4 }"), [np.zeros((2, 3)), np.zeros(2)])
