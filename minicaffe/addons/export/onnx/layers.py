"""ONNX operators in place of the operators of Caffe that ONNX lacks, exact in Caffe's special cases.

The padding at the end of a picture is written out for convolution and pooling, so that ONNX's own rounding is not used: it
differs from Caffe's where the last window begins in the padding. Layers that read data have no exporter.
"""

import math

import numpy as np
from onnx import TensorProto, helper

from minicaffe.addons.export import operators
from minicaffe.addons.export.onnx.graph import OPERATORS, exporter, operator, value_info
from minicaffe.addons.export.operators import POOLING, axis_of, pads
from minicaffe.errors import ConfigError

BACKWARD = np.iinfo(np.int64).min   # the end of a Slice from the last index to the first

OPERATORS |= {
    "dropout": lambda graph, x, ratio: x,
    "relu": lambda graph, x, slope: graph.op("LeakyRelu", x, alpha=slope) if slope else graph.op("Relu", x),
    "clip": lambda graph, x, low, high: graph.op("Clip", x, float(low), float(high)),
    "prelu": lambda graph, x, slopes: graph.op("PRelu", x, graph.parameter(0, [slopes, *[1] * (len(graph.shape()) - 2)])),
    "embed": lambda graph, x, rows, size, bias: channels(
        graph, graph.op("Gather", graph.parameter(0), cast(graph, x, TensorProto.INT64)), None, 1 if bias else None, 0),
    "swish": lambda graph, x, beta: graph.op("Mul", x, graph.op("Sigmoid", affine(graph, x, beta, 0))),
    "threshold": lambda graph, x, bound: cast(graph, graph.op("Greater", x, float(bound))),
    "power": lambda graph, x, exponent: graph.op("Mul", x, x) if exponent == 2 else graph.op("Pow", x, float(exponent)),
    "filled": lambda graph, x, value: graph.op("ConstantOfShape", graph.op("Shape", x), value=helper.make_tensor(
        "value", TensorProto.FLOAT, [1], [value])),
    "constant": lambda graph, array, name: graph.op("Identity", array),
    "parameter": lambda graph: graph.op("Identity", graph.parameter(0)),
    "reduction": lambda graph, x, kind, axes: graph.reduce(kind, x, axes, keepdims=False),
    "batch_reindex": lambda graph, x, indices: graph.op("Gather", x, cast(graph, indices, TensorProto.INT64), axis=0),
    "select": lambda graph, x, selector: graph.op("Compress", x, cast(graph, graph.op("Reshape", selector, [-1]), TensorProto.BOOL),
                                                  axis=0),
}


def cast(graph, x, kind=TensorProto.FLOAT):
    return graph.op("Cast", x, to=kind)


def spatial(graph, shape, first):
    """Return the sizes from axis `first` on as ints."""
    return [graph.fixed(size, "the size of a picture") for size in shape[first:]]


# ---- products

@exporter("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution")
def convolution(graph, node):
    layer, results = node.layer, []
    axis, kernel, stride, pad, dilation = layer.channel_axis, layer.kernel, layer.stride, layer.pad, layer.dilation
    for i in range(len(node.bottoms)):
        given, wanted = graph.shape(i), graph.top_shape(i)
        sizes, made = spatial(graph, given, axis + 1), spatial(graph, wanted, axis + 1)
        # As (N, C, ...): axes before the channels are one, and there is at least one after them.
        outer = given[:1] if axis == 1 else [math.prod(graph.fixed(size, "a leading axis") for size in given[:axis])]
        weight = graph.parameter(0, [*layer.blobs[0].shape[:2], *(kernel or [1])])
        x = graph.reshape(graph.bottom(i), given, [*outer, given[axis], *(sizes or [1])])
        ends = list(pad) * 2 if layer.transposed else pads(sizes, made, kernel, stride, pad, dilation)
        bias = [graph.parameter(1)] if len(layer.blobs) > 1 else []
        y = graph.op("ConvTranspose" if layer.transposed else "Conv", x, weight, *bias, kernel_shape=kernel or [1],
                     strides=stride or [1], pads=ends or [0, 0], dilations=dilation or [1], group=layer.group)
        results.append(graph.reshape(y, [*outer, wanted[axis], *(made or [1])], wanted))
    return results


@exporter("Im2col")
def im2col(graph, node):
    """A grouped convolution whose weights select one element of the window for each output."""
    given, layer = graph.shape(), node.layer
    if layer.channel_axis != 1:
        raise ConfigError("must be 1 for ONNX", field="convolution_param.axis")
    taps, kernel = math.prod(layer.kernel), layer.kernel
    weight = np.tile(np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel), (given[1], *[1] * (len(kernel) + 1)))
    ends = pads(spatial(graph, given, 2), spatial(graph, graph.top_shape(), 2), kernel, layer.stride, layer.pad, layer.dilation)
    return [graph.op("Conv", graph.bottom(), weight, kernel_shape=kernel, strides=layer.stride, pads=ends, dilations=layer.dilation,
                     group=given[1])]


@exporter("InnerProduct")
def inner_product(graph, node):
    param, given = node.param.inner_product_param, graph.shape()
    axis = axis_of(param.axis, given)
    weight, x = graph.parameter(0), graph.bottom()
    bias = [graph.parameter(1)] if param.bias_term else []
    if axis == 1:
        x = x if len(given) == 2 else graph.op("Flatten", x, axis=1)
        return [graph.op("Gemm", x, weight, *bias, transB=int(not param.transpose))]
    rows = "rows" if any(not isinstance(size, int) for size in given[:axis]) else math.prod(given[:axis])
    x = graph.reshape(x, given, [rows, math.prod(spatial(graph, given, axis))])
    y = graph.op("Gemm", x, weight, *bias, transB=int(not param.transpose))
    return [graph.reshape(y, [rows, param.num_output], graph.top_shape())]


# ---- pooling

@operator("pool")
def pool(graph, x, layer, size):
    """Add the pooling of a layer over two spatial axes, whose top has planes of `size`."""
    return pooled(graph, x, layer.param.pooling_param.pool, spatial(graph, graph.shape(), 2), size, *layer.window)[0]


def pooled(graph, x, method, sizes, results, kernel, stride, pad, mask=False):
    """Add a pooling of Caffe over two spatial axes; return the names of its tops."""
    ends = pads(sizes, results, kernel, stride, pad)
    window = {"kernel_shape": kernel, "strides": stride}
    if method == POOLING.MAX:
        if not mask:
            return [graph.op("MaxPool", x, pads=ends, **window)]
        y, where = graph.op("MaxPool", x, pads=ends, count=2, **window)
        plane = graph.op("Mod", where, math.prod(sizes))    # ONNX counts through the whole array, Caffe through a plane
        return [y, cast(graph, plane)]

    def average(x):
        if all(end <= given for end, given in zip(ends[2:], pad)):
            return graph.op("AveragePool", x, pads=ends, count_include_pad=1, **window)
        # Caffe counts its padding, and does not count what of a window is beyond it.
        whole = graph.op("Pad", x, [0, 0, *pad, 0, 0, *pad])
        return graph.op("AveragePool", whole, pads=[0, 0, *(max(0, end - given) for end, given in zip(ends[2:], pad))], **window)

    if method == POOLING.AVE:
        return [average(x)]
    total = average(x)
    weighted = graph.op("Div", average(graph.op("Mul", x, x)), total)
    return [graph.op("Where", graph.op("Greater", total, 0.0), weighted, 0.0)]


@exporter("Pooling")
def pooling(graph, node):
    p, mask = node.param.pooling_param, len(node.tops) > 1
    sizes, results = spatial(graph, graph.shape(), 2), spatial(graph, graph.top_shape(), 2)
    if p.global_pooling and p.pool != POOLING.STOCHASTIC and not mask:
        return [graph.op("GlobalMaxPool" if p.pool == POOLING.MAX else "GlobalAveragePool", graph.bottom())]
    return pooled(graph, graph.bottom(), p.pool, sizes, results, *node.layer.window, mask)


# ---- elementwise

@operator("affine")
def affine(graph, x, scale, shift):
    """Add ``scale x + shift``; what changes nothing is left out."""
    x = x if scale == 1 else graph.op("Mul", x, float(scale))
    return x if shift == 0 else graph.op("Add", x, float(shift))


# ---- scales and statistics

@operator("channels")
def channels(graph, x, weight, bias, trailing):
    """Multiply by parameter `weight` and add parameter `bias`, with `trailing` axes of size 1 at the end; None leaves one out."""
    for kind, index in (("Mul", weight), ("Add", bias)):
        if index is not None:
            x = graph.op(kind, x, graph.parameter(index, [*graph.node.layer.blobs[index].shape, *[1] * trailing]))
    return x


def standardized(graph, x, axes, eps):
    """Return x less its mean over `axes`, divided by the deviation, and mean and variance; `eps` is added to the variance."""
    mean = graph.reduce("ReduceMean", x, axes)
    centred = graph.op("Sub", x, mean)
    variance = graph.reduce("ReduceMean", graph.op("Mul", centred, centred), axes)
    return graph.op("Div", centred, graph.op("Sqrt", affine(graph, variance, 1, eps))), mean, variance


@exporter("BatchNorm")
def batch_norm(graph, node):
    p, x = node.param.batch_norm_param, graph.bottom()
    if p.HasField("use_global_stats") and not p.use_global_stats:
        return standardized(graph, x, [0, *range(2, len(graph.shape()))], p.eps)[:1]
    mean, variance = operators.batch_statistics(*(blob.data for blob in node.layer.blobs))
    return [graph.op("BatchNormalization", x, np.ones_like(mean), np.zeros_like(mean), mean, variance, epsilon=p.eps)]


@operator("mvn")
def mvn(graph, x, axes, normalize_variance, eps):
    x = graph.op("Sub", x, graph.reduce("ReduceMean", x, axes))
    if not normalize_variance:
        return x
    deviation = graph.op("Sqrt", graph.reduce("ReduceMean", graph.op("Mul", x, x), axes))
    return graph.op("Div", x, affine(graph, deviation, 1, eps))


@operator("lrn_within_channel")
def lrn_within_channel(graph, x, size, alpha, beta):
    sizes, square = spatial(graph, graph.shape(), 2), graph.op("Mul", x, x)
    mean = pooled(graph, square, POOLING.AVE, sizes, sizes, [size] * 2, [1, 1], [(size - 1) // 2] * 2)[0]
    return graph.op("Mul", x, graph.op("Pow", affine(graph, mean, alpha, 1), float(-beta)))


@operator("normalize")
def normalize(graph, x, axes, eps):
    norm = graph.op("Sqrt", affine(graph, graph.reduce("ReduceSum", graph.op("Mul", x, x), axes), 1, eps))
    return graph.op("Div", x, norm)


# ---- shapes

@exporter("Flatten", "Reshape", "Squeeze")
def reshape(graph, node):
    given, wanted = graph.shape(), graph.top_shape()
    if node.type == "Flatten" and len(wanted) == 2 < len(given) and axis_of(node.param.flatten_param.axis, given) == 1:
        return [graph.op("Flatten", graph.bottom(), axis=1)]
    if node.type != "Flatten" or len(wanted) < len(given):
        wanted = graph.known_top_shape()
    return [graph.reshape(graph.bottom(), given, wanted)]


@operator("slices")
def slices(graph, x, axis, points):
    sizes = [graph.fixed(graph.top_shape(i)[axis], "the size of a slice") for i in range(len(graph.node.tops))]
    return graph.op("Split", x, np.array(sizes, np.int64), count=len(sizes), axis=axis)


@operator("crop")
def crop(graph, x, reference, axis, starts):
    ends = [graph.fixed(size, "a cropped axis") + start for size, start in zip(graph.top_shape()[axis:], starts)]
    return graph.op("Slice", x, starts, ends, np.arange(axis, axis + len(starts)))


@operator("argmax")
def argmax(graph, x, axis, top_k, out_max_val):
    given, wanted, along = list(graph.shape()), graph.top_shape(), 1 if axis is None else axis_of(axis, graph.shape())
    if axis is None:
        flat = [given[0], math.prod(spatial(graph, given, 1))]
        x, given = graph.reshape(x, given, flat), flat
    size = graph.fixed(given[along], "the axis of the maximum")
    x = graph.op("Slice", x, [-1], [BACKWARD], [along], [-1])   # of equal values TopK takes the first
    values, indices = graph.op("TopK", x, [top_k], count=2, axis=along)
    indices = cast(graph, graph.op("Sub", size - 1, indices))
    if axis is not None:
        return values if out_max_val else indices
    y = graph.op("Unsqueeze", indices, [1])
    if out_max_val:
        y = graph.op("Concat", y, graph.op("Unsqueeze", values, [1]), axis=1)
    return graph.reshape(y, wanted[:3], wanted)


# ---- recurrent layers

@exporter("LSTM", "RNN")
def recurrent(graph, node):
    """An LSTM or RNN as a Scan over the steps: ONNX's own have no indicator of where a sequence begins."""
    p, given, lstm = node.param.recurrent_param, graph.shape(), node.type == "LSTM"
    size, exposed = p.num_output, p.expose_hidden
    states = 2 if lstm else 1
    steps, batch = given[0], graph.fixed(given[1], "the batch of a recurrent layer")
    static = len(node.bottoms) - 2 - states * exposed > 0
    x = graph.reshape(graph.bottom(), given, [steps, batch, math.prod(spatial(graph, given, 2))])

    def matrix(index):
        return graph.op("Transpose", graph.parameter(index), perm=[1, 0])

    at = iter(range(len(node.layer.blobs)))
    gates = graph.op("MatMul", x, matrix(next(at)))
    gates = graph.op("Add", gates, graph.parameter(next(at)))
    if static:
        flat = graph.reshape(graph.bottom(2), graph.shape(2), [batch, math.prod(spatial(graph, graph.shape(2), 1))])
        gates = graph.op("Add", gates, graph.op("MatMul", flat, matrix(next(at))))
    inner = matrix(next(at))
    going = graph.reshape(graph.bottom(1), graph.shape(1), [steps, batch, 1])
    begin = len(node.bottoms) - states
    start = [graph.reshape(graph.bottom(begin + i), graph.shape(begin + i), [batch, size]) if exposed
             else graph.constant(np.zeros((batch, size), np.float32)) for i in range(states)]
    outer, shift = (None, None) if lstm else (matrix(next(at)), graph.parameter(next(at)))

    names = [f"{graph.scope}/step/{i}" for i in range(states + 2)]
    nodes, graph.nodes = graph.nodes, []    # those of a step are a graph of its own, which may read values outside
    h, *c, z, cont = names
    z = graph.op("Add", z, graph.op("MatMul", graph.op("Mul", h, cont), inner))
    if lstm:
        c, y = lstm_step(graph, z, c[0], cont, size, axis=1)
        after = [y, c, y]
    else:
        h = graph.op("Tanh", z)
        after = [h, graph.op("Tanh", graph.op("Add", graph.op("MatMul", h, outer), shift))]
    outputs = [graph.op("Identity", name) for name in after]
    body = helper.make_graph(graph.nodes, f"{graph.scope}/step", [value_info(name, None) for name in names],
                             [value_info(name, None) for name in outputs])
    graph.nodes = nodes
    made = graph.op("Scan", *start, gates, going, count=states + 1, body=body, num_scan_inputs=2)
    last = [graph.reshape(value, [batch, size], [1, batch, size]) for value in made[:states]] if exposed else []
    return [made[-1], *last]


@operator("lstm_unit")
def lstm_unit(graph, c, gates, cont):
    size = graph.fixed(graph.shape()[2], "the state")
    return lstm_step(graph, gates, c, graph.reshape(cont, graph.shape(2), [*graph.shape(2)[:2], 1]), size, axis=2)


def lstm_step(graph, gates, c, cont, size, axis):
    """Add a step of an LSTM, whose gates are along `axis`; return the names of the next c and h."""
    i, f, o, g = graph.op("Split", gates, np.array([size] * 4, np.int64), axis=axis, count=4)
    kept = graph.op("Mul", graph.op("Mul", graph.op("Sigmoid", f), cont), c)
    c = graph.op("Add", kept, graph.op("Mul", graph.op("Sigmoid", i), graph.op("Tanh", g)))
    return [c, graph.op("Mul", graph.op("Sigmoid", o), graph.op("Tanh", c))]
