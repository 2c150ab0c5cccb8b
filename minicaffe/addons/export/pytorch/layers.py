"""BVLC Caffe's layer types as expressions of PyTorch, exact in Caffe's special cases. Layers that read data are not exported."""

import math

import numpy as np

from minicaffe.errors import ConfigError
from minicaffe.addons.export import exporting
from minicaffe.addons.export.exporting import POOLING, axis_of, pads, pool_windows, pyramid_windows, unit_axes, windows
from minicaffe.addons.export.pytorch.source import arguments, number, numbers, plain, writer


def as_argument(values):
    """Return the text of an argument of PyTorch: a tuple, or one number if all values are equal."""
    return str(values[0]) if len(set(values)) == 1 else numbers(values)


def unless_default(values, default):
    """Return the text of an argument; None, to leave it out, if all values are the default."""
    return None if all(value == default for value in values) else as_argument(values)


# ---- products

@writer("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution")
def convolution(source, node):
    transposed, given = node.type == "Deconvolution", source.shape()
    axis, (kernel, stride, pad, dilation), group = exporting.convolution_windows(node, given)
    count = len(kernel)
    if count > 3:
        raise ConfigError(f"has {count} axes after the channels; PyTorch's convolutions have at most 3", field="bottom[0]")
    bias = len(node.layer.blobs) > 1
    weight = (0, (*node.layer.blobs[0].shape, 1)) if not count else 0   # as a convolution over one pixel
    module = source.module(
        f"nn.Conv{'Transpose' if transposed else ''}{max(count, 1)}d(" + arguments(
            given[axis], source.top_shape()[axis], as_argument(kernel or [1]), stride=unless_default(stride, 1),
            padding=unless_default(pad, 0), dilation=unless_default(dilation, 1),
            groups=None if group == 1 else group, bias=None if bias else False) + ")",
        weight=weight, bias=1 if bias else None)
    results = []
    for i in range(len(node.bottoms)):
        x, given, wanted = source.bottom(i), source.shape(i), source.top_shape(i)
        ends = pads(given[axis + 1:], wanted[axis + 1:], kernel, stride, pad, dilation)[count:]
        if not transposed and any(end > begin for end, begin in zip(ends, pad)):
            source.add_line("# Caffe also computes a window that is larger than the picture: zeros are added")
            x = f"F.pad({x}, ({', '.join(f'0, {max(0, end - begin)}' for end, begin in reversed([*zip(ends, pad)]))}))"
        x = x if axis == 1 else f"{x}[None]" if not axis else f"{x}.flatten(0, {axis - 1})"
        y = f"{module}({x})" if count else f"{module}({x}[..., None])[..., 0]"
        results.append(y if axis == 1 else f"{y}[0]" if not axis else f"{y}.unflatten(0, {source.bottom(i)}.shape[:{axis}])")
    return results


@writer("Im2col")
def im2col(source, node):
    given, axis = source.shape(), axis_of(node.param.convolution_param.axis, source.shape())
    if axis != 1 or len(given) != 4:
        raise ConfigError(f"needs two axes after axis 1 for PyTorch, got {list(given)} and axis {axis}", field="bottom[0]")
    kernel, stride, pad, dilation = map(numbers, windows(node.param.convolution_param, 2))
    return [f"F.unfold({source.bottom()}, {kernel}, {dilation}, {pad}, {stride}).unflatten(2, {numbers(source.top_shape()[2:])})"]


@writer("InnerProduct")
def inner_product(source, node):
    param, given, x = node.param.inner_product_param, source.shape(), source.bottom()
    axis = axis_of(param.axis, given)
    kind = source.helper("TransposedLinear") if param.transpose else "nn.Linear"
    options = arguments(math.prod(given[axis:]), param.num_output, bias=None if param.bias_term else False)
    module = source.module(f"{kind}({options})", weight=0, bias=1 if param.bias_term else None)
    return [f"{module}({x})" if axis == len(given) - 1 else f"{module}({x}.flatten({axis}))"]


@writer("Embed")
def embed(source, node):
    p = node.param.embed_param
    kind = source.helper("BiasedEmbedding") if p.bias_term else "nn.Embedding"
    module = source.module(f"{kind}({p.input_dim}, {p.num_output})", weight=0, bias=1 if p.bias_term else None)
    return [f"{module}({source.bottom()}.long())"]


# ---- pooling

def fits_torch_pooling(given, wanted, kernel, stride, pad, ceil_mode=True):
    """Return whether PyTorch's pooling can have these windows: a padding of at most half a window, and as many windows as Caffe."""
    def count(size, k, s, p):
        windows = (size + 2 * p - k + (s - 1 if ceil_mode else 0)) // s + 1
        return windows - (ceil_mode and (windows - 1) * s >= size + p)
    return all(2 * p <= k and count(size, k, s, p) == n for size, n, k, s, p in zip(given, wanted, kernel, stride, pad))


def pooled(source, x, method, given, wanted, kernel, stride, pad):
    """Return the expression of a pooling by a function, not by a module."""
    if method == POOLING.STOCHASTIC:
        source.remark("Pooling: STOCHASTIC is the weighted mean of phase TEST, also in training.")
        return source.call("caffe_stochastic_pool", x, as_argument(kernel), as_argument(stride))
    if not fits_torch_pooling(given, wanted, kernel, stride, pad):
        source.remark("Pooling: caffe_pool has windows that PyTorch's pooling does not take; they fit pictures of the size below.")
        return source.call("caffe_pool", x, f'"{POOLING.PoolMethod.Name(method)}"', *map(numbers, (kernel, stride, pad, wanted)))
    function = "max" if method == POOLING.MAX else "avg"
    options = arguments(x, as_argument(kernel), as_argument(stride), padding=unless_default(pad, 0), ceil_mode=True)
    return f"F.{function}_pool2d({options})"


@writer("Pooling")
def pooling(source, node):
    p, x, given, wanted = node.param.pooling_param, source.bottom(), source.shape()[2:], source.top_shape()[2:]
    kernel, stride, pad = pool_windows(p, given)
    mask, floor = len(node.tops) > 1, p.round_mode == p.FLOOR
    if p.pool == POOLING.STOCHASTIC or not fits_torch_pooling(given, wanted, kernel, stride, pad, not floor):
        if mask:
            raise ConfigError("has a mask and windows that PyTorch's MaxPool2d does not take", field="top[1]")
        return [pooled(source, x, p.pool, given, wanted, kernel, stride, pad)]
    kind = "Max" if p.pool == POOLING.MAX else "Avg"
    if not (floor or p.global_pooling):
        source.remark("Pooling: Caffe rounds the number of windows up (ceil_mode), and leaves out one that begins in the padding.")
    if kind == "Avg" and any(pad):
        source.remark("Pooling: the divisor of AVE counts the padding (count_include_pad), and not what is beyond it.")
    if p.global_pooling:
        module = source.module(f"nn.Adaptive{kind}Pool2d({arguments(1, return_indices=mask or None)})")
    else:
        options = arguments(as_argument(kernel), as_argument(stride), padding=unless_default(pad, 0),
                            ceil_mode=None if floor else True, return_indices=mask or None)
        module = source.module(f"nn.{kind}Pool2d({options})")
    return f"{source.helper('caffe_mask')}(*{module}({x}))" if mask else [f"{module}({x})"]


@writer("SPP")
def pyramid(source, node):
    p, x, given = node.param.spp_param, source.bottom(), source.shape()[2:]
    levels = [pooled(source, x, method, given, wanted, kernel, kernel, pad)
              for method, wanted, kernel, pad in pyramid_windows(p, given)]
    return levels if len(levels) == 1 else [f"torch.cat(({', '.join(f'{level}.flatten(1)' for level in levels)}), 1)"]


# ---- elementwise

def simple(text):
    """Return the writer of a type that is an expression beginning with ``x``, the bottom, or else one module without parameters."""
    def write(source, node):
        return [text.replace("x", source.bottom()) if text[0] == "x" else f"{source.module(text)}({source.bottom()})"]
    return write


writer("AbsVal")(simple("x.abs()"))
writer("BNLL")(simple("nn.Softplus()"))
writer("Sigmoid")(simple("nn.Sigmoid()"))
writer("TanH")(simple("nn.Tanh()"))


@writer("ReLU")
def relu(source, node):
    slope = node.param.relu_param.negative_slope
    return [f"{source.module(f'nn.LeakyReLU({number(slope)})' if slope else 'nn.ReLU()')}({source.bottom()})"]


@writer("PReLU")
def prelu(source, node):
    count = node.layer.blobs[0].count
    return [f"{source.module(f'nn.PReLU({count})', weight=(0, (count,)))}({source.bottom()})"]


@writer("ELU")
def elu(source, node):
    return [f"{source.module(f'nn.ELU({number(node.param.elu_param.alpha)})')}({source.bottom()})"]


@writer("Swish")
def swish(source, node):
    x, beta = source.bottom(), node.param.swish_param.beta
    return [f"{source.module('nn.SiLU()')}({x})" if beta == 1 else f"{x} * ({number(beta)} * {x}).sigmoid()"]


@writer("Clip")
def clip(source, node):
    return [f"{source.bottom()}.clamp({number(node.param.clip_param.min)}, {number(node.param.clip_param.max)})"]


@writer("Threshold")
def threshold(source, node):
    x = source.bottom()
    return [f"({x} > {number(node.param.threshold_param.threshold)}).to({x}.dtype)"]


def affine(x, scale, shift):
    """Return the expression of ``scale x + shift``, without a scale of 1 or a shift of 0."""
    x = x if scale == 1 else f"{number(scale)} * {x}"
    return x if not shift else f"{x} + {number(shift)}" if shift > 0 else f"{x} - {number(-shift)}"


@writer("Power")
def power(source, node):
    p, x = node.param.power_param, source.bottom()
    value = exporting.constant_power(p)
    if value is not None:
        return [f"torch.full_like({x}, {number(value)})"]
    y = affine(x, p.scale, p.shift)
    return [y if p.power == 1 else f"({y}) ** {number(p.power).removesuffix('.0')}"]


@writer("Exp")
def exponential(source, node):
    p, log = node.param.exp_param, exporting.log_of(node.param.exp_param.base)
    y = affine(source.bottom(), log * p.scale, log * p.shift)
    return [f"({y}).exp()"]


@writer("Log")
def logarithm(source, node):
    p = node.param.log_param
    y = f"({affine(source.bottom(), p.scale, p.shift)}).log()"
    return [y if p.base == -1 else f"{y} / {number(exporting.log_of(p.base))}"]


@writer("Eltwise")
def eltwise(source, node):
    p, xs = node.param.eltwise_param, source.bottoms()
    if p.operation == p.PROD:
        return [" * ".join(xs)]
    if p.operation == p.MAX:
        y = xs[0]
        for x in xs[1:]:
            y = f"torch.maximum({y}, {x})"
        return [y]
    return [" + ".join(affine(x, coeff, 0) for x, coeff in zip(xs, p.coeff or [1] * len(xs))).replace("+ -", "- ")]


@writer("Softmax")
def softmax(source, node):
    return [f"{source.module(f'nn.Softmax(dim={node.param.softmax_param.axis})')}({source.bottom()})"]


@writer("Dropout")
def dropout(source, node):
    return [f"{source.module(f'nn.Dropout({number(node.param.dropout_param.dropout_ratio)})')}({source.bottom()})"]


# ---- scales and statistics

def expanded(x, count):
    """Return the expression of x with `count` more axes of size 1 at the end."""
    return f"{x}[...{', None' * count}]" if count > 0 else x


@writer("Scale", "Bias")
def scale(source, node):
    x, given, scales = source.bottom(), source.shape(), node.type == "Scale"
    p = node.param.scale_param if scales else node.param.bias_param
    if len(node.bottoms) > 1:
        x = f"{x} {'*' if scales else '+'} {expanded(source.bottom(1), unit_axes(p, given, source.shape(1)))}"
    if not node.layer.blobs:
        return [x]
    own, kind = node.layer.blobs[0].shape, "Scale" if scales and len(node.bottoms) == 1 else "Bias"
    both = kind == "Scale" and p.bias_term
    made = source.call(kind, numbers(own), unit_axes(p, given, own), bias=True if both else None)
    module = source.module(made, weight=0 if kind == "Scale" else None, bias=1 if both else 0 if kind == "Bias" else None)
    return [f"{module}({x})"]


@writer("BatchNorm")
def batch_norm(source, node):
    p, given, x = node.param.batch_norm_param, source.shape(), source.bottom()
    channels, mode = node.layer.blobs[0].count, p.use_global_stats if p.HasField("use_global_stats") else None
    kind = f"nn.BatchNorm{len(given) - 2 if 4 <= len(given) <= 5 else 1}d"
    mean, variance = map(np.float32, exporting.batch_statistics(*(blob.data for blob in node.layer.blobs)))
    state = {"running_mean": (0, mean), "running_var": (1, variance)}
    if mode:
        source.remark("BatchNorm: use_global_stats is true, so the stored statistics normalize, also in training.")
        module = source.module(source.call("FrozenBatchNorm", channels, eps=number(p.eps)), **state)
    elif mode is None:
        source.remark("BatchNorm: the stored statistics in evaluation, those of the batch in training. A learned scale is a Scale.")
        momentum = number(1 - float(number(p.moving_average_fraction)))     # of the decimal text: 0.001, not 0.0009999871
        module = source.module(f"{kind}({channels}, eps={number(p.eps)}, momentum={momentum}, affine=False)",
                               num_batches_tracked=np.zeros((), np.int64), **state)
    else:
        if node.bottoms[0].count == channels:
            raise ConfigError("has one value for each channel, of which PyTorch's BatchNorm takes no statistics", field="bottom[0]")
        source.remark("BatchNorm: use_global_stats is false, so the statistics are those of the batch, also in evaluation.")
        module = source.module(f"{kind}({channels}, eps={number(p.eps)}, affine=False, track_running_stats=False)")
    return [f"{module}({x})" if len(given) <= 5 else f"{module}({x}.flatten(2)).reshape({x}.shape)"]


@writer("MVN")
def mvn(source, node):
    p, x = node.param.mvn_param, expanded(source.bottom(), 4 - len(source.shape()))     # Caffe's top has 4 axes
    axes = (1, 2, 3) if p.across_channels else (2, 3)
    return [source.call("caffe_mvn", x, axes, p.normalize_variance, number(p.eps))]


@writer("LRN")
def lrn(source, node):
    p, x = node.param.lrn_param, source.bottom()
    if p.norm_region == p.ACROSS_CHANNELS:
        source.remark("LRN: alpha is divided by the size, in Caffe as in PyTorch.")
        options = arguments(p.local_size, alpha=number(p.alpha), beta=number(p.beta), k=number(p.k))
        return [f"{source.module(f'nn.LocalResponseNorm({options})')}({x})"]
    return [source.call("caffe_lrn_within_channel", x, p.local_size, number(p.alpha), number(p.beta))]


@writer("Reduction")
def reduction(source, node):
    p, given, x = node.param.reduction_param, source.shape(), source.bottom()
    axis = axis_of(p.axis, given)
    kind, x = {p.SUM: ("sum", x), p.ASUM: ("sum", f"{x}.abs()"), p.SUMSQ: ("sum", f"({x} * {x})"), p.MEAN: ("mean", x)}[p.operation]
    return [affine(f"{x}.{kind}({numbers(range(axis, len(given)))})", p.coeff, 0)]


@writer("Normalize")
def normalize(source, node):
    p, given = node.param.norm_param, source.shape()
    shape = node.layer.blobs[0].shape
    axes = numbers(range(1, len(given)) if p.across_spatial else [1])
    made = source.call("Normalize", numbers(shape), axes, len(given) - 2 if shape else 0, number(p.eps))
    module = source.module(made, weight=0)
    return [f"{module}({source.bottom()})"]


# ---- shapes

@writer("Split")
def split(source, node):
    return source.bottoms() * len(node.tops)


@writer("Silence", "HDF5Output")
def nothing(source, node):
    if node.type == "HDF5Output":
        source.remark(f"HDF5Output: layer '{plain(node.name)}' is left out, no file is written.")
    return []


@writer("Flatten")
def flatten(source, node):
    p, given, x = node.param.flatten_param, source.shape(), source.bottom()
    first, last = axis_of(p.axis, given), axis_of(p.end_axis, given)
    if first == last:
        return [x]
    if last < first:
        return [f"{x}.unsqueeze({first})"]
    return [f"{x}.flatten({first})" if last == len(given) - 1 else f"{x}.flatten({first}, {last})"]


@writer("Reshape")
def reshape(source, node):
    p, given, x = node.param.reshape_param, source.shape(), source.bottom()
    start = p.axis if p.axis >= 0 else len(given) + p.axis + 1
    end = len(given) if p.num_axes == -1 else start + p.num_axes
    dims = [f"{x}.shape[{i}]" for i in range(start)]
    dims += [dim or f"{x}.shape[{start + i}]" for i, dim in enumerate(p.shape.dim)]
    return [f"{x}.reshape({', '.join(map(str, [*dims, *(f'{x}.shape[{i}]' for i in range(end, len(given)))])) or '()'})"]


@writer("Concat")
def concat(source, node):
    xs, axis = source.bottoms(), exporting.older_axis(node.param.concat_param, "concat_dim")
    return xs if len(xs) == 1 else [f"torch.cat(({', '.join(xs)}), {axis})"]


@writer("Slice")
def slices(source, node):
    p, x, axis = node.param.slice_param, source.bottom(), exporting.older_axis(node.param.slice_param, "slice_dim")
    if len(node.tops) == 1:
        return [x]
    if p.slice_point:
        return f"{x}.tensor_split({numbers(p.slice_point)}, {axis})"
    return f"{x}.chunk({len(node.tops)}, {axis})"


@writer("Permute")
def permute(source, node):
    return [f"{source.bottom()}.permute({', '.join(map(str, exporting.permutation(node, len(source.shape()))))})"]


@writer("Tile")
def tile(source, node):
    return [f"{source.bottom()}.repeat({', '.join(map(str, exporting.repeats(node, len(source.shape()))))})"]


@writer("Crop")
def crop(source, node):
    other, (axis, starts) = source.bottom(1), exporting.crop_starts(node)
    cuts = [f"{start}:{start} + {other}.shape[{axis + i}]" if start else f":{other}.shape[{axis + i}]"
            for i, start in enumerate(starts)]
    return [f"{source.bottom()}[{', '.join([':'] * axis + cuts)}]"]


@writer("BatchReindex")
def batch_reindex(source, node):
    return [f"{source.bottom()}[{source.bottom(1)}.flatten().long()]"]


@writer("Filter")
def select(source, node):
    *xs, selector = source.bottoms()
    return [f"{x}[{selector}.flatten() != 0]" for x in xs]


@writer("ArgMax")
def argmax(source, node):
    p, given, wanted, x = node.param.argmax_param, source.shape(), source.top_shape(), source.bottom()
    source.remark("ArgMax: has no gradient. Of equal values the last is the first in Caffe.")
    if p.HasField("axis"):
        return [f"{source.call('caffe_arg_max', x, p.top_k, p.axis)}[{int(not p.out_max_val)}]"]
    both = source.call("caffe_arg_max", f"{x}.flatten(1)" if len(given) > 1 else f"{x}[:, None]", p.top_k, 1)
    y = f"torch.stack({both}[::-1], 1)" if p.out_max_val else f"{both}[1][:, None]"
    return [expanded(y, len(wanted) - 3)]


# ---- sources without data

@writer("Parameter")
def parameter(source, node):
    return [source.parameter(0)]


@writer("PriorBox")
def prior_box(source, node):
    source.remark("PriorBox: the boxes are in the state dict. They are those of pictures of the size below.")
    return [source.buffer(node.tops[0].data)]


@writer("DummyData")
def dummy(source, node):
    exporting.check_dummy(node)
    return [source.buffer(blob.data, f"{node.name}_{blob.name}") for blob in node.tops]


# ---- recurrent layers

@writer("LSTM", "RNN")
def recurrent(source, node):
    p, given, lstm = node.param.recurrent_param, source.shape(), node.type == "LSTM"
    states = (2 if lstm else 1) * p.expose_hidden
    static = len(node.bottoms) - 2 - states > 0
    order = ["weight_x", "bias", *["weight_static"] * static, "weight_h", *([] if lstm else ["weight_o", "bias_o"])]
    made = source.call(node.type, math.prod(given[2:]), p.num_output, static=math.prod(source.shape(2)[1:]) if static else None)
    module = source.module(made, **{name: i for i, name in enumerate(order)})
    if not states:
        source.remark(f"{node.type}: the state is kept from call to call, as in Caffe; cont is 0 where a sequence begins.")
    xs = source.bottoms()
    begin = 2 + static
    given = arguments(*xs[:begin], **{name: x for name, x in zip("hc", xs[begin:])})
    return f"{module}({given})" if states else [f"{module}({given})"]


@writer("LSTMUnit")
def lstm_unit(source, node):
    return source.call("caffe_lstm_unit", *source.bottoms())
