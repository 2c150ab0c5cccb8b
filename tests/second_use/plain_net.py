"""Layers of BVLC Caffe in NumPy, float64, as formulas over a few functions whose gradients are known: the model of random nets.

`Value` is an array with its gradient. Nearly all layers are `gather` (pick elements), `einsum` and functions of one element.
"""

import itertools

import numpy as np

NUMBERS = itertools.count()
KINKS = []      # distances of inputs from where a gradient jumps; 0 is such a place itself, which both sides meet exactly


class Value:
    """An array of a computation; `parents` are pairs of a Value and what makes its gradient of this one's."""

    def __init__(self, data, *parents):
        self.data, self.parents, self.number, self.grad = np.asarray(data, np.float64), parents, next(NUMBERS), None
        self.updated = None     # of a parameter: what the forward pass makes of it

    @property
    def shape(self):
        return self.data.shape


def backward(seeds):
    """Set the gradients of all that pairs of (Value, gradient) were computed from."""
    waiting = {}
    for value, grad in seeds:
        waiting[value.number] = value
        value.grad = grad if value.grad is None else value.grad + grad
    while waiting:
        value = waiting.pop(max(waiting))
        for parent, of in value.parents:
            grad = of(value.grad).reshape(parent.shape)
            parent.grad = grad if parent.grad is None else parent.grad + grad
            waiting[parent.number] = parent


def kink(distances):
    distances = np.abs(distances)
    if distances.any():
        KINKS.append(distances[distances > 0].min())


# ---- functions with gradients


def gather(x, index):
    """Elements of `x` by their places in memory; a place below 0 gives 0."""
    size = x.data.size
    index = np.where(index < 0, size, index)
    return Value(np.append(x.data, 0)[index], (x, lambda g: np.bincount(index.ravel(), g.ravel(), size + 1)[:size]))


def scatter(x, index, shape):
    """The sums of the elements of `x` for each of their places."""
    size = int(np.prod(shape))
    index = np.where(index < 0, size, index)
    return Value(np.bincount(index.ravel(), x.data.ravel(), size + 1)[:size].reshape(shape), (x, lambda g: np.append(g, 0)[index]))


def places(shape):
    return np.arange(int(np.prod(shape))).reshape(shape)


def reshape(x, shape):
    return gather(x, places(x.shape).reshape(shape))


def expand(x, shape, axis=0):
    """Repeat `x`, whose axes are those of `shape` from `axis` on."""
    return gather(x, np.broadcast_to(places(x.shape).reshape(x.shape + (1,) * (len(shape) - axis - len(x.shape))), shape))


def einsum(text, a, b):
    ins, out = text.split("->")
    left, right = ins.split(",")
    return Value(np.einsum(text, a.data, b.data), (a, lambda g: np.einsum(f"{out},{right}->{left}", g, b.data)),
                 (b, lambda g: np.einsum(f"{left},{out}->{right}", a.data, g)))


def each(x, f, slope):
    """A function of each element."""
    return Value(f(x.data), (x, lambda g: g * slope(x.data)))


def add(a, b, factor=1.0):
    return Value(a.data + factor * b.data, (a, lambda g: g), (b, lambda g: factor * g))


def mul(a, b):
    return Value(a.data * b.data, (a, lambda g: g * b.data), (b, lambda g: g * a.data))


def power(x, exponent):
    return each(x, lambda v: v ** exponent, lambda v: exponent * v ** (exponent - 1))


def scaled(x, factor, shift=0.0):
    return each(x, lambda v: factor * v + shift, lambda v: factor)


def total(x, axes):
    """Sums over axes, which stay as 1."""
    return Value(x.data.sum(axes, keepdims=True), (x, lambda g: np.broadcast_to(g.reshape(x.data.sum(axes, keepdims=True).shape), x.shape)))


def same(x, shape):
    return gather(x, np.broadcast_to(places(x.shape), shape))


def largest(x, index):
    """The first largest of the last axis of `index`; Caffe's pools leave out what is outside."""
    values = np.append(x.data, -np.inf)[np.where(index < 0, x.data.size, index)]
    best = values.argmax(-1)[..., None]
    if index.shape[-1] > 1:
        kink(np.diff(np.sort(values, -1)[..., -2:])[np.isfinite(np.sort(values, -1)[..., -2])])
    return gather(x, np.take_along_axis(index, best, -1)[..., 0]), np.take_along_axis(index, best, -1)[..., 0]


def patches(shape, kernel, stride, pad, dilation, out):
    """The places of an array (N, C, H, W) that each output of a window sees: (N, C, kernel, kernel, out, out), -1 for padding."""
    lines = [np.arange(o)[None] * s - p + np.arange(k)[:, None] * d for o, s, p, k, d in zip(out, stride, pad, kernel, dilation)]
    inside = [(line >= 0) & (line < size) for line, size in zip(lines, shape[2:])]
    base = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1, 1, 1, 1) * shape[2] * shape[3]
    place = base + lines[0][:, None, :, None] * shape[3] + lines[1][None, :, None, :]
    return np.where(inside[0][:, None, :, None] & inside[1][None, :, None, :], place, -1)


# ---- layers


def convolution(x, params, count, kernel, stride, pad, dilation, group):
    n, c, *size = x.shape
    out = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, p, d, k, t in zip(size, pad, dilation, kernel, stride)]
    columns = gather(x, patches(x.shape, kernel, stride, pad, dilation, out).reshape(n, group, -1, out[0] * out[1]))
    weights = reshape(params[0], (group, count // group, -1))
    y = reshape(einsum("ngkp,gok->ngop", columns, weights), (n, count, *out))
    return add(y, expand(params[1], y.shape, 1)) if len(params) > 1 else y


def deconvolution(x, params, count, kernel, stride, pad, dilation, group):
    n, c, *size = x.shape
    out = [(s - 1) * t + d * (k - 1) + 1 - 2 * p for s, p, d, k, t in zip(size, pad, dilation, kernel, stride)]
    columns = einsum("ngip,gik->ngkp", reshape(x, (n, group, c // group, -1)), reshape(params[0], (group, c // group, -1)))
    y = scatter(columns, patches((n, count, *out), kernel, stride, pad, dilation, size).reshape(columns.shape), (n, count, *out))
    return add(y, expand(params[1], y.shape, 1)) if len(params) > 1 else y


def pooled_size(size, kernel, stride, pad, floor):
    out = (size + 2 * pad - kernel) // stride + 1 if floor else -((kernel - size - 2 * pad) // stride) + 1
    return out - 1 if pad and (out - 1) * stride >= size + pad else out


def pooling(x, kind, kernel, stride, pad, floor):
    out = [pooled_size(*each_, floor) for each_ in zip(x.shape[2:], kernel, stride, pad)]
    index = np.moveaxis(patches(x.shape, kernel, stride, pad, (1, 1), out), (2, 3), (4, 5)).reshape(*x.shape[:2], *out, -1)
    if kind == "MAX":
        top, index = largest(x, index)
        return top, Value(index % (x.shape[2] * x.shape[3]))
    lengths = [np.minimum(np.arange(o) * t - p + k, s + p) - (np.arange(o) * t - p)
               for o, t, p, k, s in zip(out, stride, pad, kernel, x.shape[2:])]
    area = np.broadcast_to(lengths[0][:, None] * lengths[1], (*x.shape[:2], *out))
    return mul(reshape(total(gather(x, index), -1), (*x.shape[:2], *out)), Value(1 / area)),


def lrn(x, size, alpha, beta, k, within):
    squares, half = mul(x, x), size // 2
    if within:
        index = patches(x.shape, (size, size), (1, 1), (half, half), (1, 1), x.shape[2:])
        mean = reshape(total(gather(squares, index), (2, 3)), x.shape)
        return mul(x, power(scaled(mean, alpha / size ** 2, 1), -beta))
    near = np.arange(x.shape[1])[:, None] + np.arange(-half, half + 1)
    index = np.where(((near >= 0) & (near < x.shape[1]))[None, :, :, None, None],
                     places(x.shape)[:, np.clip(near, 0, x.shape[1] - 1)], -1)
    return mul(x, power(scaled(reshape(total(gather(squares, index), 2), x.shape), alpha / size, k), -beta))


def product(x, params, axis, transpose):
    rows = int(np.prod(x.shape[:axis]))
    y = einsum("nk,ko->no" if transpose else "nk,ok->no", reshape(x, (rows, -1)), params[0])
    y = add(y, same(reshape(params[1], (1, -1)), y.shape)) if len(params) > 1 else y
    return reshape(y, (*x.shape[:axis], -1))


def maximum(bottoms):
    """Of equal ones of the first two the second counts, of later ones the earlier."""
    best, which = None, None
    for i, x in enumerate(bottoms):
        if best is None:
            best, which = x.data, np.zeros(x.shape, int)
        else:
            kink(best - x.data)
            wins = x.data >= best if i == 1 else x.data > best
            best, which = np.where(wins, x.data, best), np.where(wins, i, which)
    return Value(best, *((x, lambda g, i=i: g * (which == i)) for i, x in enumerate(bottoms)))


def concat(bottoms, axis):
    ends = np.cumsum([x.shape[axis] for x in bottoms])
    return Value(np.concatenate([x.data for x in bottoms], axis),
                 *((x, lambda g, i=i: np.split(g, ends[:-1], axis)[i]) for i, x in enumerate(bottoms)))


def batch_norm(x, params, in_use, fraction, eps):
    axes = (0, *range(2, len(x.shape)))
    shape = (1, -1, *(1,) * (len(x.shape) - 2))
    if in_use:
        factor = 1 / params[2].data[0] if params[2].data[0] else 0.0
        mean, variance = (Value((factor * p.data).reshape(shape)) for p in params[:2])
        y = add(x, same(mean, x.shape), -1)
    else:
        count = x.data.size // x.shape[1]
        mean = scaled(total(x, axes), 1 / count)
        y = add(x, same(mean, x.shape), -1)
        variance = scaled(total(mul(y, y), axes), 1 / count)
        params[0].updated = fraction * params[0].data + mean.data.ravel()
        params[1].updated = fraction * params[1].data + variance.data.ravel() * (count / (count - 1) if count > 1 else 1)
        params[2].updated = fraction * params[2].data + 1
    return mul(y, same(power(scaled(variance, 1, eps), -0.5), x.shape))


def mvn(x, variance, across):
    axes = tuple(range(1 if across else 2, len(x.shape)))
    count = int(np.prod([x.shape[a] for a in axes]))
    y = add(x, same(scaled(total(x, axes), 1 / count), x.shape), -1)
    if not variance:
        return y
    deviation = power(scaled(total(mul(y, y), axes), 1 / count), 0.5)
    return mul(y, same(power(scaled(deviation, 1, 1e-9), -1), x.shape))


def softmax(x, axis):
    e = each(add(x, Value(np.broadcast_to(x.data.max(axis, keepdims=True), x.shape)), -1), np.exp, np.exp)
    return mul(e, same(power(total(e, axis), -1), x.shape))


def normalizer(kind, whole, valid, outer):
    return max(1.0, {"FULL": whole, "VALID": valid, "BATCH_SIZE": outer, "NONE": 1}[kind])


def softmax_loss(x, label, axis, ignore, kind):
    p, labels = softmax(x, axis), label.data.astype(int)
    outer, inner = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1:]))
    labels = labels.reshape(outer, inner)
    valid = labels != ignore
    index = np.take_along_axis(places(x.shape).reshape(outer, -1, inner), np.where(valid, labels, 0)[:, None], 1)[:, 0]
    losses = each(gather(p, index[valid]), lambda v: -np.log(v), lambda v: -1 / v)
    return scaled(reshape(total(losses, 0), ()), 1 / normalizer(kind, outer * inner, valid.sum(), outer))


def sigmoid_loss(x, target, ignore, kind):
    valid = Value(target.data != ignore if ignore is not None else np.ones(x.shape))
    t = target.data
    losses = each(x, lambda v: np.maximum(v, 0) - v * t + np.log1p(np.exp(-np.abs(v))), lambda v: 1 / (1 + np.exp(-v)) - t)
    return scaled(sum_all(mul(losses, valid)), 1 / normalizer(kind, x.data.size, valid.data.sum(), x.shape[0]))


def sum_all(x):
    return reshape(total(x, tuple(range(len(x.shape)))), ())


def euclidean_loss(a, b):
    d = add(a, b, -1)
    return scaled(sum_all(mul(d, d)), 0.5 / a.shape[0])


def hinge_loss(x, label, squared):
    sign = np.ones((x.shape[0], x.data.size // x.shape[0]))
    sign[np.arange(x.shape[0]), label.data.astype(int).ravel()] = -1
    sign = sign.reshape(x.shape)
    kink(1 + sign * x.data)
    margin = each(x, lambda v: np.maximum(0, 1 + sign * v), lambda v: sign * (1 + sign * v > 0))
    return scaled(sum_all(mul(margin, margin) if squared else margin), 1 / x.shape[0])


def contrastive_loss(a, b, similar, margin, legacy):
    n, y = a.shape[0], similar.data.ravel()
    d = add(a, b, -1)
    square = reshape(total(mul(d, d), 1), (n,))
    root = each(square, np.sqrt, lambda v: 0.5 / (np.sqrt(v) + 1e-4))      # as Caffe divides
    gap = scaled(square if legacy else root, -1, margin)
    kink(gap.data)
    rest = each(gap, lambda v: np.maximum(v, 0), lambda v: v > 0)
    rest = rest if legacy else mul(rest, rest)
    return scaled(sum_all(add(mul(Value(y), square), mul(Value(1 - y), rest))), 0.5 / n)


def logistic_loss(p, label):
    index = np.arange(p.shape[0]) * p.shape[1] + label.data.astype(int).ravel()
    return scaled(sum_all(each(gather(p, index), lambda v: -np.log(v), lambda v: -1 / v)), 1 / p.shape[0])


def rectified(x, slope):
    kink(x.data)
    return each(x, lambda v: np.where(v > 0, v, slope * v), lambda v: np.where(v > 0, 1, slope))


def prelu(x, slopes):
    kink(x.data)
    wide = expand(slopes, x.shape, 1)
    below = each(x, lambda v: np.minimum(v, 0), lambda v: v <= 0)
    return add(each(x, lambda v: np.maximum(v, 0), lambda v: v > 0), mul(wide, below))


def sigmoid(v):
    return 1 / (1 + np.exp(-v))
