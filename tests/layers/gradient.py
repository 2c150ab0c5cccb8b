"""Build one layer for a test, run it, and check its gradient by central differences."""

import numpy as np

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.memory import SyncedHead
from minicaffe.net.net import Net
from minicaffe.net.node import overwrites_outputs
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.proto.upgrade import upgrade_net

FILE = "test.prototxt"
POISON, INITIAL_PARAM_DIFF = 1e9, 0.5   # diffs before backward: a layer overwrites those of bottoms, adds to those of parameters


def layer_net(layer_text, bottom_arrays, dtype=Dtype.DOUBLE, phase=TRAIN):
    """Return a net of one Input layer for each bottom and the given layer: its bottoms get the arrays in order, a name used twice one array.

    Nets of one text have the same parameters.
    """
    param, _ = parse_text(layer_text, caffe_pb2.NetParameter, FILE, keep_layer_fields=True)
    param.name = "test"
    layer = param.layer[0]
    names = list(dict.fromkeys(layer.bottom))
    inputs = [caffe_pb2.LayerParameter(name=f"input_{name}", type="Input", top=[name]) for name in names]
    for part, array in zip(inputs, bottom_arrays, strict=True):
        part.input_param.shape.add().dim.extend(np.shape(array))
    del param.layer[:]
    param.layer.extend([*inputs, layer])
    param.state.phase = phase
    param, _ = upgrade_net(param)
    caffe.seed(1701)
    net = Net(param, dtype, file=FILE)
    for name, array in zip(names, bottom_arrays):
        net.blob_by_name(name).data[...] = array
    return net


def run_forward(net, seed=1701):
    """Run the whole net with the random numbers started again."""
    caffe.seed(seed)
    hide(net.layers[-1], net.tops[-1], net.bottoms[-1], "data")
    return net.forward_from_to(0, len(net.layers) - 1)


def forward_net(layer_text, bottom_arrays, dtype=Dtype.DOUBLE, phase=TRAIN):
    """Return the `layer_net` after a forward."""
    net = layer_net(layer_text, bottom_arrays, dtype, phase)
    run_forward(net)
    return net


def output_of(layer_text, bottom_arrays, dtype=Dtype.DOUBLE, phase=TRAIN):
    """Return the first top of a `forward_net`."""
    return forward_net(layer_text, bottom_arrays, dtype, phase).tops[-1][0].cpu_data.copy()


def forward_again(net, **arrays):
    """Return the loss of a forward of a `layer_net` with other inputs, by name, of any shape."""
    for name, array in arrays.items():
        net.blob_by_name(name).reshape(*np.shape(array))
        net.blob_by_name(name).data[...] = array
    return run_forward(net)


def hide(layer, outputs, inputs, part):
    """Fill outputs that are no inputs with NaN if the layer says that it overwrites them, as a plan of memory may leave them."""
    memories = [getattr(blob, f"{part}_memory") for blob in inputs]
    for blob in outputs if overwrites_outputs(layer) else ():
        memory = getattr(blob, f"{part}_memory")
        if memory not in memories and memory.head != SyncedHead.RECYCLED:
            getattr(blob, part)[...] = np.nan


def run_backward(net, check, seeds=None, params=True):
    """Run the last layer backward for the bottoms in `check`; `seeds` are the top diffs, left alone where None."""
    index = len(net.layers) - 1
    net.nodes[index].needs_backward = True
    net.nodes[index].bottom_needs = [i in check for i in range(len(net.bottoms[index]))]
    net.layers[index].param_propagate_down = [params] * len(net.layers[index].blobs)
    for top, seed in zip(net.tops[index], seeds or []):
        if seed is not None:
            top.diff[...] = seed
    hide(net.layers[index], [net.bottoms[index][i] for i in check], net.tops[index], "diff")
    net.backward_from_to(index, index)


def check_gradient(layer_text, bottom_arrays, check=None, params=True, step=1e-3, tolerance=1e-6, kink=None, linear=False):
    """Compare the layer's gradient with central differences, in float64, along every element, and return the net.

    `check` are the bottoms that get a gradient, all by default; `params`: the parameters, too. `step` is half the difference, `tolerance`
    relative to the gradient where that is above 1. Elements nearer than two steps to a `kink` are skipped. A layer that is `linear` in each
    blob has exact differences along any direction: random ones replace the elements.
    """
    net = layer_net(layer_text, bottom_arrays)
    bottoms, tops, weights = net.bottoms[-1], net.tops[-1], net.layers[-1].blobs
    check = list(range(len(bottoms))) if check is None else check
    run_forward(net)
    random = np.random.default_rng(1701)
    seeds = [top.diff.copy() if weight else random.standard_normal(top.shape) for top, weight in zip(tops, net.nodes[-1].loss_weights)]
    for i in check:
        bottoms[i].diff[...] = POISON
    for blob in weights:
        blob.diff[...] = INITIAL_PARAM_DIFF
    inputs = [node.tops[0] for node in net.nodes if node.type == "Input"]
    values = {blob: np.array(array, np.float64).reshape(blob.shape) for blob, array in zip(inputs, bottom_arrays)}
    values |= {blob: blob.data.copy() for blob in weights}
    base = outputs_of(net, values)
    assert all(map(np.array_equal, base, outputs_of(net, values))), "another run gives other values"
    run_backward(net, check, seeds, params)
    gradients = {blob: blob.diff - INITIAL_PARAM_DIFF for blob in weights if params}
    for i in check:     # a bottom that the layer reads twice is one of a Split
        blob = next(blob for blob in inputs if blob.data_memory is bottoms[i].data_memory)
        gradients[blob] = gradients.get(blob, 0) + bottoms[i].diff
    for blob, gradient in gradients.items():
        if linear and agrees_along_directions(net, values, blob, gradient, seeds, tolerance):
            continue
        for index in np.ndindex(*blob.shape):
            value = values[blob][index]
            if kink is None or abs(abs(value) - kink) > 2 * step:
                check_element(net, values, blob, index, gradient, seeds, step, tolerance)
    outputs_of(net, values)
    return net


def outputs_of(net, values):
    """Return copies of the tops of the last layer with these values in blobs."""
    for blob, array in values.items():
        blob.data[...] = array
    run_forward(net)
    return [top.data.copy() for top in net.tops[-1]]


def agrees_along_directions(net, values, blob, gradient, seeds, tolerance):
    """Whether differences along three random directions agree with a gradient; one wrong element is seen in each of them."""
    value, random = values[blob], np.random.default_rng(2025)
    for direction in random.standard_normal((3, *blob.shape)):
        values[blob] = value + direction
        above = outputs_of(net, values)
        values[blob] = value - direction
        below = outputs_of(net, values)
        values[blob] = value
        numerical = sum((s * (a - b)).sum() for s, a, b in zip(seeds, above, below)) / 2
        if not abs((gradient * direction).sum() - numerical) <= tolerance * max(np.linalg.norm(gradient), 1e-3):
            return False
    return True


def check_element(net, values, blob, index, gradient, seeds, step, tolerance):
    """Compare one element of a gradient with differences, in smaller steps where it differs: a kink may be near."""
    value, analytic = values[blob][index], gradient[index]
    floor = min(1.0, max(1e-9, np.sqrt(np.mean(np.square(gradient)))))
    tried = []
    for part in (1, 0.1, 0.01):
        values[blob][index] = value + step * part
        above = outputs_of(net, values)
        values[blob][index] = value - step * part
        below = outputs_of(net, values)
        values[blob][index] = value
        pairs = list(zip(seeds, above, below))
        numerical = sum((s * (a - b)).sum() for s, a, b in pairs) / (2 * step * part)
        noise = 8 * np.finfo(np.float64).eps * sum((abs(s) * (a != b) * (abs(a) + abs(b))).sum() for s, a, b in pairs) / (step * part)
        tried.append(abs(analytic - numerical) / max(abs(analytic), abs(numerical), floor, noise / tolerance))
        if tried[-1] <= tolerance:
            return
    raise AssertionError(f"{blob.name} {index}: backward says {analytic:.9g}, differences {numerical:.9g}: relative differences {tried}")
