"""Normalisation, element-wise functions, arithmetic with broadcasting."""

import math

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer
from minicaffe.addons.export.onnx.graph import onnx
from minicaffe.proto import caffe_pb2

ELTWISE = caffe_pb2.EltwiseParameter

# ---- normalisation

@importer("BatchNormalization")
def batch_norm(made, node):
    scale, shift, mean, variance = (made.constant(i, "statistics") for i in range(1, 5))
    if made.attribute("training_mode", 0):
        raise Unsupported("it computes the statistics of the batch (training_mode); export the model for inference")
    if scale.ndim != 1:
        raise Unsupported("it has statistics for each value of a channel (spatial 0), BatchNorm has one for each channel")
    plain = np.all(scale == 1) and not np.any(shift)
    top = made.layer("BatchNorm", [made.bottom()], [mean, variance, np.ones(1)], last=plain, eps=made.attribute("epsilon", 1e-5))
    if not plain:
        made.layer("Scale", [top], [scale, shift], last=True, bias_term=True)


# ---- functions

LAYERS = {      # operator -> layer type, and the fields of its message: a number, or an attribute and its default
    "Relu": ("ReLU", {}), "Sigmoid": ("Sigmoid", {}), "Tanh": ("TanH", {}), "Softplus": ("BNLL", {}), "Abs": ("AbsVal", {}),
    "Exp": ("Exp", {}), "Log": ("Log", {}), "Neg": ("Power", {"scale": -1.0}), "Sqrt": ("Power", {"power": 0.5}),
    "Reciprocal": ("Power", {"power": -1.0}), "LeakyRelu": ("ReLU", {"negative_slope": ("alpha", 0.01)}),
    "Elu": ("ELU", {"alpha": ("alpha", 1.0)}),
    "LRN": ("LRN", {"local_size": ("size", None), "alpha": ("alpha", 1e-4), "beta": ("beta", 0.75), "k": ("bias", 1.0)}),
}


@importer(*LAYERS)
def function_layer(made, node):
    kind, fields = LAYERS[node.op_type]
    values = {name: made.attribute(*value) if isinstance(value, tuple) else value for name, value in fields.items()}
    made.layer(kind, [made.bottom()], last=True, **values)


@importer("HardSigmoid", "HardSwish")
def hard_function(made, node):
    swish = node.op_type == "HardSwish"
    scale, shift = (1 / 6, 0.5) if swish else (made.attribute("alpha", 0.2), made.attribute("beta", 0.5))
    blob = made.layer("Power", [made.bottom()], scale=scale, shift=shift)
    blob = made.layer("Clip", [blob], last=not swish, min=0.0, max=1.0)
    if swish:
        made.layer("Eltwise", [made.bottom(), blob], last=True, operation=ELTWISE.PROD)


@importer("Identity", "Dropout", "Cast")
def identity(made, node):
    if node.op_type == "Cast" and made.attribute("to") not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise Unsupported("blobs are of real numbers")
    if node.op_type == "Dropout" and made.constant(2, "training_mode") and made.constant(1, "ratio") != 0:
        raise Unsupported("it drops values (training_mode); export the model for inference")
    made.alias()


@importer("PRelu")
def prelu(made, node):
    slopes, channels, axes = made.constant(1, "slope"), made.shape()[1], len(made.shape())
    if slopes.size not in (1, channels) or slopes.size > 1 and ((1,) * (axes - slopes.ndim) + slopes.shape)[1] != channels:
        raise Unsupported(f"its slopes have the shape {list(slopes.shape)}, PReLU has one for each channel")
    shared = slopes.size == 1
    made.layer("PReLU", [made.bottom()], [slopes.reshape(() if shared else (-1,))], last=True, channel_shared=shared)


@importer("Clip")
def clip(made, node):
    low, high = (made.attribute(name, made.constant(i, f"{name}imum")) for i, name in ((1, "min"), (2, "max")))
    low, high = -3.4e38 if low is None else float(low), 3.4e38 if high is None else float(high)
    made.layer("Clip", [made.bottom()], last=True, min=min(low, high), max=high)


@importer("Softmax", "LogSoftmax")
def softmax(made, node):
    given, log = made.shape(), node.op_type == "LogSoftmax"
    axis = made.attribute("axis", 1 if made.opset < 13 else -1) % len(given)
    if made.opset < 13 and math.prod(given[axis + 1:]) != 1:
        raise Unsupported("before opset 13 it is over all axes from its axis on; convert the model (onnx.version_converter)")
    blob = made.layer("Softmax", [made.bottom()], last=not log, axis=axis)
    if log:
        made.layer("Log", [blob], last=True)


@importer("Pow")
def power(made, node):
    exponent = made.constant(1, "exponent")
    if exponent.size != 1:
        raise Unsupported("its exponent has several values")
    made.layer("Power", [made.bottom()], last=True, power=exponent.item())


@importer("Add", "Sub", "Mul", "Div")
def arithmetic(made, node):
    """A constant becomes Power, Scale or Bias; two blobs Eltwise, or Scale and Bias with two bottoms."""
    multiplies = node.op_type in ("Mul", "Div")
    inverse = {"Sub": {"scale": -1.0}, "Div": {"power": -1.0}}.get(node.op_type)     # what a Power does to the second operand
    for index, name in enumerate(node.input):
        if name in made.constants:
            with_constant(made, made.constants[name], 1 - index, multiplies, inverse)
            return
    a, b = made.shape(0), made.shape(1)
    first, second = made.bottom(0), made.bottom(1)
    second = made.layer("Power", [second], **inverse) if inverse else second
    large, small, sizes, given = (first, second, a, b) if made.result == a else (second, first, b, a)
    if a == b or made.result != sizes or broadcast_axes(sizes, given) is None:
        bottoms = [made.broadcast(blob, shape, made.result) for blob, shape in ((first, a), (second, b))]
        made.layer("Eltwise", bottoms, last=True, operation=ELTWISE.PROD if multiplies else ELTWISE.SUM)
        return
    axis, shape = broadcast_axes(sizes, given)
    small = made.reshaped(small, given, shape)
    made.layer("Scale" if multiplies else "Bias", [large, small], last=True, axis=axis)


def broadcast_axes(sizes, given):
    """Return the axis at which a broadcast array of the shape `given` begins in `sizes`, and its shape without axes of size 1.

    None if an axis between those of this shape has size 1 in `given` alone, or all axes have it and the first of `sizes` has not:
    Scale and Bias repeat no axis in the middle, and their second bottom has none or begins at one of its own size.
    """
    whole = (1,) * (len(sizes) - len(given)) + tuple(given)
    axes = [i for i, size in enumerate(whole) if size != 1]
    if not axes:
        return (0, (1,)) if sizes[:1] == (1,) else None if given else (0, ())
    first, last = axes[0], axes[-1]
    if whole[first:last + 1] != tuple(sizes[first:last + 1]):
        return None
    return first, whole[first:last + 1]


def with_constant(made, value, index, multiplies, inverse):
    """A sum or product of operand `index` and a constant; `inverse`: what a Power does to the second of the two, or None."""
    sizes = made.result
    blob = made.broadcast(made.bottom(index), made.shape(index), sizes)
    if inverse and index:
        blob = made.layer("Power", [blob], **inverse)
    elif inverse:
        value = 1 / value if multiplies else -value
    if value.size == 1:
        made.layer("Power", [blob], last=True, **{"scale" if multiplies else "shift": value.item()})
        return
    value = value if broadcast_axes(sizes, value.shape) else np.broadcast_to(value, sizes)
    axis, shape = broadcast_axes(sizes, value.shape)
    made.layer("Scale" if multiplies else "Bias", [blob], [value.reshape(shape)], last=True, axis=axis, num_axes=len(shape))


@importer("Sum", "Max", "Min")
def sum_or_limit(made, node):
    numbers = [i for i, name in enumerate(node.input) if name in made.constants and made.constants[name].size == 1]
    if node.op_type != "Sum" and len(node.input) == 2 and numbers:
        limits = {"min": -3.4e38, "max": 3.4e38}
        limits["max" if node.op_type == "Min" else "min"] = made.constants[node.input[numbers[0]]].item()
        made.layer("Clip", [made.bottom(1 - numbers[0])], last=True, **limits)
        return
    if node.op_type == "Min":
        raise Unsupported("Eltwise has no minimum of blobs")
    bottoms = [made.broadcast(made.bottom(i), made.shape(i), made.result) for i in range(len(node.input))]
    if len(bottoms) == 1:
        made.alias()
        return
    made.layer("Eltwise", bottoms, last=True, operation=ELTWISE.SUM if node.op_type == "Sum" else ELTWISE.MAX)
