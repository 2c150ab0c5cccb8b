"""Ranges, histograms and thresholds of activations against slow NumPy; the tables of ncnn and TensorRT, read as their tools do."""

import json
import math
import re
import struct

import numpy as np
import pytest

import minicaffe
from minicaffe.errors import ConfigError, DataError, ShapeError, WrongTypeError
from minicaffe.net import calibration
from minicaffe.net.activation_range import BINS, Value, kl_threshold
from minicaffe.net.calibration import calibrate
from minicaffe.net.comparison import run_net
from minicaffe.net.int8_tables import as_dict, ncnn_table, tensorrt_cache, to_json
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, parse_text

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 4 dim: 6 dim: 6 } } }\n'
IP = 'layer { name: "ip" type: "InnerProduct" bottom: "%s" top: "y" inner_product_param { num_output: 3 } }\n'
NET = INPUT + """layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 6 kernel_size: 3 } }
layer { name: "r" type: "ReLU" bottom: "c" top: "%s" }
layer { name: "d" type: "Convolution" bottom: "%s" top: "d" convolution_param { num_output: 6 kernel_size: 3 group: 3 } }
layer { name: "p" type: "Pooling" bottom: "%s" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "s" type: "Concat" bottom: "d" bottom: "p" top: "s" }
""" + IP % "s"
IN_PLACE, SEPARATE = NET % ("c", "c", "c"), NET % ("r", "r", "r")


def net_of(text, phase=caffe_pb2.TEST, seed=0):
    param = parse_text(text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    net = Net(param)
    rng = np.random.default_rng(seed)
    for node in net.nodes:
        for blob in node.layer.blobs:
            blob.data[...] = rng.normal(0, 0.5, blob.shape)
    return net


def batches_of(*sizes, shape=(4, 6, 6)):
    rng = np.random.default_rng(5)
    return [{"x": (rng.normal(0, 1, (size, *shape)) ** 3).astype(np.float32)} for size in sizes]


def value_of(*arrays, percentile=99.99):
    node = type("Node", (), {"name": "l", "type": "T"})
    value = Value("v", node, "activation")
    for array in arrays:
        value.add_range(np.asarray(array))
    for array in arrays:
        value.add_histogram(np.asarray(array))
    value.find_thresholds(percentile)
    return value


def quantized(x, threshold):
    step = threshold / 127
    return np.clip(np.rint(x / step), -127, 127) * step


# ---- the values of a net

def test_values_against_numpy_also_of_a_blob_that_a_layer_overwrites():
    net, batches = net_of(IN_PLACE), batches_of(4, 4, 2)
    found = minicaffe.calibrate(net, batches)
    other, wanted = net_of(SEPARATE), {}
    for batch in batches:
        other.input_blobs[0].reshape(*batch["x"].shape)
        for name, array in run_net(other, batch).items():
            wanted.setdefault(name, []).append(array.astype(np.float64).ravel())
    wanted = {name: np.concatenate(parts) for name, parts in wanted.items() if "_split_" not in name}
    names = {"c": "c/c", "r": "c"}
    assert list(found.values) == [names.get(name, name) for name in wanted]
    for name, array in wanted.items():
        value = found.values[names.get(name, name)]
        assert (value.count, value.zeros, value.nan, value.infinite) == (array.size, (array == 0).sum(), 0, 0)
        np.testing.assert_allclose([value.min, value.max, value.square_sum], [array.min(), array.max(), (array ** 2).sum()], rtol=1e-5)
        histogram, _ = np.histogram(np.abs(array[array != 0]), BINS, (0, value.absmax))
        assert np.abs(np.cumsum(histogram) - np.cumsum(value.histogram.astype(int))).max() <= 2     # rounding at the bounds of bins
    assert [(layer.name, layer.input.name) for layer in found.layers] == [("c", "x"), ("d", "c"), ("ip", "s")]
    assert found.values["c/c"].min < 0 == found.values["c"].min and found.batches == 3
    assert net.input_blobs[0].shape == (4, 4, 6, 6)


def test_large_arrays_are_measured_in_parts(monkeypatch):
    x = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    whole = value_of(x)
    monkeypatch.setattr("minicaffe.net.activation_range.CHUNK", 64)
    parts = value_of(x)
    assert (parts.histogram == whole.histogram).all() and parts.thresholds == whole.thresholds
    np.testing.assert_allclose(parts.square_sum, whole.square_sum, rtol=1e-12)


def test_progress_is_reported():
    calls = []
    calibrate(net_of(IN_PLACE), batches_of(1, 1), report=lambda *given: calls.append(given))
    assert calls == [("range", 1, 2), ("range", 2, 2), ("histogram", 1, 2), ("histogram", 2, 2)]


# ---- thresholds

def slow_kl(histogram, absmax):
    """ncnn's method by overlaps of bins and parts, one threshold after the other."""
    share = histogram / histogram.sum()
    best, smallest = 128, math.inf
    for t in range(128, len(histogram)):
        r = t / 128
        p = share[:t] + 1e-4
        p[-1] += share[t:].sum()
        q = np.full(t, 1e-4)
        for part in range(128):
            overlap = np.array([max(0.0, min(k + 1, (part + 1) * r) - max(k, part * r)) for k in range(t)])
            q += overlap * ((overlap * share[:t]).sum() / r)
        divergence = (p * np.log(p / q)).sum()
        if divergence <= smallest:
            best, smallest = t, divergence
    return (best + 0.5) * absmax / len(histogram)


@pytest.mark.parametrize("draw", [
    lambda rng: rng.normal(size=5000), lambda rng: rng.laplace(size=5000), lambda rng: rng.normal(size=300) ** 5])
def test_kl_against_the_slow_reference(draw):
    x = np.abs(draw(np.random.default_rng(3)))
    histogram, _ = np.histogram(x, 150, (0, x.max()))
    assert kl_threshold(histogram, x.max()) == pytest.approx(slow_kl(histogram, x.max()), rel=1e-12)


def test_kl_takes_no_more_than_the_whole_range():
    assert kl_threshold(np.ones(256), 2.0) == 255.5 * 2 / 256


def test_kl_cuts_what_is_far_out():
    x = np.random.default_rng(0).normal(size=100_000)
    x[0] = 40
    value = value_of(x)
    assert 3 < value.thresholds["kl"] < 10 and value.thresholds["max"] == 40
    assert 0 < value.beyond("kl") < 0.01 and value.beyond("max") == 0


@pytest.mark.parametrize("method", ["kl", "percentile", "max"])
@pytest.mark.parametrize("relu", [False, True])
def test_share_and_noise_against_numbers_that_are_quantized(method, relu):
    x = np.random.default_rng(2).laplace(size=200_000)
    x = np.maximum(x, 0) if relu else x
    value = value_of(x, percentile=99)
    threshold = value.thresholds[method]
    wanted = 10 * math.log10((x ** 2).sum() / ((x - quantized(x, threshold)) ** 2).sum())
    assert value.snr(method) == pytest.approx(wanted, abs=0.1)
    assert value.beyond(method) == pytest.approx((np.abs(x) > threshold).mean(), abs=2e-4)


def test_one_absolute_value_is_not_cut():
    assert value_of(np.array([0.0, 2, -2, 2])).thresholds["kl"] == pytest.approx(2, rel=1e-3)


def test_a_threshold_within_a_bin():
    value = value_of(np.random.default_rng(7).random(3000))
    value.thresholds["kl"] = 1000.25 / BINS * value.absmax
    counts = value.histogram.astype(int)
    assert value.beyond("kl") == pytest.approx((counts[1001:].sum() + 0.75 * counts[1000]) / 3000) and counts[1000] > 0


def test_a_note_where_kl_cuts_off_too_much():
    x = np.repeat([0.5, 1.0], 72).reshape(1, 4, 6, 6)
    found = calibrate(net_of(IN_PLACE), [{"x": x}])
    assert re.search(r"^KL's range cuts off so much that the expected ratio is more than 6 dB worse .*: x \(", "\n".join(found.notes), re.M)
    assert not any("KL" in note for note in calibrate(net_of(IN_PLACE), [{"x": np.random.default_rng(0).random((64, 4, 6, 6))}]).notes)


def test_percentile_to_within_a_bin():
    x = np.maximum(np.random.default_rng(4).normal(size=50_000), 0)
    for percentile in (60, 99, 99.99, 100):
        value = value_of(x, percentile=percentile)
        assert value.thresholds["percentile"] == pytest.approx(np.percentile(np.abs(x), percentile), abs=value.absmax / BINS)
    assert value_of(x, percentile=40).thresholds["percentile"] == x.max()      # a range of 0 is none


# ---- values that are special

def test_constant_zero_and_numbers_that_are_not_finite():
    zero = value_of(np.zeros(9))
    assert zero.thresholds == {"kl": 0, "percentile": 0, "max": 0} and zero.scale_range("kl") == 1 and zero.beyond("kl") == 0
    assert zero.snr("kl") == math.inf
    some = value_of(np.array([np.nan, 3, -np.inf, 0, np.inf, -4]))
    assert (some.count, some.zeros, some.nan, some.infinite, some.min, some.max) == (3, 1, 1, 2, -4, 3) and some.histogram.sum() == 2
    none = value_of(np.array([np.nan]))
    assert none.thresholds == {} and none.scale_range("kl") is None and math.isnan(none.min)


def test_notes_and_tables_of_special_values():
    text = INPUT + """layer { name: "z" type: "Power" bottom: "x" top: "z" power_param { scale: 0 } }
layer { name: "l" type: "Log" bottom: "x" top: "l" }
layer { name: "m" type: "Power" bottom: "x" top: "m" power_param { scale: 0 shift: -1 } }
layer { name: "n" type: "Log" bottom: "m" top: "n" }
""" + "".join(IP.replace("ip", f"ip_{one}", 1).replace('"y"', f'"y_{one}"') % one for one in "zln")
    net = net_of(text)
    net.layer_dict["ip_z"].blobs[0].data[1] = 0
    found = calibrate(net, batches_of(4))
    notes = "\n".join(found.notes)
    negative = int((batches_of(4)[0]["x"] < 0).sum())
    assert f"values that are not finite, which are left out of the range: l ({negative} NaN, 0 infinite)" in notes
    assert re.search("without any finite value, so without a line in the tables, .*: n, y_l, y_n$", notes, re.M)
    assert "always zero, so the range is taken as 1: z" in notes
    assert "output channels whose weights are all zero, so the range is taken as 1: 1 of ip_z" in notes
    weights, inputs = read_ncnn(ncnn_table(found)[0])
    assert set(inputs) == {"ip_z", "ip_l"} and inputs["ip_z"] == [127] and weights["ip_z_param_0"][1] == 127
    cache = read_tensorrt(tensorrt_cache(found)[0])[1]
    assert cache["z"] == pytest.approx(1 / 127) and "n" not in cache and "y_n" not in cache
    made = json.loads(to_json(found))
    assert made["values"]["n"]["min"] is None and made["values"]["n"]["nan"] == 4 * 4 * 36 and made["values"]["n"]["thresholds"] == {}


def test_labels_and_losses_are_no_activations():
    text = """layer { name: "in" type: "DummyData" top: "x" top: "label" dummy_data_param { shape { dim: 4 dim: 5 } shape { dim: 4 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }
""" + IP % "x" + """layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
layer { name: "right" type: "Accuracy" bottom: "y" bottom: "label" top: "right" }
"""
    found = calibrate(net_of(text), 3)
    assert {name: value.role for name, value in found.values.items()} == {
        "x": "activation", "label": "label", "y": "activation", "loss": "result", "right": "result"}
    assert "no activations, so not quantized: label (label or index, 2 to 2), loss (SoftmaxWithLoss, " in found.notes[0]
    assert list(read_tensorrt(tensorrt_cache(found)[0])[1]) == ["x", "y"]
    assert found.values["x"].count == 3 * 20 == found.values["x"].histogram.sum()     # the second pass had other numbers


def test_indices_of_an_embedding_are_no_activations():
    text = """layer { name: "in" type: "DummyData" top: "i" dummy_data_param { shape { dim: 4 } data_filler { type: "constant" value: 3 } } }
layer { name: "e" type: "Embed" bottom: "i" top: "e" embed_param { input_dim: 9 num_output: 5 } }
""" + IP % "e"
    found = calibrate(net_of(text), 1)
    assert [value.role for value in found.values.values()] == ["label", "activation", "activation"]


def test_marks_of_sequences_and_choices_are_no_activations():
    text = """layer { name: "in" type: "DummyData" top: "x" top: "cont" top: "choice" top: "unread" dummy_data_param {
  shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } shape { dim: 3 } shape { dim: 3 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } data_filler { type: "constant" value: 1 } data_filler { type: "constant" } } }
layer { name: "l" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 3 } }
layer { name: "f" type: "Filter" bottom: "h" bottom: "choice" top: "chosen" }
layer { name: "s" type: "Silence" bottom: "unread" }
""" + IP % "chosen"
    found = calibrate(net_of(text), 1)
    assert {name: value.role for name, value in found.values.items()} == {
        "x": "activation", "cont": "label", "choice": "label", "unread": "label", "h": "activation", "chosen": "activation", "y": "activation"}


@pytest.mark.parametrize("reader, role", [("", "label"), ('layer { name: "d" type: "Power" bottom: "cont" top: "d" }', "activation")])
def test_a_mark_that_is_read_as_numbers_too_is_an_activation(reader, role):
    text = """layer { name: "in" type: "DummyData" top: "x" top: "cont" dummy_data_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } } }
layer { name: "l" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 3 } }
""" + IP % "h"
    assert calibrate(net_of(text + reader), 1).values["cont"].role == role


@pytest.mark.parametrize("other", ["c/c", "c/r", "c/r_"])
def test_values_have_names_of_their_own(other):
    """Layers of one name in place on one blob, and a blob that has the name of such a value."""
    relu = 'layer { name: "r" type: "ReLU" bottom: "c" top: "c" }\n'
    text = (INPUT + 'layer { name: "c" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 2 } }\n' + 3 * relu
            + f'layer {{ name: "other" type: "Power" bottom: "c" top: "{other}" }}\n' + IP % other)
    net = net_of(text)
    found = calibrate(net, batches_of(2)).values
    assert [value.layer for value in found.values()] == ["in", "c", "r", "r", "r", "other", "ip"]
    names = list(found)
    assert {names[0], names[4], names[5], names[6]} == {"x", "c", other, "y"}       # the last value of a blob has its name
    assert [name.rstrip("_") for name in names[1:4]] == ["c/c", "c/r", "c/r"]


def test_a_recurrent_layer_begins_both_passes_with_the_same_state():
    text = """layer { name: "in" type: "Input" top: "x" top: "cont" input_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } } }
layer { name: "l" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 3 } }
""" + IP % "h"
    batch = {"x": np.random.default_rng(0).normal(size=(3, 2, 4)), "cont": np.ones((3, 2))}
    value = calibrate(net_of(text), [batch]).values["h"]
    other = net_of(text)
    wanted = np.abs(run_net(other, batch)["h"].astype(np.float64))
    assert (value.histogram == np.histogram(wanted, BINS, (0, wanted.max()))[0]).all()


# ---- weights, and the tables

def read_ncnn(text):
    """As ncnn2int8 reads a table: names with ``_param_`` are those of weights."""
    weights, inputs = {}, {}
    for line in text.splitlines():
        name, *scales = line.split(" ")
        (weights if "_param_" in name else inputs)[name[:255]] = [float(one) for one in scales]
    return weights, inputs


def read_tensorrt(text):
    head, *lines = text.splitlines()
    found = {}
    for line in lines:
        name, digits = line.split(": ")
        assert re.fullmatch("[0-9a-f]{8}", digits)
        found[name], = struct.unpack(">f", bytes.fromhex(digits))
    return head, found


WEIGHTS = INPUT + """layer { name: "c3" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layer { name: "c3s" type: "Convolution" bottom: "x" top: "b" convolution_param { num_output: 4 kernel_size: 3 stride: 2 } }
layer { name: "g" type: "Convolution" bottom: "x" top: "g" convolution_param { num_output: 6 kernel_size: 3 group: 2 } }
layer { name: "dw" type: "DepthwiseConvolution" bottom: "x" top: "dw" convolution_param { num_output: 4 kernel_size: 3 group: 4 } }
layer { name: "cd" type: "ConvolutionDepthwise" bottom: "x" top: "cd" convolution_param { kernel_size: 3 } }
layer { name: "de" type: "Deconvolution" bottom: "x" top: "de" convolution_param { num_output: 6 kernel_size: 2 group: 2 } }
layer { name: "t" type: "InnerProduct" bottom: "x" top: "t" inner_product_param { num_output: 5 transpose: true } }
"""


def test_weights_of_each_output_channel_and_group():
    net = net_of(WEIGHTS)
    found = calibrate(net, batches_of(2))
    layers = {layer.name: layer for layer in found.layers}
    weight = {name: np.array(net.layer_dict[name].blobs[0].data) for name in layers}
    for name in ("c3", "c3s", "g", "dw", "cd"):
        np.testing.assert_array_equal(layers[name].low, weight[name].min(axis=(1, 2, 3)))
        np.testing.assert_array_equal(layers[name].high, weight[name].max(axis=(1, 2, 3)))
    np.testing.assert_array_equal(layers["t"].high, weight["t"].max(axis=0))
    wanted = [weight["de"][2 * (i // 3):2 * (i // 3) + 2, i % 3].min() for i in range(6)]     # (inputs, outputs of a group, ...)
    np.testing.assert_array_equal(layers["de"].low, wanted)
    assert {name: layer.groups for name, layer in layers.items()} == {"c3": 1, "c3s": 1, "g": 2, "dw": 4, "cd": 4, "de": 2, "t": 1}
    text, notes = ncnn_table(found, "max")
    scales, inputs = read_ncnn(text)
    assert notes == ["ncnn quantizes no Deconvolution, so its table has no lines for de"]
    assert list(scales) == [f"{name}_param_0" for name in layers if name != "de"] and list(inputs) == [name for name in layers if name != "de"]
    absmax = {name: np.abs(array).reshape(len(array), -1).max(1) for name, array in weight.items()}
    np.testing.assert_allclose(scales["c3_param_0"], 31 / absmax["c3"], rtol=1e-6)       # ncnn's Winograd transform
    np.testing.assert_allclose(scales["c3s_param_0"], 127 / absmax["c3s"], rtol=1e-6)
    np.testing.assert_allclose(scales["g_param_0"], 127 / absmax["g"].reshape(2, 3).max(1), rtol=1e-6)
    np.testing.assert_allclose(scales["dw_param_0"], 127 / absmax["dw"], rtol=1e-6)
    np.testing.assert_allclose(inputs["g"], [127 / found.values["x"].absmax], rtol=1e-6)


@pytest.mark.parametrize("method", ["kl", "percentile", "max"])
def test_the_tables_hold_the_ranges_of_the_method(method):
    found = calibrate(net_of(IN_PLACE), batches_of(4), percentile=98)
    inputs = read_ncnn(ncnn_table(found, method)[0])[1]
    assert inputs == {layer.name: [pytest.approx(127 / layer.input.thresholds[method])] for layer in found.layers}
    head, scales = read_tensorrt(tensorrt_cache(found, method, 100300)[0])
    assert head == "TRT-100300-EntropyCalibration2" and list(scales) == ["x", "c/c", "c", "d", "p", "s", "y"]
    assert scales == {name: pytest.approx(value.thresholds[method] / 127, rel=1e-6) for name, value in found.values.items()}
    made = json.loads(to_json(found))
    assert made == json.loads(json.dumps(as_dict(found))) and made["percentile"] == 98 and made["layers"]["d"]["input"] == "c"
    assert made["values"]["d"]["histogram"] == found.values["d"].histogram.tolist()


def test_the_cache_of_a_known_range():
    """A range of 1.0003, as TensorRT's own cache of MNIST has it for pictures from 0 to 1: sampleINT8/README.md, line ``data``."""
    value = value_of(np.array([struct.unpack(">f", bytes.fromhex("3c008912"))[0] * 127]))
    one = type("C", (), {"values": {"data": value}})
    value.name = "data"
    assert tensorrt_cache(one, "max", 7000)[0] == "TRT-7000-EntropyCalibration2\ndata: 3c008912\n"


def test_names_that_a_table_cannot_hold():
    text = INPUT + "".join(IP.replace('"ip"', f'"{name}"').replace('"y"', f'"{name}:y"') % "x" for name in ("a b", "a_param_1", "n" * 248, "n" * 247))
    found = calibrate(net_of(text), batches_of(1))
    table, notes = ncnn_table(found)
    assert list(read_ncnn(table)[1]) == ["n" * 247] and [note[:29] for note in notes] == ["ncnn cannot read the name 'a ", "ncnn cannot read the name 'a_", "ncnn cannot read the name 'nn"]
    cache, notes = tensorrt_cache(found)
    assert list(read_tensorrt(cache)[1]) == ["x"] and len(notes) == 4 and "'a b:y'" in notes[0]


def test_names_in_the_cache_are_those_of_the_exported_model():
    pytest.importorskip("onnx")
    from minicaffe.onnx import to_model
    net = net_of(IN_PLACE + 'layer { name: "e" type: "ELU" bottom: "y" top: "y" }\n')
    model = to_model(net)
    names = {name for node in model.graph.node for name in node.output} | {one.name for one in model.graph.input}
    found = calibrate(net, batches_of(1))
    assert {"c/c", "c", "y/ip", "y"} < set(found.values) and set(found.values) <= names


# ---- errors

@pytest.mark.parametrize("wrong, kind, text", [
    ({"batches": []}, ConfigError, "batches: there are none"), ({"batches": 3}, ConfigError, "nothing fills the input 'x'"),
    ({"batches": iter(batches_of(1))}, WrongTypeError, "can be run through twice"), ({"batches": None}, WrongTypeError, "got None"),
    ({"batches": {"x": 1}}, WrongTypeError, "must be a list of dicts"), ({"batches": [np.zeros((4, 4, 6, 6))]}, WrongTypeError, "dicts of arrays"),
    ({"batches": [{"y": 0}]}, ConfigError, "each must have the inputs x, got y"),
    ({"batches": batches_of(1, shape=(4, 6, 5))}, ShapeError, r"x: must be \(any, 4, 6, 6\) as the input, got \(1, 4, 6, 5\)"),
    ({"batches": batches_of(0)}, ShapeError, "got \\(0, 4, 6, 6\\)"), ({"percentile": 0}, ConfigError, "percentile: must be above 0 and at most 100, got 0"),
    ({"percentile": 100.5}, ConfigError, "got 100.5"), ({"percentile": "9"}, WrongTypeError, "must be a number"),
    ({"net": "net.prototxt"}, WrongTypeError, "a net, such as")])
def test_wrong_arguments(wrong, kind, text):
    with pytest.raises(kind, match=text):
        calibrate(**{"net": net_of(IN_PLACE), "batches": batches_of(2), **wrong})


def test_wrong_nets():
    with pytest.raises(ConfigError, match="is in phase TRAIN"):
        calibrate(net_of(IN_PLACE, caffe_pb2.TRAIN), batches_of(1))
    with pytest.raises(ConfigError, match="has no layer to quantize, which are Convolution, "):
        calibrate(net_of(INPUT + 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'), batches_of(1))
    own = net_of('layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }\n' + IP % "x")
    for batches, text in ((batches_of(1), "the net reads its data itself"), (0, "must be at least 1, got 0"), (True, "got True")):
        with pytest.raises((ConfigError, WrongTypeError), match=text):
            calibrate(own, batches)
    net = net_of(IN_PLACE)
    net.layer_dict["d"].blobs[0].data[0, 0, 0, :2] = np.nan, np.inf
    with pytest.raises(DataError, match=r"layer 'd' \(Convolution\): blobs\[0\]: has 2 values that are not finite"):
        calibrate(net, batches_of(1))


def test_batches_that_differ_in_the_second_pass():
    class Fewer(list):
        def __iter__(self):
            self.pop()
            return super().__iter__()

    with pytest.raises(ConfigError, match="gave 1 batches in the second pass, 2 in the first"):
        calibrate(net_of(IN_PLACE), Fewer(batches_of(1, 1, 1)))


WINDOWS = {     # fields of a convolution -> whether ncnn computes it by Winograd, and so with weights of 6 bits
    "kernel_size: 3": True, "kernel_size: 3 pad: 1": True, "kernel_size: 3 bias_term: false": True, "kernel_h: 3 kernel_w: 3 stride_h: 1 stride_w: 1": True,
    "kernel_size: 3 stride: 1 dilation: 1": True, "kernel_size: 3 dilation: 2": False, "kernel_size: 3 dilation: 1 dilation: 2": False,
    "kernel_size: 3 stride: 2": False, "kernel_size: 3 stride: 1 stride: 2": False, "kernel_size: 3 stride_h: 1 stride_w: 2": False,
    "kernel_size: 3 stride_h: 2 stride_w: 1": False, "kernel_size: 3 group: 2": False, "kernel_size: 1": False, "kernel_size: 5": False,
    "kernel_h: 3 kernel_w: 1": False, "kernel_h: 1 kernel_w: 3": False,
}


def test_which_windows_have_weights_of_six_bits():
    text = "".join(f'layer {{ name: "c{i}" type: "Convolution" bottom: "x" top: "c{i}" convolution_param {{ num_output: 4 {fields} }} }}\n'
                   for i, fields in enumerate(WINDOWS))
    _, layers = calibration._plan(net_of(INPUT + text))
    assert {fields: layer.small_window for fields, layer in zip(WINDOWS, layers, strict=True)} == WINDOWS


def test_the_json_of_all_values_has_all_fields_and_null_for_what_is_not_finite():
    """Of an input that is zero, one that is not finite, and one as usual."""
    text = "".join(INPUT.replace('"in"', f'"in{i}"').replace('"x"', f'"x{i}"')
                   + f'layer {{ name: "l{i}" type: "Convolution" bottom: "x{i}" top: "y{i}" convolution_param {{ num_output: 2 kernel_size: 3 }} }}\n'
                   for i in range(3))
    rng = np.random.default_rng(1)
    found = calibrate(net_of(text), [{"x0": np.zeros((4, 4, 6, 6)), "x1": np.full((4, 4, 6, 6), np.nan), "x2": rng.normal(size=(4, 4, 6, 6))}])

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    made = json.loads(to_json(found), parse_constant=refuse)
    zero, none, usual = (made["values"][f"x{i}"] for i in range(3))
    for i, row in enumerate((zero, none, usual)):
        value = found.values[f"x{i}"]
        assert {key: row[key] for key in ("layer", "type", "role")} == {"layer": f"in{i}", "type": "Input", "role": "activation"}
        assert (row["count"], row["zeros"], row["nan"], row["infinite"]) == (value.count, value.zeros, value.nan, value.infinite)
        assert row["histogram_end"] == value.absmax and row["thresholds"] == value.thresholds
    assert (zero["min"], zero["max"], zero["snr_db"], set(zero["histogram"])) == (0, 0, dict.fromkeys(zero["thresholds"]), {0})
    assert (none["min"], none["max"], none["snr_db"], none["histogram"], none["beyond"]) == (None, None, {}, None, {})
    value = found.values["x2"]
    assert (usual["min"], usual["max"]) == (value.min, value.max) and usual["histogram"] == value.histogram.tolist()
    assert usual["snr_db"] == {method: value.snr(method) for method in value.thresholds} and min(usual["snr_db"].values()) > 20
    assert usual["beyond"] == {method: value.beyond(method) for method in value.thresholds}
    assert list(made) == ["batches", "percentile", "values", "layers", "notes"] and made["batches"] == 1 and made["notes"] == found.notes
