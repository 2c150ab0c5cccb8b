"""Build one layer for a test, and check its gradient by central differences (Caffe test_gradient_check_util.hpp)."""

import numpy as np

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

FILE = "test.prototxt"


def layer_net(layer_text, bottom_arrays, dtype=Dtype.DOUBLE, phase=TRAIN):
    """Return a net of one Input layer for each bottom and the given layer; the inputs hold `bottom_arrays`.

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
    net = Net(param, dtype, file=FILE)
    for name, array in zip(names, bottom_arrays):
        net.blob_by_name(name).data[...] = array
    return net


def run_forward(net, seed=1701):
    """Run the whole net with the random numbers started anew."""
    caffe.seed(seed)
    return net.forward_from_to(0, len(net.layers) - 1)


def run_backward(net, check, seeds=None):
    """Run the last layer backward for the bottoms in `check`; `seeds` are the top diffs, left alone where None."""
    index = len(net.layers) - 1
    net.nodes[index].needs_backward = True
    net.nodes[index].bottom_needs = [i in check for i in range(len(net.bottoms[index]))]
    net.layers[index].param_propagate_down = [True] * len(net.layers[index].blobs)
    for top, seed in zip(net.tops[index], seeds or []):
        if seed is not None:
            top.diff[...] = seed
    net.backward_from_to(index, index)


def check_gradient(layer_text, bottom_arrays, check=None, params=True, step=1e-3, tolerance=1e-6, kink=None):
    """Compare the layer's gradient of ``sum(top * seed)`` with central differences, in float64, and return the net.

    Bottom diffs start as rubbish, since a layer overwrites them; parameter diffs start at 0.5, since it adds to them.

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
    random = np.random.default_rng(1701)
    net = layer_net(layer_text, bottom_arrays)
    layer, bottoms, tops = net.layers[-1], net.bottoms[-1], net.tops[-1]
    check = list(range(len(bottoms))) if check is None else check
    run_forward(net)
    seeds = [top.cpu_diff.copy() if weight else random.standard_normal(top.shape)
             for top, weight in zip(tops, layer.loss_weights)]

    for i in check:
        bottoms[i].diff[...] = 1e9
    for blob in layer.blobs:
        blob.diff[...] = 0.5
    run_backward(net, check, seeds)
    checked = [(f"bottom {i}", bottoms[i], bottoms[i].cpu_diff.copy()) for i in check]
    if params:
        checked += [(f"blobs[{i}]", blob, blob.cpu_diff - 0.5) for i, blob in enumerate(layer.blobs)]

    def objective():
        run_forward(net)
        return sum(float((top.cpu_data * seed).sum()) for top, seed in zip(tops, seeds))

    for what, blob, gradient in checked:
        def put(i, value, blob=blob):  # through `data` each time, which tells a device that its copy is old
            blob.data.reshape(-1)[i] = value

        for i, wanted in enumerate(gradient.reshape(-1)):
            kept = blob.cpu_data.reshape(-1)[i]
            if kink is not None and abs(kept - kink) <= 2 * step:
                continue
            put(i, kept + step)
            above = objective()
            put(i, kept - step)
            below = objective()
            put(i, kept)
            got = (above - below) / (2 * step)
            assert abs(got - wanted) <= tolerance * max(1, abs(got), abs(wanted)), (
                f"{what} element {i}: backward says {wanted}, differences say {got}")
    return net
