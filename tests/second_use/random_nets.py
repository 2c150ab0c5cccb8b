"""Random nets of layers of BVLC Caffe, as text for minicaffe and as a computation of `plain_net`."""

import random

import numpy as np
import plain_net as plain
from plain_net import Value

BATCHES = 2, 3
MOST, LARGEST = 3000, 50    # elements of a blob; absolute value


class Unfit(Exception):
    """No bottom fits this layer."""


class Layer:
    """`compute` makes the tops of bottoms and parameters, which are Values; `cut` are bottoms that get no gradient."""

    def __init__(self, name, kind, bottoms, tops, text, compute, shapes, first):
        self.name, self.kind, self.bottoms, self.tops, self.text, self.compute = name, kind, bottoms, tops, text, compute
        self.shapes, self.first, self.keys, self.lr = shapes, first, [(name, i) for i in range(len(shapes))], [1] * len(shapes)
        self.shared, self.cut, self.weights, self.rules, self.decoy = False, (), [0] * len(tops), "", ""

    def write(self, name=None):
        words = [f'name: "{name or self.name}" type: "{self.kind}"', *(f'bottom: "{b}"' for b in self.bottoms), *(f'top: "{t}"' for t in self.tops)]
        if any(self.weights):
            words += [f"loss_weight: {weight}" for weight in self.weights]
        if self.cut:
            words += [f"propagate_down: {str(i not in self.cut).lower()}" for i in range(len(self.bottoms))]
        for key, lr in zip(self.keys, self.lr):
            words.append(f'param {{ {f"name: {chr(34)}{key[0]}_{key[1]}{chr(34)}" if self.shared else ""} {"" if lr == 1 else f"lr_mult: {lr}"} }}')
        return f"{self.decoy}layer {{ {' '.join(words)} {self.text} {self.rules} }}\n"


class Blob:
    def __init__(self, values, closed, needs=False):
        self.values, self.closed, self.needs = values, closed, needs    # a Value for each of BATCHES; not to be computed in place
        self.gets_diff = needs      # that of the first layer whose top it is
        self.used = False

    @property
    def shape(self):
        return self.values[0].shape

    @property
    def shapes(self):
        return [value.shape for value in self.values]


class Program:
    """A random net: `layers`, `inputs` (name -> shape without the batch, number of classes or None), `blobs` as generated."""

    def __init__(self, seed):
        self.seed, self.dice, self.random = seed, random.Random(seed), np.random.default_rng(seed)
        self.layers, self.inputs, self.blobs, self.params = [], {}, {}, {}
        self.focus = None       # the blob that the next layers read
        self.phase, self.level = self.dice.choice([0, 0, 1]), self.dice.randrange(3)
        self.stages = [s for s in "abc" if self.dice.random() < 0.5]
        self.force = self.dice.random() < 0.25
        plain.KINKS.clear()
        for _ in range(self.dice.choice([1, 1, 2])):
            self.add_input(self.dice.choice([(self.dice.choice([1, 2, 3, 4, 6, 8, 16, 16]), self.dice.randint(3, 8), self.dice.randint(3, 8))] * 3 + [(self.dice.randint(1, 9),)]))
        for _ in range(self.dice.randint(2, 10)):
            self.attempt(KINDS)
        for _ in range(self.dice.randint(1, 3)):
            self.attempt(LOSSES)
        while not any(any(layer.weights) for layer in self.layers):
            self.attempt([reduction_loss])
        for name, blob in self.blobs.items():
            if not blob.used and self.dice.random() < 0.2 and not any(name in layer.tops and any(layer.weights) for layer in self.layers):
                self.layers.append(Layer(f"silence_{name}", "Silence", [name], [], "", lambda b, p: [], [], []))

    def attempt(self, kinds):
        """Add one of these layers, the first that fits."""
        for _ in range(20):
            try:
                return self.dice.choice(kinds)(self)
            except Unfit:
                pass

    def add_input(self, rest, classes=None, batched=True):
        name = f"in{len(self.inputs)}"
        self.inputs[name] = rest, classes, batched
        shapes = [(batch, *rest) if batched else rest for batch in BATCHES]
        values = [Value(self.fill(shape, classes)) for shape in shapes]
        self.blobs[name] = Blob(values, classes is not None, self.force and classes is None)
        dims = "".join(f" dim: {n}" for n in shapes[0])
        self.layers.append(Layer(name, "Input", [], [name], f"input_param {{ shape {{{dims} }} }}", None, [], []))
        return name

    def fill(self, shape, classes, dice=None):
        dice = dice or self.random
        return (dice.uniform(-1, 1, shape) if classes is None else dice.integers(0, classes, shape)).astype(np.float32)

    def pick(self, fits=lambda shape: True, like=None):
        """A blob that a layer can read."""
        if self.focus is not None:
            if not fits(self.blobs[self.focus].shape) or like is not None and self.blobs[self.focus].shapes != self.blobs[like].shapes:
                raise Unfit
            return self.focus
        names = [name for name, blob in self.blobs.items() if not (name in self.inputs and self.inputs[name][1]) and blob.values[0] is not None
                 and fits(blob.shape) and (like is None or blob.shapes == self.blobs[like].shapes)]
        if not names:
            raise Unfit
        recent = names[-2:]
        return self.dice.choice(recent if self.dice.random() < 0.6 else names)

    def need_batch(self, name):
        """Labels have the net's batch, so the blob must have it, too."""
        if tuple(shape[0] for shape in self.blobs[name].shapes) != BATCHES:
            raise Unfit

    def axis(self, name, first=0):
        if len(self.blobs[name].shape) <= first:
            raise Unfit
        axis = self.dice.randrange(first, len(self.blobs[name].shape))
        return axis, axis if self.dice.random() < 0.7 else axis - len(self.blobs[name].shape)

    def initial(self, shape, first):
        if first is not None:
            return np.full(shape, first(self.dice), np.float32) if callable(first) else np.asarray(first, np.float32)
        width = np.sqrt(3 / max(np.prod(shape[1:]), 3))
        return self.random.uniform(-width, width, shape).astype(np.float32)

    def add(self, kind, bottoms, text, compute, shapes=(), first=None, tops=1, in_place=False, closes=True, labels=(), weight=0, dead=False):
        """Add a layer whose top is a new blob, or its bottom: `closes` means that no other layer may overwrite the top."""
        name = f"l{len(self.layers)}"
        layer = Layer(name, kind, bottoms, [f"{name}_{i}" for i in range(tops)], text, compute, list(shapes), first or [None] * len(shapes))
        blobs = [self.blobs[b] for b in bottoms]
        inside = in_place and not blobs[0].closed and not blobs[0].used and self.dice.random() < (0.7 if self.focus is None else 0.95)
        twins = [old for old in self.layers if old.kind == kind and old.text == text and old.shapes == layer.shapes and shapes]
        if kind == "BatchNorm":
            layer.lr = [0, 0, 0]    # Caffe sets it
        elif twins and self.dice.random() < 0.7:
            owner = self.dice.choice(twins)
            for old in self.layers:
                old.shared |= old.keys == owner.keys
            layer.keys, layer.lr, layer.shared = owner.keys, owner.lr, True
        elif shapes and self.dice.random() < 0.3:
            layer.lr = [self.dice.choice([0, 1, 2]) for _ in shapes]
        made = {key: self.params[key] if key in self.params else self.initial(shape, value) for key, shape, value in zip(layer.keys, layer.shapes, layer.first)}
        values = []
        with np.errstate(all="ignore"):
            for i in range(len(BATCHES)):
                values.append(compute([blob.values[i] for blob in blobs], [Value(made[key]) for key in layer.keys]))
        for tops_ in values:
            if any(top.data.size > MOST or not np.abs(top.data).max() < LARGEST for top in tops_):
                raise Unfit
        if not inside and self.dice.random() < (0.1 if len(bottoms) == 1 else 0.4) and not labels:
            layer.cut = tuple(i for i in range(len(bottoms)) if self.dice.random() < 0.5)
        if inside:
            layer.tops = list(bottoms[:1])
        needs = self.force or any(blob.needs and i not in layer.cut for i, blob in enumerate(blobs)) or any(layer.lr)
        if weight or not inside and not dead and self.dice.random() < 0.04:
            layer.weights = [weight or self.dice.choice([0.5, 2])] + [0] * (tops - 1)
        self.add_rules(layer, inside)
        self.params.update(made)
        self.layers.append(layer)
        for i, top in enumerate(layer.tops):
            hidden = dead or i and kind == "Pooling"
            blob = Blob([made_[i] if not hidden else None for made_ in values], closes or any(layer.weights), needs)
            blob.gets_diff = blobs[0].gets_diff if inside else needs
            self.blobs[top] = blob
        if not inside:
            for blob in blobs:
                blob.used = True
        return layer

    def add_rules(self, layer, inside):
        """Rules that keep the layer, and another layer of its name with rules that do not."""
        if self.dice.random() > 0.25:
            return
        good = [rule for rule in (self.rule() for _ in range(8)) if self.meets(rule)]
        bad = [rule for rule in (self.rule() for _ in range(8)) if not self.meets(rule)]
        if not good or not bad:
            return
        some = " ".join(f"include {{ {show(rule)} }}" for rule in self.dice.sample([good[0], bad[0]], 2))
        layer.rules = self.dice.choice([some, f"exclude {{ {show(bad[0])} }}"])
        if not inside and len(layer.tops) == 1:
            rules = self.dice.choice([f"include {{ {show(bad[-1])} }}", f"exclude {{ {show(bad[0])} }} exclude {{ {show(good[-1])} }}"])
            bottom = f'bottom: "{layer.bottoms[0]}"' if layer.bottoms else ""
            layer.decoy = f'layer {{ name: "{layer.name}" type: "Power" {bottom} top: "{layer.tops[0]}" power_param {{ shift: 7 }} {rules} }}\n'

    def rule(self):
        dice, rule = self.dice, {}
        if dice.random() < 0.4:
            rule["phase"] = dice.choice([0, 1])
        if dice.random() < 0.4:
            rule["min_level"] = dice.randrange(4)
        if dice.random() < 0.4:
            rule["max_level"] = dice.randrange(3)
        rule["stage"] = [s for s in "abc" if dice.random() < 0.2]
        rule["not_stage"] = [s for s in "abc" if dice.random() < 0.2]
        return rule

    def meets(self, rule):
        return (rule.get("phase", self.phase) == self.phase and rule.get("min_level", self.level) <= self.level <= rule.get("max_level", self.level)
                and set(rule["stage"]) <= set(self.stages) and not set(rule["not_stage"]) & set(self.stages))

    def text(self, renamed=()):
        return ("force_backward: true\n" if self.force else "") + "".join(
            layer.write(f"{layer.name}_other" if layer.name in renamed else None) for layer in self.layers)

    # ---- the reference

    def inputs_of(self, batch, seed):
        dice = np.random.default_rng([self.seed, batch, seed])
        return {name: self.fill((batch, *rest) if batched else rest, classes, dice) for name, (rest, classes, batched) in self.inputs.items()}

    def run(self, values, params):
        """Return the loss, the first and the last Value of each blob by its name, parameters, and the nearest kink."""
        plain.KINKS.clear()
        given = {key: Value(array) for key, array in params.items()}
        last = {name: Value(array) for name, array in values.items()}
        first, seeds, loss = dict(last), [], 0.0
        for layer in self.layers:
            if layer.compute is None:
                continue
            bottoms = [Value(last[b].data) if i in layer.cut and not self.force else last[b] for i, b in enumerate(layer.bottoms)]
            used = [given[key] if lr or self.force else Value(given[key].data) for key, lr in zip(layer.keys, layer.lr)]
            tops = layer.compute(bottoms, used)
            for key, value in zip(layer.keys, used):
                given[key].updated = value.updated
            for name, top, weight in zip(layer.tops, tops, layer.weights):
                last[name] = top
                first[name] = first[name] if name in layer.bottoms else top
                if weight:
                    loss += weight * top.data.sum()
                    seeds.append((top, np.full(top.shape, float(weight))))
        plain.backward(seeds)
        return loss, first, last, given, min(plain.KINKS, default=1)


def show(rule):
    words = {"phase": ["TRAIN", "TEST"][rule["phase"]]} if "phase" in rule else {}
    words |= {name: rule[name] for name in ("min_level", "max_level") if name in rule}
    return " ".join([f"{name}: {value}" for name, value in words.items()] + [f'{name}: "{s}"' for name in ("stage", "not_stage") for s in rule[name]])


# ---- layers


def window(g, name, most=4, dilates=True):
    """Random kernel, stride, pad and dilation that fit a blob, and their text."""
    def pair(low, high):
        one = g.dice.randint(low, high)
        return (one, one) if g.dice.random() < 0.6 else (one, g.dice.randint(low, high))
    kernel, stride, pad = pair(1, most), pair(1, 3), pair(0, 2)
    dilation = pair(1, 2) if dilates else (1, 1)
    text = ""
    for field, (a, b) in (("kernel", kernel), ("stride", stride), ("pad", pad)):
        text += f" {field}{'_size' if field == 'kernel' else ''}: {a}" if a == b and g.dice.random() < 0.7 else f" {field}_h: {a} {field}_w: {b}"
    if dilates:
        text += f" dilation: {dilation[0]}" * (dilation[0] == dilation[1]) or f" dilation: {dilation[0]} dilation: {dilation[1]}"
    return kernel, stride, pad, dilation, text


def convolution(g, kind="Convolution"):
    x = g.pick(lambda s: len(s) == 4)
    n, c, *size = g.blobs[x].shape
    group = g.dice.choice([1, 1, 1] + [d for d in range(2, c + 1) if c % d == 0])
    count = group * g.dice.choice([1, 2, 3, 16 // group or 1])
    kernel, stride, pad, dilation, text = window(g, x)
    if g.focus is not None or g.dice.random() < 0.5:
        size_ = g.dice.choice([1, 3, 3, 5])
        kernel, stride, pad, dilation, text = (size_,) * 2, (1, 1), (size_ // 2,) * 2, (1, 1), f"kernel_size: {size_} pad: {size_ // 2}"
    if g.focus is not None:
        group, count = 1, g.dice.choice([c, 8, 16])
    if kind == "Convolution" and any(s + 2 * p < d * (k - 1) + 1 for s, p, d, k in zip(size, pad, dilation, kernel)):
        raise Unfit
    if kind == "Deconvolution" and any((s - 1) * t + d * (k - 1) + 1 <= 2 * p for s, p, d, k, t in zip(size, pad, dilation, kernel, stride)):
        raise Unfit
    bias = g.dice.random() < 0.7
    function = plain.convolution if kind == "Convolution" else plain.deconvolution
    shape = (count, c // group, *kernel) if kind == "Convolution" else (c, count // group, *kernel)
    g.add(kind, [x], f"convolution_param {{ num_output: {count} group: {group} {text} {'' if bias else 'bias_term: false'} }}",
          lambda b, p: [function(b[0], p, count, kernel, stride, pad, dilation, group)], [shape, (count,)][:1 + bias], closes=False)


def after(g, name, kinds):
    """Let layers follow a blob, in place where they can; return the last top."""
    for kind in kinds:
        g.focus, count = name, len(g.layers)
        g.attempt([kind])
        if len(g.layers) > count and g.layers[-1].tops:
            name = g.layers[-1].tops[0]
    g.focus = None
    if g.blobs[name].values[0] is None:
        raise Unfit
    return name


def rectifier(g):
    pointwise(g, "ReLU")


def block(g):
    """What is fused: a convolution with what follows it in place."""
    return after(g, g.pick(lambda s: len(s) == 4), [convolution, *g.dice.choice([
        [rectifier], [batch_norm, scale, rectifier], [batch_norm, scale, rectifier], [batch_norm, rectifier], [scale, rectifier], [batch_norm, scale], [prelu], [scale], [rectifier, pooling]])])


def residual(g):
    x = g.pick(lambda s: len(s) == 4)
    y = after(g, x, [convolution] + g.dice.choice([[], [], [batch_norm], [batch_norm, scale]]))
    if g.blobs[x].shapes != g.blobs[y].shapes or x == y:
        raise Unfit
    eltwise(g, g.dice.sample([x, y], 2))
    after(g, g.layers[-1].tops[0], [rectifier])


def inception(g):
    x = g.pick(lambda s: len(s) == 4)
    kinds = g.dice.choice([[convolution], [convolution, rectifier]])
    parts = [after(g, x, kinds) for _ in range(g.dice.randint(2, 3))]
    if len({g.blobs[part].shape[2:] for part in parts}) > 1:
        raise Unfit
    g.add("Concat", parts, "", lambda b, p: [plain.concat(b, 1)], closes=False)
    after(g, g.layers[-1].tops[0], g.dice.choice([[], [rectifier], [batch_norm, rectifier], [pooling]]))


def deconvolution(g):
    convolution(g, "Deconvolution")


def inner_product(g):
    x = g.pick(lambda s: len(s) > 1)
    axis, spelled = g.axis(x, 1)
    count, transpose, bias = g.dice.randint(1, 6), g.dice.random() < 0.4, g.dice.random() < 0.7
    wide = int(np.prod(g.blobs[x].shape[axis:]))
    shape = (wide, count) if transpose else (count, wide)
    scale = np.sqrt(3 / wide)
    g.add("InnerProduct", [x], f"inner_product_param {{ num_output: {count} axis: {spelled} {'transpose: true' * transpose} {'' if bias else 'bias_term: false'} }}",
          lambda b, p: [plain.product(b[0], p, axis, transpose)], [shape, (count,)][:1 + bias],
          [g.random.uniform(-scale, scale, shape), None][:1 + bias], closes=False)


def pooling(g):
    x = g.pick(lambda s: len(s) == 4)
    kind, floor = g.dice.choice(["MAX", "MAX", "AVE"]), g.dice.random() < 0.3
    size = g.blobs[x].shape[2:]
    kernel, stride, pad, _, text = window(g, x, dilates=False)
    if g.dice.random() < 0.15:
        kernel, stride, pad, text = tuple(size), (1, 1), (0, 0), "global_pooling: true"
    if any(p >= k or k > s + 2 * p or t > k for s, p, k, t in zip(size, pad, kernel, stride)):
        raise Unfit
    tops = 2 if kind == "MAX" and g.dice.random() < 0.2 else 1
    g.add("Pooling", [x], f"pooling_param {{ pool: {kind} {text} {'round_mode: FLOOR' * floor} }}",
          lambda b, p: plain.pooling(b[0], kind, kernel, stride, pad, floor)[:tops], tops=tops)


def lrn(g):
    x = g.pick(lambda s: len(s) == 4)
    within, size, alpha, beta, k = g.dice.random() < 0.4, g.dice.choice([1, 3, 5]), g.dice.choice([0.5, 2]), g.dice.choice([0.75, 0.4]), g.dice.choice([1, 2])
    text = f"local_size: {size} alpha: {alpha} beta: {beta} " + ("norm_region: WITHIN_CHANNEL" if within else f"k: {k}")
    g.add("LRN", [x], f"lrn_param {{ {text} }}", lambda b, p: [plain.lrn(b[0], size, alpha, beta, k, within)])


def eltwise(g, bottoms=None):
    kind = g.dice.choice(["SUM", "SUM", "PROD", "MAX"]) if bottoms is None else "SUM"
    if bottoms is None:
        x = g.pick()
        bottoms = [x] + [g.pick(like=x) for _ in range(g.dice.choice([1, 1, 2]))]
    if kind == "MAX" and len(set(bottoms)) < len(bottoms):
        raise Unfit
    factors = [g.dice.choice([1, -1, 0.5, 2]) for _ in bottoms] if kind == "SUM" and g.dice.random() < 0.5 else [1] * len(bottoms)
    text = f"operation: {kind} " + "".join(f"coeff: {f} " for f in factors if factors != [1] * len(bottoms))

    def compute(b, p):
        if kind == "MAX":
            return [plain.maximum(b)]
        top = plain.scaled(b[0], factors[0])
        for value, factor in zip(b[1:], factors[1:]):
            top = plain.add(top, value, factor) if kind == "SUM" else plain.mul(top, value)
        return [top]
    g.add("Eltwise", bottoms, f"eltwise_param {{ {text} }}", compute, closes=kind != "SUM")


def concat(g):
    x = g.pick()
    axis, spelled = g.axis(x)

    def rest(name):
        return [(len(shape), shape[:axis], shape[axis + 1:]) for shape in g.blobs[name].shapes]
    fitting = [name for name in g.blobs if name not in g.inputs or not g.inputs[name][1]]
    fitting = [name for name in fitting if g.blobs[name].values[0] is not None and rest(name) == rest(x)]
    bottoms = [x] + [g.dice.choice(fitting) for _ in range(g.dice.choice([1, 1, 2]))]
    g.add("Concat", bottoms, f"concat_param {{ axis: {spelled} }}", lambda b, p: [plain.concat(b, axis)], closes=False)


def slice_(g):
    x = g.pick(lambda s: len(s) > 1)
    axis, spelled = g.axis(x, 1)
    wide = g.blobs[x].shape[axis]
    if wide < 2:
        raise Unfit
    count = g.dice.randint(2, min(3, wide))
    even = wide % count == 0 and g.dice.random() < 0.5
    points = [wide // count * i for i in range(1, count)] if even else sorted(g.dice.sample(range(1, wide), count - 1))
    text = f"axis: {spelled} " + "".join(f"slice_point: {p} " for p in points if not even)

    def compute(b, p):
        return [plain.gather(b[0], part) for part in np.split(plain.places(b[0].shape), points, axis)]
    g.add("Slice", [x], f"slice_param {{ {text} }}", compute, tops=count)


def flatten(g):
    x = g.pick(lambda s: len(s) > 2)
    axis, spelled = g.axis(x)
    end = g.dice.randrange(axis, len(g.blobs[x].shape))
    g.add("Flatten", [x], f"flatten_param {{ axis: {spelled} end_axis: {end} }}",
          lambda b, p: [plain.reshape(b[0], (*b[0].shape[:axis], -1, *b[0].shape[end + 1:]))])


def reshape(g):
    x = g.pick()
    shape = g.blobs[x].shape
    start = g.dice.randrange(len(shape) + 1)
    count = g.dice.choice([-1, g.dice.randint(0, len(shape) - start)])
    covered = shape[start:] if count == -1 else shape[start:start + count]
    dims = [0 if g.dice.random() < 0.6 else n for n in covered[:g.dice.randint(0, len(covered))]]
    if start == 0 and dims:
        dims[0] = 0     # the batch
    left = int(np.prod(covered[len(dims):]))
    divisors = [d for d in range(1, left + 1) if left % d == 0]
    dims += g.dice.choice([[-1], [-1, g.dice.choice(divisors)], [1, -1], [-1, 1]]) if len(covered) > len(dims) or g.dice.random() < 0.5 else []
    if len(shape) - len(covered) + len(dims) > 6:
        raise Unfit

    def compute(b, p):
        old = b[0].shape
        part = old[start:] if count == -1 else old[start:start + count]
        new = [part[i] if n == 0 else n for i, n in enumerate(dims)]
        if int(np.prod(part)) % abs(int(np.prod(new))) or -1 not in new and np.prod(part) != np.prod(new):
            raise Unfit
        return [plain.reshape(b[0], (*old[:start], *(int(np.prod(part)) // -int(np.prod(new)) if n == -1 else n for n in new), *old[start + len(part):]))]
    text = f"axis: {g.dice.choice([start, start - len(shape) - 1])} num_axes: {count} shape {{ {' '.join(f'dim: {n}' for n in dims)} }}"
    g.add("Reshape", [x], f"reshape_param {{ {text} }}", compute)


def reduction(g, **more):
    x = g.pick()
    axis, spelled = (0, 0) if more and g.blobs[x].shape else g.axis(x)
    kind, coeff = g.dice.choice(["SUM", "ASUM", "SUMSQ", "MEAN"]), g.dice.choice([1, 0.5, -0.1])

    def compute(b, p):
        y = b[0]
        if kind == "ASUM":
            plain.kink(y.data)
            y = plain.each(y, np.abs, np.sign)
        y = plain.mul(y, y) if kind == "SUMSQ" else y
        count = int(np.prod(y.shape[axis:]))
        return [plain.scaled(plain.reshape(plain.total(y, tuple(range(axis, len(y.shape)))), y.shape[:axis]), coeff / (count if kind == "MEAN" else 1))]
    return g.add("Reduction", [x], f"reduction_param {{ operation: {kind} axis: {spelled} coeff: {coeff} }}", compute, **more)


def reduction_loss(g):
    reduction(g, weight=g.dice.choice([0.25, 1]))


def pointwise(g, asked=None):
    x = g.pick()
    dice = g.dice
    slope, alpha = dice.choice([0, 0, 0, 0.25]), dice.choice([0.5, 1])
    kind, text, f, df, fits = dice.choice([row for row in [
        ("ReLU", f"relu_param {{ negative_slope: {slope} }}" if slope else "", None, None, True),
        ("ReLU", "", None, None, True),
        ("Sigmoid", "", plain.sigmoid, lambda v: plain.sigmoid(v) * (1 - plain.sigmoid(v)), True),
        ("TanH", "", np.tanh, lambda v: 1 - np.tanh(v) ** 2, True),
        ("ELU", f"elu_param {{ alpha: {alpha} }}", lambda v: np.where(v > 0, v, alpha * np.expm1(np.minimum(v, 0))), lambda v: np.where(v > 0, 1, alpha * np.exp(np.minimum(v, 0))), True),
        ("AbsVal", "", np.abs, np.sign, False),
        ("BNLL", "", lambda v: np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v))), plain.sigmoid, False),
        ("Exp", "exp_param { scale: 0.5 shift: 0.25 }", lambda v: np.exp(0.25 + 0.5 * v), lambda v: 0.5 * np.exp(0.25 + 0.5 * v), False),
        ("Exp", "exp_param { base: 2 scale: -0.5 }", lambda v: 2 ** (-0.5 * v), lambda v: -0.5 * np.log(2) * 2 ** (-0.5 * v), False),
        ("Power", "power_param { scale: -0.5 shift: 0.25 }", lambda v: -0.5 * v + 0.25, lambda v: -0.5, True),
        ("Power", "power_param { power: 2 scale: 0.5 shift: 1 }", lambda v: (0.5 * v + 1) ** 2, lambda v: 0.5 * v + 1, False),
        ("Power", "power_param { power: 3 }", lambda v: v ** 3, lambda v: 3 * v ** 2, False),
        ("Swish", "swish_param { beta: 1.5 }", lambda v: v * plain.sigmoid(1.5 * v), lambda v: plain.sigmoid(1.5 * v) * (1 + 1.5 * v * (1 - plain.sigmoid(1.5 * v))), False),
        ("Clip", "clip_param { min: -0.25 max: 0.5 }", lambda v: np.clip(v, -0.25, 0.5), lambda v: (v >= -0.25) & (v <= 0.5), False),
    ] if asked in (None, row[0])])

    if text == "power_param { power: 3 }" and any((value.data == 0).any() for value in g.blobs[x].values):
        raise Unfit     # Caffe divides by x, so that the gradient at 0 is not a number

    def compute(b, p):
        if kind == "ReLU":
            return [plain.rectified(b[0], slope if text else 0)]
        if kind in ("AbsVal", "ELU"):
            plain.kink(b[0].data)
        if kind == "Clip":
            plain.kink(np.stack([b[0].data + 0.25, b[0].data - 0.5]))
        return [plain.each(b[0], f, df)]
    g.add(kind, [x], text, compute, in_place=fits, closes=not (kind == "Power" and fits))


def log(g):
    x = g.pick()
    if any(value.data.min() < 0.1 for value in g.blobs[x].values):
        raise Unfit
    g.add("Log", [x], "log_param { base: 3 scale: 2 shift: 0.5 }", lambda b, p: [plain.each(b[0], lambda v: np.log(0.5 + 2 * v) / np.log(3), lambda v: 2 / (0.5 + 2 * v) / np.log(3))])


def dropout(g):
    if g.phase:
        g.add("Dropout", [g.pick()], "dropout_param { dropout_ratio: 0.3 }", lambda b, p: [plain.scaled(b[0], 1)], in_place=True, closes=True)


def prelu(g):
    x = g.pick(lambda s: len(s) > 1)
    shared = g.dice.random() < 0.4
    g.add("PReLU", [x], f"prelu_param {{ channel_shared: {str(shared).lower()} }}",
          lambda b, p: [plain.prelu(b[0], plain.same(plain.reshape(p[0], (-1,)), (b[0].shape[1],)))], [() if shared else (g.blobs[x].shape[1],)], in_place=True)


def scale(g, kind="Scale"):
    x = g.pick()
    axis, spelled = g.axis(x, 1 if len(g.blobs[x].shape) > 1 else 0)
    two = g.dice.random() < 0.3
    bias = kind == "Scale" and g.dice.random() < 0.5
    if two:
        full = [shape[axis:] for shape in g.blobs[x].shapes]
        fitting = [name for name, blob in g.blobs.items() if blob.values[0] is not None and name != x and not (name in g.inputs and g.inputs[name][1])
                   and all(shape == whole[:len(shape)] for shape, whole in zip(blob.shapes, full)) and len(blob.shape)]
        if not fitting:
            raise Unfit
        bottoms, shapes, text = [x, g.dice.choice(fitting)], [], f"axis: {spelled}"
        shape = g.blobs[bottoms[1]].shape
    else:
        count = g.dice.choice([-1, *range(len(g.blobs[x].shape) - axis + 1)])
        shape = g.blobs[x].shape[axis:] if count == -1 else g.blobs[x].shape[axis:axis + count]
        if axis == 0 and shape:
            raise Unfit
        bottoms, shapes, text = [x], [shape], f"axis: {spelled} num_axes: {count}"
    text += " bias_term: true" * bias

    def compute(b, p):
        factor = plain.expand([*b, *p][1], b[0].shape, axis)
        y = plain.mul(b[0], factor) if kind == "Scale" else plain.add(b[0], factor)
        return [plain.add(y, plain.expand(p[-1], y.shape, axis)) if bias else y]
    g.add(kind, bottoms, f"{kind.lower()}_param {{ {text} }}", compute, [*shapes, *[shape] * bias], in_place=not two, closes=False)


def bias(g):
    scale(g, "Bias")


def batch_norm(g):
    x = g.pick(lambda s: len(s) > 1 and s[0] * int(np.prod(s[2:])) > 3)
    c = g.blobs[x].shape[1]
    asked = g.dice.choice([None, None, True, False])
    in_use = g.phase == 1 if asked is None else asked
    fraction, eps = g.dice.choice([0.999, 0.5]), g.dice.choice([0.1, 0.5])
    text = f"moving_average_fraction: {fraction} eps: {eps}" + (f" use_global_stats: {str(asked).lower()}" if asked is not None else "")
    g.add("BatchNorm", [x], f"batch_norm_param {{ {text} }}", lambda b, p: [plain.batch_norm(b[0], p, in_use, fraction, eps)],
                  [(c,), (c,), (1,)], [g.random.uniform(-0.5, 0.5, c), g.random.uniform(0.2, 1, c), lambda dice: dice.choice([0, 1, 2.5])], in_place=True, closes=False)


def mvn(g):
    x = g.pick(lambda s: len(s) == 4 and s[2] * s[3] > 3)
    variance, across = g.dice.random() < 0.7, g.dice.random() < 0.5
    if variance and any(min(value.data.var((1, 2, 3) if across else (2, 3)).ravel()) < 0.01 for value in g.blobs[x].values):
        raise Unfit
    g.add("MVN", [x], f"mvn_param {{ normalize_variance: {str(variance).lower()} across_channels: {str(across).lower()} }}",
          lambda b, p: [plain.mvn(b[0], variance, across)])


def softmax(g):
    x = g.pick()
    axis, spelled = g.axis(x)
    g.add("Softmax", [x], f"softmax_param {{ axis: {spelled} }}", lambda b, p: [plain.softmax(b[0], axis)])


def tile(g):
    x = g.pick()
    axis, spelled = g.axis(x)
    tiles = g.dice.randint(1, 3)
    g.add("Tile", [x], f"tile_param {{ axis: {spelled} tiles: {tiles} }}", lambda b, p: [plain.concat([b[0]] * tiles, axis)])


def crop(g):
    x, like = g.pick(lambda s: len(s) == 4), g.pick(lambda s: len(s) == 4)
    axis, spelled = g.axis(x, 1)
    big, small = g.blobs[x].shape, g.blobs[like].shape
    if any(b < s for b, s in zip(big[axis:], small[axis:])):
        raise Unfit
    offsets = [g.dice.randint(0, b - s) for b, s in zip(big[axis:], small[axis:])]
    if g.dice.random() < 0.4:
        offsets = [min(offsets)] * len(offsets)
    written = offsets[:1] if len(set(offsets)) == 1 else offsets

    def compute(b, p):
        cut = tuple(slice(None) if i < axis else slice(offsets[i - axis], offsets[i - axis] + small[i]) for i in range(4))
        return [plain.gather(b[0], plain.places(b[0].shape)[cut])]
    g.add("Crop", [x, like], f"crop_param {{ axis: {spelled} {' '.join(f'offset: {n}' for n in written)} }}", compute)


def embed(g):
    classes, count, bias = g.dice.randint(2, 5), g.dice.randint(1, 4), g.dice.random() < 0.5
    label = g.add_input(g.dice.choice([(), (3,)]), classes)

    def compute(b, p):
        top = plain.gather(p[0], b[0].data.astype(int)[..., None] * count + np.arange(count))
        return [plain.add(top, plain.same(p[1], top.shape)) if bias else top]
    g.add("Embed", [label], f"embed_param {{ input_dim: {classes} num_output: {count} bias_term: {str(bias).lower()} }}", compute,
          [(classes, count), (count,)][:1 + bias], labels=(0,), closes=False)


def batch_reindex(g):
    x = g.pick(lambda s: s and s[0] >= 2)
    index = g.add_input((g.dice.randint(1, 4),), 2, batched=False)
    g.add("BatchReindex", [x, index], "", lambda b, p: [plain.gather(b[0], plain.places(b[0].shape)[b[1].data.astype(int)])], labels=(1,))


def parameter(g):
    shape = g.dice.choice([(3,), (2, 4), (1, 2, 4, 4)])
    g.add("Parameter", [], f"parameter_param {{ shape {{ {' '.join(f'dim: {n}' for n in shape)} }} }}", lambda b, p: [plain.reshape(p[0], p[0].shape)], [shape])


def split(g):
    count = g.dice.randint(1, 3)
    g.add("Split", [g.pick()], "", lambda b, p: [plain.scaled(b[0], 1) for _ in range(count)], tops=count)


def im2col(g):
    x = g.pick(lambda s: len(s) == 4)
    kernel, stride, pad, dilation, text = window(g, x, 3)
    n, c, *size = g.blobs[x].shape
    out = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, p, d, k, t in zip(size, pad, dilation, kernel, stride)]
    if min(out) < 1:
        raise Unfit
    g.add("Im2col", [x], f"convolution_param {{ {text} }}",
          lambda b, p: [plain.gather(b[0], plain.patches(b[0].shape, kernel, stride, pad, dilation, out).reshape(b[0].shape[0], -1, *out))])


def arg_max(g):
    if g.force:
        raise Unfit
    x = g.pick()
    axis, spelled = g.axis(x)

    def compute(b, p):
        top, _ = plain.largest(b[0], np.moveaxis(plain.places(b[0].shape), axis, -1))
        return [Value(np.expand_dims(b[0].data.argmax(axis), axis))]
    if any((np.sort(value.data, axis).take([-1], axis) == np.sort(value.data, axis).take([-2], axis)).any() for value in g.blobs[x].values if value.shape[axis] > 1):
        raise Unfit
    g.add("ArgMax", [x], f"argmax_param {{ axis: {spelled} }}", compute, dead=True)


def fragile(g):
    """A layer in Python that raises where a test says; it has one name."""
    if any(layer.name == "own" for layer in g.layers):
        raise Unfit
    g.add("SecondUseFragile", [g.pick()], "", lambda b, p: [plain.scaled(b[0], 2)], closes=False).name = "own"


def threshold(g):
    if g.force:
        raise Unfit

    def compute(b, p):
        plain.kink(b[0].data - 0.25)
        return [Value(b[0].data > 0.25)]
    g.add("Threshold", [g.pick()], "threshold_param { threshold: 0.25 }", compute, dead=True)


# ---- losses


def loss_param(g, valid=True):
    ignore = g.dice.choice([None, 0, 1])
    kind = g.dice.choice([None, "FULL", "VALID", "BATCH_SIZE", "NONE"])
    old = g.dice.choice([None, None, True, False]) if kind is None else None
    words = [f"ignore_label: {ignore}"] * (ignore is not None) + [f"normalization: {kind}"] * (kind is not None) + [f"normalize: {str(old).lower()}"] * (old is not None)
    kind = kind or (("VALID" if old else "BATCH_SIZE") if old is not None else "VALID" if valid else "BATCH_SIZE")
    return ignore, kind, f"loss_param {{ {' '.join(words)} }}" if words else ""


def weight_of(g):
    return g.dice.choice([1, 1, 0.5, 3])


def softmax_loss(g):
    x = g.pick(lambda s: len(s) > 1)
    axis, spelled = g.axis(x, 1)
    shape = g.blobs[x].shape
    g.need_batch(x)
    label = g.add_input((*shape[1:axis], *shape[axis + 1:]), shape[axis])
    ignore, kind, text = loss_param(g)
    g.add("SoftmaxWithLoss", [x, label], f"softmax_param {{ axis: {spelled} }} {text}",
          lambda b, p: [plain.softmax_loss(b[0], b[1], axis, ignore, kind)], labels=(1,), weight=weight_of(g))
    if g.dice.random() < 0.5 and not g.force:
        def compute(b, p):
            plain.largest(b[0], np.moveaxis(plain.places(b[0].shape), axis, -1))
            labels = b[1].data.astype(int)
            true = np.take_along_axis(b[0].data, np.expand_dims(labels, axis), axis)
            hits = np.sum(b[0].data > true, axis) + (np.sum(b[0].data == true, axis) - 1) < 1
            valid = labels != ignore
            return [Value((hits & valid).sum() / valid.sum() if valid.any() else 0.0)]
        g.add("Accuracy", [x, label], f"accuracy_param {{ axis: {spelled} {f'ignore_label: {ignore}' if ignore is not None else ''} }}", compute, labels=(0, 1), dead=True)


def sigmoid_loss(g):
    x = g.pick(lambda s: len(s) > 0)
    g.need_batch(x)
    target = g.add_input(g.blobs[x].shape[1:], 2)
    ignore, kind, text = loss_param(g, valid=False)
    g.add("SigmoidCrossEntropyLoss", [x, target], text, lambda b, p: [plain.sigmoid_loss(b[0], b[1], ignore, kind)], labels=(1,), weight=weight_of(g))


def euclidean_loss(g):
    x = g.pick(lambda s: len(s) > 0)
    g.add("EuclideanLoss", [x, g.pick(like=x)], "", lambda b, p: [plain.euclidean_loss(*b)], weight=weight_of(g))


def hinge_loss(g):
    x = g.pick(lambda s: len(s) > 1)
    g.need_batch(x)
    label = g.add_input((), int(np.prod(g.blobs[x].shape[1:])))
    squared = g.dice.random() < 0.5
    g.add("HingeLoss", [x, label], f"hinge_loss_param {{ norm: {'L2' if squared else 'L1'} }}", lambda b, p: [plain.hinge_loss(b[0], b[1], squared)], labels=(1,), weight=weight_of(g))


def contrastive_loss(g):
    x = g.pick(lambda s: len(s) == 2)
    g.need_batch(x)
    other, similar = g.pick(like=x), g.add_input((), 2)
    margin, legacy = g.dice.choice([1, 2]), g.dice.random() < 0.4
    if any(((a.data - b.data) ** 2).sum(1).min() < 0.01 for a, b in zip(g.blobs[x].values, g.blobs[other].values)):
        raise Unfit     # no gradient at a distance of 0
    g.add("ContrastiveLoss", [x, other, similar], f"contrastive_loss_param {{ margin: {margin} legacy_version: {str(legacy).lower()} }}",
          lambda b, p: [plain.contrastive_loss(*b, margin, legacy)], labels=(2,), weight=weight_of(g))


def logistic_loss(g):
    x = g.pick(lambda s: len(s) == 2)
    g.need_batch(x)
    layer = g.add("Softmax", [x], "", lambda b, p: [plain.softmax(b[0], 1)])
    label = g.add_input((), g.blobs[x].shape[1])
    g.add("MultinomialLogisticLoss", [layer.tops[0], label], "", lambda b, p: [plain.logistic_loss(*b)], labels=(1,), weight=weight_of(g))


KINDS = ([block] * 8 + [residual] * 8 + [inception] * 4 + [convolution, pointwise] * 3 + [batch_norm] * 2 + [inner_product, pooling, scale, eltwise, concat, slice_] * 3
         + [deconvolution, lrn, reshape, prelu, dropout, bias, pooling, split, softmax, reduction] * 2
         + [flatten, log, mvn, tile, crop, embed, batch_reindex, parameter, im2col, arg_max, threshold] + [fragile] * 8)
LOSSES = [softmax_loss] * 3 + [sigmoid_loss, euclidean_loss, hinge_loss, reduction_loss] * 2 + [contrastive_loss, logistic_loss]
