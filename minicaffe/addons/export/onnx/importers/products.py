"""Convolutions, matrix products, pooling, LSTM.

Caffe's windows differ from ONNX's. A convolution whose pads differ at the two sides of an axis gets rows of zeros in its kernel.
The divisor of AVE pooling is corrected by a Scale with a factor for each position.
"""

import math

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import caffe_pb2

POOLING = caffe_pb2.PoolingParameter
ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]   # of an LSTM


def sides(pads, count):
    """Return the pads of ONNX as lists of those before and after each axis."""
    pads = pads or [0] * (2 * count)
    return list(pads[:count]), list(pads[count:])


def window_pads(made, kernel, stride, dilation, sizes, results):
    """Return the pads before and after each axis of the present node, also those of `auto_pad`."""
    auto = made.attribute("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return sides(made.attribute("pads"), len(kernel))
    if auto == "VALID":
        return [0] * len(kernel), [0] * len(kernel)
    before, after = [], []
    for k, s, d, size, result in zip(kernel, stride, dilation, sizes, results):
        total = max(0, (result - 1) * s + (k - 1) * d + 1 - size)
        before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        after.append(total - before[-1])
    return before, after


@importer("Conv")
def conv(made, node):
    weight, bias = made.constant(1, "weight"), made.constant(2, "bias")
    count = weight.ndim - 2
    kernel, group = list(weight.shape[2:]), made.attribute("group", 1)
    stride, dilation = made.attribute("strides", [1] * count), made.attribute("dilations", [1] * count)
    before, after = window_pads(made, kernel, stride, dilation, made.shape()[2:], made.result[2:])
    # Unequal pads: the larger one on both sides, and zeros in the kernel where the window would begin or end too far out.
    front, back = [max(0, b - a) for a, b in zip(before, after)], [max(0, a - b) for a, b in zip(before, after)]
    if any(extra % d for extra, d in zip([*front, *back], [*dilation, *dilation])):
        raise Unsupported(f"its pads {before} and {after} differ by no multiple of the dilation {dilation}")
    extended = [k + f // d + b // d for k, f, b, d in zip(kernel, front, back, dilation)]
    check_bytes(4 * math.prod([*weight.shape[:2], *extended]), "a kernel with zeros for unequal pads")
    weight = np.pad(weight, [(0, 0), (0, 0), *((f // d, b // d) for f, b, d in zip(front, back, dilation))])
    pad = [max(a, b) for a, b in zip(before, after)]
    made.layer("Convolution", [made.bottom()], [weight, bias], last=True, num_output=weight.shape[0], kernel_size=weight.shape[2:],
               stride=stride, pad=pad, dilation=dilation, group=group, bias_term=bias is not None)


@importer("ConvTranspose")
def conv_transpose(made, node):
    weight, bias = made.constant(1, "weight"), made.constant(2, "bias")
    count, group = weight.ndim - 2, made.attribute("group", 1)
    stride, dilation = made.attribute("strides", [1] * count), made.attribute("dilations", [1] * count)
    results, auto = list(made.result[2:]), made.attribute("auto_pad", "NOTSET")
    whole = [s * (size - 1) + d * (k - 1) + 1 for s, size, d, k in zip(stride, made.shape()[2:], dilation, weight.shape[2:])]
    before, _ = sides(made.attribute("pads"), count)
    if auto.startswith("SAME") or made.attribute("output_shape"):
        added = made.attribute("output_padding", [0] * count)
        before = [max(0, w + a - r + (auto != "SAME_UPPER")) // 2 for w, a, r in zip(whole, added, results)]
    if any(p + r > w for p, r, w in zip(before, results, whole)):
        raise Unsupported("its result reaches beyond the last window")
    symmetric = [w - 2 * p for w, p in zip(whole, before)] == results
    top = made.layer("Deconvolution", [made.bottom()], [weight, bias], last=symmetric, num_output=weight.shape[1] * group,
                     kernel_size=weight.shape[2:], stride=stride, dilation=dilation, pad=before if symmetric else [0] * count,
                     group=group, bias_term=bias is not None)
    if not symmetric:
        for axis, sizes in enumerate(zip(whole, before, results), 2):
            top = made.sliced(top, sizes[0], axis, *sizes[1:])
        made.layer("Power", [top], last=True)


@importer("Gemm")
def gemm(made, node):
    weight, bias = made.constant(1, "second matrix"), made.constant(2, "bias")
    alpha, beta = made.attribute("alpha", 1.0), made.attribute("beta", 1.0)
    if made.attribute("transA", 0):
        raise Unsupported("its first matrix is transposed")
    weight = (weight if made.attribute("transB", 0) else weight.T) * alpha
    if bias is not None:
        if bias.size != 1 and (bias.size, bias.shape[-1]) != (weight.shape[0], weight.shape[0]):
            raise Unsupported("its bias is a matrix")
        bias = np.broadcast_to(bias * beta, (1, weight.shape[0]))[0]
    product(made, weight, bias)


def product(made, weight, bias):
    """Add an InnerProduct with a weight (outputs, inputs)."""
    made.layer("InnerProduct", [made.bottom()], [weight, bias], last=True, num_output=weight.shape[0], bias_term=bias is not None,
               axis=len(made.shape()) - 1)


@importer("MatMul")
def matmul(made, node):
    weight = made.constant(1, "second matrix")
    if weight.ndim != 2:
        raise Unsupported(f"its second operand has the shape {list(weight.shape)}, InnerProduct has a matrix")
    product(made, weight.T, None)


# ---- pooling

@importer("MaxPool", "AveragePool")
def pool(made, node):
    kernel, given, wanted = made.attribute("kernel_shape"), made.shape(), made.result
    if len(kernel) != 2:
        raise Unsupported(f"Caffe's Pooling has two spatial axes, this has {len(kernel)}")
    stride, dilation = made.attribute("strides", [1, 1]), made.attribute("dilations", [1, 1])
    if dilation != [1, 1]:
        raise Unsupported("Pooling has no dilation")
    before, after = window_pads(made, kernel, stride, dilation, given[2:], wanted[2:])
    sizes, results = list(given[2:]), list(wanted[2:])
    mode = next((mode for mode in (POOLING.CEIL, POOLING.FLOOR)
                 if [caffe_size(*one, mode, any(before)) for one in zip(sizes, kernel, stride, before)] == results), None)
    if mode is None or any(p >= k for p, k in zip(before, kernel)):
        raise Unsupported(f"no rounding of Pooling gives {results} windows of {kernel} with the pads {before} and {after}")
    factor, method = 1, POOLING.MAX
    if node.op_type == "AveragePool":
        counted, method = made.attribute("count_include_pad", 0), POOLING.AVE
        factor = np.outer(*(divisors(*one, counted) for one in zip(sizes, results, kernel, stride, before, after)))
    plain = bool(np.all(factor == 1))
    top = made.layer("Pooling", [made.bottom()], last=plain, pool=method, kernel_h=kernel[0], kernel_w=kernel[1],
                     stride_h=stride[0], stride_w=stride[1], pad_h=before[0], pad_w=before[1], round_mode=mode or None)
    if not plain:
        made.layer("Scale", [top], [factor], last=True, axis=2, num_axes=2)


def caffe_size(size, kernel, stride, pad, mode, padded):
    """Return the number of Caffe's windows of an axis."""
    over = size + 2 * pad - kernel
    count = (-(-over // stride) if mode == POOLING.CEIL else over // stride) + 1
    return count - 1 if padded and (count - 1) * stride >= size + pad else count


def divisors(size, result, kernel, stride, before, after, counted):
    """Return by how much Caffe's divisor is too large for each window of an axis."""
    made = []
    for i in range(result):
        start = i * stride - before
        caffe = min(start + kernel, size + before) - start
        end = min(start + kernel, size + after) if counted else min(start + kernel, size)
        made.append(caffe / (end - (start if counted else max(start, 0))))
    return made


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(made, node):
    if len(made.shape()) != 4:
        raise Unsupported("Caffe's Pooling has two spatial axes")
    made.layer("Pooling", [made.bottom()], last=True, global_pooling=True,
               pool=POOLING.MAX if node.op_type == "GlobalMaxPool" else POOLING.AVE)


# ---- recurrent layers

@importer("LSTM")
def lstm(made, node):
    """The gates are i, o, f, g in ONNX, and i, f, o, g in Caffe, whose indicator of sequences is a constant here.

    A backward direction has its input and its output in reverse order.
    """
    weights, recurrent, biases, lengths, *states, peepholes = (made.constant(i, "weight or state") for i in range(1, 8))
    (steps, batch), (count, _, size) = made.shape()[:2], recurrent.shape
    if made.attribute("activations", ACTIVATIONS * count) != ACTIVATIONS * count:
        raise Unsupported(f"its activations are other than {', '.join(ACTIVATIONS)}")
    if made.attribute("clip") or made.attribute("layout", 0):
        raise Unsupported("it has a clip, or the batch is axis 0")
    if made.attribute("input_forget", 0) or peepholes is not None:
        raise Unsupported("its input and forget gates are coupled (input_forget), or it has peepholes")
    if any(state is not None and np.any(state) for state in states):
        raise Unsupported("its states do not begin with 0")
    if lengths is not None and np.any(lengths != steps):
        raise Unsupported("it has sequences of several lengths")
    has_all, has_last = (len(node.output) > i and node.output[i] in made.readers for i in (0, 1))
    if not has_all and not has_last:
        raise Unsupported("neither all its states nor the last one are read")
    biases = np.zeros((count, 8 * size), np.float32) if biases is None else biases
    indicator = np.ones((steps, batch), np.float32)
    indicator[0] = 0
    every, last = [], []
    for i, reverse in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[made.attribute("direction", "forward")]):
        blob = reversed_steps(made, made.bottom(), steps) if reverse else made.bottom()
        arrays = [array.reshape(4, size, -1)[[0, 2, 1, 3]] for array in (weights[i], biases[i].reshape(2, -1).sum(0), recurrent[i])]
        continued = made.layer("Parameter", [], arrays=[indicator], shape={"dim": indicator.shape})
        blob = made.layer("LSTM", [blob, continued], arrays, num_output=size)
        if has_last:
            last.append(made.sliced(blob, steps, 0, steps - 1, 1))
        if has_all:
            blob = reversed_steps(made, blob, steps) if reverse else blob
            every.append(made.reshaped(blob, (steps, batch, size), (steps, 1, batch, size), last=count == 1))
    if has_all and count > 1:
        made.layer("Concat", every, last=True)
    if has_last:
        blob = made.layer("Concat", last, axis=0) if count > 1 else last[0]
        made.blobs[node.output[1]] = blob
        made.checked[blob] = node.output[1]


def reversed_steps(made, blob, steps):
    """Return a blob with the steps, axis 0, in reverse order."""
    if steps == 1:
        return blob
    return made.layer("Concat", made.layer("Slice", [blob], tops=steps, axis=0)[::-1], axis=0)
