"""Inputs that layers can take, and the difference of two arrays."""

import numpy as np
import pytest

from minicaffe.addons.export.exporting import Difference, difference, random_inputs, run_net
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


def net_of(inputs, layers):
    """A net with inputs ``{name: shape}``."""
    text = "".join(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }} '
                   for name, shape in inputs.items())
    return Net(parse_text("state { phase: TEST } " + text + layers, caffe_pb2.NetParameter)[0])


def layer(kind, bottoms, param="", top="y", name="l"):
    return f'layer {{ name: "{name}" type: "{kind}" {" ".join(f"""bottom: "{b}" """ for b in bottoms)} top: "{top}" {param} }} '


def whole(low, high):
    """All whole numbers from `low` to `high`, and each of them."""
    return lambda array: set(array.ravel()) == set(range(low, high + 1))


def normal(array):
    return array.min() < -1 and array.max() > 1 and abs(array.mean()) < 0.4 and len(np.unique(array)) == array.size


def positive(array):
    return array.min() >= 0.5 and array.max() > 1.5 and len(np.unique(array)) == array.size


FILLER = 'weight_filler { type: "xavier" }'


@pytest.mark.parametrize("inputs, layers, fits", [
    ({"a": (60,)}, layer("Embed", "a", f"embed_param {{ num_output: 2 input_dim: 5 {FILLER} }}"), {"a": whole(0, 4)}),
    ({"a": (5, 60), "b": (60,)}, layer("BatchReindex", "ab"), {"a": normal, "b": whole(0, 4)}),
    ({"a": (7, 20, 3), "b": (7, 20)}, layer("LSTM", "ab", f"recurrent_param {{ num_output: 2 {FILLER} }}"), {"a": normal, "b": whole(0, 1)}),
    ({"a": (7, 20, 3), "b": (7, 20), "c": (20, 9)}, layer("RNN", "abc", f"recurrent_param {{ num_output: 2 {FILLER} }}"),
     {"a": normal, "b": whole(0, 1), "c": normal}),
    ({"a": (8, 20), "b": (8, 30), "c": (8,)}, 'layer { name: "l" type: "Filter" bottom: "a" bottom: "b" bottom: "c" top: "x" top: "y" }',
     {"a": normal, "b": normal, "c": whole(0, 1)}),
    ({"a": (60, 4), "b": (60,)}, layer("Accuracy", "ab"), {"a": normal, "b": whole(0, 3)}),
    ({"a": (40, 4, 3), "b": (40, 4, 1)}, layer("Accuracy", "ab", "accuracy_param { axis: 2 }"), {"a": normal, "b": whole(0, 2)}),
    ({"a": (60, 4), "b": (60,)}, layer("SoftmaxWithLoss", "ab"), {"a": normal, "b": whole(0, 3)}),
    ({"a": (40, 4, 3), "b": (40, 4, 1)}, layer("SoftmaxWithLoss", "ab", "softmax_param { axis: -1 }"), {"a": normal, "b": whole(0, 2)}),
    ({"a": (60, 4), "b": (60,)}, layer("HingeLoss", "ab"), {"a": normal, "b": whole(0, 3)}),
    ({"a": (60, 4), "b": (60,)}, layer("MultinomialLogisticLoss", "ab"), {"a": positive, "b": whole(0, 3)}),
    ({"a": (60, 4), "b": (60,), "c": (4, 4)}, layer("InfogainLoss", "abc"), {"a": normal, "b": whole(0, 3)}),
    ({"a": (60, 4), "b": (60, 4), "c": (60,)}, layer("ContrastiveLoss", "abc"), {"a": normal, "b": normal, "c": whole(0, 1)}),
    ({"a": (60, 4), "b": (60, 4)}, layer("SigmoidCrossEntropyLoss", "ab"), {"a": normal, "b": whole(0, 1)}),
    ({"a": (60, 4), "b": (60, 4)}, layer("EuclideanLoss", "ab"), {"a": normal, "b": normal}),
    ({"a": (60, 4)}, layer("Log", "a"), {"a": positive}),
    ({"a": (60, 4)}, layer("Power", "a", "power_param { power: 0.5 }"), {"a": positive}),
    ({"a": (60, 4)}, layer("Sigmoid", "a"), {"a": normal}),
    ({"a": (60, 4), "b": (60,)}, layer("Accuracy", "ab", name="one", top="x") + layer("SoftmaxWithLoss", "ab", name="two"), {"a": normal, "b": whole(0, 3)}),
    ({"a": (60, 4)}, layer("Sigmoid", "a", top="x", name="one") + layer("Log", "x"), {"a": normal}),       # not of an input
])
def test_inputs_are_what_their_layers_take(inputs, layers, fits):
    net = net_of(inputs, layers)
    made = random_inputs(net)
    assert {name: array.shape for name, array in made.items()} == inputs and {array.dtype for array in made.values()} == {np.dtype("f4")}
    for name, check in fits.items():
        assert check(made[name]), name
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


def test_a_difference_as_text():
    assert str(difference("b", np.float32([[1, -4]]), np.float32([[1.5, -4]]))) == "b 1 x 2: differs by at most 0.5, 0.1 of the greatest value"
