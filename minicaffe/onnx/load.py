"""A model of ONNX as a net of Caffe: `load` converts it, and compares it with onnxruntime layer by layer.

The shapes of all values are those that onnxruntime computes for inputs of the given shapes, so the net is for these shapes. What
depends on constants alone is a constant. Each other node becomes layers. Nodes that Caffe's layers cannot express are collected,
and one error names all of them. Caffe's windows differ from ONNX's: a convolution whose pads differ at the two sides of an axis
gets rows of zeros in its kernel, and the divisor of AVE pooling is corrected by a Scale with a factor for each position.
"""

import math
import os
from typing import NamedTuple

import numpy as np

from minicaffe.errors import ConfigError, DataError, Error, FileError
from minicaffe.memory.budget import check_bytes
from minicaffe.net.comparison import TOLERANCE, Difference, difference, run_net
from minicaffe.net.net import Net
from minicaffe.onnx.check import run_model
from minicaffe.onnx.graph import numpy_helper, onnx, value_info
from minicaffe.proto import caffe_pb2

DIALECTS = ("minicaffe", "ssd", "bvlc")
OF_SSD = ("Permute", "Normalize")   # layer types that BVLC Caffe lacks
IMPORTERS = {}                      # operator -> function
POOLING = caffe_pb2.PoolingParameter


class Unsupported(Exception):
    """A node cannot be expressed; the message is the reason."""


class Imported(NamedTuple):
    """What `load` returns.

    Attributes
    ----------
    net : Net
        In phase TEST, with the parameters.
    param : caffe_pb2.NetParameter
        Its definition.
    differences : list of Difference
        Of the outputs.
    """

    net: Net
    param: caffe_pb2.NetParameter
    differences: list


def importer(*operators):
    """Return a decorator that registers a function as the importer of operators of ONNX.

    The function has the arguments `made`, a `Conversion`, and `node`, a NodeProto. It adds layers by ``made.layer``, and raises
    `Unsupported` for what they cannot express.
    """
    def register(function):
        for operator in operators:
            IMPORTERS[operator] = function
        return function
    return register


class Conversion:
    """Collects the layers of a net.

    Attributes
    ----------
    constants : dict of str to ndarray
        Values that depend on no input.
    shapes : dict of str to tuple of int
        Of all other values.
    """

    def __init__(self, name, dialect):
        self.param, self.dialect = caffe_pb2.NetParameter(name=name), dialect
        self.constants, self.shapes, self.blobs, self.arrays, self.checked = {}, {}, {}, {}, {}
        self.names, self.node, self.number = set(), None, 0

    def attribute(self, name, default=None):
        """Return an attribute of the present node."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        if found is None:
            return default
        value = onnx.helper.get_attribute_value(found)
        return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, (list, tuple)) else value

    def constant(self, index, what):
        """Return input `index` of the present node, which must be a constant; None if it is left out."""
        if index >= len(self.node.input) or not self.node.input[index]:
            return None
        if self.node.input[index] not in self.constants:
            raise Unsupported(f"its {what} is computed from the inputs")
        return self.constants[self.node.input[index]]

    def bottom(self, index=0):
        """Return the blob of input `index`; a constant becomes a Parameter layer."""
        name = self.node.input[index]
        if name in self.constants:
            return self.layer("Parameter", [], arrays=[self.constants[name]], shape=self.constants[name].shape)
        return self.blobs[name]

    def shape(self, index=0):
        """Return the shape of input `index`."""
        name = self.node.input[index]
        return self.constants[name].shape if name in self.constants else self.shapes[name]

    @property
    def result(self):
        """tuple of int: the shape of the first output."""
        return self.shapes[self.node.output[0]]

    def layer(self, kind, bottoms, field="", arrays=(), last=False, tops=1, shape=None, **values):
        """Add a layer; return the name of its top, or a list of names for several.

        Parameters
        ----------
        kind : str
            Layer type.
        bottoms : list of str
        field : str
            The parameter message, whose fields are `values`; a list is appended.
        arrays : sequence of ndarray
            The parameters, any shapes that the layer has.
        last : bool
            Whether the top is the first output of the node; the layer has the node's name then.
        tops : int
        shape : tuple of int
            Of a Parameter layer.
        """
        if self.dialect == "bvlc" and kind in OF_SSD:
            raise Unsupported(f"it needs the layer type {kind}, which BVLC Caffe lacks (--dialect ssd)")
        own = self.node.name or f"{self.node.op_type}{self.number}"
        name = self._unique(own if last else f"{own}/{kind}")
        layer = self.param.layer.add(name=name, type=kind, bottom=bottoms)
        names = list(self.node.output[:tops]) if last else [name] if tops == 1 else [f"{name}/{i}" for i in range(tops)]
        layer.top.extend(names)
        message = getattr(layer, field) if field else None
        if field:
            message.SetInParent()
        for key, value in values.items():
            if isinstance(value, (list, tuple)):
                getattr(message, key).extend(value)
            else:
                setattr(message, key, value)
        if shape is not None:
            layer.parameter_param.shape.dim.extend(shape)
        if arrays:
            self.arrays[name] = [np.asarray(array, np.float32) for array in arrays]
        if last:
            for i, blob in enumerate(names):
                self.blobs[self.node.output[i]] = blob
                self.checked[blob] = self.node.output[i]
        return names[0] if tops == 1 else names

    def alias(self, index=0):
        """Let the output be input `index`."""
        name = self.node.input[index]
        if name in self.constants:
            self.constants[self.node.output[0]] = self.constants[name]
        else:
            self.blobs[self.node.output[0]] = self.blobs[name]

    def reshaped(self, blob, given, wanted, last=False):
        """Return `blob` of the shape `given` in the shape `wanted`; without a layer if they are equal."""
        if tuple(given) == tuple(wanted) and not last:
            return blob
        if not wanted or 0 in wanted:
            raise Unsupported(f"the shape {list(wanted)} is none of a Reshape layer")
        top = self.layer("Reshape", [blob], "reshape_param", last=last)
        dims = [0 if i == 0 and given[:1] == wanted[:1] and len(wanted) > 1 else size for i, size in enumerate(wanted)]
        self.param.layer[-1].reshape_param.shape.dim.extend(dims)
        return top

    def _unique(self, wanted):
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name


# ---- products

def sides(pads, count):
    """Return the pads of ONNX as lists of those before and behind each axis."""
    pads = pads or [0] * (2 * count)
    return list(pads[:count]), list(pads[count:])


def window_pads(made, kernel, stride, dilation, sizes, results):
    """Return the pads before and behind each axis of the present node, also those of `auto_pad`."""
    auto = made.attribute("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return sides(made.attribute("pads"), len(kernel))
    if auto == "VALID":
        return [0] * len(kernel), [0] * len(kernel)
    before, behind = [], []
    for k, s, d, size, result in zip(kernel, stride, dilation, sizes, results):
        total = max(0, (result - 1) * s + (k - 1) * d + 1 - size)
        before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        behind.append(total - before[-1])
    return before, behind


@importer("Conv")
def conv(made, node):
    weight, bias = made.constant(1, "weight"), made.constant(2, "bias")
    count = weight.ndim - 2
    kernel, group = list(weight.shape[2:]), made.attribute("group", 1)
    stride, dilation = made.attribute("strides", [1] * count), made.attribute("dilations", [1] * count)
    before, behind = window_pads(made, kernel, stride, dilation, made.shape()[2:], made.result[2:])
    # Unequal pads: the larger one on both sides, and zeros in the kernel where the window would begin or end too far out.
    front, back = [max(0, b - a) for a, b in zip(before, behind)], [max(0, a - b) for a, b in zip(before, behind)]
    if any(extra % d for extra, d in zip([*front, *back], [*dilation, *dilation])):
        raise Unsupported(f"its pads {before} and {behind} differ by no multiple of the dilation {dilation}")
    weight = np.pad(weight, [(0, 0), (0, 0), *((f // d, b // d) for f, b, d in zip(front, back, dilation))])
    pad = [max(a, b) for a, b in zip(before, behind)]
    made.layer("Convolution", [made.bottom()], "convolution_param", [weight, *([] if bias is None else [bias])], last=True,
               num_output=weight.shape[0], kernel_size=weight.shape[2:], stride=stride, pad=pad, dilation=dilation, group=group,
               bias_term=bias is not None)


@importer("ConvTranspose")
def conv_transpose(made, node):
    weight, bias = made.constant(1, "weight"), made.constant(2, "bias")
    count, group = weight.ndim - 2, made.attribute("group", 1)
    stride, dilation = made.attribute("strides", [1] * count), made.attribute("dilations", [1] * count)
    if made.attribute("auto_pad", "NOTSET") not in ("NOTSET", "") or made.attribute("output_shape"):
        raise Unsupported("its pads follow from a wanted shape (auto_pad, output_shape)")
    before, behind = sides(made.attribute("pads"), count)
    whole = [s * (size - 1) + d * (k - 1) + 1 for s, size, d, k in zip(stride, made.shape()[2:], dilation, weight.shape[2:])]
    results = list(made.result[2:])
    symmetric = before == behind and [w - 2 * p for w, p in zip(whole, before)] == results
    values = {"num_output": weight.shape[1] * group, "kernel_size": weight.shape[2:], "stride": stride, "dilation": dilation,
              "group": group, "bias_term": bias is not None}
    arrays = [weight, *([] if bias is None else [bias])]
    if symmetric:
        made.layer("Deconvolution", [made.bottom()], "convolution_param", arrays, last=True, pad=before, **values)
        return
    if any(p + r > w for p, r, w in zip(before, results, whole)):
        raise Unsupported("its output_padding is beyond the kernel")
    top = made.layer("Deconvolution", [made.bottom()], "convolution_param", arrays, pad=[0] * count, **values)
    cropped(made, top, [*made.result[:2], *whole], [0, 0, *before], made.result)


def cropped(made, blob, given, starts, wanted):
    """Cut a part out of a blob by Slice layers, one an axis; the last is the node's output."""
    axes = [axis for axis in range(len(given)) if given[axis] != wanted[axis]]
    for axis in axes:
        points = sorted({starts[axis], starts[axis] + wanted[axis]} - {0, given[axis]})
        names = made.layer("Slice", [blob], "slice_param", tops=len(points) + 1, axis=axis, slice_point=points)
        blob = names[1 if starts[axis] else 0]
        unused = [name for name in names if name != blob]
        made.layer("Silence", unused, tops=0)
    made.layer("Power", [blob], last=True)


@importer("Gemm")
def gemm(made, node):
    weight, bias = made.constant(1, "second matrix"), made.constant(2, "bias")
    alpha, beta = made.attribute("alpha", 1.0), made.attribute("beta", 1.0)
    if made.attribute("transA", 0):
        raise Unsupported("its first matrix is transposed")
    weight = (weight if made.attribute("transB", 0) else weight.T) * alpha
    if bias is not None:
        if bias.size not in (1, weight.shape[0]):
            raise Unsupported("its bias is a matrix")
        bias = np.broadcast_to(bias * beta, (1, weight.shape[0]))[0]
    product(made, weight, bias)


def product(made, weight, bias):
    """Add an InnerProduct with a weight (outputs, inputs); a Flatten before it is part of it."""
    blob = made.bottom()
    before = made.param.layer[-1] if made.param.layer else None
    axis = len(made.shape()) - 1
    of_gemm = before is not None and before.type == "Flatten" and before.name == f"{made.node.name}/Flatten"    # of `export`
    if of_gemm and list(before.top) == [blob] and made.readers[made.node.input[0]] == 1 and axis == 1:
        blob = before.bottom[0]
        made.checked.pop(before.top[0], None)
        made.names.discard(before.name)
        del made.param.layer[-1]
    made.layer("InnerProduct", [blob], "inner_product_param", [weight, *([] if bias is None else [bias])], last=True,
               num_output=weight.shape[0], bias_term=bias is not None, axis=axis)


@importer("MatMul")
def matmul(made, node):
    weight = made.constant(1, "second matrix")
    if weight.ndim != 2:
        raise Unsupported("its second matrix has other than two axes")
    product(made, weight.T, None)


# ---- pooling

@importer("MaxPool", "AveragePool")
def pool(made, node):
    if len(node.output) > 1 and node.output[1]:
        raise Unsupported("its indices count through the whole array")
    kernel, given, wanted = made.attribute("kernel_shape"), made.shape(), made.result
    if len(kernel) != 2:
        raise Unsupported(f"Pooling has two spatial axes, this has {len(kernel)}")
    stride, dilation = made.attribute("strides", [1, 1]), made.attribute("dilations", [1, 1])
    if dilation != [1, 1]:
        raise Unsupported("Pooling has no dilation")
    before, behind = window_pads(made, kernel, stride, dilation, given[2:], wanted[2:])
    sizes, results = list(given[2:]), list(wanted[2:])
    mode = next((mode for mode in (POOLING.CEIL, POOLING.FLOOR)
                 if [caffe_size(*one, mode, any(before)) for one in zip(sizes, kernel, stride, before)] == results), None)
    if mode is None or any(p >= k for p, k in zip(before, kernel)):
        raise Unsupported(f"no rounding of Pooling gives {results} windows of {kernel} with the pads {before} and {behind}")
    values = {"kernel_h": kernel[0], "kernel_w": kernel[1], "stride_h": stride[0], "stride_w": stride[1], "pad_h": before[0],
              "pad_w": before[1], "round_mode": mode}
    if node.op_type == "MaxPool":
        made.layer("Pooling", [made.bottom()], "pooling_param", last=True, pool=POOLING.MAX, **values)
        return
    counted = made.attribute("count_include_pad", 0)
    factor = np.outer(*(divisors(*one, counted) for one in zip(sizes, results, kernel, stride, before, behind)))
    if np.all(factor == 1):
        made.layer("Pooling", [made.bottom()], "pooling_param", last=True, pool=POOLING.AVE, **values)
        return
    top = made.layer("Pooling", [made.bottom()], "pooling_param", pool=POOLING.AVE, **values)
    made.layer("Scale", [top], "scale_param", [factor], last=True, axis=2, num_axes=2)


def caffe_size(size, kernel, stride, pad, mode, padded):
    """Return the number of Caffe's windows of an axis."""
    over = size + 2 * pad - kernel
    count = (-(-over // stride) if mode == POOLING.CEIL else over // stride) + 1
    return count - 1 if padded and (count - 1) * stride >= size + pad else count


def divisors(size, result, kernel, stride, before, behind, counted):
    """Return by how much Caffe's divisor is too large for each window of an axis."""
    made = []
    for i in range(result):
        start = i * stride - before
        caffe = min(start + kernel, size + before) - start
        end = min(start + kernel, size + behind) if counted else min(start + kernel, size)
        made.append(caffe / (end - (start if counted else max(start, 0))))
    return made


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(made, node):
    if len(made.shape()) != 4:
        raise Unsupported("Pooling has two spatial axes")
    made.layer("Pooling", [made.bottom()], "pooling_param", last=True, global_pooling=True,
               pool=POOLING.MAX if node.op_type == "GlobalMaxPool" else POOLING.AVE)


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


@importer("InstanceNormalization", "LayerNormalization")
def sample_norm(made, node):
    """BatchNorm with the statistics of the batch, where each thing that is normalised is a channel."""
    given, eps = made.shape(), made.attribute("epsilon", 1e-5)
    if node.op_type == "InstanceNormalization":
        rows, axis = [1, given[0] * given[1], *given[2:]], 1
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
    slopes, channels = made.constant(1, "slope"), made.shape()[1]
    if slopes.size not in (1, channels) or slopes.size > 1 and slopes.shape[-(len(made.shape()) - 1)] != channels:
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
    if a == b:
        operation = caffe_pb2.EltwiseParameter.PROD if multiplies else caffe_pb2.EltwiseParameter.SUM
        made.layer("Eltwise", [first, second], "eltwise_param", last=True, operation=operation)
        return
    large, small, sizes, given = (first, second, a, b) if made.result == a else (second, first, b, a)
    if made.result != sizes:
        raise Unsupported(f"both {list(a)} and {list(b)} are broadcast")
    axis, shape = span(sizes, given)
    small = made.reshaped(small, given, shape)
    kind, field = ("Scale", "scale_param") if multiplies else ("Bias", "bias_param")
    made.layer(kind, [large, small], field, last=True, axis=axis)


def span(sizes, given):
    """Return the axis at which a broadcast array of the shape `given` begins in `sizes`, and its shape without axes of size 1."""
    whole = (1,) * (len(sizes) - len(given)) + tuple(given)
    axes = [i for i, size in enumerate(whole) if size != 1]
    if not axes:
        return 0, (1,) if sizes[:1] == (1,) else ()
    first, last = axes[0], axes[-1]
    if whole[first:last + 1] != tuple(sizes[first:last + 1]):
        raise Unsupported(f"{list(given)} is broadcast in the middle of {list(sizes)}")
    return first, whole[first:last + 1]


def with_constant(made, kind, value, index, of_value):
    """An operation of a blob and a constant; `of_value`: the constant is the first operand."""
    blob, sizes = made.bottom(index), made.shape(index)
    if made.result != sizes:
        raise Unsupported(f"{list(sizes)} is broadcast to the constant's {list(value.shape)}")
    if of_value:
        blob = made.layer("Power", [blob], "power_param", **({"scale": -1.0} if kind == "Sub" else {"power": -1.0}))
        kind = "Add" if kind == "Sub" else "Mul"
    value = -value if kind == "Sub" else 1 / value if kind == "Div" else value
    multiplies = kind in ("Mul", "Div")
    if value.size == 1:
        made.layer("Power", [blob], "power_param", last=True, **{"scale" if multiplies else "shift": value.item()})
        return
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


@importer("Sum", "Max", "Min")
def several(made, node):
    numbers = [name for name in node.input if name in made.constants and made.constants[name].size == 1]
    if node.op_type != "Sum" and len(node.input) == 2 and numbers:
        bounds(made, node)
        return
    if any(made.shape(i) != made.result for i in range(len(node.input))):
        raise Unsupported("its inputs are broadcast")
    bottoms, least = [made.bottom(i) for i in range(len(node.input))], node.op_type == "Min"
    if len(bottoms) == 1:
        made.alias()
        return
    if least:
        bottoms = [made.layer("Power", [bottom], "power_param", scale=-1.0) for bottom in bottoms]
    operation = caffe_pb2.EltwiseParameter.SUM if node.op_type == "Sum" else caffe_pb2.EltwiseParameter.MAX
    top = made.layer("Eltwise", bottoms, "eltwise_param", last=not least, operation=operation)
    if least:
        made.layer("Power", [top], "power_param", last=True, scale=-1.0)


def bounds(made, node):
    """The maximum or minimum of a blob and a number."""
    index = 0 if node.input[1] in made.constants else 1
    value = made.constants[node.input[1 - index]].item()
    limits = {"min": value, "max": 3.4e38} if node.op_type == "Max" else {"min": -3.4e38, "max": value}
    made.layer("Clip", [made.bottom(index)], "clip_param", last=True, **limits)


# ---- shapes

@importer("Reshape", "Squeeze", "Unsqueeze")
def reshape(made, node):
    made.reshaped(made.bottom(), made.shape(), made.result, last=True)


@importer("Flatten")
def flatten(made, node):
    if made.attribute("axis", 1) == 1 and len(made.shape()) > 1:
        made.layer("Flatten", [made.bottom()], last=True)
    else:
        made.reshaped(made.bottom(), made.shape(), made.result, last=True)


@importer("Transpose")
def transpose(made, node):
    order = made.attribute("perm", list(range(len(made.shape())))[::-1])
    made.layer("Permute", [made.bottom()], "permute_param", last=True, order=order)


@importer("Concat")
def concat(made, node):
    axis = made.attribute("axis") % len(made.result)
    made.layer("Concat", [made.bottom(i) for i in range(len(node.input))], "concat_param", last=True, axis=axis)


@importer("Split")
def split(made, node):
    axis = made.attribute("axis", 0) % len(made.shape())
    sizes = [made.shapes[name][axis] for name in node.output]
    if len(sizes) == 1:
        made.alias()
        return
    points = np.cumsum(sizes)[:-1].tolist()
    made.layer("Slice", [made.bottom()], "slice_param", last=True, tops=len(sizes), axis=axis, slice_point=points)


@importer("Slice")
def slice_(made, node):
    starts = made.constant(1, "starts")
    axes, steps = made.constant(3, "axes"), made.constant(4, "steps")
    given = made.shape()
    axes = range(len(starts)) if axes is None else axes
    if steps is not None and np.any(steps != 1):
        raise Unsupported("it has steps other than 1")
    begin = [0] * len(given)
    for axis, start in zip(axes, starts):
        size = given[int(axis)]
        begin[int(axis)] = int(min(size, start + size if start < 0 else start))
    if tuple(given) == tuple(made.result):
        made.alias()
    else:
        cropped(made, made.bottom(), given, begin, made.result)


@importer("Gather")
def gather(made, node):
    indices, axis, given = made.constant(1, "indices"), made.attribute("axis", 0), made.shape()
    axis %= len(given)
    flat = np.where(indices < 0, indices + given[axis], indices).reshape(-1)
    if indices.ndim > 1 or np.any(np.diff(flat) != 1):
        raise Unsupported("its indices are no range")
    part = [*given[:axis], len(flat), *given[axis + 1:]]
    if indices.ndim:
        cropped(made, made.bottom(), given, [int(flat[0]) if i == axis else 0 for i in range(len(given))], part)
        return
    points = sorted({int(flat[0]), int(flat[0]) + 1} - {0, given[axis]})
    blob = made.bottom()
    if points:
        names = made.layer("Slice", [blob], "slice_param", tops=len(points) + 1, axis=axis, slice_point=points)
        blob = names[1 if flat[0] else 0]
        made.layer("Silence", [name for name in names if name != blob], tops=0)
    made.reshaped(blob, part, made.result, last=True)


@importer("Expand", "Tile")
def tile(made, node):
    blob, given = made.bottom(), made.shape()
    wanted, whole = made.result, (1,) * (len(made.result) - len(given)) + tuple(given)
    blob = made.reshaped(blob, given, whole)
    for axis, (size, result) in enumerate(zip(whole, wanted)):
        if size != result:
            blob = made.layer("Tile", [blob], "tile_param", axis=axis, tiles=result // size)
    made.layer("Power", [blob], last=True)


@importer("Pad")
def pad(made, node):
    """A depthwise convolution with one tap that is not 0."""
    given, amounts = made.shape(), made.constant(1, "pads")
    value, axes = made.constant(2, "value"), made.constant(3, "axes")
    amounts = made.attribute("pads") if amounts is None else amounts
    count = len(given)
    before, behind = np.zeros(count, int), np.zeros(count, int)
    where = range(count) if axes is None else axes
    half = len(amounts) // 2
    for i, axis in enumerate(where):
        before[int(axis)], behind[int(axis)] = amounts[i], amounts[half + i]
    if made.attribute("mode", "constant") != "constant" or value is not None and np.any(value != 0):
        raise Unsupported("it pads with something other than 0")
    if not before.any() and not behind.any():
        made.alias()
        return
    if before[:2].any() or behind[:2].any() or min(before.min(), behind.min()) < 0 or count < 3:
        raise Unsupported("it pads the batch or the channels, or cuts off")
    most = np.maximum(before, behind)[2:]
    kernel = 1 + np.abs(before - behind)[2:]
    taps = np.zeros((given[1], 1, *kernel), np.float32)
    taps[(slice(None), 0, *np.maximum(0, behind - before)[2:])] = 1
    made.layer("Convolution", [made.bottom()], "convolution_param", [taps], last=True, num_output=given[1], group=given[1],
               bias_term=False, kernel_size=kernel.tolist(), pad=most.tolist())


@importer("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare")
def reduce(made, node):
    axes, given = made.constant(1, "axes"), made.shape()
    axes = made.attribute("axes", list(range(len(given)))) if axes is None else axes.tolist()
    axes = sorted(axis % len(given) for axis in axes)
    if axes == [2, 3] and len(given) == 4 and node.op_type in ("ReduceMean", "ReduceMax"):
        keep = len(made.result) == 4
        top = made.layer("Pooling", [made.bottom()], "pooling_param", last=keep, global_pooling=True,
                         pool=POOLING.AVE if node.op_type == "ReduceMean" else POOLING.MAX)
        if not keep:
            made.reshaped(top, (*given[:2], 1, 1), made.result, last=True)
        return
    kind = caffe_pb2.ReductionParameter
    operations = {"ReduceMean": kind.MEAN, "ReduceSum": kind.SUM, "ReduceL1": kind.ASUM, "ReduceSumSquare": kind.SUMSQ}
    operation = operations.get(node.op_type)
    if operation is None or axes != list(range(axes[0], len(given))):
        raise Unsupported(f"Reduction is over all axes from one on, this is over {axes} of {len(given)}")
    keep = len(made.result) == len(given)
    top = made.layer("Reduction", [made.bottom()], "reduction_param", last=not keep, operation=operation, axis=axes[0])
    if keep:
        made.reshaped(top, given[:axes[0]], made.result, last=True)


@importer("Resize", "Upsample")
def resize(made, node):
    """Nearest neighbours by whole factors: a depthwise deconvolution with ones. Linear: a matrix product for each axis."""
    given, wanted = made.shape(), made.result
    factors, mode = [b // a for a, b in zip(given, wanted)], made.attribute("mode", "nearest")
    coordinates = made.attribute("coordinate_transformation_mode", "asymmetric" if node.op_type == "Upsample" else "half_pixel")
    if len(given) != 4 or given[:2] != wanted[:2] or mode not in ("nearest", "linear") or made.attribute("antialias", 0):
        raise Unsupported("only height and width of pictures are resized, by nearest neighbours or linearly")
    if mode == "linear":
        blob = made.bottom()
        for axis, last in ((3, wanted[2] == given[2]), (2, True)):
            if wanted[axis] == given[axis]:
                continue
            order = [0, 1, 3, 2] if axis == 2 else None
            matrix = interpolation(given[axis], wanted[axis], coordinates)
            blob = made.layer("Permute", [blob], "permute_param", order=order) if order else blob
            blob = made.layer("InnerProduct", [blob], "inner_product_param", [matrix], last=last and not order,
                              num_output=wanted[axis], bias_term=False, axis=3)
            blob = made.layer("Permute", [blob], "permute_param", last=True, order=order) if order else blob
        if given == wanted:
            made.alias()
        return
    if any(a * f != b for a, b, f in zip(given, wanted, factors)):
        raise Unsupported("nearest neighbours are exact for whole factors alone")
    if coordinates not in ("asymmetric", "half_pixel"):
        raise Unsupported(f"its coordinates are {coordinates}")
    made.layer("Deconvolution", [made.bottom()], "convolution_param", [np.ones((given[1], 1, *factors[2:]))], last=True,
               num_output=given[1], group=given[1], bias_term=False, kernel_size=factors[2:], stride=factors[2:])


def interpolation(size, result, coordinates):
    """Return the matrix (result, size) of a linear interpolation of one axis."""
    where = np.arange(result, dtype=np.float64)
    if coordinates == "align_corners":
        where *= (size - 1) / max(1, result - 1)
    elif coordinates == "asymmetric":
        where *= size / result
    elif coordinates == "half_pixel" or coordinates == "pytorch_half_pixel" and result > 1:
        where = (where + 0.5) * size / result - 0.5
    elif coordinates == "pytorch_half_pixel":
        where *= 0
    else:
        raise Unsupported(f"its coordinates are {coordinates}")
    where = where.clip(0, size - 1)
    low = np.floor(where).astype(int)
    made = np.zeros((result, size))
    made[np.arange(result), low] = 1 - (where - low)
    made[np.arange(result), np.minimum(low + 1, size - 1)] += where - low
    return made


@importer("LSTM")
def lstm(made, node):
    """The gates are i, o, f, g in ONNX, and i, f, o, g in Caffe, whose indicator of sequences is a constant here."""
    weight, recurrent, bias = (made.constant(i, "weight") for i in (1, 2, 3))
    steps, batch, size = made.shape()[0], made.shape()[1], recurrent.shape[2]
    used = [name for name in node.output if name and (made.readers.get(name) or name in made.outputs)]
    if made.attribute("direction", "forward") != "forward" or made.attribute("activations") or made.attribute("clip"):
        raise Unsupported("only forward, with the usual activations and without clip")
    states, lengths = [made.constant(i, "state") for i in (5, 6)], made.constant(4, "lengths")
    if made.attribute("layout", 0) or any(state is not None and np.any(state) for state in states):
        raise Unsupported("the batch must be axis 1, and its states begin with 0")
    if made.constant(7, "peepholes") is not None or lengths is not None and np.any(lengths != steps):
        raise Unsupported("it has peepholes, or sequences of several lengths")
    if len(node.output) > 2 and node.output[2] in used:
        raise Unsupported("its last cell state is read")
    order = [0, 2, 1, 3]

    def ordered(array):
        return array.reshape(4, size, -1)[order].reshape(4 * size, -1)

    shift = np.zeros(4 * size) if bias is None else bias[0, :4 * size] + bias[0, 4 * size:]
    going = np.ones((steps, batch), np.float32)
    going[0] = 0
    cont = made.layer("Parameter", [], arrays=[going], shape=going.shape)
    arrays = [ordered(weight[0]), ordered(shift)[:, 0], ordered(recurrent[0])]
    whole = made.layer("LSTM", [made.bottom(), cont], "recurrent_param", arrays, num_output=size)
    if node.output[0] in used:
        made.reshaped(whole, (steps, batch, size), made.shapes[node.output[0]], last=True)
    if len(node.output) > 1 and node.output[1] in used:
        if steps > 1:
            rest, whole = made.layer("Slice", [whole], "slice_param", tops=2, axis=0, slice_point=[steps - 1])
            made.layer("Silence", [rest], tops=0)
        made.blobs[node.output[1]] = whole


# ---- the file

def read_model(path, batch=None):
    """Return the ModelProto of a file, checked, its inputs of fixed shapes."""
    try:
        size = os.stat(path).st_size
        check_bytes(size, f"the model {path}")
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Error:
        raise
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise DataError(f"is no model of ONNX that can be used: {reason}", file=str(path)) from error
    others = sorted({entry.domain for entry in model.opset_import} - {"", "ai.onnx"})
    if any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        raise ConfigError(f"has operators of other domains than ONNX's own: {', '.join(others)}", file=str(path))
    held = {tensor.name for tensor in model.graph.initializer}
    for info in model.graph.input:
        if info.name in held:
            continue
        for i, axis in enumerate(info.type.tensor_type.shape.dim):
            if axis.HasField("dim_value") and axis.dim_value > 0:
                continue
            if i or batch is None:
                name = axis.dim_param or "unnamed"
                raise ConfigError(f"axis {i} of input '{info.name}' has no fixed size (it is {name}); "
                                  + ("give --batch N" if not i else "export the model with a fixed shape"), file=str(path))
            axis.dim_value = batch
    return model


def load(path, *, batch=None, dialect="minicaffe", check=True, seed=0):
    """Return a model of ONNX as a net.

    Parameters
    ----------
    path : str or Path
    batch : int, optional
        The size of the first axis of inputs that have none.
    dialect : str
        ``bvlc`` allows the layer types of BVLC Caffe alone, ``ssd`` and ``minicaffe`` those of its SSD fork, too.
    check : bool
        Whether to compare all blobs with onnxruntime's values on random inputs.
    seed : int
        Of the random inputs.

    Returns
    -------
    Imported

    Raises
    ------
    ConfigError
        For what Caffe's layers cannot express; all such nodes are named. For shapes without a size.
    DataError
        For a damaged file; for a net that gives other numbers than the model.
    FileError
        If the file cannot be read.
    DependencyError
        Without onnx or onnxruntime.
    """
    if dialect not in DIALECTS:
        raise ConfigError(f"must be one of {', '.join(DIALECTS)}, got '{dialect}'", field="dialect")
    model = read_model(path, batch)
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in held]
    dice, given = np.random.default_rng(seed), {}
    for info in inputs:
        if info.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise ConfigError(f"input '{info.name}' is not of float32", file=str(path))
        shape = [axis.dim_value for axis in info.type.tensor_type.shape.dim]
        check_bytes(8 * math.prod(shape), f"random numbers of shape {shape} for input '{info.name}'")
        given[info.name] = dice.normal(0, 1, shape).astype(np.float32)
    values = all_values(model, given, path)
    made = Conversion(model.graph.name or "net", dialect)
    for info in inputs:
        made.blobs[info.name] = info.name
        made.shapes[info.name] = given[info.name].shape
        made.names.add(info.name)
        made.param.layer.add(name=info.name, type="Input", top=[info.name]).input_param.shape.add(dim=given[info.name].shape)
    made.constants.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    made.shapes.update((name, value.shape) for name, value in values.items())
    made.readers, made.outputs = {}, {info.name for info in model.graph.output}
    for node in model.graph.node:
        for name in node.input:
            made.readers[name] = made.readers.get(name, 0) + 1
    trouble = convert(made, model, values)
    if trouble:
        raise ConfigError("Caffe cannot express: " + "; ".join(trouble), file=str(path))
    for info in model.graph.output:
        name_output(made, info.name)
    net = Net(made.param, file=str(path))
    for name, arrays in made.arrays.items():
        for blob, array in zip(net.layer_dict[name].blobs, arrays, strict=True):
            blob.data[...] = array.reshape(blob.shape)
    return Imported(net, made.param, compare(net, made, values, given, path) if check else [])


def all_values(model, given, path):
    """Return the values of all nodes by onnxruntime."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del probe.graph.output[:]
    typed = {info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.value_info}
    typed.update((info.name, info) for info in model.graph.output)
    probe.graph.output.extend(typed.get(name) or value_info(name, None) for name in names)
    try:
        return dict(zip(names, run_model(probe, given, names), strict=True))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"onnxruntime cannot run the model: {str(error).splitlines()[0][:200]}", file=str(path)) from error


def convert(made, model, values):
    """Add the layers of all nodes; return the reasons of those that cannot be expressed."""
    trouble = []
    for number, node in enumerate(model.graph.node):
        made.node, made.number = node, number
        name = f"node '{node.name or number}' ({node.op_type})"
        if node.op_type == "Shape" or all(one in made.constants for one in node.input if one):
            made.constants.update((output, values[output]) for output in node.output if output)
            continue
        function = IMPORTERS.get(node.op_type)
        if function is None:
            trouble.append(f"{name}: no layers for this operator")
        else:
            try:
                function(made, node)
            except Unsupported as reason:
                trouble.append(f"{name}: {reason}")
        for output in node.output:      # so that later nodes are looked at, too
            if output and output not in made.constants:
                made.blobs.setdefault(output, output)
    return trouble


def name_output(made, name):
    """Let an output that another blob holds have its own blob."""
    if made.blobs.get(name, name) != name:
        made.param.layer.add(name=made._unique(f"{name}/output"), type="Power", bottom=[made.blobs[name]], top=[name])
        made.checked[name] = name


def compare(net, made, values, given, path):
    """Compare each blob that is a value of the model; return the Difference of each output."""
    found = run_net(net, given)
    results = []
    for node in net.nodes:
        for blob in node.tops:
            value = made.checked.get(blob.name)
            if value is None or value not in values:
                continue
            one = difference(blob.name, values[value], found[blob.name])
            if not one.relative <= TOLERANCE:
                raise DataError(f"the net gives other numbers than the model: layer '{node.name}' ({node.type}) differs first, by "
                                f"{one.absolute:.3g} ({one.relative:.2g} of the greatest)", file=str(path))
            if blob in net.output_blobs:
                results.append(Difference(*one))
    return results
