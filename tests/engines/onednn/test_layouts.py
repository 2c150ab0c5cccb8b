"""Layers between convolutions keep the layouts of engine ONEDNN, forward and backward, with the numbers of engine CAFFE."""

import gc
from pathlib import Path

import numpy as np
import pytest
from test_engine_onednn import compare, conv, input_layer, layer, make, step

from minicaffe import memory
from minicaffe.common import TRAIN
from minicaffe.engines.onednn import library
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import read_text

MODELS = Path(__file__).resolve().parents[3] / "models"
BETWEEN = {
    "BatchNorm": ("BatchNorm", ""),
    "BatchNorm, given statistics": ("BatchNorm", "batch_norm_param { use_global_stats: true eps: 0.1 }"),
    "Scale": ("Scale", 'scale_param { filler { type: "uniform" min: -1 max: 2 } }'),
    "Scale with bias": ("Scale", 'scale_param { bias_term: true filler { type: "uniform" } bias_filler { type: "uniform" } }'),
    "Bias": ("Bias", 'bias_param { filler { type: "uniform" } }'),
    "PReLU": ("PReLU", 'prelu_param { filler { type: "uniform" } }'), "ELU": ("ELU", ""),
    "Sigmoid": ("Sigmoid", ""),     # not 0 for 0, and the next three
    "Exp": ("Exp", ""), "Power": ("Power", "power_param { shift: 1 scale: 0.5 }"), "BNLL": ("BNLL", ""), "TanH": ("TanH", ""),
    "AbsVal": ("AbsVal", ""), "Dropout": ("Dropout", "phase: TEST"),
}
NEEDS_BOTTOM = {"BNLL", "AbsVal"}


def between(kind, fields, channels, in_place):
    middle = "a" if in_place else "b"
    bias = "bias_term: false" if kind == "BatchNorm" else ""    # which gets no gradient there
    return (input_layer((2, 3, 9, 7)) + conv("conv1", "x", "a", f"num_output: {channels} kernel_size: 3 pad: 1 {bias}")
            + layer(kind, "a", middle, fields) + conv("conv2", middle, "y", "num_output: 16 kernel_size: 3"))


def reorders(net):
    """The reorders of a step, after one that settled the layouts; not those of parameters."""
    step(net)
    parameters = {blob.name for one in net.layers for blob in one.blobs}
    with memory.record() as events:
        step(net)
    return [event.name for event in events if event.kind == "reorder" and event.name.rpartition(" ")[0] not in parameters]


@pytest.mark.parametrize("channels", [18, 32])
@pytest.mark.parametrize(("case", "in_place"), [(case, place) for case in BETWEEN for place in (False, True)
                                               if not (place and case in NEEDS_BOTTOM)])
def test_a_layer_between_convolutions(onednn, case, in_place, channels):
    """In 18 channels blocks have padding, which stays zero: the gradient of the second convolution's weights would show it."""
    kind, fields = BETWEEN[case]
    text = between(kind, fields, channels, in_place)
    net = compare(text, onednn)
    assert set(reorders(net)) <= {"y diff"}     # which comes from outside
    for name in ("a",) if in_place else ("a", "b"):
        assert net.blob_by_name(name).layout_of_data() is not None
        assert net.blob_by_name(name).layout_of_diff() is not None


@pytest.mark.parametrize(("kind", "fields"), [("Log", ""), ("Power", "power_param { power: -1 }"), ("Power", "power_param { power: -0.5 }")])
def test_infinite_at_0_keeps_padding(onednn, kind, fields):
    """A convolution multiplies the padding by weights that are 0: infinity there would be NaN in all channels, forward and backward."""
    far = conv("conv1", "z", "a", "num_output: 18 kernel_size: 3 pad: 1").replace("uniform", "constant").replace('constant"', 'constant" value: 40')
    compare(input_layer((2, 3, 9, 7)) + conv("conv0", "x", "z", "num_output: 18 kernel_size: 1")
            + far + layer(kind, "a", "b", fields) + conv("conv2", "b", "y", "num_output: 16 kernel_size: 3"), onednn)


@pytest.mark.parametrize("kind, fields, in_place", [
    ("Scale", "scale_param { axis: 2 num_axes: 1 }", False), ("Scale", "scale_param { num_axes: 0 }", False), ("Dropout", "", True)])
def test_plain_scale_and_mask_of_dropout(onednn, kind, fields, in_place):
    """Scale of other axes reads plain order; Dropout draws the same mask."""
    compare(between(kind, fields, 18, in_place), onednn)


@pytest.mark.parametrize("model", [pytest.param("resnet50", marks=pytest.mark.slow(2)), "mobilenet"])
def test_training_step_without_inner_reorder(onednn, model):
    param, _ = read_text(MODELS / model / "deploy.prototxt", caffe_pb2.NetParameter)
    param.state.phase, param.force_backward = TRAIN, True
    for one in param.layer:
        if one.type == "Input":
            one.input_param.shape[0].dim[2:] = [224, 224]
        if one.type == "Pooling" and one.pooling_param.pool == one.pooling_param.AVE:
            one.pooling_param.ClearField("kernel_size")
            one.pooling_param.global_pooling = True
    net = Net(param)
    # At its ends: what softmax reads, the gradients from outside and of the picture.
    assert set(reorders(net)) <= {"pool5 diff", "fc7 data", "fc7 diff", "conv1 diff"}


def test_layouts_convert_and_end(onednn):
    """Convolutions of 48, 24, and 12 channels a group have layouts of their own for one shape; each converts to each, in any order."""
    onednn(True)
    shape, layouts, nets = (2, 48, 6, 5), {}, []
    for group in 1, 2, 4:
        fields = f"num_output: 48 kernel_size: 3 pad: 1 group: {group}"
        net = make(input_layer(shape) + conv("conv", "x", "y", fields) + conv("again", "y", "z", fields))
        net.forward_from_to(0, len(net.layers) - 1)
        layout = net.blob_by_name("y").layout_of_data()
        layouts[id(layout)] = layout
        nets.append(net)
    assert len(layouts) > 1
    plain = np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
    arrays = {}
    for name, layout in layouts.items():
        arrays[name] = np.zeros(layout.nbytes, np.uint8)
        layout.from_plain(arrays[name].ctypes.data, plain.ctypes.data)
    for _ in range(2):
        for target in layouts:
            for source in layouts.keys() - {target}:
                found = np.zeros(layouts[target].nbytes, np.uint8)
                assert layouts[target].from_layout(found.ctypes.data, layouts[source], arrays[source].ctypes.data)
                np.testing.assert_array_equal(found, arrays[target])
    onednn(True)
    net = make(input_layer((1, 16, 8, 8)) + conv("conv", "x", "y", "num_output: 32 kernel_size: 3 pad: 1")
               + conv("again", "y", "z", "num_output: 32 kernel_size: 3 pad: 1"))
    def live():
        gc.collect()
        return sum(map(len, library._layouts.values()))
    counts = []
    for size in range(4, 24):
        net.blob_by_name("x").reshape((1, 16, size, size))
        net.forward_from_to(0, len(net.layers) - 1)
        counts.append(live())
    assert counts[-1] <= counts[2] + 2
    before = live()
    assert all(library._layouts.values())
    del net
    assert live() < before and all(library._layouts.values())
