"""Models of ONNX as nets of Caffe: each operator gives onnxruntime's numbers, or is named with the reason."""

import numpy as np
import pytest

from minicaffe import errors
from minicaffe.addons.export.exporting import run_net, unique
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

onnx = pytest.importorskip("onnx", reason="no package onnx: pip install -r tests/requirements.txt")
pytest.importorskip("onnxruntime", reason="no package onnxruntime: pip install -r tests/requirements.txt")

from export_cases import DEPLOY, MODELS, X, filled  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from minicaffe.addons.export.onnx import export, load  # noqa: E402
from minicaffe.addons.export.onnx.conversion import IMPORTERS  # noqa: E402

DICE = np.random.default_rng(5)


def weight(*shape):
    return DICE.normal(0, 0.5, shape).astype(np.float32)


def positive(*shape):
    return np.abs(weight(*shape)) + np.float32(0.5)


def node(kind, *inputs, outputs=("y",), **attributes):
    """A node; arrays among its inputs are constants."""
    return kind, inputs, outputs, attributes


def write(path, nodes, *shapes, outputs=("y",), opset=None, dims=None):
    """Write a model of nodes behind inputs x0, x1, ..."""
    if any("antialias" in attributes for *_, attributes in nodes):
        opset = 18
    opset = opset or (28 if any("SpaceToDepth" == kind and "mode" in values for kind, *_, values in nodes) else 21 if {"Gelu", "Mish", "GroupNormalization"} & {kind for kind, *_ in nodes} else 17)
    made, tensors = [], []
    for number, (kind, inputs, tops, attributes) in enumerate(nodes):
        names = []
        for value in inputs:
            if not isinstance(value, str):
                tensors.append(numpy_helper.from_array(np.asarray(value), f"w{len(tensors)}"))
                value = tensors[-1].name
            names.append(value)
        made.append(helper.make_node(kind, names, list(tops), name=f"n{number}", **attributes))
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, dims or shape) for i, shape in enumerate(shapes)]
    graph = helper.make_graph(made, "t", inputs, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset > 17 else 8)
    model = onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:
        if not output.type.tensor_type.HasField("shape"):   # of GroupNormalization
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, shapes[0]))
    onnx.save(model, path)
    return path


INT = np.int64
CASES = {       # nodes, shapes of the inputs
    "conv": ([node("Conv", "x0", weight(6, 2, 3, 2), weight(6), pads=[1, 0, 1, 0], strides=[2, 1], group=2)], X),
    "conv dilated": ([node("Conv", "x0", weight(3, 4, 3, 3), dilations=[2, 2], pads=[2, 2, 2, 2])], X),
    "conv more pad behind": ([node("Conv", "x0", weight(3, 4, 3, 3), pads=[0, 1, 1, 2], strides=[2, 2])], X),
    "conv more pad before": ([node("Conv", "x0", weight(3, 4, 3, 3), pads=[2, 1, 0, 0], strides=[2, 2])], (2, 4, 8, 9)),
    "conv same upper": ([node("Conv", "x0", weight(3, 4, 3, 4), auto_pad="SAME_UPPER", strides=[2, 2])], X),
    "conv same lower": ([node("Conv", "x0", weight(3, 4, 2, 4), auto_pad="SAME_LOWER", strides=[1, 2])], X),
    "conv valid": ([node("Conv", "x0", weight(3, 4, 3, 3), auto_pad="VALID")], X),
    "conv of 3 axes": ([node("Conv", "x0", weight(3, 2, 2, 1, 3))], (2, 2, 4, 3, 5)),
    "transposed": ([node("ConvTranspose", "x0", weight(4, 3, 4, 4), weight(6), strides=[2, 2], pads=[1, 1, 1, 1], group=2)], X),
    "transposed with more": ([node("ConvTranspose", "x0", weight(4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])], X),
    **{f"transposed {how}": ([node("ConvTranspose", "x0", weight(4, 3, 3, 4), weight(3), strides=[2, 3], **values)], X) for how, values in {
        "SAME_UPPER": {"auto_pad": "SAME_UPPER"}, "SAME_LOWER": {"auto_pad": "SAME_LOWER"}, "VALID": {"auto_pad": "VALID"}, "to a shape": {"output_shape": [14, 16]},
        "to an upper shape": {"output_shape": [14, 16], "auto_pad": "SAME_UPPER"}}.items()},
    **{f"greatest over {axes}": ([node("ReduceMax", "x0", axes=axes, keepdims=keep)], X) for axes, keep in (([2, 3], 1), ([2, 3], 0), ([-1, 2], 1))},
    "reduced by no axes": ([node("ReduceSum", "x0", np.array([], INT))], X), "clip of crossed limits": ([node("Clip", "x0", np.float32(0.6), np.float32(-0.6))], X),
    "argmax": ([node("ArgMax", "x0", axis=1, outputs=["i"]), node("Cast", "i", to=TensorProto.FLOAT)], X),
    "argmax of equal values": ([node("Relu", "x0", outputs=["r"]), node("ArgMax", "r", axis=1, select_last_index=1, outputs=["i"]), node("Cast", "i", to=TensorProto.FLOAT)], X),
    "argmax without its axis": ([node("ArgMax", "x0", axis=-1, keepdims=0, outputs=["i"]), node("Cast", "i", to=TensorProto.FLOAT)], X),
    "gemm": ([node("Gemm", "x0", weight(5, 4), weight(5), transB=1, alpha=0.5, beta=2.0)], (3, 4)),
    "gemm without bias": ([node("Gemm", "x0", weight(4, 5))], (3, 4)), "matmul": ([node("MatMul", "x0", weight(6, 5))], X),
    "flatten and gemm": ([node("Flatten", "x0", outputs=["f"]), node("Gemm", "f", weight(5, 168), weight(1), transB=1)], X),
    "max": ([node("MaxPool", "x0", kernel_shape=[3, 3], strides=[2, 2])], X), "max padded": ([node("MaxPool", "x0", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], X),
    "max up": ([node("MaxPool", "x0", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)], (2, 3, 8, 7)),
    "max same": ([node("MaxPool", "x0", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")], (2, 3, 8, 8)),
    "average": ([node("AveragePool", "x0", kernel_shape=[3, 3], strides=[2, 2])], X),
    "average padded": ([node("AveragePool", "x0", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], X),
    "average that counts": ([node("AveragePool", "x0", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)], X),
    "global": ([node("GlobalAveragePool", "x0")], X), "global max": ([node("GlobalMaxPool", "x0")], X),
    "batch norm": ([node("BatchNormalization", "x0", weight(4), weight(4), weight(4), positive(4), epsilon=0.01)], X),
    "batch norm alone": ([node("BatchNormalization", "x0", np.ones(4, np.float32), np.zeros(4, np.float32), weight(4), positive(4))], X),
    "lrn": ([node("LRN", "x0", size=3, alpha=0.5, beta=0.6, bias=2.0)], X),
    **{kind.lower(): ([node(kind, "x0")], X) for kind in ("Relu", "Sigmoid", "Tanh", "Softplus", "Abs", "Exp", "Neg", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu")},
    "gather of a range of rows": ([node("Gather", "x0", np.array([[1, 2]], INT), axis=2)], X),
    **{f"nearest {how}": ([node("Resize", "x0", "", np.array([1, 1, 1.7, 0.6], np.float32), mode="nearest", nearest_mode=how)], X)
       for how in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")},
    "nearest of channels": ([node("Resize", "x0", "", np.array([1, 2, 1, 1], np.float32), mode="nearest")], X),
    "linear by a factor": ([node("Resize", "x0", "", np.array([1, 1, 1.7, 0.6], np.float32), mode="linear", coordinate_transformation_mode="asymmetric")], X),
    "linear of a row": ([node("Resize", "x0", "", np.array([1, 1, 2.5], np.float32), mode="linear")], (2, 3, 5)),
    "middle axis": ([node("Add", "x0", "x1")], X, (2, 1, 7, 1)), "both": ([node("Sub", "x0", "x1")], (2, 1, 3), (4, 1)),
    "quotient of both": ([node("Exp", "x1", outputs=["e"]), node("Div", "x0", "e")], (1, 3), (4, 1)), "middle axis of a constant": ([node("Mul", "x0", weight(2, 1, 7, 1))], X),
    "to a constant": ([node("Add", "x0", weight(2, 4, 3))], (4, 1)), "sum of some": ([node("Sum", "x0", "x1")], X, (4, 1, 1)),
    "reduced first": ([node("ReduceSum", "x0", np.array([1], INT))], X), "reduced middle": ([node("ReduceMean", "x0", axes=[0, 2], keepdims=0)], X),
    "space": ([node("DepthToSpace", "x0", blocksize=2)], (2, 8, 3, 2)), "space of CRD": ([node("DepthToSpace", "x0", blocksize=2, mode="CRD")], (2, 8, 3, 2)),
    "sqrt": ([node("Abs", "x0", outputs=["a"]), node("Sqrt", "a")], X), "log": ([node("Exp", "x0", outputs=["a"]), node("Log", "a")], X),
    "reciprocal": ([node("Exp", "x0", outputs=["a"]), node("Reciprocal", "a")], X),
    "prelu": ([node("PRelu", "x0", weight(4, 1, 1))], X), "prelu shared": ([node("PRelu", "x0", weight(1))], X),
    "clip": ([node("Clip", "x0", np.float32(0), np.float32(0.6))], X), "clip below": ([node("Clip", "x0", np.float32(-0.3))], X),
    "softmax": ([node("Softmax", "x0", axis=1)], X), "log softmax": ([node("LogSoftmax", "x0")], X),
    "pow": ([node("Pow", "x0", np.float32(2))], X), "identity": ([node("Relu", "x0", outputs=["a"]), node("Identity", "a")], X),
    "cast": ([node("Cast", "x0", to=TensorProto.FLOAT, outputs=["a"]), node("Relu", "a")], X),
    **{f"{kind.lower()} of two": ([node("Sigmoid", "x1", outputs=["s"]), node(kind, "x0", "s")], X, X) for kind in ("Add", "Sub", "Mul", "Div")},
    **{f"{kind.lower()} of a number": ([node(kind, "x0", np.float32(3))], X) for kind in ("Add", "Sub", "Mul", "Div")},
    **{f"a number {kind.lower()}": ([node("Exp", "x0", outputs=["e"]), node(kind, np.float32(3), "e")], X) for kind in ("Sub", "Div")},
    **{f"{kind.lower()} of channels": ([node(kind, "x0", positive(4, 1, 1))], X) for kind in ("Add", "Sub", "Mul", "Div")},
    "mul and add": ([node("Mul", "x0", weight(1, 4, 1, 1), outputs=["m"]), node("Add", "m", weight(4, 1, 1))], X),
    "add of the last axes": ([node("Add", "x0", weight(7, 6))], X), "gate": ([node("Sigmoid", "x1", outputs=["s"]), node("Mul", "x0", "s")], X, (2, 4, 1, 1)),
    "gate first": ([node("Mul", "x1", "x0")], X, (2, 4, 1, 1)), "bias of a vector": ([node("Add", "x0", "x1")], X, (6,)),
    "sum": ([node("Sum", "x0", "x1", "x0")], X, X), "maximum": ([node("Max", "x0", "x1")], X, X),
    "at least": ([node("Max", "x0", np.float32(0.2))], X), "at most": ([node("Min", np.float32([0.2]), "x0")], X),
    "reshape": ([node("Reshape", "x0", np.array([0, -1, 3], INT))], X), "squeeze": ([node("Squeeze", "x0", np.array([2], INT))], (2, 3, 1, 4)),
    "unsqueeze": ([node("Unsqueeze", "x0", np.array([1], INT))], (2, 3)), "flatten": ([node("Flatten", "x0", axis=2)], X), "transpose": ([node("Transpose", "x0", perm=[0, 2, 3, 1])], X),
    "concat": ([node("Concat", "x0", "x1", axis=-1)], X, X), "split": ([node("Split", "x0", np.array([1, 3], INT), axis=1, outputs=["y", "z"])], X),
    "slice": ([node("Slice", "x0", np.array([1, -4], INT), np.array([3, 100], INT), np.array([1, 3], INT))], X),
    "slice of all": ([node("Slice", "x0", np.array([0], INT), np.array([100], INT), np.array([1], INT), outputs=["a"]), node("Relu", "a")], X),
    "gather": ([node("Gather", "x0", np.array([1, 2], INT), axis=1)], X), "gather one": ([node("Gather", "x0", np.int64(-1), axis=2)], X),
    "expand": ([node("Expand", "x0", np.array([2, 4, 3, 6], INT))], (2, 4, 1, 6)), "tile": ([node("Tile", "x0", np.array([1, 2, 1, 3], INT))], X),
    "pad": ([node("Pad", "x0", np.array([0, 0, 1, 2, 0, 0, 0, 3], INT))], X),
    "mean": ([node("ReduceMean", "x0", axes=[2, 3])], X), "mean without axes": ([node("ReduceMean", "x0", axes=[2, 3], keepdims=0)], X),
    "reduced maximum": ([node("ReduceMax", "x0", axes=[2, 3])], X), "reduced squares": ([node("ReduceSumSquare", "x0", axes=[1, 2, 3], keepdims=0)], X),
    "dropout": ([node("Relu", "x0", outputs=["a"]), node("Dropout", "a")], X),
    "reduced sum": ([node("ReduceSum", "x0", np.array([-1], INT), keepdims=0)], X), "reduced kept": ([node("ReduceL1", "x0", axes=[2, 3])], X),
    "nearest": ([node("Resize", "x0", "", np.array([1, 1, 2, 3], np.float32), mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")], X),
    **{f"linear {how}": ([node("Resize", "x0", "", "", np.array([2, 4, 9, 13], INT), mode="linear", coordinate_transformation_mode=how)], X)
       for how in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")},
    "linear height": ([node("Resize", "x0", "", np.array([1, 1, 2, 1], np.float32), mode="linear")], X),
    "linear width": ([node("Resize", "x0", "", np.array([1, 1, 1, 2], np.float32), mode="linear")], X),
    "lstm": ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), weight(1, 24), hidden_size=3)], (5, 2, 4)),
    "lstm, its last state": ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, outputs=["", "h"]), node("Relu", "h")], (5, 2, 4)),
    "a computed shape": ([node("Shape", "x0", outputs=["s"]), node("Gather", "s", np.array([0], INT), outputs=["b"]),
                          node("Concat", "b", np.array([-1], INT), axis=0, outputs=["t"]), node("Reshape", "x0", "t")], X),
    "a constant operand": ([node("Concat", "x0", weight(*X), axis=1)], X),
}
for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):       # Caffe's own layer has one direction
    arrays = weight(count, 20, 4), weight(count, 20, 5), weight(count, 40)
    both = node("LSTM", "x0", *arrays, outputs=["y", "last"], hidden_size=5, direction=direction)
    CASES[f"LSTM {direction}"] = [both], (3, 2, 4)
    CASES[f"LSTM {direction}, last state of 1 step"] = [node("LSTM", "x0", *arrays[:2], outputs=["", "last"], hidden_size=5, direction=direction),
                                                        node("Relu", "last")], (1, 2, 4)
CASES["LSTM with its usual activations written"] = [node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), hidden_size=5, activations=["Sigmoid", "Tanh", "Tanh"])], (3, 2, 4)
CASES["slice from before the begin"] = [node("Slice", "x0", np.array([-100], INT), np.array([3], INT), np.array([2], INT))], X
CASES["every second pixel"] = [node("Slice", "x0", np.array([1, 0], INT), np.array([99, 99], INT), np.array([2, 3], INT), np.array([2, 2], INT))], X
CASES["every second pixel of a part"] = [node("Slice", "x0", np.array([1, -5], INT), np.array([4, 99], INT), np.array([2, 3], INT), np.array([2, 3], INT))], X
# What is left out, of no effect, or of size 1.
CASES |= {
    "max without its indices": ([node("MaxPool", "x0", kernel_shape=[2, 2], outputs=["y", ""])], X),
    "an LSTM whose states are not read": ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, outputs=["a", "h", "c"]), node("Relu", "a")], (5, 2, 4)),
    "split into one": ([node("Split", "x0", axis=1, outputs=["s"]), node("Relu", "s")], X), "sum of one": ([node("Sum", "x0", outputs=["s"]), node("Relu", "s")], X),
    "pad of nothing": ([node("Pad", "x0", np.zeros(8, INT), outputs=["p"]), node("Relu", "p")], X), "pad behind alone": ([node("Pad", "x0", np.array([0, 0, 0, 0, 0, 0, 1, 2], INT))], X),
    "resize to the same size": ([node("Resize", "x0", "", np.ones(4, np.float32), outputs=["r"]), node("Relu", "r")], X),
    "one value of an input": ([node("Mul", "x0", "x1")], X, (1, 1)), "one value of an input, a batch of 1": ([node("Sub", "x0", "x1")], (1, 3, 4), (1, 1, 1)),
    "one value of an input without axes": ([node("Exp", "x1", outputs=["e"]), node("Div", "x0", "e")], X, ()),
    "more axes of size 1 than the other has axes": ([node("Add", "x0", "x1")], (1, 5, 1), (5, 5)),
    "a step along an axis of size 1": ([node("Slice", "x0", np.array([0], INT), np.array([1], INT), np.array([0], INT), np.array([2], INT))], (1, 5)),
    "pad before alone": ([node("Pad", "x0", np.array([0, 0, 2, 1, 0, 0, 0, 0], INT))], X),
    "pixels cut": ([node("Pad", "x0", np.array([0, 0, -1, 0, 0, 0, 0, -2], INT))], X), "pixels cut behind alone": ([node("Pad", "x0", np.array([0, 0, 1, 0, 0, 0, 0, -2], INT))], X),
    "at least of channels": ([node("Max", "x0", weight(4, 1, 1))], X),
    **{f"linear to one value, {how}": ([node("Resize", "x0", "", "", np.array([2, 4, 1, 6], INT), mode="linear", coordinate_transformation_mode=how)], X)
       for how in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")},
    "product and sum of axes of one size": ([node("Mul", "x0", weight(4, 1), outputs=["m"]), node("Add", "m", weight(4))], (2, 4, 4)),
    "pad with a value of 0": ([node("Pad", "x0", np.array([0, 0, 1, 1, 0, 0, 1, 1], INT), np.float32(0))], X),
    "all lengths and a state of zeros": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), "", np.array([3, 3], np.int32), np.zeros((1, 2, 5), np.float32), hidden_size=5)], (3, 2, 4)),
    "two products": ([node("Mul", "x0", weight(4, 1, 1), outputs=["m"]), node("Mul", "m", weight(4, 1, 1))], X),
    "reshape to the same shape": ([node("Reshape", "x0", np.array([0, 0, -1, 6], INT))], X),
    "hard sigmoid of its own": ([node("HardSigmoid", "x0", alpha=0.3, beta=0.4)], X),
    "batch norm with a shift": ([node("BatchNormalization", "x0", np.ones(4, np.float32), weight(4), weight(4), positive(4))], X),
    "batch norm with a scale": ([node("BatchNormalization", "x0", weight(4), np.zeros(4, np.float32), weight(4), positive(4))], X),
    "at least a number and an input": ([node("Max", "x0", np.float32(0.2), "x1")], X, X), "sum with a number": ([node("Sum", "x0", np.float32(2))], X),
    **{f"gather of the last axis, {indices}": ([node("Gather", "x0", np.array(indices, INT), axis=-1)], X) for indices in ([-2, -1], [1, 2], 3, [[1, 2]])},
    "add behind slopes": ([node("PRelu", "x0", weight(4, 1, 1), outputs=["p"]), node("Add", "p", weight(4, 1, 1))], X),
}

REFUSED = {     # nodes, shapes, the reason
    "an unknown operator": ([node("Sin", "x0", outputs=["e"]), node("Cos", "e")], X, r"node 'n0' \(Sin\): no layers for this operator; node 'n1' \(Cos\)"),
    "matmul of two inputs": ([node("MatMul", "x0", "x1")], (3, 4), r"node 'n0' \(MatMul\): its second matrix is computed from the inputs"),
    "matmul of a constant": ([node("MatMul", weight(7, 4), "x0")], (4, 5), r"node 'n0' \(MatMul\): its second matrix is computed from the inputs"),
    "matmul of a vector": ([node("MatMul", "x0", weight(4))], (3, 4), r"its second operand has the shape \[4\], InnerProduct has a matrix"),
    **{kind: ([node(kind, *["x0"] * (1 + (kind == "Einsum")), *values, **attributes)], (3, 4, 4) if kind in ("GRU", "RNN") else X, rf"node 'n0' \({kind}\): no layers for this operator")
       for kind, values, attributes in (
           ("Einsum", [], {"equation": "abcd,abed->abce"}), ("Erf", [], {}), ("Gelu", [], {}), ("LayerNormalization", [weight(6)], {}),
           ("GroupNormalization", [weight(4), weight(4)], {"num_groups": 2}), ("InstanceNormalization", [weight(4), weight(4)], {}),
           ("GRU", [weight(1, 15, 4), weight(1, 15, 5)], {"hidden_size": 5}), ("RNN", [weight(1, 5, 4), weight(1, 5, 5)], {"hidden_size": 5}),
           *((kind, [], {}) for kind in ("Sign", "Softsign", "Selu", "Celu", "Mish", "ThresholdedRelu", "ReduceL2", "Mean")))},
    **{f"{how} resize": ([node("Resize", "x0", "", "", np.array([2, 4, 9, 5], INT), **values)], X, r"it is cubic, has antialias, crops \(tf_crop_and_resize\) or keeps the ratio")
       for how, values in (("cubic", {"mode": "cubic"}), ("antialias", {"mode": "linear", "antialias": 1}))},
    "resize to a ratio": ([node("Resize", "x0", "", "", np.array([9, 4], INT), axes=[2, 3], antialias=0, keep_aspect_ratio_policy="not_larger")], X, "or keeps the ratio"),
    "gather of any": ([node("Gather", "x0", np.array([2, 0], INT), axis=1)], X, "its indices are not consecutive"),
    "gather of none": ([node("Gather", "x0", np.array([], INT), axis=1)], X, "its indices are not consecutive"),
    "backward": ([node("Slice", "x0", np.array([-1], INT), np.array([-99], INT), np.array([3], INT), np.array([-1], INT))], X, "it takes values backward"),
    "slice of nothing": ([node("Slice", "x0", np.array([3], INT), np.array([3], INT), np.array([3], INT))], X, "or keeps nothing of an axis"),
    "steps of the channels": ([node("Slice", "x0", np.array([0], INT), np.array([9], INT), np.array([1], INT), np.array([2], INT))], X, "steps along axis 1, a convolution along the picture alone"),
    "pad of the channels": ([node("Pad", "x0", np.array([0, 1, 0, 0, 0, 1, 0, 0], INT))], X, "it adds zeros or takes steps along axis 1"),
    **{f"pad {mode}": ([node("Pad", "x0", np.array([0, 0, 2, 0, 0, 0, 0, 3], INT), mode=mode)], X, "it pads with something other than 0") for mode in ("reflect", "edge")},
    "minimum of blobs": ([node("Relu", "x0", outputs=["r"]), node("Min", "x0", "r")], X, "Eltwise has no minimum of blobs"),
    **{f"greatest over {axes}": ([node("ReduceMax", "x0", axes=axes)], X, "Reduction has no maximum") for axes in ([1], [0, 1, 2, 3])},
    "greatest of planes of 3 axes": ([node("ReduceMax", "x0", axes=[1, 2])], (2, 3, 4), "Reduction has no maximum"),
    "transposed beyond the kernel": ([node("ConvTranspose", "x0", weight(4, 3, 3, 4), weight(3), strides=[2, 3], output_padding=[1, 2])], X, "its result reaches beyond the last window"),
    "weights of an input": ([node("Conv", "x0", "x1")], X, "its weight is computed from the inputs"),
    "transposed matrix": ([node("Gemm", "x0", weight(3, 5), transA=1)], (3, 4), "its first matrix is transposed"),
    "pads behind alone": ([node("AveragePool", "x0", kernel_shape=[2, 2], pads=[0, 0, 1, 1])], X, "no rounding of Pooling gives"),
    "pooled 1D": ([node("MaxPool", "x0", kernel_shape=[2])], (2, 3, 8), "Pooling has two spatial axes"),
    "dilated pooling": ([node("MaxPool", "x0", kernel_shape=[2, 2], dilations=[2, 2])], X, "Pooling has no dilation"),
    "another activation": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), hidden_size=5, activations=["Sigmoid", "Relu", "Tanh"])], (3, 2, 4), "its activations are other than Sigmoid, Tanh"),
    "a state": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), "", "", weight(1, 2, 5), hidden_size=5)], (3, 2, 4), "its states do not begin with 0"),
    "coupled gates": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), hidden_size=5, input_forget=1)], (3, 2, 4), "its input and forget gates are coupled"),
    "a clip": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), hidden_size=5, clip=3.0)], (3, 2, 4), "it has a clip"),
    "lengths": ([node("LSTM", "x0", weight(1, 20, 4), weight(1, 20, 5), "", np.array([3, 2], np.int32), hidden_size=5)], (3, 2, 4), "sequences of several lengths"),
    "pad of 1": ([node("Pad", "x0", np.array([0, 0, 1, 1, 0, 0, 1, 1], INT), np.float32(1))], X, "pads with something other than 0"),
    "integers": ([node("Cast", "x0", to=TensorProto.INT64, outputs=["a"]), node("Cast", "a", to=TensorProto.FLOAT)], X, "blobs are of real numbers"),
    "a cell state": ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, outputs=["h", "", "c"]), node("Relu", "h", outputs=["r"]), node("Relu", "c")], (5, 2, 4),
                     r"node 'n0' \(LSTM\): no layers for its output 'c'"),
    "a cell state alone": ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, outputs=["", "", "c"]), node("Relu", "c")], (5, 2, 4), "neither all its states nor the last"),
    "indices of a maximum": ([node("MaxPool", "x0", kernel_shape=[2, 2], outputs=["m", "i"]), node("Cast", "i", to=TensorProto.FLOAT)], X, "no layers for its output 'i'"),
    "training": ([node("Dropout", "x0", np.float32(0.5), np.array(True))], X, r"it drops values \(training_mode\)"),
    "a part of a picture": ([node("Resize", "x0", np.float32([.1, .1, .1, .1, .9, .9, .9, .9]), np.float32([1, 1, 1, 1]), mode="linear", coordinate_transformation_mode="tf_crop_and_resize")],
                            X, r"crops \(tf_crop_and_resize\)"),
    "a bias of a column": ([node("Gemm", "x0", weight(4, 3), weight(3, 1))], (3, 4), "its bias is a matrix"),
    "a part of nothing": ([node("Split", "x0", np.array([0, 4], INT), axis=1, outputs=["z", "y"])], X, "it keeps nothing of an axis"),
    "no axis": ([node("ReduceSum", "x0", np.array([], INT), noop_with_empty_axes=1)], X, "it reduces no axis"),
    "a sequence": ([node("SequenceConstruct", "x0", "x0", outputs=["s"]), node("SequenceAt", "s", np.int64(0))], X, r"node 'n0' \(SequenceConstruct\): a blob holds an array, no sequence"),
    "a constant": ([node("Relu", "x0", outputs=["r"]), node("Neg", np.float32([1, 2]))], X, "output 'y' is a constant; export the model without this output$"),
    "quotients of integers": ([node("ArgMax", "x0", outputs=["i"]), node("Div", "i", np.int64(2), outputs=["d"]), node("Cast", "d", to=TensorProto.FLOAT)], X, "it computes with integers"),
    "depth": ([node("SpaceToDepth", "x0", blocksize=2)], (2, 3, 4, 6), "no layers for this operator"),
    "one value without axes": ([node("Squeeze", "x0", np.array([0], INT))], (1,), r"the shape \[\] is not one that a Reshape layer can make"),
    "slopes of each pixel": ([node("PRelu", "x0", weight(4, 7, 6))], X, r"its slopes have the shape \[4, 7, 6\], PReLU has one for each channel"),
    "slopes of another axis": ([node("PRelu", "x0", weight(4))], (2, 4, 7, 4), r"its slopes have the shape \[4\], PReLU has one for each channel"),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(tmp_path, name):
    nodes, *shapes = CASES[name]
    outputs = [output for _, _, tops, _ in nodes[-1:] for output in tops if output]
    made = load(write(tmp_path / "a.onnx", nodes, *shapes, outputs=outputs))
    assert sorted(one.blob for one in made.differences) == sorted(outputs) and all(one.relative < 1e-5 for one in made.differences)
    assert sorted(blob.name for blob in made.net.output_blobs) == sorted(outputs)    # what is cut off is no output
    Net(made.param)     # the definition is whole


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed(tmp_path, name):
    nodes, shape, reason = REFUSED[name]
    shapes = {"weights of an input": [shape, (3, 4, 3, 3)], "matmul of two inputs": [shape, (4, 3)]}.get(name, [shape])
    with pytest.raises(errors.ConfigError, match=rf"a.onnx: Caffe cannot express: .*{reason}"):
        load(write(tmp_path / "a.onnx", nodes, *shapes))


@pytest.mark.parametrize("name, opset, attributes, shape, reason", [
    ("Clip", 10, {"min": -0.2, "max": 0.4}, X, None), ("Clip", 10, {"max": 0.4}, X, None), ("Clip", 10, {"min": 0.1}, X, None),
    ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 0, 3]}, X, None), ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 0, 3], "mode": "reflect"}, X, "it pads with something other than 0"),
    ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 0, 3], "value": 1.0}, X, "it pads with something other than 0"),
    ("Squeeze", 11, {"axes": [1]}, (2, 1, 3), None), ("Unsqueeze", 11, {"axes": [0]}, (2, 3), None), ("ReduceSum", 11, {"axes": [-1], "keepdims": 0}, X, None),
    ("ReduceSum", 11, {"axes": [1, 2]}, X, None), ("Dropout", 10, {"ratio": 0.3}, X, None),
    ("Slice", 9, {"starts": [1, -4], "ends": [3, 100], "axes": [1, -1]}, X, None), ("Slice", 9, {"starts": [0, 1], "ends": [2, 3]}, X, None),
    ("Upsample", 7, {"scales": [1.0, 1.0, 1.7, 1.5]}, X, None), ("Upsample", 8, {"scales": [1.0, 1.0, 1.7, 1.5], "mode": "linear"}, X, None),
    *[("Resize", opset, {"mode": mode, **more}, X, None) for mode in ("nearest", "linear") for opset, more in ((19, {"axes": [2, 3]}), (10, {}))],
    *[(kind, opset, {} if axis is None else {"axis": axis}, X, "before opset 13 it is over all axes" if opset < 13 and axis != -1 else None)
      for kind in ("Softmax", "LogSoftmax") for opset in (7, 12, 13) for axis in (None, 0, 2, -1)],
    ("Softmax", 7, {}, (2, 4), None),
    ("BatchNormalization", 7, {"spatial": 0}, X, "it has statistics for each value of a channel")])
def test_operators_of_other_opsets(tmp_path, name, opset, attributes, shape, reason):
    """What is an input today was an attribute in opsets before. A Resize of opset 19 has sizes of some axes; in opset 10 scales are its input 1."""
    sizes = [np.float32([1, 1, 1.7, 0.6])] if opset == 10 else ["", "", np.array([9, 4], INT)]
    more = {"BatchNormalization": [positive(*shape[1:])] * 4, "Resize": sizes}.get(name, [])
    nodes = [node("Relu", "x0", outputs=["r"]), node(name, "r", *more, outputs=["s"], **attributes), node("Neg", "s")]
    path = write(tmp_path / "a.onnx", nodes, shape, opset=opset)
    if reason:
        with pytest.raises(errors.ConfigError, match=reason):
            load(path)
    else:
        one, = load(path).differences
        assert one.blob == "y" and one.relative < 1e-5


def test_outputs_of_models(tmp_path, caplog):
    model = onnx.load(write(tmp_path / "a.onnx", [node("Relu", "x0")], X))
    for given in None, (9, 9):
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, given))
        onnx.save(model, tmp_path / "a.onnx")
        assert [one.relative for one in load(tmp_path / "a.onnx").differences] == [0]
    path = write(tmp_path / "a.onnx", [node("Relu", "x0", outputs=["a"]), node("Neg", "a")], X, outputs=("a", "y"))
    assert [blob.name for blob in load(path).net.output_blobs] == ["y"]
    assert "output 'a' is read by another layer: it is a blob of the net, and none of its outputs" in caplog.text and "'y'" not in caplog.text


@pytest.mark.parametrize("case, shape, said", [
    (node("MaxPool", "x0", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), (1, 2, 8, 8), "Caffe 1.0 and OpenCV lack round_mode: FLOOR, and compute other tops of the layers 'n0' (Pooling)"),
    (node("MaxPool", "x0", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), (1, 2, 7, 7), None),
    (node("AveragePool", "x0", kernel_shape=[2, 2]), X, None), (node("MaxPool", "x0", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), X, None),
    (node("Transpose", "x0", perm=[0, 2, 3, 1]), X, "BVLC Caffe lacks the types of the layers 'n0' (Permute)"),
    (node("Clip", "x0", np.float32(0)), X, "Caffe 1.0 lacks the type Clip of the layers 'n0' (Clip)"),
    (node("ArgMax", "x0"), X, "node 'n0' (ArgMax): of equal maxima Caffe takes the last, this node takes the first"),
    (node("ArgMax", "x0", select_last_index=1), X, None)])
def test_notes_for_other_caffes(tmp_path, caplog, case, shape, said):
    kind, inputs, _, attributes = case
    nodes = [case] if kind != "ArgMax" else [node(kind, *inputs, outputs=["i"], **attributes), node("Cast", "i", to=TensorProto.FLOAT)]
    made = load(write(tmp_path / "a.onnx", nodes, shape))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("minicaffe.addons.export.onnx")] == ([said] if said else [])
    assert [layer.name for layer in made.param.layer if layer.pooling_param.HasField("round_mode")] == ["n0"] * ("FLOOR" in (said or ""))


def test_sequences_restart_in_each_run(tmp_path):
    net = load(write(tmp_path / "a.onnx", [node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), weight(1, 24), hidden_size=3)], (5, 2, 4))).net
    x = weight(5, 2, 4)
    runs = [run_net(net, {"x0": x})["y"].copy() for _ in range(3)]
    assert np.array_equal(runs[0], runs[1]) and np.array_equal(runs[0], runs[2]) and np.any(runs[0])


def test_importers_names_and_values(tmp_path):
    own = {kind for kind, function in IMPORTERS.items() if function.__module__.startswith("minicaffe.addons.export.onnx.")}   # a page registers another
    assert {kind for nodes, *_ in CASES.values() for kind, *_ in nodes} | {"Upsample"} >= own
    taken = {}
    names = {unique("Eltwise", taken) for _ in range(20_000)}
    assert len(names) == 20_000 and "Eltwise_20000" in names
    made = load(write(tmp_path / "a.onnx", [node("Add", "x0", np.float32(-14), outputs=["a"]), node("Sigmoid", "a")], X))
    assert made.differences[0].absolute < 2.0 ** -21


def test_nodes_without_names(tmp_path):
    path = write(tmp_path / "a.onnx", [node("Relu", "x0", outputs=["a"]), node("HardSwish", "a", outputs=["b"]), node("Relu", "b")], X)
    model = onnx.load(path)
    for one in model.graph.node:
        one.name = ""
    onnx.save(model, path)
    made = load(path)
    assert [layer.name for layer in made.param.layer] == ["x0", "Relu0", "HardSwish1/Power", "HardSwish1/Clip", "HardSwish1", "Relu2"]
    assert made.differences[0].relative < 1e-5
    model.graph.node[0].name = "x0"     # as the input
    onnx.save(model, path)
    assert [layer.name for layer in load(path).param.layer][:3] == ["x0", "x0_2", "HardSwish1/Power"]


KINDS = [       # nodes, shapes, the layers that they become
    ([node("Sub", "x0", "x1")], [X, X], "Power Eltwise"), ([node("Mul", "x0", "x1")], [X, (4, 1, 1)], "Reshape Scale"), ([node("Add", "x0", "x1")], [X, (6,)], "Bias"),
    ([node("Add", "x0", np.float32(1))], [X], "Power"), ([node("Mul", "x0", weight(*X))], [X], "Scale"),
    ([node("Gather", "x0", np.array([[0, 1, 2, 3]], INT), axis=1)], [X], "Reshape"),
    ([node("ReduceSum", "x0", np.array([2, 3], INT), keepdims=0)], [X], "Reduction"), ([node("ReduceSum", "x0", np.array([1], INT), keepdims=0)], [X], "Permute Reduction"),
    ([node("ReduceMean", "x0", axes=[2, 3])], [X], "Pooling"), ([node("AveragePool", "x0", kernel_shape=[3, 3])], [X], "Pooling"),
    ([node("AveragePool", "x0", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], [X], "Pooling Scale"),
    ([node("BatchNormalization", "x0", np.ones(4, np.float32), np.zeros(4, np.float32), weight(4), positive(4))], [X], "BatchNorm"),
    ([node("Flatten", "x0", axis=1)], [X], "Flatten"), ([node("Flatten", "x0", axis=1)], [(3,)], "Reshape"),
    ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, direction="reverse")], [(2, 2, 4)], "Slice Concat Parameter LSTM Slice Concat Reshape"),
    ([node("LSTM", "x0", weight(1, 12, 4), weight(1, 12, 3), hidden_size=3, direction="reverse", outputs=["", "h"]), node("Relu", "h")], [(1, 2, 4)], "Parameter LSTM ReLU"),
    ([node("Pad", "x0", np.array([0, 0, 1, 1, 0, 0, 1, 1], INT))], [X], "Convolution"), ([node("DepthToSpace", "x0", blocksize=2)], [(2, 8, 3, 2)], "Reshape Permute Reshape"),
    ([node("Slice", "x0", np.array([0, 1], INT), np.array([9, 9], INT), np.array([2, 3], INT), np.array([2, 2], INT))], [X], "Convolution"),
    ([node("Resize", "x0", "", np.array([1, 1, 2, 2], np.float32), mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")], [X], "Deconvolution")]


@pytest.mark.parametrize("nodes, shapes, kinds", KINDS, ids=[f"{nodes[0][0]}-{kinds}" for nodes, _, kinds in KINDS])
def test_layers_of_an_operator(tmp_path, nodes, shapes, kinds):
    made = load(write(tmp_path / "a.onnx", nodes, *shapes))
    assert " ".join(layer.type for layer in made.param.layer if layer.type != "Input") == kinds


def test_sizes_that_are_not_fixed(tmp_path):
    for size in "batch", 0:     # as some programs write an open size
        path = write(tmp_path / "a.onnx", [node("Relu", "x0")], X, dims=[size, 4, 7, 6])
        with pytest.raises(errors.ConfigError, match="input 'x0' has axes without a size: SIZEx4x7x6; give --batch N"):
            load(path)
        assert load(path, batch=5).net.blobs["y"].shape == (5, 4, 7, 6)
    path = write(tmp_path / "a.onnx", [node("Relu", "x0")], X, dims=[2, 4, "height", 6])
    with pytest.raises(errors.ConfigError, match="input 'x0' has axes without a size: 2x4xSIZEx6; give --shape x0=2x4xSIZEx6"):
        load(path, batch=5)
    assert load(path, shapes={"x0": (2, 4, 9, 6)}).net.blobs["y"].shape == (2, 4, 9, 6)
    for shape in (2, 4, 9), (3, 4, 9, 6):
        with pytest.raises(errors.ConfigError, match=f"shapes: input 'x0' has the shape 2x4xSIZEx6, which {'x'.join(map(str, shape))} does not fit"):
            load(path, shapes={"x0": shape})
    with pytest.raises(errors.ConfigError, match="shapes: has no input 'x00'; did you mean 'x0'"):
        load(path, shapes={"x00": (2, 4, 9, 6)})


def test_nets_of_several_operators(tmp_path):
    nodes = [node("Transpose", "x0", perm=[1, 0, 2], outputs=["a"]),
             node("LSTM", "a", weight(2, 20, 4), weight(2, 20, 5), weight(2, 40), hidden_size=5, direction="bidirectional", outputs=["b"]),
             node("Transpose", "b", perm=[0, 2, 1, 3], outputs=["c"]), node("Reshape", "c", np.array([0, 0, -1], INT), outputs=["d"]),
             node("Gather", "d", np.array(-1, INT), axis=0, outputs=["e"]), node("Gemm", "e", weight(3, 10), weight(3), transB=1, outputs=["f"]),
             node("Softmax", "f", axis=1)]
    made = load(write(tmp_path / "a.onnx", nodes, (2, 6, 4)))
    assert made.differences[0].relative < 1e-5 and made.net.blobs["y"].shape == (2, 3)
    assert [layer.type for layer in made.param.layer].count("LSTM") == 2


@pytest.mark.parametrize("one, wrong", [      # the first two have small results
    (node("Conv", "x0", weight(64, 1, 1, 1), pads=[0, 0, 5000, 0], strides=[5000, 1]), "a kernel with zeros for unequal pads"),
    (node("Resize", "x0", weight(0), np.array([1, 1, 200, 1], np.float32), mode="linear"), "the matrix of a Resize from 14 to 2800"),
    (node("Expand", "x0", np.array([5000, 1, 1, 14, 1])), "a.onnx: 'y' of shape 5000 x 1 x 1 x 14 x 1 would take 280000 bytes"),
    (node("Tile", "x0", np.array([1, 5000, 1, 1])), "a.onnx: 'y' of shape 1 x 5000 x 14 x 1 would take 280000 bytes"),
    (node("Mul", "x0", weight(1, 1, 14, 2000)), "the model .*a.onnx would take"),
    (node("ConstantOfShape", np.array([300, 400])), "a.onnx: 'y' of shape 300 x 400 would take 480000 bytes")])
def test_memory_limits(tmp_path, monkeypatch, one, wrong):
    path = write(tmp_path / "a.onnx", [one], (1, 1, 14, 1))
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "60KiB")
    with pytest.raises(errors.Error, match=wrong):
        load(path)


@pytest.mark.parametrize("file", [pytest.param(file, marks=[pytest.mark.slow(9)] * file.startswith(("resnet50", "googlenet", "mobilenet", "autoencoder"))) for file in DEPLOY
                                  if file.startswith(("lenet", "mlp", "mobilenet", "resnet50", "googlenet", "autoencoder", "siamese"))])
def test_there_and_back(tmp_path, file):
    param, positions = read_net(str(MODELS / file), caffe_pb2.TEST)
    net = filled(Net(param, positions=positions))
    export(net, tmp_path / "a.onnx", check=False)
    made = load(tmp_path / "a.onnx")
    assert [layer.name for layer in made.param.layer if not layer.name.endswith(("/Mul", "/Flatten")) and layer.type != "Input"] == [
        node.name for node in net.nodes if node.type not in ("Input", "Split", "Dropout")]
    assert all(one.relative < 1e-5 for one in made.differences)
    export(made.net, tmp_path / "b.onnx", check=False)
    first, second = (onnx.load(tmp_path / name).graph for name in ("a.onnx", "b.onnx"))
    assert [node.op_type for node in first.node] == [node.op_type for node in second.node]


def test_damaged_files(tmp_path):
    path = tmp_path / "a.onnx"
    with pytest.raises(errors.FileError, match="cannot be read"):
        load(path)
    whole = write(path, [node("Conv", "x0", weight(3, 4, 3, 3))], X).read_bytes()
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (tmp_path.parent / "secret").write_bytes(bytes(1000))
    for content, wrong in ((b"", "is not a model of ONNX"), (b"\x08\x07garbage" * 9, "is not a model of ONNX"),
                           (model.SerializeToString(), "is not a model of ONNX that can be used")):
        path.write_bytes(content)
        with pytest.raises(errors.DataError, match=wrong):
            load(path)
    for size in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        with pytest.raises(errors.Error):
            load(path)


def test_unfit_models(tmp_path):
    path = write(tmp_path / "a.onnx", [node("Relu", "x0")], X, dims=[1, 1 << 20, 1 << 20, 1 << 10])
    with pytest.raises(errors.ShapeError, match="input 'x0' would take"):
        load(path)
    model = onnx.load(write(path, [node("Relu", "x0")], X))
    model.graph.node[0].domain = "own.domain"
    model.opset_import.append(helper.make_opsetid("own.domain", 1))
    onnx.save(model, path)
    with pytest.raises(errors.ConfigError, match="has operators of other domains than ONNX's own: own.domain"):
        load(path)
    branch = [helper.make_graph([helper.make_node("Relu", ["x0"], [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, X)])
              for name in ("then", "else")]
    path = write(tmp_path / "a.onnx", [node("If", np.array(True), then_branch=branch[0], else_branch=branch[1])], X)
    with pytest.raises(errors.ConfigError, match=r"node 'n0' \(If\): no layers for this operator"):
        load(path)


def test_wrong_importers_and_equal_maxima(tmp_path, monkeypatch):
    monkeypatch.setitem(IMPORTERS, "Tanh", lambda made, node: made.layer("Sigmoid", [made.bottom()], last=True))
    path = write(tmp_path / "a.onnx", [node("Relu", "x0", outputs=["a"]), node("Tanh", "a", outputs=["b"]), node("Abs", "b")], X)
    with pytest.raises(errors.DataError, match=r"the net gives other numbers than the model: layer 'n1' \(Sigmoid\) differs first"):
        load(path)
    nodes = [node("Relu", "x0", outputs=["r"]), node("ArgMax", "r", axis=1, outputs=["i"]), node("Cast", "i", to=TensorProto.FLOAT)]
    with pytest.raises(errors.DataError, match=r"a\.onnx: the net gives other numbers than the model: layer 'n1' \(ArgMax\) differs first"):
        load(write(tmp_path / "a.onnx", nodes, X))


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_of_sums_and_products(tmp_path, seed):
    random = np.random.default_rng(seed)
    values, nodes, read = ["x0"], [], set()
    for i in range(10):
        bottom = values[-1] if random.random() < 0.6 else str(random.choice(values))
        kind = str(random.choice(["Add", "Sub", "Mul", "Mul", "Div", "Relu", "Neg", "Max", "Max", "Sum"]))
        other = str(random.choice(values))
        if kind in ("Relu", "Neg"):
            inputs = [bottom]
        elif kind in ("Max", "Sum"):
            inputs = [bottom, other]
        else:
            shape = [(), (4, 1, 1), (6,), (4, 7, 6), (1, 7, 1), X][random.integers(6)]
            constant = positive(*shape) if kind == "Div" else weight(*shape)
            inputs = [bottom, constant if random.random() < 0.75 or kind == "Div" else other]
            if kind != "Div" and random.random() < 0.3:
                inputs.reverse()
        read |= {one for one in inputs if isinstance(one, str)}
        nodes.append(node(kind, *inputs, outputs=[f"v{i}"]))
        values.append(f"v{i}")
    outputs = [value for value in values[1:] if value not in read] + [str(random.choice(sorted(read - {"x0"})))]
    made = load(write(tmp_path / "a.onnx", nodes, X, outputs=outputs))
    assert set(made.net.blobs) >= set(outputs) and made.differences and all(one.relative < 1e-4 for one in made.differences)


def test_sizes_of_pooling():
    """Both roundings, with and without pads: with a pad on either axis Caffe drops a window that begins behind the picture."""
    from minicaffe.addons.export.onnx.importers.products import POOLING, caffe_size
    random = np.random.default_rng(2)
    cases, text = [], 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 9 dim: 7 } } }\n'
    for i in range(150):
        kernel = random.integers(1, 6, 2)
        pad, stride, mode = random.integers(0, kernel), random.integers(1, 6, 2), int(random.integers(2))
        cases.append((kernel, stride, pad, (POOLING.CEIL, POOLING.FLOOR)[mode]))
        text += (f'layer {{ name: "p{i}" type: "Pooling" bottom: "x" top: "p{i}" pooling_param {{ kernel_h: {kernel[0]} kernel_w: {kernel[1]} '
                 f'stride_h: {stride[0]} stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]} round_mode: {("CEIL", "FLOOR")[mode]} }} }}\n')
    net, dropped = Net(parse_text(text, caffe_pb2.NetParameter)[0]), 0
    for i, (kernel, stride, pad, mode) in enumerate(cases):
        sizes = [caffe_size(size, *one, mode, pad.any()) for size, *one in zip((9, 7), kernel, stride, pad)]
        assert net.blobs[f"p{i}"].shape[2:] == tuple(sizes), cases[i]
        dropped += sizes != [caffe_size(size, *one, mode, False) for size, *one in zip((9, 7), kernel, stride, pad)]
    assert dropped > 3
