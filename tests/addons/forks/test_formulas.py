"""Layers of forks that are read as formulas of other layers: values, gradients, names, weights, and what is refused."""

import functools
import logging

import h5py
import numpy as np
import pytest
from helpers import layer_text

import minicaffe as caffe
from minicaffe import layer as registry
from minicaffe.errors import ConfigError, Error
from minicaffe.proto import caffe_pb2, unknown
from minicaffe.proto.text import parse_text, write_text
from minicaffe.proto.upgrade import upgrade_net

RANDOM = np.random.default_rng(49)
X = RANDOM.standard_normal((2, 3, 5, 6)) * 3


def text_of(kind, fields="", bottoms="x", tops="y", more=""):
    return f"{layer_text(kind, 'l', bottoms, tops, fields)} {more}"


def written(tmp_path, text, phase):
    (tmp_path / "net.prototxt").write_text(f"force_backward: true {text}")
    return caffe.Net(str(tmp_path / "net.prototxt"), phase)


def net_of(tmp_path, layer, phase=caffe.TEST, before="", shape=X.shape):
    source = layer_text("Input", "in", more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")
    return written(tmp_path, f'{source}layer {{ name: "copy" type: "Power" bottom: "in" top: "x" }}\n{before}\n{layer}', phase)


def net_of_arrays(tmp_path, names, arrays, layer, phase=caffe.TEST):
    """A net of a layer whose bottoms, of these names, have the arrays."""
    inputs = [layer_text("Input", f"in{name}", tops=name, more=f"input_param {{ shape {{ dim: {list(array.shape)} }} }}")
              for name, array in zip(names, arrays)]
    net = written(tmp_path, "".join(inputs) + layer, phase)
    for name, array in zip(names, arrays):
        net.blobs[name].data[...] = array
    return net


def run(net, x=X):
    net.blobs["in"].data[...] = x
    return net.forward()


def average(x, kernel, stride, pad):
    """The mean of the pixels of each window that lie in the image."""
    count = [-(-(size + 2 * pad - kernel) // stride) + 1 for size in x.shape[2:]]
    count = [n - 1 if pad and (n - 1) * stride >= size + pad else n for n, size in zip(count, x.shape[2:])]
    y = np.zeros((*x.shape[:2], *count))
    for i, j in np.ndindex(*count):
        rows, columns = (slice(max(k * stride - pad, 0), k * stride - pad + kernel) for k in (i, j))
        y[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    return y


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


def hswish(x):
    return x * np.clip(x + 3, 0, 6) / 6


VALUES = {
    "Mish": ("Mish", "", mish), "Mish, engine": ("Mish", "mish_param { engine: CAFFE }", mish), "HSwish": ("HSwish", "", hswish),
    "relu6": ("ReLU", "relu_param { relu6: true }", lambda x: np.clip(x, 0, 6)),
    "relu6, slope": ("ReLU", "relu_param { relu6: true negative_slope: 0.5 }", lambda x: np.minimum(np.where(x > 0, x, x / 2), 6)),
    "bilateral": ("BReLU", "brelu_param { minval: -0.5 maxval: 2 }", lambda x: np.clip(x, -0.5, 2)),
    "minimum": ("MinReLU", "", lambda x: np.minimum(x, 0)),
    "minimum, slope": ("MinReLU", "minrelu_param { positive_slope: 0.25 engine: CAFFE }", lambda x: np.where(x < 0, x, x / 4)),
    "minimum of FlowNet": ("NegReLU", "relu_param { negative_slope: 0.25 }", lambda x: np.where(x < 0, x, x / 4)),
    "maximum": ("ReLU", "relu_param { maximum: 1.5 }", lambda x: np.clip(x, 0, 1.5)),
    "average without padding": ("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad: 1 }",
                                lambda x: average(x, 3, 2, 1)),
    "average, no padding": ("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 2 stride: 2 }", lambda x: average(x, 2, 2, 0)),
    "flip": ("Flip", "", lambda x: x[..., ::-1]),
    "flip, height alone": ("Flip", "flip_param { flip_width: false flip_height: true }", lambda x: x[:, :, ::-1]),
    "flip, both": ("Flip", "flip_param { flip_height: true }", lambda x: x[:, :, ::-1, ::-1]),
    "flip, none": ("Flip", "flip_param { flip_width: false }", lambda x: x),
    "transpose": ("Transpose", "transpose_param { dim: [2, 0, 1, 3] }", lambda x: x.transpose(2, 0, 1, 3)),
    "reverse": ("ReverseAxis", "reverse_axis_param { axis: 1 }", lambda x: x[:, ::-1]),
    "nearest": ("UpsampleDarknet", "upsample_darknet_param { stride: 2 }", lambda x: np.kron(x, np.ones((2, 2)))),
}


@pytest.mark.parametrize("name", VALUES)
def test_forms(tmp_path, name):
    kind, fields, wanted = VALUES[name]
    net = net_of(tmp_path, text_of(kind, fields), caffe.TRAIN)      # a plan of phase TEST has no backward
    np.testing.assert_allclose(run(net)["y"], wanted(X), rtol=1e-5, atol=1e-6)
    gradient = RANDOM.standard_normal(net.blobs["y"].data.shape)
    dx = net.backward(y=gradient)["in"]
    step = 1e-3 * RANDOM.standard_normal(X.shape)
    moved = [(wanted(X + sign * step) * gradient).sum() for sign in (1, -1)]
    np.testing.assert_allclose((dx * step).sum() * 2, moved[0] - moved[1], rtol=0.02, atol=2e-3)
    made = upgrade_net(parse_text(text_of(kind, fields), caffe_pb2.NetParameter, keep_layer_fields=True)[0])[0]
    assert parse_text(write_text(made), caffe_pb2.NetParameter, keep_layer_fields=True)[0] == made
    assert all(layer.fork_fields or not layer.HasField("fork_fields") for layer in made.layer)


@pytest.mark.parametrize("shape, tail", [((2, 3, 4, 5), ()), ((2, 3, 4, 5), (1, 1)), ((2, 3), ()), ((2, 3, 4), (1,))])
def test_axpy(tmp_path, shape, tail):
    arrays = [RANDOM.standard_normal(size) for size in ((*shape[:2], *tail), shape, shape)]
    net = net_of_arrays(tmp_path, "axb", arrays, text_of("Axpy", bottoms="a x b"))
    a, x, b = arrays[0].reshape(*shape[:2], *[1] * (len(shape) - 2)), *arrays[1:]
    np.testing.assert_allclose(net.forward()["y"], a * x + b, rtol=1e-5, atol=1e-5)
    dy = RANDOM.standard_normal(shape)
    given = net.backward(y=dy)
    np.testing.assert_allclose(given["a"].reshape(shape[:2]), (dy * x).reshape(*shape[:2], -1).sum(2), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(given["x"], a * dy, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given["b"], dy, rtol=1e-6)


def test_forms_in_place_and_names(tmp_path):
    net = net_of(tmp_path, text_of("Mish", tops="x") + text_of("HSwish", bottoms="x", tops="x").replace('"l"', '"h"')
                 + 'layer { name: "e" type: "Eltwise" bottom: "x" bottom: "before" top: "e" }',
                 before='layer { name: "b" type: "Power" bottom: "x" top: "before" power_param { scale: 2 } }')
    np.testing.assert_allclose(run(net)["e"], hswish(mish(X)) + 2 * X, rtol=1e-5, atol=1e-6)
    net = net_of(tmp_path, text_of("HSwish", bottoms="l_a", tops="z") + text_of("Mish", bottoms="z"),
                 before='layer { name: "l_1" type: "Power" bottom: "x" top: "l_a" }')
    np.testing.assert_allclose(run(net)["y"], mish(hswish(X)), rtol=1e-5, atol=1e-6)
    assert [node.name for node in net.nodes if node.type != "Split"] == ["in", "copy", "l_1", *["l", "l_1_", "l_2"] * 2]


def test_registered_types_win(tmp_path, monkeypatch):
    class Answer(caffe.Layer):
        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)

        def forward(self, bottom, top):
            top[0].data[...] = 42

    monkeypatch.setattr(unknown, "types_of_program", set())
    monkeypatch.setattr(registry, "_types", dict(registry.layer_types()))
    for kind in ("Mish", "BReLU"):
        caffe.register_layer(kind, Answer)
        assert (run(net_of(tmp_path, text_of(kind)))["y"] == 42).all()


BEFORE = 'layer { name: "c" type: "Power" bottom: "x" top: "c" power_param { scale: 2 } %s }'
AFTER = 'layer { name: "e" type: "Power" bottom: "c" top: "e" }'


def test_forms_in_place(tmp_path):
    """As in AlexNet with VReLU, whose gradient at 0 is the slope; under rules; and on inputs."""
    x = np.where(RANDOM.random(X.shape) < 0.2, 0, X)
    for slope in 0, 0.25:
        net = net_of(tmp_path, text_of("MinReLU", f"minrelu_param {{ positive_slope: {slope} }}", "c", "c", AFTER), caffe.TRAIN, BEFORE % "")
        np.testing.assert_allclose(run(net, x)["e"], np.where(x < 0, 2 * x, 2 * slope * x), rtol=1e-6)
        np.testing.assert_allclose(net.backward(e=X)["in"], np.where(x < 0, 2 * X, 2 * slope * X), rtol=1e-6)
    for rule, phases in (("", [mish, mish]), ("include { phase: TRAIN }", [mish, np.array]), ("exclude { phase: TRAIN }", [np.array, mish])):
        for phase, wanted in enumerate(phases):
            net = net_of(tmp_path, text_of("Mish", rule, "c", "c", AFTER), phase, BEFORE % "")
            np.testing.assert_allclose(run(net)["e"], wanted(2 * X), rtol=1e-5, atol=1e-6)
    for source in layer_text("Input", "c", more="input_param { shape { dim: 4 } }"), 'input: "c" input_shape { dim: 4 }':
        (tmp_path / "net.prototxt").write_text(source + text_of("HSwish", "", "c", "c", AFTER))
        net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)
        net.blobs["c"].data[...] = -4, -1, 1, 4
        np.testing.assert_allclose(net.forward()["e"], [0, -1 / 3, 2 / 3, 4], rtol=1e-6)


def test_forms_with_losses_and_branches(tmp_path):
    net = net_of(tmp_path, text_of("HSwish", "loss_weight: 3 propagate_down: false phase: TRAIN"))
    run(net)
    loss = {blob.name: weight for blob, weight in net.loss_weights.items() if weight}
    assert loss == {"y": 3}
    parts = [node for node in net.nodes if node.name.startswith("l")]
    assert [list(node.param.propagate_down) for node in parts] == [[False], [False], [False, False]]
    assert all(node.param.phase == caffe_pb2.TRAIN for node in parts)
    np.testing.assert_allclose(net.blobs["y"].data, hswish(X), rtol=1e-5, atol=1e-6)
    for kind, fields in (("ReLU", "relu_param { relu6: true }"), ("BatchNorm", NORM % "scale_bias: true"),
                         ("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 2 }")):
        net = net_of(tmp_path, text_of(kind, "loss_weight: 2 " + fields))
        assert {blob.name: weight for blob, weight in net.loss_weights.items() if weight} == {"y": 2}, kind
    net, _ = parse_text(text_of("Mish", "include { phase: TEST }") + text_of("ReLU", "relu_param { relu6: true }", "y", "z"),
                        caffe_pb2.NetParameter, keep_layer_fields=True)
    made, notes = upgrade_net(net)
    assert [layer.type for layer in made.layer] == ["BNLL", "TanH", "Eltwise", "ReLU6"] and len(notes) == 2
    assert all(len(layer.include) == 1 for layer in made.layer[:3]) and upgrade_net(made)[0] is made
    rule = "include { phase: TRAIN }"
    net = net_of(tmp_path, text_of("Mish", rule, "c", "c"), before=BEFORE % rule)
    assert [node.name for node in net.nodes] == ["in", "copy"]
    with pytest.raises(ConfigError, match=r"layer 'l' \(Mish\): top\[0\]: the blob 'c', which this layer changes in place, is made under"):
        net_of(tmp_path, text_of("Mish", rule + "include { stage: 's' }", "c", "c"), before=BEFORE % rule)


def test_forms_read_as_others(tmp_path):
    convolution = text_of("Convolution", "convolution_param { num_output: 2 kernel_size: 2 bias_term: false %s }")
    relu, norm = text_of("ReLU", "relu_param { %s negative_slope: 0.5 }"), text_of("BatchNorm", "batch_norm_param { %s use_global_stats: false eps: 1e-7 }")
    for text, given, read in ((convolution, "hole: 2", "dilation: [2, 2]"), (convolution, "hole_h: 1 hole_w: 3", "dilation: [1, 3]"),
                              (relu, "relu6: false", ""), (norm, "scale_bias: false", "")):
        one, two = (net_of(tmp_path, text % fields) for fields in (given, read))
        for name, blobs in two.params.items():
            for blob, other in zip(one.params[name], blobs, strict=True):
                blob.data[...] = other.data
        np.testing.assert_array_equal(run(one)["y"], run(two)["y"])


NORM = "batch_norm_param { %s }"


def test_batch_norm_of_forks(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        net = net_of(tmp_path, text_of("BatchNorm", NORM % "scale_bias: true eps: 1e-7 use_global_stats: true"
                                       "} param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 1 } param {", tops="x"))
    assert "Wrote BatchNorm layer 'l' of a fork as l (BatchNorm), l_1 (Scale)" in caplog.text
    blobs = [RANDOM.uniform(0.5, 2, 3) for _ in range(5)]
    blobs[2] = np.ones(1)
    stored = caffe_pb2.NetParameter(layer=[{"name": "l", "type": "BatchNorm", "blobs": [{"data": v, "shape": {"dim": v.shape}} for v in blobs]}])
    (tmp_path / "w.caffemodel").write_bytes(stored.SerializeToString())
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i, values in enumerate(blobs):
            file[f"data/l/{i}"] = values
    mean, variance, _, scale, bias = (values.reshape(-1, 1, 1) for values in blobs)
    wanted = scale * (X - mean) / np.sqrt(variance + 1e-5) + bias
    # A Scale of that name belongs to another blob, and the formula's gets another name.
    other = net_of(tmp_path, text_of("BatchNorm", NORM % "scale_bias: true", more='layer { name: "l_1" type: "Scale" bottom: "x" top: "z" }'))
    for loaded, name in ((net, "w.caffemodel"), (other, "w.caffemodel"), (other, "w.h5")):
        for values in loaded.params.values():
            values[0].data[...] = 1
        loaded.copy_from(str(tmp_path / name))
        run(loaded)
        np.testing.assert_allclose(loaded.blobs["x" if loaded is net else "y"].data, wanted, rtol=1e-4, atol=1e-5)
    assert (other.params["l_1"][0].data == 1).all()
    fields = NORM % "scale_filler { type: 'constant' value: 3 } bias_filler { value: 0.5 } use_global_stats: true"
    net = net_of(tmp_path, text_of("BatchNorm", fields), caffe.TRAIN)
    y = run(net)["y"]
    np.testing.assert_allclose((y.mean((0, 2, 3)), y.std((0, 2, 3))), ([0.5] * 3, [3] * 3), rtol=1e-4)
    assert [len(net.params[name]) for name in ("l", "l_1")] == [3, 2]


def l1(a, b):
    return abs(a - b).sum() / len(a)


def triplet(a, p, n, margin=1.0):
    near, far = (((a - other) ** 2).reshape(len(a), -1).sum(1) for other in (p, n))
    return np.maximum(margin + near - far, 0).sum() / (2 * len(a))


def loss_net(tmp_path, kind, arrays, more="", tops="y"):
    return net_of_arrays(tmp_path, "abc", arrays, text_of(kind, more, " ".join("abc"[:len(arrays)]), tops), caffe.TRAIN)


LOSSES = {"l1": ("L1Loss", 2, "", l1), "triplet": ("TripletLoss", 3, "", triplet),
          **{f"triplet, {margin}": ("TripletLoss", 3, f"triplet_loss_param {{ margin: {margin} }}", functools.partial(triplet, margin=margin))
             for margin in (0, 0.2, 30)}}


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 4, 2), (1, 1)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(tmp_path, name, shape):
    kind, count, fields, wanted = LOSSES[name]
    arrays = [np.random.default_rng(i).standard_normal(shape).round(2) for i in range(count)]
    for weight, tops in ((1, "y"), (2.5, "y"), (1, "")):
        net = loss_net(tmp_path, kind, arrays, fields + f" loss_weight: {weight}" * (weight != 1), tops)
        net.forward()
        loss, = (float(blob.data) * weight for blob, weight in net.loss_weights.items() if weight)
        assert loss == pytest.approx(weight * wanted(*arrays), rel=1e-5)
        net.backward()
        for i, blob in enumerate("abc"[:count]):
            step = 1e-4 * np.random.default_rng(9).standard_normal(shape)
            moved = [wanted(*(array + sign * step * (i == k) for k, array in enumerate(arrays))) for sign in (1, -1)]
            assert weight * (moved[0] - moved[1]) == pytest.approx(2 * (net.blobs[blob].diff * step).sum(), rel=1e-2, abs=1e-6)


def test_losses_of_special_batches(tmp_path):
    for kind, count in (("L1Loss", 2), ("TripletLoss", 3)):
        net = loss_net(tmp_path, kind, [np.zeros((0, 3))] * count)
        assert net.forward()["y"] == 0
        net.backward()
    net = loss_net(tmp_path, "L1Loss", [np.ones((2, 2)), np.array([[1, 2], [0, 1]])])
    assert net.forward()["y"] == 1
    net.backward()
    assert net.blobs["a"].diff.tolist() == [[0, -0.5], [0.5, 0]] and net.blobs["b"].diff.tolist() == [[0, 0.5], [-0.5, 0]]


@pytest.mark.parametrize("kind, shapes, fields, message", [
    ("L1Loss", [(2, 3), (2, 4)], "", r"bottom\[1\]: "), ("L1Loss", [(), ()], "", "axis"), ("L1Loss", [(2, 3)], "", "bottom: must be 2, and one top"),
    ("L1Loss", [(2, 3)] * 2, "l1_loss_param { epsilon: 1 }", r"l1_loss_param.epsilon: is not supported here; known are none"),
    ("TripletLoss", [(2, 3)] * 2, "", "bottom: must be 3, and one top"), ("TripletLoss", [(2, 3), (2, 3), (3, 3)], "", r"bottom\[1\]: "),
    ("TripletLoss", [(2, 3)] * 3, "triplet_loss_param { margin: -1 }", r"triplet_loss_param.margin: must be at least 0, got -1"),
    ("TripletLoss", [(2, 3)] * 3, "triplet_loss_param { marging: 1 }", r"triplet_loss_param.marging: is not supported here; known are margin")])
def test_wrong_losses(tmp_path, kind, shapes, fields, message):
    with pytest.raises(Error, match=rf"net.prototxt:\d+: layer 'l\w*' .*{message}"):
        loss_net(tmp_path, kind, [np.zeros(shape) for shape in shapes], fields)


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("more, ratio", [("", 0.5), ("spatial_dropout_param { dropout_ratio: 0.25 }", 0.25), ("dropout_param { dropout_ratio: 0.75 }", 0.75)])
def test_spatial_dropout(tmp_path, more, ratio, tops):
    net = net_of(tmp_path, text_of("SpatialDropout", more, tops=tops), caffe.TRAIN, shape=(40, 50, 2, 2))
    out, = net.outputs
    caffe.set_random_seed(1701)
    y = run(net, 1)[out].copy()
    assert (y == y[:, :, :1, :1]).all()   # whole planes
    factors, counts = np.unique(y[:, :, 0, 0], return_counts=True)
    np.testing.assert_allclose(factors, [0, 1 / (1 - ratio)], rtol=1e-6)
    assert abs(counts[0] / 2000 - ratio) < 0.04   # 3.5 deviations
    dy = RANDOM.standard_normal(y.shape)
    np.testing.assert_allclose(net.backward(**{out: dy})["in"], dy * y, rtol=1e-6)
    for seed, same in (1701, True), (1, False):
        caffe.set_random_seed(seed)
        assert (run(net, 1)[out] == y).all() == same
    with pytest.raises(ConfigError, match=r"layer 'l_\d' \(Dropout\): dropout_param.dropout_ratio: must be at least 0 and less than 1, got 1$"):
        net_of(tmp_path, text_of("SpatialDropout", "spatial_dropout_param { dropout_ratio: 1 }"), caffe.TRAIN)


@pytest.mark.no_plan("a plan of phase TEST has no backward")
@pytest.mark.parametrize("tops", ["y", "x"])
def test_spatial_dropout_in_test(tmp_path, tops):
    for shape, fields in ((2, 3, 4), ""), ((2, 3), "spatial_dropout_param { dropout_ratio: 1 }"):
        net = net_of(tmp_path, text_of("SpatialDropout", fields, tops=tops), shape=shape)
        x = RANDOM.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(run(net, x)[tops], x)
        np.testing.assert_array_equal(net.backward(**{tops: 2 * x})["in"], 2 * x)


UNPOOLING = {"unpool_size: 6": (6, 6), "unpool: MAX kernel_size: 2 stride: 2 unpool_h: 5 unpool_w: 6": (5, 6),
             "output_h: 5 output_w: 6": (5, 6), "scale: 2": (6, 6)}


@pytest.mark.parametrize("fields", UNPOOLING)
def test_unpooling(tmp_path, fields):
    net = net_of(tmp_path, text_of("Unpooling", f"unpooling_param {{ {fields} }}", "p mask"),
                 before='layer { name: "p" type: "Pooling" bottom: "x" top: "p" top: "mask" pooling_param { kernel_size: 2 stride: 2 } }')
    x = np.zeros((2, 3, *UNPOOLING[fields]))
    net.blobs["in"].reshape(2, 3, *x.shape[2:])
    x[...] = RANDOM.permutation(x.size).reshape(x.shape)
    y = run(net, x)["y"]
    top = np.zeros_like(x)
    for index in np.ndindex(2, 3, *net.blobs["p"].data.shape[2:]):
        window = x[index[0], index[1], 2 * index[2]:2 * index[2] + 2, 2 * index[3]:2 * index[3] + 2]
        i, j = np.unravel_index(window.argmax(), window.shape)
        top[index[0], index[1], 2 * index[2] + i, 2 * index[3] + j] = window.max()
    np.testing.assert_array_equal(y, top)


@pytest.mark.parametrize("layer, message", [
    (text_of("Mish", "mish_param { threshold: 20 }"), r"layer 'l' \(Mish\): mish_param.threshold: is not supported here; known are engine"),
    (text_of("BReLU", "brelu_param { minval: 0 }"), r"layer 'l' \(BReLU\): brelu_param.maxval: must be given$"),
    (text_of("Axpy", bottoms="x x"), r"layer 'l' \(Axpy\): bottom: must be 3, and one top, got 2 and 1"),
    (text_of("HSwish", tops="y z"), r"layer 'l' \(HSwish\): bottom: must be 1, and one top, got 1 and 2"),
    (text_of("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 2 }", tops="y z"), r"layer 'l' \(Pooling\): bottom: must be 1"),
    (text_of("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 2 pad_type: 1 }"), r"pooling_param.pad_type: unknown field"),
    (text_of("ReLU", "relu_param { maximum: 2 negative_slope: 0.5 }"), r"layer 'l' \(ReLU\): relu_param.maximum: must be at least 0, and"),
    (text_of("ReLU", "relu_param { relu6: true input_scale: 2 }"), r"relu_param.input_scale: is not supported here; known are relu6, maximum"),
    (text_of("Unpooling", "unpooling_param { unpool: AVE unpool_size: 4 }", "x x"), r"layer 'l' \(Unpooling\): unpooling_param: needs unpool: MAX"),
    (text_of("Convolution", "convolution_param { num_output: 1 kernel_size: 1 hole: 'a' }"), r"\(Convolution\): convolution_param.hole: must be an integer"),
    (text_of("Unpooling", "unpooling_param { unpool_h: 4 }", "x x"), r"unpooling_param: needs unpool: MAX, and unpool_size"),
    (text_of("Unpooling", "unpooling_param { unpool_size: 4 }"), r"layer 'l' \(Unpooling\): bottom: must be 2, and one top, got 1 and 1"),
    (text_of("BatchNorm", NORM % "scale_filler { typ: 'constant' }"), r"layer 'l' \(BatchNorm\): batch_norm_param.scale_filler.typ: unknown field in"),
    (text_of("BatchNorm", NORM % "scale_bias: true scale_filler: 3"), r"batch_norm_param.scale_filler: must be a message in braces, got 3"),
    (text_of("ReLU", "relu_param { maximum: abc }"), r"layer 'l' \(ReLU\): relu_param.maximum: must be a number, got 'abc'"),
    (text_of("ReLU", "relu_param { maximum { x: 1 } }"), r"relu_param.maximum: must be a number, got x: 1"),
    (text_of("ReLU", "relu_param { maximum: 3 maximum: 4 }"), r"relu_param.maximum: must be given once, got 2 values"),
    (text_of("Convolution", "convolution_param { num_output: 1 kernel_size: 1 hole: 0 }"), r"convolution_param.hole: must be at least 1, got 0"),
    (text_of("UpsampleDarknet", "upsample_darknet_param { stride: 0 }"), r"upsample_darknet_param.stride: must be at least 1, got 0"),
    (text_of("ReverseAxis", "reverse_axis_param { axis: 1 axis: 2 }"), r"reverse_axis_param.axis: must be given once, got 2 values"),
    (text_of("Transpose", "transpose_param: 1"), r"layer 'l' \(Transpose\): transpose_param: must be given once, as a message in braces"),
    (text_of("Transpose"), r"layer 'l' \(Transpose\): transpose_param.dim: must name each axis of the bottom once, got \[\]"),
    (text_of("Transpose", "transpose_param { dim: [0, 2, 2, 1] }"), r"transpose_param.dim: must name each axis of the bottom once, got \[0, 2"),
    (text_of("Transpose", "transpose_param { dim: [1, 0] }"), r"layer 'l' \(Reshape\): reshape_param.shape: gives \[2, 3\] with 6 elements"),
    (text_of("Transpose", "transpose_param { dim: [4, 2, 1, 3, 0] }"), r"layer 'l' \(Reshape\): reshape_param.shape: dim\[4\] is 0"),
    (text_of("SpatialDropout", "spatial_dropout_param { dropout_ratio: 1.5 }"),
     r"layer 'l' \(SpatialDropout\): spatial_dropout_param.dropout_ratio: must be at least 0 and less than 1, got 1.5"),
    (text_of("SpatialDropout", "dropout_param { dropout_ratio: -1 }"), r"dropout_param.dropout_ratio: must be at least 0 and less than 1, got -1"),
    (text_of("HSwish", "power_param { slope: 3 }"), r"power_param.slope: unknown field in PowerParameter"),
    (text_of("Mish", "param { lr_mult: 1 }"), r"param: too many param entries: 1 for 0 parameter blobs"),
    (text_of("Mish", "propagate_down: true propagate_down: true"), r"layer 'l' \(Mish\): propagate_down: give none or one for each of the 1"),
    (text_of("BatchNorm", NORM % "scale_bias: true disable_mean: true"), r"batch_norm_param.disable_mean: unknown field in BatchNormParameter; the")])
def test_forms_refused(tmp_path, layer, message):
    with pytest.raises(Error, match=r"net.prototxt:4:?\d*: " + (message if message.startswith("layer") else ".*" + message)):
        net_of(tmp_path, layer)
