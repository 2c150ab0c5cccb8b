"""Engine ONEDNN against engine CAFFE, and what a stack of layers reorders."""

import re

import numpy as np
import pytest
from helpers import layer_text, make_net

from minicaffe import memory
from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.device import threads
from minicaffe.engines import engine
from minicaffe.engines.table import ONEDNN
from minicaffe.errors import RecycledError

TOLERANCE = 1e-4    # relative to the largest value: sums of float32 in another order


def input_layer(shape, name="x"):
    return layer_text("Input", name, more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")


def conv(name, bottom, top, fields):
    fillers = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
    return layer_text("Convolution", name, bottom, top, f"convolution_param {{ {fields} {fillers} }}")


def layer(kind, bottoms, top, fields=""):
    return layer_text(kind, f"{kind}_{top}", bottoms, top, fields)


def make(text, dtype=Dtype.FLOAT, phase=TRAIN, plan=None):
    """A net, with gradients for all in a training, filled from one seed."""
    caffe.seed(5)
    net = make_net("force_backward: true " * (phase == TRAIN) + text, phase, dtype, plan=plan)
    blob = net.blob_by_name("x")
    blob.data[...] = np.random.default_rng(3).standard_normal(blob.shape)
    return net


def step(net):
    """One forward and backward pass from a fixed gradient of the last top, which parameters' gradients are added to."""
    last = net.tops[-1][0]
    net.forward_from_to(0, len(net.layers) - 1)
    last.diff[...] = np.random.default_rng(4).standard_normal(last.shape)
    net.backward_from_to(len(net.layers) - 1, 0)


def numbers(net):
    named = {name: net.blob_by_name(name) for name in net.blob_names}
    found = {f"{name} data": blob.cpu_data.copy() for name, blob in named.items()}
    named |= {f"{one.name}[{i}]": blob for one in net.layers for i, blob in enumerate(one.blobs)}
    return found | {f"{name} diff": blob.cpu_diff.copy() for name, blob in named.items()}


def engines(net):
    return [op.describe()["engine"] for one in net.layers for op in one.operations() if type(op) in ONEDNN.kinds]


def assert_near(ours, others, names=None):
    for name in others if names is None else names:
        values = others[name]
        assert np.abs(ours[name] - values).max() <= TOLERANCE * max(np.abs(values).max(), 1e-3), name


def compare(text, onednn, expected="ONEDNN", steps=2):
    nets = []
    for use in (True, False):
        onednn(use)
        nets.append(make(text))
        for _ in range(steps):
            step(nets[-1])
        assert not use or expected is None or set(engines(nets[0])) == {expected}
    ours, caffes = map(numbers, nets)
    assert ours.keys() == caffes.keys()
    assert_near(ours, caffes)
    for name, values in caffes.items():
        assert np.abs(values).max() > 0 or name.startswith("BatchNorm"), name   # something was computed; its sums have no gradient
    onednn(True)
    return nets[0]


SHAPES = {
    "plain": ((2, 16, 9, 9), "num_output: 32 kernel_size: 3"),
    "odd channels": ((2, 3, 13, 11), "num_output: 7 kernel_size: 3 pad: 1"),
    "one image": ((1, 5, 8, 8), "num_output: 20 kernel_size: 5 pad: 2"),
    "no bias": ((3, 16, 8, 8), "num_output: 16 kernel_size: 3 bias_term: false"),
    "1x1": ((2, 24, 7, 7), "num_output: 17 kernel_size: 1"),
    "1x1 stride": ((2, 32, 8, 8), "num_output: 64 kernel_size: 1 stride: 2"),
    "stride": ((2, 16, 12, 10), "num_output: 16 kernel_size: 3 stride: 2 pad: 1"),
    "groups": ((2, 32, 8, 8), "num_output: 64 kernel_size: 3 group: 2 pad: 1"),
    "odd groups": ((2, 9, 8, 8), "num_output: 6 kernel_size: 3 group: 3"),
    "depthwise": ((2, 32, 9, 9), "num_output: 32 kernel_size: 3 group: 32 pad: 1"),
    "odd depthwise": ((2, 5, 9, 9), "num_output: 5 kernel_size: 3 group: 5 pad: 1 stride: 2"),
    "dilation": ((2, 16, 12, 12), "num_output: 16 kernel_size: 3 dilation: 2 pad: 2"),
    "sides": ((2, 8, 9, 12), "num_output: 12 kernel_h: 3 kernel_w: 5 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 2"),
    "two dilations": ((2, 16, 12, 10), "num_output: 16 kernel_size: 3 dilation: 3 dilation: 1"),
    "one axis": ((2, 16, 20), "num_output: 16 kernel_size: 3"),
    "three axes": ((1, 8, 5, 6, 7), "num_output: 16 kernel_size: 3 pad: 1"),
}


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("case", SHAPES)
def test_convolution(onednn, case, kind):
    shape, fields = SHAPES[case]
    compare(input_layer(shape) + conv("conv", "x", "y", fields).replace("Convolution", kind), onednn)


POOLINGS = {
    "max": "pool: MAX kernel_size: 2 stride: 2", "max, rounded up": "pool: MAX kernel_size: 3 stride: 2",
    "max, padded": "pool: MAX kernel_size: 3 stride: 2 pad: 1",
    "max, sides": "pool: MAX kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3",
    "max, padded sides": "pool: MAX kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 1",
    "max, rounded down": "pool: MAX kernel_size: 2 stride: 2 round_mode: FLOOR",
    "mean": "pool: AVE kernel_size: 2 stride: 2", "mean, rounded up": "pool: AVE kernel_size: 3 stride: 2",
    "mean, padded": "pool: AVE kernel_size: 3 stride: 1 pad: 1",
    "mean, beyond the padding": "pool: AVE kernel_size: 3 stride: 2 pad: 1",
    "mean, sides": "pool: AVE kernel_h: 3 kernel_w: 2 stride: 1 pad_h: 1 pad_w: 0",
    "mean of all": "pool: AVE global_pooling: true",
}


@pytest.mark.parametrize("case", POOLINGS)
@pytest.mark.parametrize("shape", [(2, 3, 12, 10), (1, 3, 11, 13)])
def test_pooling(onednn, case, shape):
    """Behind a ReLU, whose zeros make windows of many maxima: the gradient goes to the first."""
    net = compare(input_layer(shape) + conv("conv", "x", "a", "num_output: 18 kernel_size: 3 pad: 1") + layer("ReLU", "a", "a")
                  + layer("Pooling", "a", "y", f"pooling_param {{ {POOLINGS[case]} }}"), onednn, None)
    private = net.blob_by_name("y").layout_of_data() is not None
    assert private == (case != "mean, beyond the padding" or shape[2:] == (11, 13))
    assert engines(net) == ["ONEDNN", "ONEDNN" if private else "CAFFE"]
    assert private == ("ONEDNN" not in net.layers[-1].operations()[0].describe()["refused"])


@pytest.mark.parametrize(("fields", "private"), [
    ("", True), ("alpha: 0.5 k: 2", True), ("local_size: 3 beta: 0.6", False), ("norm_region: WITHIN_CHANNEL local_size: 3", False)])
def test_lrn(onednn, fields, private):
    net = compare(input_layer((2, 3, 9, 7)) + conv("conv", "x", "a", "num_output: 32 kernel_size: 3 pad: 1")
                  + layer("LRN", "a", "y", f"lrn_param {{ {fields} }}"), onednn, None)
    assert (net.blob_by_name("y").layout_of_data() is not None) == private
    assert engines(net) == ["ONEDNN", "ONEDNN" if private else "CAFFE"]


@pytest.mark.parametrize(("channels", "private"), [((16, 32), True), ((16, 20), False)])
def test_concat_and_slice(onednn, channels, private):
    text = (input_layer((2, 3, 9, 7)) + conv("conv1", "x", "a", f"num_output: {channels[0]} kernel_size: 3 pad: 1")
            + conv("conv2", "x", "b", f"num_output: {channels[1]} kernel_size: 3 pad: 1") + layer("Concat", "a b", "c")
            + 'layer { name: "slice" type: "Slice" bottom: "c" top: "d" top: "e" slice_param { slice_point: 16 } }'
            + conv("conv3", "d", "f", "num_output: 16 kernel_size: 1") + conv("conv4", "e", "g", "num_output: 16 kernel_size: 1")
            + layer("Eltwise", "f g", "y"))
    net = compare(text, onednn)
    assert (net.blob_by_name("c").layout_of_data() is not None) == private
    assert (net.blob_by_name("c").layout_of_diff() is not None) == private
    if private:
        with memory.record() as events:
            step(net)
        reordered = {event.name for event in events if event.kind == "reorder" and not event.name.startswith("conv")}
        assert reordered <= {"f diff", "g diff"}    # the sum spreads a plain gradient


def test_threads_change_between_forward_and_backward(onednn):
    """The engine of forward knows the maxima, and goes backward; and between steps."""
    net = make(input_layer((2, 3, 12, 12)) + conv("conv", "x", "a", "num_output: 16 kernel_size: 3")
               + layer("Pooling", "a", "y", "pooling_param { kernel_size: 2 stride: 2 }"))
    step(net)
    expected = numbers(net)
    net.forward_from_to(0, len(net.layers) - 1)
    threads.set_num_threads(threads.get_num_threads() + 1)
    net.backward_from_to(len(net.layers) - 1, 0)
    assert_near(numbers(net), expected, ["x diff"])
    for count in 1, 2, 3:
        threads.set_num_threads(count)
        step(net)
        assert_near(numbers(net), expected, ["x diff"])


STACK = (input_layer((2, 3, 16, 16))
         + conv("conv1", "x", "a", "num_output: 20 kernel_size: 3 pad: 1") + layer("ReLU", "a", "a")
         + conv("conv2", "a", "b", "num_output: 20 kernel_size: 3 pad: 1")
         + layer("ReLU", "b", "b", "relu_param { negative_slope: 0.1 }")
         + layer("Eltwise", "a b", "c") + layer("ReLU", "c", "d")
         + layer("Pooling", "d", "e", "pooling_param { kernel_size: 3 stride: 2 }")
         + conv("conv3", "e", "y", "num_output: 18 kernel_size: 1"))


def test_stack_read_and_reshaped(onednn):
    compare(STACK, onednn)
    onednn(False)
    plain = make(STACK)
    step(plain)
    onednn(True)
    net = make(STACK)
    kept = net.blob_by_name("b").data       # a script may hold a view all the time
    step(net)
    assert_near(numbers(net), numbers(plain), ["a data", "b data", "c data"])
    assert np.array_equal(kept, net.blob_by_name("b").cpu_data)
    for each in (net, plain):
        each.blob_by_name("x").data[...] *= 2
        each.forward_from_to(0, len(each.layers) - 1)
    assert_near({"b data": kept}, numbers(plain), ["b data"])
    net = make(STACK)
    step(net)
    for images in (1, 3):
        other, x = make(STACK), np.random.default_rng(images).standard_normal((images, 3, 16, 16))
        for each, use in ((net, True), (other, False)):
            onednn(use)
            each.blob_by_name("x").reshape_to(x.shape)
            each.blob_by_name("x").data[...] = x
            step(each)
        assert_near(numbers(net), numbers(other), ["y data", "x diff"])


@pytest.mark.parametrize("asked", ["ONEDNN", ""])
def test_stack_reorders_at_ends(onednn, asked):
    engine.prefer(asked)
    net = make(STACK if asked else re.sub("16, 16", "32, 32", re.sub("num_output: (20|18)", "num_output: 64", STACK)))
    for _ in range(2):
        step(net)
    with memory.record() as events:
        step(net)
    reordered = sorted(event.name for event in events if event.kind == "reorder" and not event.name.startswith("conv"))
    assert asked or "WINOGRAD" in [row["engine"] for row in net.engines()]
    # x was read privately before and did not change; the gradient of y comes from outside. Nothing else was read.
    assert set(reordered) <= {"y diff"}, reordered


def test_views_show_what_layers_have_written(onednn):
    net = make(STACK)
    step(net)
    named = {f"{name} {what}": getattr(net.blob_by_name(name), what) for name in net.blob_names for what in ("data", "diff")}
    named.update({f"{one.name}[{i}] diff": blob.diff for one in net.layers for i, blob in enumerate(one.blobs)})
    net.blob_by_name("x").data[...] *= 2
    step(net)
    seen = {name: view.copy() for name, view in named.items()}
    for name, values in numbers(net).items():
        assert np.array_equal(seen[name], values), name


@pytest.mark.parametrize(("text", "dtype", "reason"), [
    (input_layer((1, 4, 6, 6)) + conv("c", "x", "y", "num_output: 4 kernel_size: 3"), Dtype.DOUBLE, "float64"),
    (input_layer((1, 2, 3, 3, 3, 3)) + conv("c", "x", "y", "num_output: 4 kernel_size: 2"), Dtype.FLOAT,
     "more than 3 spatial axes"),
    (input_layer((1, 16, 6, 6)) + layer("Pooling", "x", "y", "pooling_param { kernel_size: 2 }"), Dtype.FLOAT, "a bottom in plain order"),
    (input_layer((1, 16, 6, 6)) + layer("LRN", "x", "y"), Dtype.FLOAT, "a bottom in plain order"),
    (input_layer((2, 16)) + layer("InnerProduct", "x", "y", "inner_product_param { num_output: 4 }"), Dtype.FLOAT, "in float32"),
])
def test_refused_operation_by_caffe_engine(onednn, text, dtype, reason):
    net = make(text, dtype)
    step(net)
    description = net.layers[-1].operations()[0].describe()
    assert description["engine"] == "CAFFE" and reason in description["refused"]["ONEDNN"]


def test_gradients_of_some_parameters(onednn):
    """oneDNN has a primitive for the gradient of weights with that of a bias, and one without."""
    net = make(input_layer((2, 16, 9, 7)) + conv("conv", "x", "y", "num_output: 32 kernel_size: 3"))
    one, found = net.layers[-1], []
    for learns in (True, False, True):
        one.param_propagate_down = [True, learns]
        net.clear_param_diffs()
        step(net)
        assert engines(net) == ["ONEDNN"]
        found.append([blob.cpu_diff.copy() for blob in one.blobs])
    np.testing.assert_allclose(found[0][1], net.blob_by_name("y").cpu_diff.sum((0, 2, 3)), 1e-4, 1e-4)
    assert not found[1][1].any() and np.array_equal(found[2][1], found[0][1])
    for weights, _ in found:
        np.testing.assert_allclose(weights, found[0][0], 1e-5, 1e-5)
    # Not that of the iteration before, which is still in its memory.
    net = make(input_layer((2, 16, 9, 7)) + conv("conv", "x", "y", "num_output: 32 kernel_size: 3"))
    weight, bottom = net.layers[-1].blobs[0], net.blob_by_name("x")
    step(net)
    net.clear_param_diffs()
    step(net)
    assert engines(net) == ["ONEDNN"]
    net.clear_param_diffs()
    assert bottom.data_memory.recycle()
    with pytest.raises(RecycledError):
        net.backward_from_to(1, 1)
    assert not weight.cpu_diff.any()


@pytest.mark.parametrize("order", ["Convolution Deconvolution", "Deconvolution Convolution", "Deconvolution Deconvolution"])
@pytest.mark.parametrize("outputs", [16, 20])
def test_weight_shared_with_deconvolution(onednn, order, outputs):
    """Which take its first two axes the other way round: one's order in memory is not the other's, whatever it is called."""
    text, names = input_layer((2, outputs, 9, 7)), ["x", "a", "y"]
    for kind, bottom, top in zip(order.split(), names, names[1:]):
        text += conv(f"conv{top}", bottom, top, f"num_output: {outputs} kernel_size: 3 pad: 1 bias_term: false").replace(
            "Convolution", kind).replace("convolution_param", 'param { name: "w" } convolution_param')
    compare(text, onednn, steps=3)
    net, plain = make(text), None
    for use in (True, False, True):     # one by one, so that each changes the order that the other left
        onednn(use)
        step(net)
        found = numbers(net)["y data"]
        plain = found if plain is None else plain
        assert np.abs(found - plain).max() <= TOLERANCE * np.abs(plain).max()
