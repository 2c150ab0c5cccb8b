"""Lstm against loops and against LSTM; ContinuationIndicator and CTCGreedyDecoder against loops."""

import itertools
import re

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

RANDOM = np.random.default_rng(14)
FILLERS = 'weight_filler { type: "uniform" min: -1 max: 1 } bias_filler { type: "uniform" min: -1 max: 1 }'


def lstm(size=3, more="", flags=True):
    return layer_text("Lstm", "l", "x cont" if flags else "x", "y", f"lstm_param {{ num_output: {size} {FILLERS} {more} }}")


def flags_of(steps, sequences, first=0):
    flags = RANDOM.integers(0, 2, (steps, sequences)).astype(float)
    flags[0] = first
    return flags


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_loops(x, flags, w_x, w_h, bias, h, c):
    """x (T, N, I); returns the output of all steps and the last h and c."""
    steps, sequences, _ = x.shape
    size = w_h.shape[1]
    y, h, c = np.zeros((steps, sequences, size)), h.copy(), c.copy()
    for t, n in itertools.product(range(steps), range(sequences)):
        m = flags[t, n]
        i, f, o, g = (bias + w_x @ x[t, n] + m * w_h @ h[n]).reshape(4, size)
        c[n] = m * sigmoid(f) * c[n] + sigmoid(i) * np.tanh(g)
        y[t, n] = sigmoid(o) * np.tanh(c[n])
        h[n] = y[t, n]
    return y, h, c


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("with_flags", [True, False])
@pytest.mark.parametrize("form", ["ctpn", "caffe-lstm"])
@pytest.mark.parametrize("steps, sequences", [(4, 3), (1, 1), (5, 1), (1, 4)])
def test_lstm(steps, sequences, form, with_flags, dtype):
    x, flags = RANDOM.standard_normal((steps, sequences, 4)), flags_of(steps, sequences, first=1)
    given = x if form == "ctpn" else x.reshape(steps * sequences, 2, 1, 2)
    text = lstm(3, "" if form == "ctpn" else f"batch_size: {sequences}", with_flags)
    net = layer_net(text, [given, flags][:1 + with_flags], dtype)
    if not with_flags:
        flags = np.ones(flags.shape)
        flags[0] = 0
    weights = [blob.data.astype(float) for blob in net.layers[-1].blobs]
    assert [w.shape for w in weights] == [(12, 4), (12, 3), (12,)]
    h = c = np.zeros((sequences, 3))
    for _ in range(3):   # with flags from the state that the former has left
        run_forward(net)
        wanted, h, c = lstm_loops(x, flags, *weights, h, c)
        y = net.blob_by_name("y").data
        assert y.shape == ((steps, sequences, 3) if form == "ctpn" else (steps * sequences, 3))
        np.testing.assert_allclose(y.reshape(wanted.shape), wanted, rtol=0, atol=1e-5 if dtype == Dtype.FLOAT else 1e-13)


def test_lstm_gradient():
    for more, shape, count, with_flags in (("", (4, 2, 3), (4, 2), True), ("", (3, 3, 2), (3, 3), False), ("batch_size: 2", (6, 2), (3, 2), True),
                                           ("", (3, 2), (3, 1), False), ("", (1, 1, 1), (1, 1), True)):
        check_gradient(lstm(2, more, with_flags), [RANDOM.standard_normal(shape), flags_of(*count)][:1 + with_flags], check=[0])


def test_lstm_of_other_sequences():
    net = forward_net(lstm(2), [RANDOM.standard_normal((3, 2, 4)), np.ones((3, 2))])
    run_backward(net, [1], [np.ones((3, 2, 2))])
    assert (net.blob_by_name("cont").diff == 0).all()
    weights = [blob.data for blob in net.layers[-1].blobs]
    h = c = np.zeros((3, 2))
    for steps in 5, 2:   # 3 sequences: from zero, then from the state of the first
        x, flags = RANDOM.standard_normal((steps, 3, 4)), np.ones((steps, 3))
        forward_again(net, x=x, cont=flags)
        wanted, h, c = lstm_loops(x, flags, *weights, h, c)
        np.testing.assert_allclose(net.blob_by_name("y").data, wanted, atol=1e-13)
    net = layer_net(lstm(2, flags=False), [np.zeros((3, 2, 4))])
    for shape, message in (((3, 2, 5), r"has shape \[3, 2, 5\], 5 values for each step .* set up for 4"),
                           ((3, 4), r"must have 3 axes \(steps, sequences, inputs\) as in setup")):
        net.blob_by_name("x").reshape(*shape)
        with pytest.raises(ShapeError, match=rf"bottom\[0\]: {message}"):
            run_forward(net)


def test_the_state_in_snapshots():
    x = RANDOM.standard_normal((2, 3, 2))
    net, other = (layer_net(lstm(2), [x, np.ones((2, 3))]) for _ in range(2))
    for theirs, ours in zip(other.layers[-1].blobs, net.layers[-1].blobs):
        theirs.data[...] = ours.data
    run_forward(net)
    other.layers[-1].set_state(net.layers[-1].get_state())
    for each in net, other:
        run_forward(each)
    np.testing.assert_array_equal(net.blob_by_name("y").data, other.blob_by_name("y").data)
    with pytest.raises(DataError, match="the state 'h' is not what minicaffe writes"):
        other.layers[-1].set_state({"c": {}})
    with pytest.raises(ShapeError, match=r"the state 'h' was stored for shape \[1, 3, 2\], the net has \[1, 3, 4\] float64"):
        layer_net(lstm(4), [x, np.ones((2, 3))]).layers[-1].set_state(net.layers[-1].get_state())
    stateless = layer_net(lstm(2, flags=False), [x]).layers[-1]
    assert stateless.get_state() is None
    with pytest.raises(ConfigError, match="keeps no state"):
        stateless.set_state({})


SIX = [(2, 2, 2), (2, 2)]


@pytest.mark.parametrize("text, shapes, message", [
    (lstm(0), SIX, "lstm_param.num_output: must be at least 1, got 0"),
    (lstm().replace("num_output: 3", ""), SIX, "lstm_param.num_output: must be given"),
    (lstm(3, "clipping_threshold: -1"), SIX, "lstm_param.clipping_threshold: must be at least 0, got -1"),
    (lstm(3, "batch_size: 0"), SIX, "lstm_param.batch_size: must be at least 1, got 0"),
    (lstm(3, "batch_size: 4"), [(6, 2), (6,)], r"bottom\[0\]: the first axis must be a multiple of lstm_param.batch_size, 4, got \[6, 2\]"),
    (lstm(3, "batch_size: 2"), [(), ()], r"bottom\[0\]: the first axis must be a multiple of lstm_param.batch_size, 2, got \[\]"),
    *((lstm(3, more), shapes, rf"bottom\[0\]: needs at least one step and one input, got {re.escape(str(list(shapes[0])))}") for more, shapes in (
        ("", [(2, 2, 0), (2, 2)]), ("", [(0, 2, 3), (0, 2)]), ("batch_size: 2", [(0, 3), (0,)]))),
    (lstm(), [(2, 3, 4), (2, 2)], r"bottom\[1\]: must have 2 x 3 indicators for x of shape \[2, 3, 4\], got \[2, 2\]"),
    (lstm().replace('top: "y"', 'top: "x"'), SIX, r"top\[0\]: Lstm cannot work in place"),
    (lstm().replace('weight_filler { type: "uniform"', 'weight_filler { type: "equal"'), SIX, "lstm_param.weight_filler.type: unknown filler 'equal'")])
def test_wrong_lstm(text, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \(Lstm\): {message}"):
        layer_net(text, [np.zeros(shape) for shape in shapes])


def test_continuation_indicator():
    net = make_net('''layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }
        layer { name: "i" type: "ContinuationIndicator" top: "y" continuation_indicator_param { time_step: 4 batch_size: 3 } }
        layer { name: "j" type: "ContinuationIndicator" bottom: "x" top: "z" continuation_indicator_param { time_step: 1 batch_size: 2 } }''')
    for _ in range(2):
        net.forward_from_to(0, 2)
        assert net.blob_by_name("y").data.tolist() == [[0] * 3, [1] * 3, [1] * 3, [1] * 3]
        assert net.blob_by_name("z").data.tolist() == [[0, 0]]
        net.blob_by_name("y").data[...] = 5
    net.blob_by_name("x").diff[...] = 7
    run_backward(net, [0], [np.ones((1, 2))])
    assert (net.blob_by_name("x").diff == 0).all() and not net.layers[2].allow_force_backward(0)


def decoder(fields="blank_index: 0", tops="y", targets=False):
    return layer_text("CTCGreedyDecoder", "l", "x on target" if targets else "x on", tops, f"ctc_decoder_param {{ {fields} }}")


def values_of(paths, classes=4):
    """Return values (T, N, C) whose largest are at the classes of `paths`, a list of N lists."""
    values = RANDOM.uniform(0, 1, (len(paths[0]), len(paths), classes))
    for (n, path), t in itertools.product(enumerate(paths), range(len(paths[0]))):
        values[t, n, path[t]] += 2
    return values


PATHS = [[0, 1, 1, 0, 1, 2], [3, 3, 3, 2, 2, 0], [0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("fields, lengths, wanted", [
    ("blank_index: 0", (6, 6, 6), [[1, 1, 2], [3, 2], []]),
    ("blank_index: 0 ctc_merge_repeated: false", (6, 6, 6), [[1, 1, 1, 2], [3, 3, 3, 2, 2], []]),
    ("blank_index: -1", (6, 6, 6), [[0, 1, 0, 1, 2], [2, 0], [0]]),
    ("blank_index: 3", (3, 1, 6), [[0, 1], [], [0]]),
    ("blank_index: 2", (0, 4, 2), [[0], [3], [0]])])   # the first step counts in every case
def test_decoder(fields, lengths, wanted, dtype):
    values = values_of(PATHS)
    on = np.array([[float(t < length) for length in lengths] for t in range(6)])
    net = forward_net(decoder(fields, "y scores"), [values, on], dtype)
    assert net.blob_by_name("y").data.shape == (3, 6, 1, 1)
    assert net.blob_by_name("y").data.reshape(3, 6).tolist() == [row + [-1] * (6 - len(row)) for row in wanted]
    scores = [-sum(values[t, n].max() for t in range(max(length, 1))) for n, length in enumerate(lengths)]
    np.testing.assert_allclose(net.blob_by_name("scores").data, np.reshape(scores, (3, 1, 1, 1)), rtol=1e-6)


def plain_distance(a, b):
    """The definition: the last of each is left out of `a`, of `b`, or of both."""
    if not a or not b:
        return len(a) + len(b)
    return min(plain_distance(a[:-1], b) + 1, plain_distance(a, b[:-1]) + 1, plain_distance(a[:-1], b[:-1]) + (a[-1] != b[-1]))


@pytest.mark.parametrize("merges", [True, False])
def test_accuracies_of_other_lengths(merges):
    random = np.random.default_rng(8)
    orders = set()
    for _ in range(20):
        steps, sequences = int(random.integers(1, 6)), int(random.integers(1, 4))
        paths, lengths = random.integers(0, 4, (sequences, steps)).tolist(), random.integers(1, steps + 1, sequences)
        targets = np.full((steps, sequences), -1.0)
        shares = []
        for n, path in enumerate(paths):
            path = path[:lengths[n]]
            result = [k for i, k in enumerate(path) if k and not (merges and i and path[i - 1] == k)]
            target = random.integers(1, 4, random.integers(0, steps + 1)).tolist()
            targets[:len(target), n] = target
            targets[len(target) + 1:, n] = 2        # what follows the end does not count
            shares.append(plain_distance(result, target) / max(len(result), len(target), 1))
            orders.add((np.sign(len(result) - len(target)), not target))
        on = np.arange(steps)[:, None] < lengths
        tops = "y accuracy" if merges else "y scores accuracy"
        net = forward_net(decoder(f"blank_index: 0 ctc_merge_repeated: {str(merges).lower()}", tops, targets=True),
                          [values_of(paths), on.astype(float), targets])
        assert net.blob_by_name("accuracy").shape == () and net.blob_by_name("accuracy").data == pytest.approx(1 - sum(shares) / sequences)
        if not merges:
            scores = -(net.blob_by_name("x").data.max(axis=2) * on).sum(axis=0)
            np.testing.assert_allclose(net.blob_by_name("scores").data, scores.reshape(-1, 1, 1, 1), rtol=1e-12)
    assert orders == {(-1, False), (0, False), (0, True), (1, False), (1, True)}


def test_decoder_blank_and_classes(caplog):
    net = layer_net(decoder("ctc_merge_repeated: true"), [values_of(PATHS), np.ones((6, 3))])
    assert "layer 'l': ctc_decoder_param.blank_index is not given; the blank is the last class" in caplog.text
    run_forward(net)
    assert net.blob_by_name("y").data[1, :3, 0, 0].tolist() == [2, 0, -1]
    assert not net.layers[-1].allow_force_backward(0)
    with pytest.raises(ConfigError, match=r"bottom\[0\]: CTCGreedyDecoder has no gradient for predictions"):
        run_backward(net, [0])
    forward_again(net, x=values_of([[3, 4]], 5), on=np.ones((2, 1)))
    assert net.blob_by_name("y").data.reshape(-1).tolist() == [3, -1]
    targets = np.array([[0, 1, -1, 0, 0, 0], [2, 0, -1, 0, 0, 0], [0] + [-1] * 5]).T
    net = forward_net(decoder("blank_index: -1 ctc_merge_repeated: true", "y accuracy", targets=True),
                      [values_of([[0, 0, 3, 1, 3, 3], [2, 2, 3, 0, 0, 3], [3, 3, 3, 0, 3, 3]]), np.ones((6, 3)), targets])
    assert net.blob_by_name("accuracy").data == 1


@pytest.mark.parametrize("text, shapes, message", [
    *((layer_text("ContinuationIndicator", "l", "x", "y", f"continuation_indicator_param {{ {fields} }}"), [(2,)], f"continuation_indicator_param.{message}")
      for fields, message in (("time_step: 4", "batch_size: must be given"), ("time_step: 0 batch_size: 1", "time_step: must be at least 1, got 0"),
                              ("time_step: 1 batch_size: 1 axis: 1", "axis: unknown field"))),
    (decoder("blank_index: 4"), [(2, 3, 4), (2, 3)], "ctc_decoder_param.blank_index: must be one of 4 classes, got 4"),
    (decoder(), [(2, 3), (2, 3)], r"bottom\[0\]: must have 3 axes \(steps, sequences, classes\), got \[2, 3\]"),
    (decoder(), [(2, 3, 4), (3, 2)], r"bottom\[1\]: must have the first two axes of bottom\[0\], \[2, 3\], got \[3, 2\]"),
    (decoder(tops="y a b"), [(2, 3, 4), (2, 3)], "top: must be 1 or 2 with 2 bottoms, got 3"),
    (decoder(targets=True), [(2, 3, 4), (2, 3), (2, 3)], "top: must be 2 or 3 with 3 bottoms, got 1")])
def test_wrong_indicator_and_decoder(text, shapes, message):
    with pytest.raises((ConfigError, ShapeError), match=rf"test.prototxt.*layer 'l' \((ContinuationIndicator|CTCGreedyDecoder)\): {message}"):
        layer_net(text, [np.zeros(shape) for shape in shapes])
