"""Operators of `minicaffe.addons.export.operators` as expressions and modules of PyTorch, exact in Caffe's special cases.

An operator has a row in a table, or a function if its text depends on more than its attributes. Layers that read data are not
exported.
"""

import math

import numpy as np

from minicaffe.addons.export import operators
from minicaffe.addons.export.operators import POOLING, axis_of, pads
from minicaffe.addons.export.pytorch.source import OPERATORS, arguments, number, numbers, operator, writer
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2

# Operator -> expression, or module that is called with the first input. {0}, {1}, ... are the inputs, {all} is all of them.
# {first} is empty for a layer of two tops, and takes the first value for a layer of one.
OPERATORS |= {
    "Elu": "nn.ELU({alpha})", "Sigmoid": "nn.Sigmoid()",
    "Tanh": "nn.Tanh()", "Softplus": "nn.Softplus()", "Softmax": "nn.Softmax(dim={axis})", "dropout": "nn.Dropout({ratio})",
    "LRN": "nn.LocalResponseNorm({size}, alpha={alpha}, beta={beta}, k={bias})",
    "Abs": "{0}.abs()", "Exp": "({0}).exp()", "Log": "({0}).log()", "Mul": "{0} * {1}", "Div": "{0} / {1}",
    "Max": "torch.maximum({0}, {1})", "clip": "{0}.clamp({low}, {high})", "threshold": "({0} > {bound}).to({0}.dtype)",
    "filled": "torch.full_like({0}, {1})", "Concat": "torch.cat(({all}), {axis})", "Transpose": "{0}.permute({perm})",
    "Tile": "{0}.repeat({1})",
    "ReduceSum": "{0}.sum({axes})", "ReduceL1": "{0}.abs().sum({axes})", "ReduceSumSquare": "({0} * {0}).sum({axes})",
    "ReduceMean": "{0}.mean({axes})",
    "normalize": "{0} / (({0} * {0}).sum({axes}, keepdim=True) + {eps}).sqrt()",
    "mvn": "caffe_mvn({0}, {axes}, {normalize_variance}, {eps})",
    "lrn_within_channel": "caffe_lrn_within_channel({0}, {size}, {alpha}, {beta})",
    "Flatten": "{0}.flatten({axis})", "batch_reindex": "{0}[{1}.flatten().long()]", "select": "{0}[{1}.flatten() != 0]",
    "lstm_unit": "caffe_lstm_unit({all})", "accuracy": "caffe_accuracy({all}, {axis}, {top_k}, {ignored}){first}",
    "softmax_loss": 'caffe_softmax_loss({all}, {axis}, {ignored}, "{mode}"){first}',
    "infogain_loss": 'caffe_infogain_loss({all}, {axis}, {ignored}, "{mode}"){first}',
    "logistic_loss": "caffe_logistic_loss({all})", "hinge_loss": 'caffe_hinge_loss({all}, "{norm}")',
    "smooth_l1_loss": "caffe_smooth_l1_loss({all})",
    "cross_entropy_loss": 'caffe_cross_entropy_loss({all}, {ignored}, "{mode}")',
    "contrastive_loss": "caffe_contrastive_loss({all}, {margin}, {legacy})",
    "relu": lambda source, x, slope: f"{source.module(f'nn.LeakyReLU({number(slope)})' if slope else 'nn.ReLU()')}({x})",
    "constant": lambda source, array, name: source.buffer(array, name), "parameter": lambda source: source.parameter(0),
    "prelu": lambda source, x, slopes: f"{source.module(f'nn.PReLU({slopes})', weight=(0, (slopes,)))}({x})",
    "embed": lambda source, x, rows, size, bias: (f"{source.module(f'nn.Embedding({rows}, {size})', weight=0)}({x}.long())"
                                                   + (f" + {source.parameter(1, 'bias')}" if bias else "")),
    "swish": lambda source, x, beta: (f"{source.module('nn.SiLU()')}({x})" if beta == 1
                                      else f"{x} * ({number(beta)} * {x}).sigmoid()"),
    "power": lambda source, x, exponent: f"({x}) ** {number(exponent).removesuffix('.0')}",
    "Add": lambda source, a, b: f"{a} - {b[1:]}" if b.startswith("-") else f"{a} + {b}",
    "Gather": lambda source, x, order, axis: f"{x}[:, {order}]",
    "Sub": lambda source, x, value: f"({x} - {source.buffer(value, 'mean') if value.size > 1 else number(value.item())})",
    "reduction": lambda source, x, kind, axes: source.op(kind, x, axes=axes),
    "Unsqueeze": lambda source, x, axes: f"{x}[...{', None' * len(axes)}]",     # the new axes are at the end
    "slices": lambda source, x, axis, points: (f"{x}.tensor_split({numbers(points)}, {axis})" if points
                                               else f"{x}.chunk({len(source.node.tops)}, {axis})"),
    "euclidean_loss": lambda source, a, b: "(({} - {}) ** 2).sum() / len({}) / 2".format(
        a, b if source.shape(1) == source.shape() else f"{b}.reshape({a}.shape)", a),
}

def call(name, *given, **options):
    """Return the expression of a call."""
    return f"{name}({arguments(*given, **options)})"


def as_argument(values):
    """Return the text of an argument of PyTorch: a tuple, or one number if all values are equal."""
    return str(values[0]) if len(set(values)) == 1 else numbers(values)


def unless_default(values, default):
    """Return the text of an argument; None, to leave it out, if all values are the default."""
    return None if all(value == default for value in values) else as_argument(values)


# ---- products

@writer("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution")
def convolution(source, node):
    layer, axis, count = node.layer, node.layer.channel_axis, len(node.layer.kernel)
    if count > 3:
        raise ConfigError(f"has {count} axes after the channels; PyTorch's convolutions have at most 3", field="bottom[0]")
    bias = len(layer.blobs) > 1
    weight = (0, (*layer.blobs[0].shape, 1)) if not count else 0    # as a convolution over one pixel
    module = source.module(
        f"nn.Conv{'Transpose' if layer.transposed else ''}{max(count, 1)}d(" + arguments(
            source.shape()[axis], source.top_shape()[axis], as_argument(layer.kernel or [1]),
            stride=unless_default(layer.stride, 1), padding=unless_default(layer.pad, 0),
            dilation=unless_default(layer.dilation, 1), groups=None if layer.group == 1 else layer.group,
            bias=None if bias else False) + ")",
        weight=weight, bias=1 if bias else None)
    results = []
    for i in range(len(node.bottoms)):
        x, given, wanted = source.bottom(i), source.shape(i), source.top_shape(i)
        ends = pads(given[axis + 1:], wanted[axis + 1:], layer.kernel, layer.stride, layer.pad, layer.dilation)[count:]
        more = [max(0, end - begin) for end, begin in zip(ends, layer.pad)]
        if not layer.transposed and any(more):
            source.add_line("# Caffe also computes a window that is larger than the picture: zeros are added")
            x = f"F.pad({x}, ({', '.join(f'0, {size}' for size in reversed(more))}))"
        x = x if axis == 1 else f"{x}[None]" if not axis else f"{x}.flatten(0, {axis - 1})"
        y = f"{module}({x})" if count else f"{module}({x}[..., None])[..., 0]"
        results.append(y if axis == 1 else f"{y}[0]" if not axis else f"{y}.unflatten(0, {source.bottom(i)}.shape[:{axis}])")
    return results


@writer("Im2col")
def im2col(source, node):
    given, layer = source.shape(), node.layer
    if layer.channel_axis != 1 or len(given) != 4:
        raise ConfigError(f"needs two axes after axis 1 for PyTorch, got {list(given)} and axis {layer.channel_axis}",
                          field="bottom[0]")
    kernel, stride, pad, dilation = map(numbers, (layer.kernel, layer.stride, layer.pad, layer.dilation))
    return [f"F.unfold({source.bottom()}, {kernel}, {dilation}, {pad}, {stride}).unflatten(2, {numbers(source.top_shape()[2:])})"]


@writer("InnerProduct")
def inner_product(source, node):
    param, given, x = node.param.inner_product_param, source.shape(), source.bottom()
    axis = axis_of(param.axis, given)
    x = x if axis == len(given) - 1 else f"{x}.flatten({axis})"
    if param.transpose:
        weight, *bias = (source.parameter(i, name) for i, name in enumerate(["weight", "bias"][:1 + param.bias_term]))
        return [f"F.linear({arguments(x, f'{weight}.t()', *bias)})"]
    options = arguments(math.prod(given[axis:]), param.num_output, bias=None if param.bias_term else False)
    return [f"{source.module(f'nn.Linear({options})', weight=0, bias=1 if param.bias_term else None)}({x})"]


# ---- pooling

def fits_torch_pooling(given, wanted, kernel, stride, pad, ceil_mode=True):
    """Return whether PyTorch's pooling can have these windows: a padding of at most half a window, and as many windows as Caffe."""
    def count(size, k, s, p):
        windows = (size + 2 * p - k + (s - 1 if ceil_mode else 0)) // s + 1
        return windows - (ceil_mode and (windows - 1) * s >= size + p)
    return all(2 * p <= k and count(size, k, s, p) == n for size, n, k, s, p in zip(given, wanted, kernel, stride, pad))


@operator("pool")
def pooled(source, x, layer, size, mask=None):
    """Return the expression of a layer's pooling, whose top has planes of `size`."""
    p, (kernel, stride, pad) = layer.param.pooling_param, layer.window
    given, wanted, up = source.shape()[2:], size, p.round_mode != p.FLOOR
    if p.pool == POOLING.STOCHASTIC:
        return call("caffe_stochastic_pool", x, as_argument(kernel), as_argument(stride))
    function = "max" if p.pool == POOLING.MAX else "avg"
    if p.global_pooling:
        return f"F.adaptive_{function}_pool2d({arguments(x, 1, return_indices=mask)})"
    if fits_torch_pooling(given, wanted, kernel, stride, pad, up):
        options = arguments(x, as_argument(kernel), as_argument(stride), padding=unless_default(pad, 0), ceil_mode=up or None,
                            return_indices=mask)
        return f"F.{function}_pool2d({options})"
    if mask:
        raise ConfigError("has a mask and windows that PyTorch's max_pool2d does not take", field="top[1]")
    return call("caffe_pool", x, f'"{POOLING.PoolMethod.Name(p.pool)}"', *map(numbers, (kernel, stride, pad, wanted)))


@writer("Pooling")
def pooling(source, node):
    size = node.tops[0].shape[2:]
    if len(node.tops) == 1:
        return [pooled(source, source.bottom(), node.layer, size)]
    return call("caffe_mask", f"*{pooled(source, source.bottom(), node.layer, size, True)}")


# ---- elementwise

@operator("affine")
def affine(source, x, scale, shift):
    """Return the expression of ``scale x + shift``, without a scale of 1 or a shift of 0."""
    x = x if scale == 1 else f"{number(scale)} * {x}"
    return x if not shift else f"{x} + {number(shift)}" if shift > 0 else f"{x} - {number(-shift)}"


# ---- scales and statistics

@operator("channels")
def channels(source, x, weight, bias, trailing):
    made = call("Scale", numbers(source.node.layer.blobs[0].shape), trailing, weight=False if weight is None else None,
                       bias=None if bias is None else True)
    return f"{source.module(made, weight=weight, bias=bias)}({x})"


@writer("BatchNorm")
def batch_norm(source, node):
    p, given, x = node.param.batch_norm_param, source.shape(), source.bottom()
    channels, mode, eps = node.layer.blobs[0].count, p.use_global_stats if p.HasField("use_global_stats") else None, number(p.eps)
    kind = f"nn.BatchNorm{len(given) - 2 if 4 <= len(given) <= 5 else 1}d"
    mean, variance = map(np.float32, operators.batch_statistics(*(blob.data for blob in node.layer.blobs)))
    if mode:
        statistics = (source.buffer(array, f"{node.name}_{name}") for array, name in ((mean, "mean"), (variance, "var")))
        return [f"F.batch_norm({arguments(x, *statistics, eps=eps)})"]
    if mode is None:
        momentum = number(1 - float(number(p.moving_average_fraction)))     # of the decimal text: 0.001, not 0.0009999871
        module = source.module(f"{kind}({channels}, eps={eps}, momentum={momentum}, affine=False)",
                               num_batches_tracked=np.zeros((), np.int64), running_mean=mean, running_var=variance)
    else:
        if node.bottoms[0].count == channels:
            raise ConfigError("has one value for each channel, of which PyTorch's BatchNorm takes no statistics", field="bottom[0]")
        module = source.module(f"{kind}({channels}, eps={eps}, affine=False, track_running_stats=False)")
    return [f"{module}({x})" if len(given) <= 5 else f"{module}({x}.flatten(2)).reshape({x}.shape)"]


# ---- shapes

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


@operator("crop")
def crop(source, x, reference, axis, starts):
    cuts = [f"{start or ''}:{f'{start} + ' if start else ''}{reference}.shape[{axis + i}]" for i, start in enumerate(starts)]
    return f"{x}[{', '.join([':'] * axis + cuts)}]"


@operator("argmax")
def argmax(source, x, axis, top_k, out_max_val):
    if axis is not None:
        return f"{call('caffe_arg_max', x, top_k, axis)}[{int(not out_max_val)}]"
    both = call("caffe_arg_max", f"{x}.flatten(1)" if len(source.shape()) > 1 else f"{x}[:, None]", top_k, 1)
    y = f"torch.stack({both}[::-1], 1)" if out_max_val else f"{both}[1][:, None]"
    return operators.trailed(source, y, len(source.top_shape()) - 3)


# ---- recurrent layers

@writer("LSTM", "RNN")
def recurrent(source, node):
    p, given, lstm = node.param.recurrent_param, source.shape(), node.type == "LSTM"
    states = (2 if lstm else 1) * p.expose_hidden
    static = len(node.bottoms) - 2 - states > 0
    order = ["weight_x", "bias", *["weight_static"] * static, "weight_h", *([] if lstm else ["weight_o", "bias_o"])]
    made = call(node.type, math.prod(given[2:]), p.num_output, static=math.prod(source.shape(2)[1:]) if static else None)
    module = source.module(made, **{name: i for i, name in enumerate(order)})
    xs = source.bottoms()
    begin = 2 + static
    given = arguments(*xs[:begin], **{name: x for name, x in zip("hc", xs[begin:])})
    return f"{module}({given})" if states else [f"{module}({given})"]


# ---- boxes

@writer("DetectionOutput")
def detection_output(source, node):
    p, nms = node.param.detection_output_param, node.param.detection_output_param.nms_param
    for field, given in (("save_output_param.output_directory", p.save_output_param.output_directory), ("visualize", p.visualize)):
        if given:
            raise ConfigError("the module writes no files and shows no pictures; remove the field",
                              field=f"detection_output_param.{field}")
    code = caffe_pb2.PriorBoxParameter.CodeType.Name(p.code_type)
    return [call("caffe_detection_output", *source.bottoms()[:3],    # the fourth has pictures to show
                        classes=p.num_classes, share_location=p.share_location, background=p.background_label_id,
                        code_type=f'"{code}"', variance_in_target=p.variance_encoded_in_target,
                        threshold=number(p.confidence_threshold if p.HasField("confidence_threshold") else -np.inf),
                        nms_threshold=number(nms.nms_threshold), eta=number(nms.eta),
                        top_k=nms.top_k if nms.HasField("top_k") else -1, keep_top_k=p.keep_top_k)]
