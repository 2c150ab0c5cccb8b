"""Inputs that layers can take, and the difference of two arrays."""

import numpy as np
import pytest
from export_cases import layer, net_of

from minicaffe.addons.export.exporting import Difference, difference, random_inputs, run_net


def whole(low, high):
    """All whole numbers from `low` to `high`, and each of them."""
    return lambda array: set(array.ravel()) == set(range(low, high + 1))


def normal(array):
    return array.min() < -1 and array.max() > 1 and abs(array.mean()) < 0.4 and len(np.unique(array)) == array.size


def positive(array):
    return array.min() >= 0.5 and array.max() > 1.5 and len(np.unique(array)) == array.size


TWO = layer("Accuracy", "", "x0 x1", "x", name="one") + layer("SoftmaxWithLoss", "", "x0 x1", name="two")


@pytest.mark.parametrize("kind, fields, shapes, fits", [
    ("Embed", "embed_param { num_output: 2 input_dim: 5 }", [(60,)], [whole(0, 4)]),
    ("BatchReindex", "", [(5, 60), (60,)], [normal, whole(0, 4)]),
    ("LSTM", "recurrent_param { num_output: 2 }", [(7, 20, 3), (7, 20)], [normal, whole(0, 1)]),
    ("RNN", "recurrent_param { num_output: 2 }", [(7, 20, 3), (7, 20), (20, 9)], [normal, whole(0, 1), normal]),
    ("Filter", "", [(8, 20), (8, 30), (8,)], [normal, normal, whole(0, 1)]),
    ("Accuracy", "", [(60, 4), (60,)], [normal, whole(0, 3)]), ("Accuracy", "accuracy_param { axis: 2 }", [(40, 4, 3), (40, 4, 1)], [normal, whole(0, 2)]),
    ("SoftmaxWithLoss", "", [(60, 4), (60,)], [normal, whole(0, 3)]),
    ("SoftmaxWithLoss", "softmax_param { axis: -1 }", [(40, 4, 3), (40, 4, 1)], [normal, whole(0, 2)]),
    ("HingeLoss", "", [(60, 4), (60,)], [normal, whole(0, 3)]), ("MultinomialLogisticLoss", "", [(60, 4), (60,)], [positive, whole(0, 3)]),
    ("InfogainLoss", "", [(60, 4), (60,), (4, 4)], [normal, whole(0, 3)]),
    ("ContrastiveLoss", "", [(60, 4), (60, 4), (60,)], [normal, normal, whole(0, 1)]),
    ("SigmoidCrossEntropyLoss", "", [(60, 4), (60, 4)], [normal, whole(0, 1)]), ("EuclideanLoss", "", [(60, 4), (60, 4)], [normal, normal]),
    ("Log", "", [(60, 4)], [positive]), ("Power", "power_param { power: 0.5 }", [(60, 4)], [positive]), ("Sigmoid", "", [(60, 4)], [normal]),
    ("two", TWO, [(60, 4), (60,)], [normal, whole(0, 3)]), ("two", layer("Sigmoid", tops="x", name="one") + layer("Log", "", "x"), [(60, 4)], [normal])])
def test_inputs_are_what_their_layers_take(kind, fields, shapes, fits):
    """Of two layers the second reads the input, too, or what the first made of it."""
    tops = "x y" if kind == "Filter" else "y"
    net = net_of(fields if kind == "two" else layer(kind, fields, " ".join(f"x{i}" for i in range(len(shapes))), tops), *shapes)
    made = random_inputs(net)
    assert [array.shape for array in made.values()] == shapes and {array.dtype for array in made.values()} == {np.dtype("f4")}
    assert [check(array) for check, array in zip(fits, made.values())] == [True] * len(fits)
    assert all(np.isfinite(array).all() for array in run_net(net, made).values())
    again = random_inputs(net)
    assert all(np.array_equal(made[name], again[name]) for name in made)


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("wanted, found, absolute, relative", [
    ([1, -4], [1, -4], 0, 0), ([1, -4], [1.5, -4], 0.5, 0.125), ([1, -4], [1, -2], 2, 0.5), ([0, 0], [0, -3], 3, 3), ([0, 0], [0, 0], 0, 0),
    ([], [], 0, 0), ([1, 2], [1, 2, 3], INF, INF), ([[1, 2]], [1, 2], INF, INF),
    ([NAN, 1], [NAN, 2], 1, 1), ([INF, 1], [INF, 1], 0, 0), ([INF, 1], [-INF, 1], INF, INF), ([INF, 1], [5, 1], INF, INF),
    ([NAN, INF], [NAN, INF], 0, 0), ([NAN, INF], [INF, NAN], INF, INF), ([1, 2], [INF, 2], INF, INF)])
def test_differences(wanted, found, absolute, relative):
    found = np.array(found, "f4")
    assert difference("b", np.array(wanted, "f4"), found) == Difference("b", found.shape, absolute, relative)
    assert str(difference("b", np.float32([[1, -4]]), np.float32([[1.5, -4]]))) == "b 1 x 2: differs by at most 0.5, 0.1 of the greatest value"
