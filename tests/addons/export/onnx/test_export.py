"""Nets as models of ONNX: each layer type in Caffe's special cases, and of forks, gives onnxruntime's numbers, or is refused by name."""

import re

import numpy as np
import pytest
from export_cases import (
    AT_THRESHOLD,
    BOXES,
    CASES,
    IN_PLACE,
    OF_DATA,
    THRESHOLD_OF_1,
    X,
    detection,
    detection_at_limits,
    layer,
    net_of,
    net_of_model,
    of_models,
)

from minicaffe import errors
from minicaffe.layer import layer_types
from minicaffe.proto import caffe_pb2

onnx = pytest.importorskip("onnx", reason="no package onnx: pip install -r tests/requirements.txt")
pytest.importorskip("onnxruntime", reason="no package onnxruntime: pip install -r tests/requirements.txt")

from minicaffe.addons.export.onnx import Preprocessing, compare, export, exporter, random_inputs, to_model  # noqa: E402
from minicaffe.addons.export.onnx.graph import EXPORTERS  # noqa: E402

OF_FORKS = {     # the first are read as other layers (addons/forks/formulas.py)
    "flip": (layer("Flip", "flip_param { flip_height: true }"), X), "spatial dropout": (layer("SpatialDropout"), X),
    "l1 loss": (layer("L1Loss", "", "x0 x1"), X, X), "triplet loss": (layer("TripletLoss", "", "x0 x1 x2"), X, X, X),
    "axpy": (layer("Axpy", "", "x0 x1 x2"), (2, 4), X, X), "mish": (layer("Mish"), X), "hswish": (layer("HSwish"), X),
    "transpose": (layer("Transpose", "transpose_param { dim: [0, 2, 1, 3] }"), X),
    "darknet": (layer("UpsampleDarknet", "upsample_darknet_param { stride: 2 }"), X), "relu with 6": (layer("ReLU", "relu_param { relu6: true }"), X),
    "average": (layer("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad: 1 }"), X),
    "scaled": (layer("BatchNorm", "batch_norm_param { scale_bias: true }"), X),
    "reverse": (layer("Reverse", "reverse_param { axis: 1 axis: 3 }"), X), "squeeze": (layer("Squeeze"), (2, 1, 3, 1)),
    "shuffle": (layer("ShuffleChannel", "shuffle_channel_param { group: 3 }"), (2, 6, 3, 2)), "shuffle flat": (layer("ShuffleChannel", "shuffle_channel_param { group: 2 }"), (2, 6)),
    "reorg": (layer("Reorg", "reorg_param { stride: 2 }"), (2, 8, 4, 6)), "rearrange": (layer("Rearrange", "rearrange_param { depth: 2 }"), (2, 18, 2, 3)),
    "reorg back": (layer("Reorg", "reorg_param { stride: 2 reverse: true }"), (2, 8, 3, 2)),
    "interp": (layer("Interp", "interp_param { height: 11 width: 4 }"), X), "interp larger": (layer("Interp", "interp_param { zoom_factor: 3 }"), X),
    "interp of a part": (layer("Interp", "interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -2 }"), X),
    "nearest": (layer("Upsample", "upsample_param { scale: 3 }"), X),
    "unpooling": (layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", tops="p m", name="p")
                  + layer("Upsample", "upsample_param { upsample_h: 8 upsample_w: 7 }", "p m"), (2, 3, 8, 7)),
    "relu6": (layer("ReLU6"), X), "relu6 leaky": (layer("ReLU6", "relu6_param { negative_slope: 0.1 }"), X),
    "relux": (layer("ReLUX", "relux_param { maximal_value: 0.7 }"), X), "relux of a slope": (layer("ReLUX", "relux_param { negative_slope: -0.5 maximal_value: 1 }"), X),
    "bn": (layer("BN"), X), "bn of 2 axes": (layer("BN", "bn_param { eps: 0.1 }"), (3, 4)), "bn frozen": (layer("BN", "bn_param { frozen: true }"), X),
    "bn of segnet": (layer("BN", "bn_param { bn_mode: INFERENCE }"), X), "bn of the batch": (layer("BN", "bn_param { bn_mode: LEARN }", tops="y m v"), X),
    "lstm": (layer("Lstm", "lstm_param { num_output: 3 }"), (5, 2, 4)), "lstm of rows": (layer("Lstm", "lstm_param { num_output: 3 batch_size: 2 }"), (8, 4, 1)),
    "indicator": (layer("ContinuationIndicator", "continuation_indicator_param { time_step: 2 batch_size: 3 }", "", "c") + layer("Eltwise", "", "x0 c", name="e"), (2, 3)),
    "clustered": (layer("PriorBoxClustered", "prior_box_param { width: 3 height: 2 img_size: 9 }", tops="p")
                  + layer("ReLU", name="r"), X),
    "normalize": (layer("Normalize", "normalize_param { }", tops="y n"), X), "normalize L1": (layer("Normalize", 'normalize_param { normalize_type: "L1" }'), X),
}
# Boxes whose number depends on values, and losses; Resize darkens its borders.
WITHOUT = {"BoxOutput", "CTCGreedyDecoder", "DecodeBBox", "PSROIPooling", "Proposal", "ROIAlign", "Resize", "YoloDetectionOutput", "Yolov3DetectionOutput"}


@pytest.mark.parametrize("name", CASES | OF_FORKS)
def test_layer(name):
    text, *shapes = (CASES | OF_FORKS)[name]
    net = net_of(text, *shapes)
    model = to_model(net)
    found = compare(net, model, random_inputs(net))
    assert [one.blob for one in found] == [blob.name for blob in net.output_blobs if blob not in net.input_blobs]
    assert all(one.relative < 1e-5 and one.shape == net.blobs[one.blob].shape for one in found)
    assert model.opset_import[0].version == 17 and all(info.name for info in model.graph.node)


@pytest.mark.parametrize("size", ["pooled_h: 2 pooled_w: 3", "pooled_size: 2"])
def test_regions(size):
    net = net_of(layer("ROIPooling", f"roi_pooling_param {{ {size} spatial_scale: 0.5 }}", "x0 x1"), (2, 3, 9, 8), (4, 5))
    rois = np.array([[0, 0, 0, 15, 17], [1, 2.4, 3.6, 9, 8], [1, 5, 5, 5, 5], [0, 3, 1, 30, 40]], np.float32)
    found = compare(net, to_model(net), {**random_inputs(net), "x1": rois})
    assert [one.relative for one in found] == [0]


def test_batch_norm_without_statistics():
    """Whose running sums have the weight 0: means and variances are 0, whatever the sums are, as in a net that was never trained."""
    net = net_of(layer("BatchNorm", "batch_norm_param { eps: 0.01 }"), X)
    net.nodes[-1].layer.blobs[2].data[...] = 0
    inputs = random_inputs(net)
    found = compare(net, to_model(net), inputs)
    assert [one.blob for one in found] == ["y"] and found[0].relative < 1e-5
    np.testing.assert_allclose(net.blobs["y"].data, inputs["x0"] / np.sqrt(np.float32(0.01)), rtol=1e-5)


def test_every_type_is_in_a_case():
    known = {name: cls.__module__ for name, cls in layer_types().items() if cls.__module__.startswith("minicaffe.")}     # other tests register more
    forks = {name for name, module in known.items() if ".forks." in module} - {"ConvolutionDepthwise"}
    tested, tested_forks = ({kind for text, *_ in cases.values() for kind in re.findall(r'type: "(\w+)"', text)} for cases in (CASES, OF_FORKS))
    assert forks - tested_forks - {"ROIPooling", "ChannelNormalize"} == WITHOUT and not WITHOUT & set(EXPORTERS)
    tested |= {"PriorBox", "DetectionOutput", "Split"}
    assert known.keys() - forks - {"PriorBoxClustered"} - OF_DATA == tested - {"Python"} <= set(EXPORTERS) - {"HDF5Output"}


@of_models
def test_models(file, batch):
    net = net_of_model(file, batch)
    model = to_model(net)
    found = compare(net, model, random_inputs(net))
    assert found and all((one.relative < 1e-4 or file.startswith("ssd")) and one.shape == net.blobs[one.blob].shape for one in found)
    layers = {node.name for node in model.graph.node}
    assert {node.name for node in net.nodes if node.type in ("Convolution", "InnerProduct", "Pooling", "Softmax")} <= layers


@pytest.mark.parametrize("fields", BOXES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("images", [1, 3])
def test_boxes(fields, shared, images):
    net = detection(fields, images, shared=shared)
    found = compare(net, to_model(net), random_inputs(net))
    assert [one.relative < 1e-5 for one in found] == [True] and found[0].shape == net.blobs["y"].shape
    net, inputs, rows = detection_at_limits("nms_param { nms_threshold: 0.5 }")
    assert compare(net, to_model(net), inputs)[0].absolute == 0
    np.testing.assert_array_equal(net.blobs["y"].data[0, 0], rows)


def test_outputs_and_names():
    net = net_of(IN_PLACE, (2, 4))
    graph = to_model(net).graph
    assert [(node.op_type, node.name, list(node.output)) for node in graph.node] == [
        ("Gemm", "l", ["h/l"]), ("Relu", "r", ["h"]), ("Gemm", "again", ["z/again"]), ("Softmax", "s", ["out"])]
    assert [tensor.name for tensor in graph.initializer] == ["l[0]", "l[1]"]
    assert list(graph.node[0].input)[1:] == list(graph.node[2].input)[1:]
    net = net_of(layer("ReLU", "", "x0", "h") + layer("Dropout", "", "h", "y", name="d"), (2, 3))
    model = to_model(net)
    assert [output.name for output in model.graph.output] == ["y"] and compare(net, model, random_inputs(net))[0].relative == 0
    net = net_of(layer("Swish", "swish_param { beta: 2 }") + layer("ReLU", "", "x0", "l/Sigmoid", name="r") + layer("AbsVal", "", "x0", "l/Mul", name="a"), X)
    found = compare(net, to_model(net), random_inputs(net))
    assert {one.blob for one in found} == {"y", "l/Sigmoid", "l/Mul"} and all(one.relative < 1e-5 for one in found)


def sharing(*layers):
    """The text of layers (type, fields, bottom) of one parameter; layer i is "li" and has the top "yi"."""
    return "".join(layer(kind, f'{fields} param {{ name: "w" share_mode: PERMISSIVE }}', bottom, f"y{i}", name=f"l{i}")
                   for i, (kind, fields, bottom) in enumerate(layers))


PRODUCT = "inner_product_param { num_output: %d bias_term: false }"
SQUARE = "convolution_param { num_output: 4 kernel_size: %d bias_term: false }"


@pytest.mark.parametrize("back", [False, True], ids=["", "in reverse"])
@pytest.mark.parametrize("layers, shapes, views", [
    ([("Scale", "", "x0"), ("Scale", "", "x1"), ("Scale", "scale_param { axis: -1 }", "x2")], [X, (2, 4), (3, 4)], {(4, 1, 1), (4,)}),
    ([("Bias", "", "x0"), ("Bias", "", "x1")], [X, (2, 4, 4)], {(4, 1, 1), (4, 1)}),
    ([("PReLU", "", "x0"), ("PReLU", "", "x1"), ("Scale", "", "x2")], [X, (4, 4), (4, 4, 4)], {(4, 1, 1), (4,), (4, 1)}),
    ([("InnerProduct", PRODUCT % 6, "x0"), ("InnerProduct", PRODUCT % 4, "x1")], [(2, 4), (2, 6)], {(6, 4), (4, 6)}),
    ([("InnerProduct", PRODUCT % 4, "x0"), ("Convolution", SQUARE % 1, "x1"), ("Convolution", SQUARE % 2, "x2")], [(2, 16), (2, 16, 3, 3), X],
     {(4, 16), (4, 16, 1, 1), (4, 4, 2, 2)})])
def test_shapes_of_shared_parameters(layers, shapes, views, back):
    net = net_of(sharing(*layers[::-1 if back else 1]), *shapes)
    model = to_model(net)
    found = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    assert sorted(array.shape for array in found) == sorted(views)
    for array in found:
        np.testing.assert_array_equal(array.ravel(), net.nodes[-1].layer.blobs[0].data.ravel())
    assert [one.relative < 1e-5 for one in compare(net, model, random_inputs(net))] == [True] * len(layers)


def test_what_is_compared_and_noted(tmp_path):
    net = net_of(layer("ReLU"), X)
    assert [len(export(net, tmp_path / "a.onnx", dynamic_batch=True, inputs=inputs)) for inputs in (random_inputs(net), None)] == [1, 3]
    assert len(export(net, tmp_path / "a.onnx")) == 1 and export(net, tmp_path / "a.onnx", dynamic_batch=True, check=False) == []
    assert net.blobs["y"].shape == net.blobs["x0"].shape == X      # as before
    for file in None, "some/net.prototxt":
        net.file = file
        made = to_model(net)
        assert {one.key: one.value for one in made.metadata_props} == {"source": file or "", "caffe_layers": "2"} and made.graph.name == "t"
        assert made.ir_version <= 10 and made.producer_name == "minicaffe"


@pytest.mark.parametrize("ignored", [255, -1, 2])
def test_ignored_labels(ignored):
    net = net_of(layer("SoftmaxWithLoss", f"loss_param {{ ignore_label: {ignored} normalization: VALID }}", "x0 x1"), (5, 4), (5,))
    given = {"x0": np.random.default_rng(1).normal(0, 1, (5, 4)).astype(np.float32), "x1": np.array([3, ignored, 0, ignored, 1], np.float32)}
    one, = compare(net, to_model(net), given)
    score = given["x0"][[0, 2, 4]].astype(np.float64)
    chance = np.exp(score) / np.exp(score).sum(1, keepdims=True)
    assert one.relative < 1e-5 and float(net.blobs["y"].data) == pytest.approx(-np.log(chance[range(3), [3, 0, 1]]).mean(), rel=1e-5)


@pytest.mark.parametrize("text, shape", [
    (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 }", tops="c") + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", "c", name="r")
     + layer("InnerProduct", "inner_product_param { num_output: 2 axis: 1 }", "y", "z", name="i"), X),
    *((layer("Reshape", f"reshape_param {{ shape {{ {dims} }} }}"), (4, 4, 6))
      for dims in ("dim: -1 dim: 6", "dim: 2 dim: -1 dim: 6", "dim: -1 dim: 2 dim: 2 dim: 6", "dim: 0 dim: 3 dim: -1"))])
def test_any_batch(text, shape):
    net = net_of(text, shape)
    model = to_model(net, dynamic_batch=True)
    assert [axis.dim_param or axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", *shape[1:]]
    assert net.blobs["x0"].shape == shape
    for batch in (1, 2, 6):
        net.blobs["x0"].reshape(batch, *shape[1:])
        net.reshape_all()
        one, = compare(net, model, random_inputs(net))
        assert one.relative < 1e-5 and one.shape == net.output_blobs[0].shape


SELECTED = layer("Filter", "", "x0 x1", "f", name="filter")


@pytest.mark.parametrize("kind, fields", [
    ("Reshape", "reshape_param { shape { dim: 0 dim: 6 dim: 4 } }"), ("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }"),
    ("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: 2 dim: 6 } }"), ("Flatten", "flatten_param { axis: 0 end_axis: 1 }"),
    ("Flatten", "flatten_param { axis: 0 }"), ("Squeeze", ""), ("ShuffleChannel", "shuffle_channel_param { group: 2 }"),
    ("Reorg", "reorg_param { stride: 2 }"), ("Upsample", "upsample_param { scale: 2 }"), ("Interp", "interp_param { zoom_factor: 2 }"),
    *(("selected Flatten", fields) for fields in ("", "flatten_param { axis: -2 }", "flatten_param { axis: 2 }"))])
def test_shapes_that_follow_a_selection(kind, fields):
    """The number of selected items is known in a run alone; a Reshape to the same number of axes is no copy."""
    shape = (5, 4, 6) if kind.endswith(("Reshape", "Flatten")) else (5, 4, 2, 6)
    net = net_of(SELECTED + layer(kind.removeprefix("selected "), fields, "f"), shape, (5,))
    if kind == "selected Flatten":
        one, = compare(net, to_model(net), random_inputs(net))
        assert one.relative == 0 and one.shape == net.blobs["y"].shape and one.shape[0] < 5
    else:
        with pytest.raises(errors.ConfigError, match="layer 'l'.*the shape of the top depends on what a layer before it selects"):
            to_model(net)


def test_infogain_matrix_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matrix = np.random.default_rng(1).uniform(0, 1, (4, 4)).astype(np.float32)
    blob = caffe_pb2.BlobProto(data=matrix.ravel(), shape=caffe_pb2.BlobShape(dim=[1, 1, 4, 4]))
    (tmp_path / "matrix.binaryproto").write_bytes(blob.SerializeToString())
    nets = [net_of(layer("InfogainLoss", fields, " ".join(f"x{i}" for i in range(len(shapes)))), *shapes)
            for fields, *shapes in (('infogain_loss_param { source: "matrix.binaryproto" }', (3, 4), (3,)), ("", (3, 4), (3,), (4, 4)))]
    given = {"x0": np.random.default_rng(2).uniform(0.1, 1, (3, 4)).astype(np.float32), "x1": np.array([3, 0, 2], np.float32)}
    models = [to_model(net) for net in nets]
    (tmp_path / "matrix.binaryproto").unlink()
    found = [compare(net, model, given | more)[0] for net, model, more in zip(nets, models, ({}, {"x2": matrix}))]
    assert all(one.relative < 1e-5 for one in found) and float(nets[0].blobs["y"].data) == float(nets[1].blobs["y"].data) != 0


@pytest.mark.parametrize("text, shapes, wrong", [
    (layer("LSTM", "recurrent_param { num_output: 3 }", "x0 x1"), [(2, 2, 4), (2, 2)], "has 3 steps, the layer was made for 2"),
    (layer("Bias", "", "x0 x1"), [X, (4,)], r"dynamic_batch: the inputs have no common first axis: x0 \[2, 4, 7, 6\], x1 \[4\]"),
    (layer("EuclideanLoss", "", "x0 x1"), [(3, 4), (3, 4)], "the batch of a loss depends on the size of the batch.*export a fixed batch")])
def test_layers_that_need_a_fixed_batch(text, shapes, wrong):
    net = net_of(text, *shapes)
    with pytest.raises(errors.Error, match=wrong):
        to_model(net, dynamic_batch=True)
    assert [blob.shape for blob in net.input_blobs] == shapes


@pytest.mark.parametrize("mean", [None, 3, [1, 2, 3], np.arange(48).reshape(3, 4, 4)])
def test_preprocessing(tmp_path, mean):
    net = net_of(layer("Convolution", "convolution_param { num_output: 2 kernel_size: 3 }"), (2, 3, 4, 4))
    how = Preprocessing(mean, 0.5, (2, 1, 0))
    x = np.random.default_rng(0).uniform(0, 255, (2, 3, 4, 4)).astype(np.float32)
    found = export(net, tmp_path / "a.onnx", preprocessing=how, inputs={"x0": x})
    assert found[0].relative < 1e-5
    names = [one.name for one in onnx.load(tmp_path / "a.onnx").graph.node]
    assert names == ["preprocessing/Gather", *["preprocessing/Sub"] * (mean is not None), "preprocessing/Mul", "l"]
    by_hand = (x[:, ::-1] - (0 if mean is None else np.reshape(mean, (3, 1, 1)) if np.ndim(mean) == 1 else np.asarray(mean))) * 0.5
    import onnxruntime
    result = onnxruntime.InferenceSession(tmp_path / "a.onnx").run(None, {"x0": x})[0]
    net.feed(x0=by_hand.astype(np.float32))
    net.forward_from_to(0, len(net.nodes) - 1)
    assert np.abs(net.blobs["y"].data - result).max() < 1e-3


@pytest.mark.parametrize("net, wrong", [
    (lambda: net_of(layer("MultiBoxLoss", "multibox_loss_param { num_classes: 2 }", "x0 x1 x2 x3"), (1, 4), (1, 2), (1, 2, 4), (1, 1, 1, 8)),
     r"layer 'l' \(MultiBoxLoss\): there is no exporter for this type"),
    (lambda: net_of(layer("ReLU"), X, phase=caffe_pb2.TRAIN), "phase TRAIN"), (lambda: net_of("", X), "the net has no output"),
    (lambda: net_of(layer("DummyData", 'dummy_data_param { shape { dim: 2 } data_filler { type: "uniform" } }', "")), "layer 'l'.*random numbers in each run"),
    (lambda: detection("nms_param { eta: 0.9 nms_threshold: 0.6 }"), "layer 'd'.*nms_param.eta: an adaptive threshold"),
    (lambda: net_of(layer("SmoothL1Loss", "smooth_l1_loss_param { sigma: 2 }", "x0 x1"), (2, 3), (2, 3)), "SmoothL1Loss.*the loss of Fast R-CNN.*no exporter"),
    (lambda: net_of(layer("ROIPooling", "roi_pooling_param { pooled_h: 1 pooled_w: 1 pad_ratio: 0.1 }", "x0 x1"), X, (1, 5)),
     "roi_pooling_param.pad_ratio: ONNX has no operation"),
    (lambda: net_of(layer("Lstm", "lstm_param { num_output: 3 }", "x0 x1"), (5, 2, 4), (5, 2)), r"bottom\[1\]: ONNX's LSTM has no sequence indicators")])
def test_refused_nets(net, wrong):
    with pytest.raises(errors.ConfigError, match=wrong):
        to_model(net())
    for plain in "nms_threshold: 0.6", "eta: 0.9 nms_threshold: 0.5":     # Caffe lowers thresholds above 0.5 alone
        to_model(detection(f"nms_param {{ {plain} }}"))


@pytest.mark.parametrize("how, wrong", [(Preprocessing(order=(0, 1)), "preprocessing.order: must have each of the 3 channels of input 'x0' once"),
                                        (Preprocessing([1, 2]), r"preprocessing.mean: must be one number, one for each of 3 channels")])
def test_wrong_preprocessing_and_inputs(how, wrong):
    net = net_of(layer("ReLU"), (2, 3, 4, 4))
    with pytest.raises(errors.ConfigError, match=wrong):
        to_model(net, preprocessing=how)
    with pytest.raises(errors.ConfigError, match=r"inputs: must have an array for each input of the net, \['x0'\], got \['z'\]"):
        compare(net, to_model(net), {"z": np.zeros(X)})


def test_wrong_exporters(monkeypatch, tmp_path):
    """The layer that is wrong is named, not a right one that writes the same blob before or after it."""
    net = net_of(layer("ReLU", tops="a") + layer("TanH", "", "a", "a", name="wrong") + layer("ELU", "", "a", "a", name="after"),
                 (2, 3, 4, 4))
    how = Preprocessing(1, 0.5, (2, 1, 0))
    assert compare(net, to_model(net, preprocessing=how), random_inputs(net), how)[0].relative < 1e-5
    monkeypatch.setitem(EXPORTERS, "TanH", lambda graph, node: [graph.op("Sigmoid", graph.bottom())])
    with pytest.raises(errors.DataError, match=r"layer 'wrong' \(TanH\) differs first, in 'a' by"):
        compare(net, to_model(net, preprocessing=how), random_inputs(net), how)
    monkeypatch.setitem(EXPORTERS, "TanH", lambda graph, node: [graph.op("Sigmoid", graph.bottom())])
    text = layer("ReLU", tops="a") + layer("TanH", "", "a", "b", name="wrong") + layer("AbsVal", "", "b", name="after")
    with pytest.raises(errors.DataError, match=r"layer 'wrong' \(TanH\) differs first, in 'b' by [^ ]+ \([^ ]+ of the greatest\)$"):
        export(net_of(text, X), tmp_path / "a.onnx")
    monkeypatch.setitem(EXPORTERS, "TanH", lambda graph, node: [graph.op("Flatten", graph.bottom(), axis=1)])
    with pytest.raises(errors.DataError, match=r"layer 'wrong' .* of the greatest\), shape \[2, 168\] in place of \[2, 4, 7, 6\]$"):
        export(net_of(text, X), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_rounding_errors(monkeypatch, caplog):
    """A number at the threshold is above it by a rounding error: the layers are compared on equal bottoms, and a wrong one is found."""
    net = net_of(THRESHOLD_OF_1 + layer("AbsVal", "", "b", name="last"), (3,))
    monkeypatch.setitem(EXPORTERS, "ReLU", lambda graph, node: [graph.op("Mul", graph.op("Relu", graph.bottom()), 1.000001)])
    found = compare(net, to_model(net), AT_THRESHOLD)
    assert found[0].absolute == 1 and "rounding errors add up, or change what a layer selects" in caplog.text
    monkeypatch.setitem(EXPORTERS, "AbsVal", lambda graph, node: [graph.op("Neg", graph.bottom())])
    with pytest.raises(errors.DataError, match=r"layer 'last' \(AbsVal\) differs first, in 'y'"):
        compare(net, to_model(net), AT_THRESHOLD)
    monkeypatch.setitem(EXPORTERS, "Power", lambda graph, node: [graph.op("Mul", graph.bottom(), 1.00006)])
    net = net_of(layer("Power", tops="a") + layer("Power", "", "a", name="m"), X)
    assert 1e-4 < compare(net, to_model(net), random_inputs(net))[0].relative < 2e-4
    assert "output 'y' of the model differs by" in caplog.text and "rounding errors add up" in caplog.text


@pytest.mark.parametrize("text", [layer("Dropout", "", "b", "c", name="d") + layer("AbsVal", "", "c"),
                                  layer("AbsVal", "", "b", "c", name="d") + layer("AbsVal", "", "b"),
                                  layer("ELU", "", "b", "b", name="d") + layer("Dropout", "", "b", "b", name="p")
                                  + layer("AbsVal", "", "b")])
def test_selecting_layer_before_no_operation(text, monkeypatch, caplog):
    """A Split or a Dropout has no value of its own in the model; layers in place have values of other names than the blob."""
    net = net_of(THRESHOLD_OF_1 + text, (3,))
    monkeypatch.setitem(EXPORTERS, "ReLU", lambda graph, node: [graph.op("Mul", graph.op("Relu", graph.bottom()), 1.000001)])
    found = compare(net, to_model(net), AT_THRESHOLD)
    assert {one.absolute for one in found} == {1} and "rounding errors add up, or change what a layer selects" in caplog.text


def test_an_exporter_of_your_own(monkeypatch):
    monkeypatch.setitem(EXPORTERS, "ReLU", None)

    @exporter("ReLU")
    def own(graph, node):
        return [graph.op("Max", graph.bottom(), 0.0)]

    net = net_of(layer("ReLU"), X)
    model = to_model(net)
    assert [node.op_type for node in model.graph.node] == ["Max"] and compare(net, model, random_inputs(net))[0].relative == 0


EQUAL = (layer("InnerProduct", "inner_product_param { num_output: 4 }", "x0", "a") + layer("ReLU", "", "a", "a")
         + layer("InnerProduct", "inner_product_param { num_output: 4 }", "a", "l") + layer("Dropout", "", "l", "l"))


def test_equal_names(monkeypatch):
    """Two layers with parameters and one in place have one name, which is also that of the output; Dropout in place is the last."""
    net = net_of(EQUAL, (2, 4))
    model = to_model(net)
    assert [one.relative < 1e-5 for one in compare(net, model, random_inputs(net))] == [True]
    nodes, values = [node.name for node in model.graph.node], [*(name for node in model.graph.node for name in node.output), "x0"]
    assert len({*nodes}) == len(nodes) == 4 and len({*values}) == len(values)
    assert len({tensor.name for tensor in model.graph.initializer}) == 4 and [one.name for one in model.graph.output] == ["l"]
    monkeypatch.setitem(EXPORTERS, "Dropout", lambda graph, node: [graph.op("Neg", graph.bottom())])
    net = net_of(EQUAL + layer("Exp", "", "l", "z"), (2, 4))
    with pytest.raises(errors.DataError, match=r"layer 'l' \(Dropout\) differs first, in 'l'"):
        compare(net, to_model(net), random_inputs(net))
    text = "".join(layer("AbsVal", "", *blobs, name=name) for name, *blobs in (("c", "x0", "a"), ("c", "a", "b"), ("c_2", "b", "d")))
    assert [node.name for node in to_model(net_of(text, (2, 4))).graph.node] == ["c", "c_3", "c_2"]


@pytest.mark.parametrize("text", [
    layer("AbsVal", "", "x0", "y", name="a/Sub") + layer("BNLL", "", "y", "z", name="a"),
    layer("AbsVal", "", "x0", "y", name="preprocessing/Sub"),
    layer("ReLU", "", "x0", "y", name="y_2") + layer("TanH", "", "y", "y", name="y") + layer("Split", "", "y", "z w", name="z")])
def test_names_of_operations(text):
    net = net_of(text, (2, 4))
    model = to_model(net, preprocessing=Preprocessing(mean=0.5))
    assert all(one.relative < 1e-5 for one in compare(net, model, random_inputs(net), Preprocessing(mean=0.5)))
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_input_changed_in_place(caplog):
    text = layer("ReLU", "", "x0", "x0") + layer("Power", "power_param { shift: 2 }", "x0", "x0") + layer("AbsVal", "", "x0", "y")
    net = net_of(text, (2, 4))
    model = to_model(net)
    assert [one.relative for one in compare(net, model, random_inputs(net))] == [0] and [one.name for one in model.graph.input] == ["x0"]
    with pytest.raises(errors.ConfigError, match="the net has no output"):
        to_model(net_of(layer("ReLU", "", "x0", "x0"), (2, 4)))
    assert "no layer reads the last value of input 'x0', which is not an output of a model of ONNX" in caplog.text
