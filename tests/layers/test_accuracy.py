"""Accuracy and ArgMax against plain loops."""

import numpy as np
import pytest
from gradient import forward_net, layer_net, output_of, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError


def accuracy(fields="", tops=1):
    return layer_text("Accuracy", "a", "x l", "y c" if tops == 2 else "y", f"accuracy_param {{ {fields} }}")


def argmax(fields=""):
    return layer_text("ArgMax", "m", "x", "y", f"argmax_param {{ {fields} }}")


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize("shape, axis", [((40, 5), 1), ((3, 5, 4, 6), 1), ((4, 3, 5), -1)])
def test_accuracy(shape, axis, ignore, top_k, dtype):
    random = np.random.default_rng(1)
    x = random.integers(0, 4, shape).astype(float)  # small integers: many ties, which count as wrong
    labels = random.integers(0, 5, shape[:axis] + (shape[axis + 1:] if axis > 0 else ()))
    fields = f"top_k: {top_k} axis: {axis}" + (f" ignore_label: {ignore}" if ignore is not None else "")
    net = forward_net(accuracy(fields, tops=2), [x, labels], dtype)
    rows = np.moveaxis(x, axis, -1).reshape(-1, 5)
    right, all_of = np.zeros(5), np.zeros(5)
    for row, label in zip(rows, labels.ravel()):
        if label != ignore:
            all_of[label] += 1
            right[label] += sum(row[c] >= row[label] for c in range(5) if c != label) < top_k
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, right.sum() / all_of.sum(), rtol=1e-6)
    np.testing.assert_allclose(net.blob_by_name("c").cpu_data, right / np.maximum(all_of, 1), rtol=1e-6)
    alone = forward_net(accuracy(fields), [x, labels], dtype)
    assert alone.blob_by_name("y").cpu_data == net.blob_by_name("y").cpu_data


def test_nothing_to_count_and_nan():
    assert output_of(accuracy("ignore_label: 7"), [np.ones((3, 2)), np.full(3, 7.0)]) == 0
    assert output_of(accuracy(), [np.ones((0, 2)), np.ones(0)]) == 0
    x = np.array([[1.0, np.nan], [np.nan, 1.0], [np.nan, np.nan]])
    for top_k, tops in (1, 1), (1, 2), (2, 1), (2, 2):      # with two tops it counts on the host
        assert output_of(accuracy(f"top_k: {top_k}", tops), [x, np.array([1, 1, 0])]) == pytest.approx(1 / 3)
    for fields, tops, counts in (("", 1, False), ("top_k: 2", 1, False), ("ignore_label: 1", 1, True), ("", 2, True)):
        layer = layer_net(accuracy(fields, tops), [np.zeros((3, 5)), np.zeros(3)]).layers[-1]
        assert layer.capture_obstacle() == ("it counts labels on the host" if counts else None), fields


@pytest.mark.parametrize("tops", [1, 2])
@pytest.mark.parametrize("label, fault", [(5, "outside 0..4"), (-1, "outside 0..4"), (np.nan, "outside 0..4"), (1e20, "outside 0..4"),
                                          (3.75, "not an integer")])
def test_wrong_label(label, fault, tops):
    for fields, x, labels, record in (("", np.zeros((3, 5)), np.array([0, 4, label]), 2), ("axis: 0", np.zeros(5), np.array(label), 0)):
        net = layer_net(accuracy(fields, tops), [x, labels], Dtype.FLOAT)
        with pytest.raises(DataError, match=rf"layer 'a' \(Accuracy\): bottom\[1\]: label .* of record {record} is {fault}"):
            run_forward(net)


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("shape", [(4, 5, 3), (3, 5, 1, 1), (6, 4), (2, 3, 2, 2, 2, 2)])
def test_argmax(shape, top_k):
    """Without an axis the top has three at least: images, what there is of each, and the best."""
    x = np.random.default_rng(2).integers(0, 3, shape).astype(float)

    def best(values, axis):     # of equal ones the last
        last = values.shape[axis] - 1
        return last - np.argsort(np.flip(-values, axis), axis, kind="stable").take(range(top_k), axis)
    flat = x.reshape(len(x), -1)
    order = best(flat, 1)
    for fields, wanted in (("", [order]), ("out_max_val: true", [order, np.take_along_axis(flat, order, 1)])):
        found = output_of(argmax(f"top_k: {top_k} {fields}"), [x])
        assert found.shape == (len(x), len(wanted), top_k, *[1] * (len(shape) - 3))
        np.testing.assert_array_equal(found.reshape(len(x), len(wanted), top_k), np.stack(wanted, 1))
    order = best(x, 1)
    np.testing.assert_array_equal(output_of(argmax(f"top_k: {top_k} axis: 1"), [x]), order)
    values = output_of(argmax(f"top_k: {top_k} axis: {1 - len(shape)} out_max_val: true"), [x])
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
    if top_k == 1:
        assert output_of(argmax(), [np.array([1.0, 2])]).tolist() == [[[0]], [[0]]]


def test_argmax_of_special_values():
    net = forward_net(argmax("top_k: 3"), [np.array([[np.nan, -np.inf, np.inf, np.nan]])])
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data.ravel(), [2, 1, 3])
    for fields, dtype, fits in (("", Dtype.FLOAT, False), ("axis: 1", Dtype.FLOAT, False), ("axis: 1 out_max_val: true", Dtype.FLOAT, True),
                                ("", Dtype.DOUBLE, True)):
        net = layer_net(argmax(fields), [np.zeros((0, 1))], dtype)
        net.blob_by_name("x").reshape(0, 2**24)
        run_forward(net)
        net.blob_by_name("x").reshape(0, 2**24 + 1)
        if fits:
            run_forward(net)
        else:
            with pytest.raises(ShapeError, match=r"'m' \(ArgMax\): bottom\[0\]: 16777217 values to choose from; a float32 holds"):
                run_forward(net)


@pytest.mark.parametrize("text, error, message", [
    (accuracy("top_k: 6"), ConfigError, "'a' \\(Accuracy\\): accuracy_param.top_k: must be at most the number of classes, 5"),
    (accuracy("top_k: 0"), ConfigError, "accuracy_param.top_k: must be at least 1"),
    (accuracy("axis: 2"), ShapeError, "accuracy_param.axis: axis 2"),
    (accuracy("axis: 0 top_k: 1"), ShapeError, "bottom\\[1\\]: needs one label for each of the 5"),
    (argmax("top_k: 0"), ConfigError, "'m' \\(ArgMax\\): argmax_param.top_k: must be at least 1"),
    (argmax("top_k: 6"), ConfigError, "argmax_param.top_k: must be at most the number of values, 5"),
    (argmax("axis: 2"), ShapeError, "argmax_param.axis: axis 2"),
])
def test_mistakes(text, error, message):
    with pytest.raises(error, match=message):
        layer_net(text, [np.zeros((3, 5)), np.zeros(3)][:text.count("bottom")])
