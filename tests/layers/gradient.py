"""Build one layer for a test, run it, and check its gradient by central differences (minicaffe/inspection/gradient_check.py)."""

import numpy as np

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.inspection.gradient_check import RepeatableRun, Report, Rule, backward, compare, kept
from minicaffe.memory import SyncedHead
from minicaffe.net.net import Net
from minicaffe.net.node import overwrites_outputs
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.proto.upgrade import upgrade_net

FILE = "test.prototxt"


def layer_net(layer_text, bottom_arrays, dtype=Dtype.DOUBLE, phase=TRAIN):
    """Return a net of one Input layer for each bottom and the given layer; the inputs hold `bottom_arrays`.

    Nets of one text have the same parameters.

    Parameters
    ----------
    layer_text : str
        ``layer { ... }``; its bottoms get the arrays in order, a name used twice takes one array.
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


def hide(layer, outputs, inputs, part):
    """Fill outputs that are no inputs with NaN if the layer says that it overwrites them, as a plan of memory may leave them."""
    memories = [getattr(blob, f"{part}_memory") for blob in inputs]
    for blob in outputs if overwrites_outputs(layer) else ():
        memory = getattr(blob, f"{part}_memory")
        if memory not in memories and memory.head != SyncedHead.RECYCLED:
            getattr(blob, part)[...] = np.nan


def run_backward(net, check, seeds=None):
    """Run the last layer backward for the bottoms in `check`; `seeds` are the top diffs, left alone where None."""
    index = len(net.layers) - 1
    net.nodes[index].needs_backward = True
    net.nodes[index].bottom_needs = [i in check for i in range(len(net.bottoms[index]))]
    net.layers[index].param_propagate_down = [True] * len(net.layers[index].blobs)
    for top, seed in zip(net.tops[index], seeds or []):
        if seed is not None:
            top.diff[...] = seed
    hide(net.layers[index], [net.bottoms[index][i] for i in check], net.tops[index], "diff")
    net.backward_from_to(index, index)


def check_gradient(layer_text, bottom_arrays, check=None, params=True, step=1e-3, tolerance=1e-6, kink=None):
    """Compare the layer's gradient with central differences, in float64, along every element, and return the net.

    Parameters
    ----------
    check : list of int, optional
        The bottoms that get a gradient; all by default.
    params : bool
        Whether the parameters are checked too.
    step, tolerance : float
        Half the difference; the error allowed, relative to the gradient where that is above 1.
    kink : float, optional
        Elements nearer than two steps to it are skipped.
    """
    net = layer_net(layer_text, bottom_arrays)
    index = len(net.layers) - 1
    check = list(range(len(net.bottoms[index]))) if check is None else check
    net.forward_from_to(0, index)
    rule, report = Rule(step, tolerance, kink, elements=None), Report()
    with kept(net.param_table.params):
        run = RepeatableRun(net, [index], rule)
        assert run.repeats()
        for what, blob, gradient, _ in backward(net, index, run, check, [params] * len(net.layers[index].blobs)):
            report.comparisons.append(compare(run, net.nodes[index], what, blob, gradient, rule))
        run.run()
    assert report.ok and len(report.comparisons) == len(check) + params * len(net.layers[index].blobs), f"\n{report}"
    return net
