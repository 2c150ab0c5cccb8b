"""Normalisation, element-wise functions, arithmetic with broadcasting."""

import math

import numpy as np

from minicaffe.onnx.conversion import Unsupported, importer
from minicaffe.onnx.graph import onnx
from minicaffe.proto import caffe_pb2

# ---- normalisation

@importer("BatchNormalization")
def batch_norm(made, node):
    scale, shift, mean, variance = (made.constant(i, "statistics") for i in range(1, 5))
    if made.attribute("training_mode", 0):
        raise Unsupported("it computes the statistics of the batch (training_mode); export the model for inference")
    plain = np.all(scale == 1) and not np.any(shift)
    top = made.layer("BatchNorm", [made.bottom()], "batch_norm_param", [mean, variance, np.ones(1)], last=plain,
                     eps=made.attribute("epsilon", 1e-5))
    if plain:
        return
    made.layer("Scale", [top], "scale_param", [scale, shift], last=True, bias_term=True)


@importer("InstanceNormalization", "LayerNormalization", "GroupNormalization")
def sample_norm(made, node):
    """BatchNorm with the statistics of the batch, where each thing that is normalised is a channel."""
    given, eps = made.shape(), made.attribute("epsilon", 1e-5)
    if node.op_type == "InstanceNormalization":
        rows, axis = [1, given[0] * given[1], *given[2:]], 1
    elif node.op_type == "GroupNormalization":
        groups, axis = made.attribute("num_groups"), 1
        rows = [1, given[0] * groups, given[1] // groups, *given[2:]]
    else:
        axis = made.attribute("axis", -1) % len(given)
        rows = [1, math.prod(given[:axis]), math.prod(given[axis:])]
    blob = made.reshaped(made.bottom(), given, rows)
    blob = made.layer("BatchNorm", [blob], "batch_norm_param", [np.zeros(rows[1]), np.zeros(rows[1]), np.ones(1)], eps=eps,
                      use_global_stats=False)
    blob = made.reshaped(blob, rows, given)
    scale, shift = made.constant(1, "scale"), made.constant(2, "bias")
    shift = np.zeros_like(scale) if shift is None else shift
    made.layer("Scale", [blob], "scale_param", [scale, shift], last=True, bias_term=True, axis=axis, num_axes=scale.ndim)


@importer("LRN")
def lrn(made, node):
    made.layer("LRN", [made.bottom()], "lrn_param", last=True, local_size=made.attribute("size"),
               alpha=made.attribute("alpha", 1e-4), beta=made.attribute("beta", 0.75), k=made.attribute("bias", 1.0))


# ---- elementwise

def simple(kind, field="", **values):
    """Return the importer of an operator that is one layer."""
    return lambda made, node: made.layer(kind, [made.bottom()], field, last=True, **values)


importer("Relu")(simple("ReLU"))
importer("Sigmoid")(simple("Sigmoid"))
importer("Tanh")(simple("TanH"))
importer("Softplus")(simple("BNLL"))
importer("Abs")(simple("AbsVal"))
importer("Exp")(simple("Exp"))
importer("Log")(simple("Log"))
importer("Neg")(simple("Power", "power_param", scale=-1.0))
importer("Sqrt")(simple("Power", "power_param", power=0.5))
importer("Reciprocal")(simple("Power", "power_param", power=-1.0))


@importer("Identity", "Dropout", "Cast")
def identity(made, node):
    if node.op_type == "Cast" and made.attribute("to") not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise Unsupported("blobs are of real numbers")
    made.alias()


@importer("LeakyRelu")
def leaky(made, node):
    made.layer("ReLU", [made.bottom()], "relu_param", last=True, negative_slope=made.attribute("alpha", 0.01))


@importer("Elu")
def elu(made, node):
    made.layer("ELU", [made.bottom()], "elu_param", last=True, alpha=made.attribute("alpha", 1.0))


@importer("PRelu")
def prelu(made, node):
    slopes, channels, axes = made.constant(1, "slope"), made.shape()[1], len(made.shape())
    if slopes.size not in (1, channels) or slopes.size > 1 and ((1,) * (axes - slopes.ndim) + slopes.shape)[1] != channels:
        raise Unsupported(f"its slopes have the shape {list(slopes.shape)}, PReLU has one for each channel")
    shared = slopes.size == 1
    made.layer("PReLU", [made.bottom()], "prelu_param", [slopes.reshape(() if shared else (-1,))], last=True, channel_shared=shared)


@importer("Clip")
def clip(made, node):
    low, high = made.constant(1, "minimum"), made.constant(2, "maximum")
    low, high = made.attribute("min", low), made.attribute("max", high)
    low, high = -3.4e38 if low is None else float(low), 3.4e38 if high is None else float(high)
    made.layer("Clip", [made.bottom()], "clip_param", last=True, min=low, max=high)


@importer("HardSigmoid", "HardSwish")
def hard(made, node):
    swish = node.op_type == "HardSwish"
    x = made.bottom()
    line = made.layer("Power", [x], "power_param", scale=1 / 6 if swish else made.attribute("alpha", 0.2),
                      shift=0.5 if swish else made.attribute("beta", 0.5))
    gate = made.layer("Clip", [line], "clip_param", last=not swish, min=0.0, max=1.0)
    if swish:
        made.layer("Eltwise", [x, gate], "eltwise_param", last=True, operation=caffe_pb2.EltwiseParameter.PROD)


@importer("Softmax", "LogSoftmax")
def softmax(made, node):
    axis, log = made.attribute("axis", -1) % len(made.shape()), node.op_type == "LogSoftmax"
    top = made.layer("Softmax", [made.bottom()], "softmax_param", last=not log, axis=axis)
    if log:
        made.layer("Log", [top], last=True)


@importer("Pow")
def power(made, node):
    exponent = made.constant(1, "exponent")
    if exponent.size != 1:
        raise Unsupported("its exponent has several values")
    made.layer("Power", [made.bottom()], "power_param", last=True, power=exponent.item())


@importer("Add", "Sub", "Mul", "Div")
def arithmetic(made, node):
    """A constant becomes Power, Scale or Bias; two blobs Eltwise, or Scale and Bias with two bottoms."""
    kind = node.op_type
    left, right = (name in made.constants for name in node.input)
    if left or right:
        value = made.constants[node.input[0 if left else 1]]
        index = 1 if left else 0
        of_value = kind in ("Sub", "Div") and left
        with_constant(made, kind, value, index, of_value)
        return
    a, b = made.shape(0), made.shape(1)
    first, second = made.bottom(0), made.bottom(1)
    if kind in ("Sub", "Div"):
        second = made.layer("Power", [second], "power_param", **({"scale": -1.0} if kind == "Sub" else {"power": -1.0}))
    multiplies = kind in ("Mul", "Div")
    large, small, sizes, given = (first, second, a, b) if made.result == a else (second, first, b, a)
    if a == b or made.result != sizes or span(sizes, given) is None:
        bottoms = [made.broadcast(blob, shape, made.result) for blob, shape in ((first, a), (second, b))]
        operation = caffe_pb2.EltwiseParameter.PROD if multiplies else caffe_pb2.EltwiseParameter.SUM
        made.layer("Eltwise", bottoms, "eltwise_param", last=True, operation=operation)
        return
    axis, shape = span(sizes, given)
    small = made.reshaped(small, given, shape)
    kind, field = ("Scale", "scale_param") if multiplies else ("Bias", "bias_param")
    made.layer(kind, [large, small], field, last=True, axis=axis)


def span(sizes, given):
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


def with_constant(made, kind, value, index, of_value):
    """An operation of a blob and a constant; `of_value`: the constant is the first operand."""
    blob, sizes = made.bottom(index), made.shape(index)
    blob, sizes = made.broadcast(blob, sizes, made.result), made.result
    if of_value:
        blob = made.layer("Power", [blob], "power_param", **({"scale": -1.0} if kind == "Sub" else {"power": -1.0}))
        kind = "Add" if kind == "Sub" else "Mul"
    value = -value if kind == "Sub" else 1 / value if kind == "Div" else value
    multiplies = kind in ("Mul", "Div")
    if value.size == 1:
        made.layer("Power", [blob], "power_param", last=True, **{"scale" if multiplies else "shift": value.item()})
        return
    value = value if span(sizes, value.shape) else np.broadcast_to(value, sizes)
    axis, shape = span(sizes, value.shape)
    if kind in ("Add", "Sub") and joins_scale(made, blob, axis, shape, index):
        name = made.param.layer[-1].name
        scale, = made.arrays.pop(name)
        bottom = made.param.layer[-1].bottom[0]
        made.checked.pop(blob, None)
        made.names.discard(name)
        del made.param.layer[-1]
        made.layer("Scale", [bottom], "scale_param", [scale, value.reshape(shape)], last=True, axis=axis, num_axes=len(shape),
                   bias_term=True)
        return
    made.layer("Scale" if multiplies else "Bias", [blob], "scale_param" if multiplies else "bias_param", [value.reshape(shape)],
               last=True, axis=axis, num_axes=len(shape))


def joins_scale(made, blob, axis, shape, index):
    """Whether the last layer is a Scale of this shape that only the present node reads; its bias is the constant then."""
    if not made.param.layer:
        return False
    last = made.param.layer[-1]
    return (last.type == "Scale" and list(last.top) == [blob] and len(last.bottom) == 1 and not last.scale_param.bias_term
            and last.scale_param.axis == axis and made.arrays[last.name][0].shape == tuple(shape)
            and made.readers[made.node.input[index]] == 1)


@importer("Sum", "Mean", "Max", "Min")
def several(made, node):
    numbers = [name for name in node.input if name in made.constants and made.constants[name].size == 1]
    if node.op_type in ("Max", "Min") and len(node.input) == 2 and numbers:
        bounds(made, node)
        return
    bottoms = [made.broadcast(made.bottom(i), made.shape(i), made.result) for i in range(len(node.input))]
    least = node.op_type == "Min"
    if len(bottoms) == 1:
        made.alias()
        return
    if least:
        bottoms = [made.layer("Power", [bottom], "power_param", scale=-1.0) for bottom in bottoms]
    operation = caffe_pb2.EltwiseParameter.SUM if node.op_type in ("Sum", "Mean") else caffe_pb2.EltwiseParameter.MAX
    coeff = [1 / len(bottoms)] * len(bottoms) if node.op_type == "Mean" else []
    top = made.layer("Eltwise", bottoms, "eltwise_param", last=not least, operation=operation, coeff=coeff)
    if least:
        made.layer("Power", [top], "power_param", last=True, scale=-1.0)


def bounds(made, node):
    """The maximum or minimum of a blob and a number."""
    index = 0 if node.input[1] in made.constants else 1
    value = made.constants[node.input[1 - index]].item()
    limits = {"min": value, "max": 3.4e38} if node.op_type == "Max" else {"min": -3.4e38, "max": value}
    made.layer("Clip", [made.bottom(index)], "clip_param", last=True, **limits)
