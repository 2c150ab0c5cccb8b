"""BVLC Caffe's layer types as operations of ONNX, exact in Caffe's special cases.

The padding at the end of a picture is written out for convolution and pooling, so that ONNX's own rounding is not used: it
differs from Caffe's where the last window begins in the padding. Layers that read data have no exporter.
"""

import math

import numpy as np
from onnx import TensorProto, helper

from minicaffe.errors import ConfigError
from minicaffe.addons.export import exporting
from minicaffe.addons.export.exporting import POOLING, axis_of, pads, pool_windows, pyramid_windows, unit_axes, windows
from minicaffe.addons.export.onnx.graph import exporter, value_info

# ---- sizes and windows

def spatial(graph, shape, first):
    """Return the sizes from axis `first` on as ints."""
    return [graph.fixed(size, "the size of a picture") for size in shape[first:]]


# ---- products

@exporter("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution")
def convolution(graph, node):
    back, results = node.type == "Deconvolution", []
    for i in range(len(node.bottoms)):
        given, wanted = graph.shape(i), graph.top_shape(i)
        axis, (kernel, stride, pad, dilation), group = exporting.convolution_windows(node, given)
        sizes, made = spatial(graph, given, axis + 1), spatial(graph, wanted, axis + 1)
        # As (N, C, ...): axes before the channels are one, and there is at least one after them.
        outer = given[:1] if axis == 1 else [math.prod(graph.fixed(size, "a leading axis") for size in given[:axis])]
        plain = [*outer, given[axis], *(sizes or [1])]
        weight = graph.parameter(0, [*node.layer.blobs[0].shape[:2], *(kernel or [1])])
        x = graph.reshape(graph.bottom(i), given, plain)
        ends = list(pad) * 2 if back else pads(sizes, made, kernel, stride, pad, dilation)
        bias = [graph.parameter(1)] if len(node.layer.blobs) > 1 else []
        y = graph.op("ConvTranspose" if back else "Conv", x, weight, *bias, kernel_shape=kernel or [1], strides=stride or [1],
                     pads=ends or [0, 0], dilations=dilation or [1], group=int(group))
        results.append(graph.reshape(y, [*outer, wanted[axis], *(made or [1])], wanted))
    return results


@exporter("Im2col")
def im2col(graph, node):
    """A grouped convolution whose weights select one element of the window for each output."""
    given, wanted = graph.shape(), graph.top_shape()
    axis = axis_of(node.param.convolution_param.axis, given)
    if axis != 1:
        raise ConfigError("must be 1 for ONNX", field="convolution_param.axis")
    kernel, stride, pad, dilation = windows(node.param.convolution_param, len(given) - 2)
    taps = math.prod(kernel)
    weight = np.tile(np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel), (given[1], *[1] * (len(kernel) + 1)))
    ends = pads(spatial(graph, given, 2), spatial(graph, wanted, 2), kernel, stride, pad, dilation)
    return [graph.op("Conv", graph.bottom(), weight, kernel_shape=kernel, strides=stride, pads=ends, dilations=dilation,
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
    x = graph.reshape(x, given, [*given[:axis], math.prod(spatial(graph, given, axis))])
    weight = weight if param.transpose else graph.op("Transpose", weight, perm=[1, 0])
    if not axis:    # one row
        y = graph.op("Gemm", graph.op("Unsqueeze", x, [0]), weight, *bias)
        return [graph.op("Squeeze", y, [0])]
    y = graph.op("MatMul", x, weight)
    return [graph.op("Add", y, *bias) if bias else y]


@exporter("Embed")
def embed(graph, node):
    y = graph.op("Gather", graph.parameter(0), graph.op("Cast", graph.bottom(), to=TensorProto.INT64))
    return [graph.op("Add", y, graph.parameter(1)) if node.param.embed_param.bias_term else y]


# ---- pooling

def pool(graph, x, method, sizes, results, kernel, stride, pad, mask=False):
    """Add a pooling of Caffe over two spatial axes; return the names of its tops."""
    ends = pads(sizes, results, kernel, stride, pad)
    window = {"kernel_shape": kernel, "strides": stride}
    if method == POOLING.MAX:
        if not mask:
            return [graph.op("MaxPool", x, pads=ends, **window)]
        y, where = graph.op("MaxPool", x, pads=ends, count=2, **window)
        plane = graph.op("Mod", where, math.prod(sizes))    # ONNX counts through the whole array, Caffe through a plane
        return [y, graph.op("Cast", plane, to=TensorProto.FLOAT)]

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
    p, given, wanted = node.param.pooling_param, graph.shape(), graph.top_shape()
    sizes, mask = spatial(graph, given, 2), len(node.tops) > 1
    if p.global_pooling and p.pool != POOLING.STOCHASTIC and not mask:
        return [graph.op("GlobalMaxPool" if p.pool == POOLING.MAX else "GlobalAveragePool", graph.bottom())]
    return pool(graph, graph.bottom(), p.pool, sizes, spatial(graph, wanted, 2), *pool_windows(p, sizes), mask)


@exporter("SPP")
def pyramid(graph, node):
    """Spatial pyramid pooling: poolings into 1, 4, 16, ... bins, one behind the other."""
    p, given, wanted = node.param.spp_param, graph.shape(), graph.top_shape()
    sizes = spatial(graph, given, 2)
    levels = [pool(graph, graph.bottom(), method, sizes, results, kernel, kernel, pad)[0]
              for method, results, kernel, pad in pyramid_windows(p, sizes)]
    if len(levels) == 1:
        return levels
    flat = [graph.op("Flatten", level, axis=1) for level in levels]
    return [graph.reshape(graph.op("Concat", *flat, axis=1), wanted, wanted)]


# ---- elementwise

def simple(kind, **attributes):
    """Return the exporter of a type that is one operator."""
    return lambda graph, node: [graph.op(kind, graph.bottom(), **attributes)]


exporter("AbsVal")(simple("Abs"))
exporter("BNLL")(simple("Softplus"))
exporter("Sigmoid")(simple("Sigmoid"))
exporter("TanH")(simple("Tanh"))


@exporter("ReLU")
def relu(graph, node):
    slope = node.param.relu_param.negative_slope
    return [graph.op("LeakyRelu", graph.bottom(), alpha=slope) if slope else graph.op("Relu", graph.bottom())]


@exporter("PReLU")
def prelu(graph, node):
    slopes = graph.parameter(0, [node.layer.blobs[0].count, *[1] * (len(graph.shape()) - 2)])
    return [graph.op("PRelu", graph.bottom(), slopes)]


@exporter("ELU")
def elu(graph, node):
    return [graph.op("Elu", graph.bottom(), alpha=node.param.elu_param.alpha)]


@exporter("Swish")
def swish(graph, node):
    x, beta = graph.bottom(), node.param.swish_param.beta
    return [graph.op("Mul", x, graph.op("Sigmoid", x if beta == 1 else graph.op("Mul", x, beta)))]


@exporter("Clip")
def clip(graph, node):
    return [graph.op("Clip", graph.bottom(), float(node.param.clip_param.min), float(node.param.clip_param.max))]


@exporter("Threshold")
def threshold(graph, node):
    above = graph.op("Greater", graph.bottom(), float(node.param.threshold_param.threshold))
    return [graph.op("Cast", above, to=TensorProto.FLOAT)]


def affine(graph, x, scale, shift):
    """Add ``scale x + shift``; what changes nothing is left out."""
    x = x if scale == 1 else graph.op("Mul", x, float(scale))
    return x if shift == 0 else graph.op("Add", x, float(shift))


def filled(graph, x, value):
    """Return an array of the shape of x that is filled with a number."""
    return graph.op("ConstantOfShape", graph.op("Shape", x), value=helper.make_tensor("value", TensorProto.FLOAT, [1], [value]))


@exporter("Power")
def power(graph, node):
    p, x = node.param.power_param, graph.bottom()
    value = exporting.constant_power(p)
    if value is not None:
        return [filled(graph, x, value)]
    x = affine(graph, x, p.scale, p.shift)
    return [x if p.power == 1 else graph.op("Mul", x, x) if p.power == 2 else graph.op("Pow", x, float(p.power))]


@exporter("Exp")
def exponential(graph, node):
    p, log = node.param.exp_param, exporting.log_of(node.param.exp_param.base)
    y = graph.op("Exp", affine(graph, graph.bottom(), log * p.scale, 0))
    return [affine(graph, y, math.exp(log * p.shift), 0)]


@exporter("Log")
def logarithm(graph, node):
    p = node.param.log_param
    y = graph.op("Log", affine(graph, graph.bottom(), p.scale, p.shift))
    return [affine(graph, y, 1 / exporting.log_of(p.base), 0)]


@exporter("Eltwise")
def eltwise(graph, node):
    p, xs = node.param.eltwise_param, graph.bottoms()
    if p.operation == p.MAX:
        return [graph.op("Max", *xs)]
    if p.operation == p.SUM:
        xs = [affine(graph, x, coeff, 0) for x, coeff in zip(xs, p.coeff or [1] * len(xs))]
    y = xs[0]
    for x in xs[1:]:
        y = graph.op("Mul" if p.operation == p.PROD else "Add", y, x)
    return [y]


@exporter("Softmax")
def softmax(graph, node):
    return [graph.op("Softmax", graph.bottom(), axis=node.param.softmax_param.axis)]


# ---- scales and statistics

def operand(graph, node, param, index):
    """Return the scale or bias `index` of a layer, with axes of size 1 behind it so that it is broadcast from `param.axis` on."""
    given = graph.shape()
    if len(node.bottoms) > 1 and index == 0:
        own = graph.shape(1)
        return graph.reshape(graph.bottom(1), own, own + [1] * unit_axes(param, given, own))
    index -= len(node.bottoms) - 1
    own = list(node.layer.blobs[index].shape)
    return graph.parameter(index, own + [1] * unit_axes(param, given, own))


@exporter("Scale", "Bias")
def scale(graph, node):
    scales = node.type == "Scale"
    p = node.param.scale_param if scales else node.param.bias_param
    y = graph.op("Mul" if scales else "Add", graph.bottom(), operand(graph, node, p, 0))
    return [graph.op("Add", y, operand(graph, node, p, 1)) if scales and p.bias_term else y]


@exporter("BatchNorm")
def batch_norm(graph, node):
    p, given, x = node.param.batch_norm_param, graph.shape(), graph.bottom()
    if p.HasField("use_global_stats") and not p.use_global_stats:
        axes = [0, *range(2, len(given))]
        x = graph.op("Sub", x, graph.reduce("ReduceMean", x, axes))
        variance = graph.reduce("ReduceMean", graph.op("Mul", x, x), axes)
        return [graph.op("Div", x, graph.op("Sqrt", graph.op("Add", variance, float(p.eps))))]
    mean, variance = exporting.batch_statistics(*(blob.data for blob in node.layer.blobs))
    return [graph.op("BatchNormalization", x, np.ones_like(mean), np.zeros_like(mean), mean, variance, epsilon=p.eps)]


@exporter("MVN")
def mvn(graph, node):
    p, wanted = node.param.mvn_param, graph.top_shape()
    x = graph.reshape(graph.bottom(), graph.shape(), wanted)
    axes = [1, 2, 3] if p.across_channels else [2, 3]
    x = graph.op("Sub", x, graph.reduce("ReduceMean", x, axes))
    if not p.normalize_variance:
        return [x]
    deviation = graph.op("Sqrt", graph.reduce("ReduceMean", graph.op("Mul", x, x), axes))
    return [graph.op("Div", x, graph.op("Add", deviation, float(p.eps)))]


@exporter("LRN")
def lrn(graph, node):
    p, given, x = node.param.lrn_param, graph.shape(), graph.bottom()
    if p.norm_region == p.ACROSS_CHANNELS:
        return [graph.op("LRN", x, size=p.local_size, alpha=p.alpha, beta=p.beta, bias=p.k)]
    pad, sizes = [(p.local_size - 1) // 2] * 2, spatial(graph, given, 2)
    mean = pool(graph, graph.op("Mul", x, x), POOLING.AVE, sizes, sizes, [p.local_size] * 2, [1, 1], pad)[0]
    return [graph.op("Mul", x, graph.op("Pow", affine(graph, mean, p.alpha, 1), float(-p.beta)))]   # Caffe ignores k here


@exporter("Reduction")
def reduction(graph, node):
    p, given = node.param.reduction_param, graph.shape()
    kind = {p.SUM: "ReduceSum", p.ASUM: "ReduceL1", p.SUMSQ: "ReduceSumSquare", p.MEAN: "ReduceMean"}[p.operation]
    y = graph.reduce(kind, graph.bottom(), range(axis_of(p.axis, given), len(given)), keepdims=False)
    return [affine(graph, y, p.coeff, 0)]


@exporter("Normalize")
def normalize(graph, node):
    p, given, x = node.param.norm_param, graph.shape(), graph.bottom()
    axes = range(1, len(given)) if p.across_spatial else [1]
    norm = graph.op("Sqrt", affine(graph, graph.reduce("ReduceSum", graph.op("Mul", x, x), axes), 1, p.eps))
    scales = node.layer.blobs[0].shape
    return [graph.op("Mul", graph.op("Div", x, norm), graph.parameter(0, [*scales, *[1] * (len(given) - 2 if scales else 0)]))]


# ---- shapes

@exporter("Split")
def split(graph, node):
    return [graph.bottom()] * len(node.tops)


@exporter("Dropout")
def dropout(graph, node):
    return [graph.bottom()]


@exporter("Silence", "HDF5Output")
def nothing(graph, node):
    return []


@exporter("Flatten", "Reshape")
def reshape(graph, node):
    given, wanted = graph.shape(), graph.top_shape()
    if node.type == "Flatten" and len(wanted) == 2 < len(given) and axis_of(node.param.flatten_param.axis, given) == 1:
        return [graph.op("Flatten", graph.bottom(), axis=1)]
    if node.type == "Reshape" or len(wanted) < len(given):
        wanted = graph.known_top_shape()
    return [graph.reshape(graph.bottom(), given, wanted)]


@exporter("Concat")
def concat(graph, node):
    xs = graph.bottoms()
    return xs if len(xs) == 1 else [graph.op("Concat", *xs, axis=exporting.older_axis(node.param.concat_param, "concat_dim"))]


@exporter("Slice")
def slices(graph, node):
    axis = axis_of(exporting.older_axis(node.param.slice_param, "slice_dim"), graph.shape())
    if len(node.tops) == 1:
        return [graph.bottom()]
    sizes = [graph.fixed(graph.top_shape(i)[axis], "the size of a slice") for i in range(len(node.tops))]
    return graph.op("Split", graph.bottom(), np.array(sizes, np.int64), count=len(sizes), axis=axis)


@exporter("Permute")
def permute(graph, node):
    return [graph.op("Transpose", graph.bottom(), perm=exporting.permutation(node, len(graph.shape())))]


@exporter("Tile")
def tile(graph, node):
    return [graph.op("Tile", graph.bottom(), exporting.repeats(node, len(graph.shape())))]


@exporter("Crop")
def crop(graph, node):
    axis, starts = exporting.crop_starts(node)
    ends = [graph.fixed(size, "a cropped axis") + start for size, start in zip(graph.top_shape()[axis:], starts)]
    return [graph.op("Slice", graph.bottom(), starts, ends, np.arange(axis, axis + len(starts)))]


@exporter("BatchReindex")
def batch_reindex(graph, node):
    return [graph.op("Gather", graph.bottom(0), graph.op("Cast", graph.bottom(1), to=TensorProto.INT64), axis=0)]


@exporter("Filter")
def select(graph, node):
    *xs, selector = graph.bottoms()
    chosen = graph.op("Cast", graph.op("Reshape", selector, [-1]), to=TensorProto.BOOL)
    return [graph.op("Compress", x, chosen, axis=0) for x in xs]


@exporter("ArgMax")
def argmax(graph, node):
    p, given, wanted = node.param.argmax_param, list(graph.shape()), graph.top_shape()
    x, axis = graph.bottom(), axis_of(p.axis, given) if p.HasField("axis") else 1
    if not p.HasField("axis"):
        flat = [given[0], math.prod(spatial(graph, given, 1))]
        x, given = graph.reshape(x, given, flat), flat
    size = graph.fixed(given[axis], "the axis of the maximum")
    # Of equal values Caffe takes the last, and TopK the first: the axis is reversed.
    x = graph.op("Slice", x, [-1], [np.iinfo(np.int64).min], [axis], [-1])
    values, indices = graph.op("TopK", x, [p.top_k], count=2, axis=axis)
    indices = graph.op("Cast", graph.op("Sub", size - 1, indices), to=TensorProto.FLOAT)
    if p.HasField("axis"):
        return [values if p.out_max_val else indices]
    y = graph.op("Unsqueeze", indices, [1])
    if p.out_max_val:
        y = graph.op("Concat", y, graph.op("Unsqueeze", values, [1]), axis=1)
    return [graph.reshape(y, wanted[:3], wanted)]


# ---- sources without data

@exporter("Parameter")
def parameter(graph, node):
    return [graph.op("Identity", graph.parameter(0))]


def constant(graph, node):
    """Tops that do not depend on the inputs: their values now."""
    return [graph.op("Identity", np.array(blob.data, np.float32)) for blob in node.tops]


exporter("PriorBox", "PriorBoxClustered")(constant)


@exporter("DummyData")
def dummy(graph, node):
    exporting.check_dummy(node)
    return constant(graph, node)


# ---- recurrent layers

def scan(graph, inputs, states, body, results):
    """Add a Scan over axis 0 of `inputs`; return the names of the final states and of the results of all steps.

    `body` has as arguments the names of the states and of the step's inputs. It adds the operations of a step to the graph, and
    returns the names of the new states and of the results. A step may read values outside.
    """
    names = [f"{graph.scope}/step/{i}" for i in range(len(states) + len(inputs))]
    nodes, graph.nodes = graph.nodes, []
    after, made = body(names[:len(states)], names[len(states):])
    outputs = [graph.op("Identity", name) for name in [*after, *made]]
    inner = helper.make_graph(graph.nodes, f"{graph.scope}/step", [value_info(name, None) for name in names],
                              [value_info(name, None) for name in outputs])
    graph.nodes = nodes
    return graph.op("Scan", *states, *inputs, count=len(states) + results, body=inner, num_scan_inputs=len(inputs))


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

    def step(state, now):
        (h, *c), (z, cont) = state, now
        z = graph.op("Add", z, graph.op("MatMul", graph.op("Mul", h, cont), inner))
        if lstm:
            c, h = lstm_step(graph, z, c[0], cont, size, axis=1)
            return [h, c], [h]
        h = graph.op("Tanh", z)
        return [h], [graph.op("Tanh", graph.op("Add", graph.op("MatMul", h, outer), shift))]

    made = scan(graph, [gates, going], start, step, 1)
    last = [graph.reshape(value, [batch, size], [1, batch, size]) for value in made[:states]] if exposed else []
    return [made[-1], *last]


@exporter("LSTMUnit")
def lstm_unit(graph, node):
    size = graph.fixed(graph.shape()[2], "the state")
    going = graph.reshape(graph.bottom(2), graph.shape(2), [*graph.shape(2)[:2], 1])
    return lstm_step(graph, graph.bottom(1), graph.bottom(0), going, size, axis=2)


def lstm_step(graph, gates, c, cont, size, axis):
    """Add a step of an LSTM, whose gates are along `axis`; return the names of the next c and h."""
    i, f, o, g = graph.op("Split", gates, np.array([size] * 4, np.int64), axis=axis, count=4)
    kept = graph.op("Mul", graph.op("Mul", graph.op("Sigmoid", f), cont), c)
    c = graph.op("Add", kept, graph.op("Mul", graph.op("Sigmoid", i), graph.op("Tanh", g)))
    return [c, graph.op("Mul", graph.op("Sigmoid", o), graph.op("Tanh", c))]
