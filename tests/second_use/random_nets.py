"""Random nets of layers of BVLC Caffe as text. Each layer runs alone once: its shapes and values follow, and whether it fits."""

import random

import numpy as np
from helpers import layer_text, make_net

from minicaffe.errors import Error

BATCHES = 2, 3
MOST, LARGEST = 3000, 50    # elements of a blob; absolute value


class Unfit(Exception):
    """No bottom fits this layer."""


class Layer:
    """`cut` are bottoms that get no gradient; `keys` name the parameters, which layers may share."""

    def __init__(self, name, kind, bottoms, tops, text=""):
        self.name, self.kind, self.bottoms, self.tops, self.text = name, kind, bottoms, tops, text
        self.keys, self.lr, self.shared, self.cut, self.weights, self.shapes = [], [], False, (), [0] * len(tops), []

    def write(self, name=None, alone=False):
        words = [f"loss_weight: {weight}" for weight in self.weights if any(self.weights)]
        if not alone:
            words += [f"propagate_down: {str(i not in self.cut).lower()}" for i in range(len(self.bottoms)) if self.cut]
            words += [f'param {{ {f"name: {chr(34)}{key[0]}_{key[1]}{chr(34)}" if self.shared else ""} {"" if lr == 1 else f"lr_mult: {lr}"} }}'
                      for key, lr in zip(self.keys, self.lr)]
        return layer_text(self.kind, name or self.name, " ".join(self.bottoms), " ".join(self.tops), f"{' '.join(words)} {self.text}")


class Blob:
    """`values` are None where later layers cannot read it; `closed`: it is not computed in place."""

    def __init__(self, values, closed, gets_diff):
        self.values, self.closed, self.gets_diff, self.used = values, closed, gets_diff, False

    @property
    def shape(self):
        return self.values.shape


class Program:
    """A random net: `layers`, `inputs` (name -> shape without the batch, number of classes or None), `blobs`, `params`."""

    def __init__(self, seed):
        self.seed, self.dice, self.random = seed, random.Random(seed), np.random.default_rng(seed)
        self.layers, self.inputs, self.blobs, self.params = [], {}, {}, {}
        self.focus = None       # the blob that the next layers read
        self.phase, self.force = self.dice.choice([0, 0, 1]), self.dice.random() < 0.25
        for _ in range(self.dice.choice([1, 1, 2])):
            self.add_input(self.dice.choice([(self.dice.choice([1, 2, 3, 4, 6, 8, 16, 16]), self.dice.randint(3, 8), self.dice.randint(3, 8))] * 3
                                            + [(self.dice.randint(1, 9),)]))
        for _ in range(self.dice.randint(2, 10)):
            self.attempt(KINDS)
        for _ in range(self.dice.randint(1, 3)):
            self.attempt(LOSSES)
        while not any(any(layer.weights) for layer in self.layers):
            self.attempt([reduction_loss])
        for name, blob in self.blobs.items():
            if not blob.used and self.dice.random() < 0.2 and not any(name in layer.tops and any(layer.weights) for layer in self.layers):
                self.layers.append(Layer(f"silence_{name}", "Silence", [name], []))

    def attempt(self, kinds):
        """Add one of these layers, the first that fits."""
        for _ in range(20):
            try:
                return self.dice.choice(kinds)(self)
            except Unfit:
                pass

    def add_input(self, rest, classes=None):
        name = f"in{len(self.inputs)}"
        self.inputs[name] = rest, classes
        self.blobs[name] = Blob(self.fill((BATCHES[0], *rest), classes), classes is not None, self.force and classes is None)
        self.layers.append(Layer(name, "Input", [], [name], shape_text((BATCHES[0], *rest))))
        return name

    def fill(self, shape, classes, dice=None):
        dice = dice or self.random
        return (dice.uniform(-1, 1, shape) if classes is None else dice.integers(0, classes, shape)).astype(np.float32)

    def pick(self, dims=(1, 2, 3, 4), like=None):
        """Return the name of a blob of so many axes, or of the shape of another one, that a layer can read."""
        names = [name for name, blob in self.blobs.items() if blob.values is not None and self.inputs.get(name, (0, None))[1] is None
                 and (len(blob.shape) in dims if like is None else blob.shape == self.blobs[like].shape) and self.focus in (None, name)]
        if not names:
            raise Unfit
        return self.dice.choice(names[-2:] if self.dice.random() < 0.6 else names)

    def axis(self, name):
        """Return an axis behind that of the batch, and how the text has it."""
        dims = len(self.blobs[name].shape)
        if dims < 2:
            raise Unfit
        axis = self.dice.randrange(1, dims)
        return axis, axis - dims * (self.dice.random() < 0.3)

    def add(self, kind, bottoms, text="", tops=1, in_place=False, closes=True, labels=False, weight=0):
        """Add a layer whose top is a new blob, or its bottom: `closes` means that no other layer may overwrite the top."""
        name = f"l{len(self.layers)}"
        layer = Layer(name, kind, bottoms, [f"{name}_{i}" for i in range(tops)], text)
        blobs = [self.blobs[bottom] for bottom in bottoms]
        inside = in_place and not blobs[0].closed and not blobs[0].used and self.dice.random() < (0.7 if self.focus is None else 0.95)
        if weight or not inside and self.dice.random() < 0.04:
            layer.weights = [weight or self.dice.choice([0.5, 2])] + [0] * (tops - 1)
        values, made = self.run_alone(layer, blobs)
        if not inside and self.dice.random() < (0.1 if len(bottoms) == 1 else 0.4) and not labels:
            layer.cut = tuple(i for i in range(len(bottoms)) if self.dice.random() < 0.5)
        if inside:
            layer.tops = list(bottoms[:1])
        needs = self.force or any(blob.gets_diff and i not in layer.cut for i, blob in enumerate(blobs)) or any(layer.lr)
        self.params.update(made)
        self.layers.append(layer)
        for i, top in enumerate(layer.tops):
            self.blobs[top] = Blob(None if i and kind == "Pooling" else values[i], closes or any(layer.weights), needs)
        if not inside:
            for blob in blobs:
                blob.used = True
        return layer

    def run_alone(self, layer, blobs):
        """Return the tops of a layer and its parameters by their keys, which may be those of a layer before it."""
        names = [f"in{i}" for i in range(len(blobs))]
        text = "".join(layer_text("Input", name, more=shape_text(blob.shape)) for name, blob in zip(names, blobs))
        layer.bottoms, bottoms = names, layer.bottoms
        try:
            net = make_net(text + layer.write(alone=True), self.phase)
        except Error:
            raise Unfit from None
        finally:
            layer.bottoms = bottoms
        layer.shapes = [blob.shape for blob in net.layers[-1].blobs]
        twins = [old for old in self.layers if (old.kind, old.text, old.shapes) == (layer.kind, layer.text, layer.shapes) and layer.shapes]
        layer.keys, layer.lr = [(layer.name, i) for i in range(len(layer.shapes))], [1] * len(layer.shapes)
        if layer.kind == "BatchNorm":
            layer.lr = [0, 0, 0]    # Caffe sets it
        elif twins and self.dice.random() < 0.7:
            owner = self.dice.choice(twins)
            for old in self.layers:
                old.shared |= old.keys == owner.keys
            layer.keys, layer.lr, layer.shared = owner.keys, owner.lr, True
        elif self.dice.random() < 0.3:
            layer.lr = [self.dice.choice([0, 1, 2]) for _ in layer.shapes]
        made = {key: self.params.get(key, self.initial(layer.kind, shape, key[1])) for key, shape in zip(layer.keys, layer.shapes)}
        for blob, key in zip(net.layers[-1].blobs, layer.keys):
            blob.data[...] = made[key]
        for name, blob in zip(names, blobs):
            net.blobs[name].data[...] = blob.values
        net.forward_from_to(0, len(net.nodes) - 1)
        values = [net.blobs[top].cpu_data.copy() for top in layer.tops]
        if any(top.size > MOST or not np.abs(top).max() < LARGEST for top in values):
            raise Unfit
        return values, made

    def initial(self, kind, shape, i):
        if kind == "BatchNorm":
            return np.full(shape, self.dice.choice([0, 1, 2.5]) if i == 2 else self.random.uniform(0.2, 1, shape) - 0.7 * (i == 0), np.float32)
        width = np.sqrt(3 / max(np.prod(shape[1:]), 3))
        return self.random.uniform(-width, width, shape).astype(np.float32)

    def text(self, renamed=()):
        return ("force_backward: true\n" if self.force else "") + "".join(
            layer.write(f"{layer.name}_other" if layer.name in renamed else None) for layer in self.layers)

    def inputs_of(self, batch, seed):
        dice = np.random.default_rng([self.seed, batch, seed])
        return {name: self.fill((batch, *rest), classes, dice) for name, (rest, classes) in self.inputs.items()}

    def blobs_with_gradients(self):
        """Return the names of blobs from which a loss is computed, as far as they have gradients of their own."""
        found = set()
        for layer in reversed(self.layers):
            if any(layer.weights) or found.intersection(layer.tops):
                found.update(bottom for i, bottom in enumerate(layer.bottoms) if self.force or i not in layer.cut)
        return {name for name in found if self.blobs[name].gets_diff}


def shape_text(shape):
    return f"input_param {{ shape {{ {' '.join(f'dim: {n}' for n in shape)} }} }}"


# ---- layers


def window(g, most=4, dilates=True):
    """Random kernel, stride, pad and dilation, which may not fit."""
    text = ""
    for field, low, high in [("kernel", 1, most), ("stride", 1, 3), ("pad", 0, 2)] + [("dilation", 1, 2)] * dilates:
        a, b = (g.dice.randint(low, high),) * 2 if g.dice.random() < 0.6 else (g.dice.randint(low, high), g.dice.randint(low, high))
        if field == "dilation":
            text += f" dilation: {a}" * (a == b) or f" dilation: {a} dilation: {b}"
        else:
            text += f" {field}{'_size' * (field == 'kernel')}: {a}" if a == b and g.dice.random() < 0.7 else f" {field}_h: {a} {field}_w: {b}"
    return text


def convolution(g, kind="Convolution"):
    x = g.pick([4])
    channels = g.blobs[x].shape[1]
    group = g.dice.choice([1, 1, 1] + [d for d in range(2, channels + 1) if channels % d == 0])
    count, text = group * g.dice.choice([1, 2, 3, 16 // group or 1]), window(g)
    if g.focus is not None or g.dice.random() < 0.5:
        size = g.dice.choice([1, 3, 3, 5])
        text = f"kernel_size: {size} pad: {size // 2}"
    if g.focus is not None:
        group, count = 1, g.dice.choice([channels, 8, 16])
    g.add(kind, [x], f"convolution_param {{ num_output: {count} group: {group} {text} {g.dice.choice(['', '', 'bias_term: false'])} }}", closes=False)


def deconvolution(g):
    convolution(g, "Deconvolution")


def after(g, name, kinds):
    """Let layers follow a blob, in place where they can; return the last top."""
    for kind in kinds:
        g.focus, count = name, len(g.layers)
        g.attempt([kind])
        if len(g.layers) > count and g.layers[-1].tops:
            name = g.layers[-1].tops[0]
    g.focus = None
    return name


def block(g):
    """A convolution with what follows it in place, which is fused."""
    after(g, g.pick([4]), [convolution, *g.dice.choice([
        [relu], [batch_norm, scale, relu], [batch_norm, scale, relu], [batch_norm, relu], [scale, relu], [batch_norm, scale], [prelu], [scale], [relu, pooling]])])


def residual(g):
    x = g.pick([4])
    y = after(g, x, [convolution] + g.dice.choice([[], [], [batch_norm], [batch_norm, scale]]))
    if g.blobs[x].shape != g.blobs[y].shape or x == y:
        raise Unfit
    g.add("Eltwise", g.dice.sample([x, y], 2), closes=False)
    after(g, g.layers[-1].tops[0], [relu])


def inception(g):
    x, kinds = g.pick([4]), g.dice.choice([[convolution], [convolution, relu]])
    g.add("Concat", [after(g, x, kinds) for _ in range(g.dice.randint(2, 3))], closes=False)
    after(g, g.layers[-1].tops[0], g.dice.choice([[], [relu], [batch_norm, relu], [pooling]]))


def inner_product(g):
    x = g.pick()
    _, axis = g.axis(x)
    more = "transpose: true" * (g.dice.random() < 0.4) + " bias_term: false" * (g.dice.random() < 0.3)
    g.add("InnerProduct", [x], f"inner_product_param {{ num_output: {g.dice.randint(1, 6)} axis: {axis} {more} }}", closes=False)


def pooling(g):
    kind, text = g.dice.choice(["MAX", "MAX", "AVE"]), window(g, dilates=False) if g.dice.random() < 0.85 else "global_pooling: true"
    g.add("Pooling", [g.pick([4])], f"pooling_param {{ pool: {kind} {text} {'round_mode: FLOOR' * (g.dice.random() < 0.3)} }}",
          tops=2 if kind == "MAX" and g.dice.random() < 0.2 else 1)


def lrn(g):
    more = g.dice.choice(["norm_region: WITHIN_CHANNEL", "k: 1", "k: 2"])
    g.add("LRN", [g.pick([4])], f"lrn_param {{ local_size: {g.dice.choice([1, 3, 5])} alpha: {g.dice.choice([0.5, 2])} beta: 0.75 {more} }}")


def eltwise(g):
    kind, x = g.dice.choice(["SUM", "SUM", "PROD", "MAX"]), g.pick()
    bottoms = [x] + [g.pick(like=x) for _ in range(g.dice.choice([1, 1, 2]))]
    if kind == "MAX" and len(set(bottoms)) < len(bottoms):
        raise Unfit
    coeffs = "".join(f"coeff: {g.dice.choice([1, -1, 0.5, 2])} " for _ in bottoms) if kind == "SUM" and g.dice.random() < 0.5 else ""
    g.add("Eltwise", bottoms, f"eltwise_param {{ operation: {kind} {coeffs} }}", closes=kind != "SUM")


def concat(g):
    x = g.pick()
    axis, spelled = g.axis(x)
    rests = {name: [n for i, n in enumerate(blob.shape) if i != axis] for name, blob in g.blobs.items()
             if blob.values is not None and g.inputs.get(name, (0, None))[1] is None and len(blob.shape) == len(g.blobs[x].shape)}
    fitting = [name for name, rest in rests.items() if rest == rests[x]]
    g.add("Concat", [x] + g.dice.choices(fitting, k=g.dice.choice([1, 1, 2])), f"concat_param {{ axis: {spelled} }}", closes=False)


def slices(g):
    x = g.pick()
    axis, spelled = g.axis(x)
    wide = g.blobs[x].shape[axis]
    if wide < 2:
        raise Unfit
    count = g.dice.randint(2, min(3, wide))
    points = [] if wide % count == 0 and g.dice.random() < 0.5 else sorted(g.dice.sample(range(1, wide), count - 1))
    g.add("Slice", [x], f"slice_param {{ axis: {spelled} {' '.join(f'slice_point: {n}' for n in points)} }}", tops=count, closes=False)


def with_axis(kind, fields="", **more):
    """A layer of one field `axis`, and others that ``fields(dice)`` gives."""
    def add(g):
        x = g.pick()
        _, axis = g.axis(x)
        g.add(kind, [x], f"{kind.lower()}_param {{ axis: {axis} {fields and fields(g.dice)} }}", **more)
    return add


def reduction_loss(g):
    kind, weight = g.dice.choice(["SUM", "ASUM", "SUMSQ", "MEAN"]), g.dice.choice([0.25, 1])
    g.add("Reduction", [g.pick()], f"reduction_param {{ operation: {kind} coeff: {g.dice.choice([1, 0.5, -0.1])} }}", weight=weight)


def plain(kind, *texts, dims=(1, 2, 3, 4), **more):
    """A layer of one bottom with one of these texts."""
    return lambda g: g.add(kind, [g.pick(dims)], g.dice.choice(texts or [""]), **more)


def dropout(g):
    if g.phase:
        g.add("Dropout", [g.pick()], in_place=True)


def scale(g, kind="Scale"):
    x = g.pick()
    if g.dice.random() < 0.3:
        other = g.pick() if g.focus is None else x
        if other == x:
            raise Unfit
        g.add(kind, [x, other], f"{kind.lower()}_param {{ axis: 0 }}", closes=False)
    else:
        axis, spelled = g.axis(x)
        count = g.dice.choice([-1, *range(len(g.blobs[x].shape) - axis + 1)])
        more = g.dice.choice(["", "bias_term: true"]) if kind == "Scale" else ""
        g.add(kind, [x], f"{kind.lower()}_param {{ axis: {spelled} num_axes: {count} {more} }}", in_place=True, closes=False)


def bias(g):
    scale(g, "Bias")


def batch_norm(g):
    x = g.pick([2, 3, 4])
    if g.blobs[x].values.size // g.blobs[x].shape[1] < 4:
        raise Unfit
    more = g.dice.choice(["", "", "use_global_stats: true", "use_global_stats: false"])
    g.add("BatchNorm", [x], f"batch_norm_param {{ moving_average_fraction: {g.dice.choice([0.999, 0.5])} eps: {g.dice.choice([0.1, 0.5])} {more} }}",
          in_place=True, closes=False)


def crop(g):
    g.add("Crop", [g.pick([4]), g.pick([4])], f"crop_param {{ axis: {g.dice.choice([1, 2, 3, -1])} offset: {g.dice.randint(0, 2)} }}")


def embed(g):
    label = g.add_input(g.dice.choice([(), (3,)]), 4)
    g.add("Embed", [label], f"embed_param {{ input_dim: 4 num_output: {g.dice.randint(1, 4)} bias_term: {g.dice.choice(['true', 'false'])} }}", labels=True, closes=False)


def split(g):
    g.add("Split", [g.pick()], tops=g.dice.randint(1, 3))


def fragile(g):
    """A layer in Python that raises where a test says; it has one name."""
    if any(layer.name == "own" for layer in g.layers):
        raise Unfit
    g.add("SecondUseFragile", [g.pick()], closes=False).name = "own"


# ---- losses


def loss_text(g):
    return g.dice.choice(["", "loss_param { ignore_label: 1 }", "loss_param { normalization: FULL }", "loss_param { normalization: NONE ignore_label: 0 }",
                          "loss_param { normalize: true }", "loss_param { normalize: false }"])


def softmax_loss(g):
    x = g.pick()
    axis, spelled = g.axis(x)
    shape = g.blobs[x].shape
    label = g.add_input((*shape[1:axis], *shape[axis + 1:]), shape[axis])
    g.add("SoftmaxWithLoss", [x, label], f"softmax_param {{ axis: {spelled} }} {loss_text(g)}", labels=True, weight=g.dice.choice(WEIGHTS))


def sigmoid_loss(g):
    x = g.pick()
    g.add("SigmoidCrossEntropyLoss", [x, g.add_input(g.blobs[x].shape[1:], 2)], loss_text(g), labels=True, weight=g.dice.choice(WEIGHTS))


def euclidean_loss(g):
    x = g.pick()
    g.add("EuclideanLoss", [x, g.pick(like=x)], weight=g.dice.choice(WEIGHTS))


def hinge_loss(g):
    x = g.pick([2, 3, 4])
    label = g.add_input((), int(np.prod(g.blobs[x].shape[1:])))
    g.add("HingeLoss", [x, label], f"hinge_loss_param {{ norm: {g.dice.choice(['L1', 'L2'])} }}", labels=True, weight=g.dice.choice(WEIGHTS))


WEIGHTS = 1, 1, 0.5, 3
relu = plain("ReLU", "", "", "", "relu_param { negative_slope: 0.25 }", in_place=True)
prelu = plain("PReLU", "", "prelu_param { channel_shared: true }", dims=(2, 3, 4), in_place=True)
POINTWISE = [relu, relu, plain("Sigmoid", in_place=True), plain("TanH", in_place=True), plain("ELU", "elu_param { alpha: 0.5 }", in_place=True), plain("AbsVal"),
             plain("BNLL"), plain("Exp", "exp_param { scale: 0.5 shift: 0.25 }", "exp_param { base: 2 scale: -0.5 }"),
             plain("Power", "power_param { scale: -0.5 shift: 0.25 }", in_place=True, closes=False), plain("Power", "power_param { power: 2 scale: 0.5 shift: 1 }"),
             plain("Swish", "swish_param { beta: 1.5 }"), plain("Clip", "clip_param { min: -0.25 max: 0.5 }")]
RESHAPES = [plain("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", "reshape_param { shape { dim: 0 dim: 1 dim: -1 } }",
                  "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 1 } }"), with_axis("Flatten")]
KINDS = ([block] * 8 + [residual] * 8 + [inception] * 4 + [convolution] * 3 + POINTWISE + [inner_product, pooling, scale, eltwise, concat, slices] * 3
         + [batch_norm, deconvolution, lrn, prelu, dropout, bias, pooling, split, with_axis("Softmax"), *RESHAPES] * 2
         + [plain("MVN", "mvn_param { across_channels: true }", "mvn_param { normalize_variance: false }", dims=(4,)), crop, embed,
            with_axis("Tile", lambda dice: f"tiles: {dice.randint(1, 3)}"), with_axis("Reduction", lambda dice: "operation: SUMSQ")] + [fragile] * 8)
LOSSES = [softmax_loss] * 3 + [sigmoid_loss, euclidean_loss, hinge_loss, reduction_loss] * 2
