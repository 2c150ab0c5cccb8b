"""Eltwise computes the ReLU that follows its sum in place in forward, and no blob shows it."""

import numpy as np
import pytest
from watched import fused, with_one_watched

import minicaffe as caffe
from minicaffe.blob import Dtype
from minicaffe.net.net import Net
from minicaffe.net.run import BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 dim: 5 dim: 6 } } }'
CONV = ('layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" convolution_param {{ num_output: {2} kernel_size: 3 pad: 1 '
        'weight_filler {{ type: "gaussian" std: 0.3 }} }} }} ')
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "s" eltwise_param { operation: SUM } } '
RELU = 'layer { name: "relu" type: "ReLU" bottom: "s" top: "s" } '
LOSS = 'layer { name: "loss" type: "Reduction" bottom: "c" top: "loss" loss_weight: 1 reduction_param { operation: SUMSQ } }'


def stack(outputs=16, sum_=SUM, relu=RELU):
    """A residual block: a sum of two convolutions, one of which reads what the other gives."""
    return CONV.format("a", "x", outputs) + CONV.format("b", "a", outputs) + sum_ + relu + CONV.format("c", "s", outputs) + LOSS


def two_nets(text, phase=caffe.TRAIN, dtype=Dtype.FLOAT, plan=None):
    """A net, and one with the same values that is read between layers."""
    param = parse_text(INPUT + text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    nets = with_one_watched([Net(param, dtype=dtype, plan=plan), Net(param, dtype=dtype)])
    for net in nets:
        net.blob_by_name("x").data[...] -= 0.5      # so that sums are of either sign
    return nets


def step(net):
    last = len(net.layers) - 1
    net.forward_from_to(0, last)
    net.backward_from_to(last, 0)


def assert_same(net, watched):
    tolerance = 1e-11 if net.dtype == Dtype.DOUBLE else 1e-4
    for name in net.blob_names:
        for mine, wanted in ((net.blob_by_name(name).data, watched.blob_by_name(name).data),
                             (net.blob_by_name(name).diff, watched.blob_by_name(name).diff)):
            np.testing.assert_allclose(mine, wanted, tolerance, tolerance * np.abs(wanted).max(), err_msg=name)
    for layer, other in zip(net.layers, watched.layers):
        for blob, wanted in zip(layer.blobs, other.blobs):
            np.testing.assert_allclose(blob.diff, wanted.diff, tolerance, tolerance * np.abs(wanted.diff).max(), err_msg=layer.name)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("outputs", [4, 20])    # in plain order; in blocks of channels, the last not full
@pytest.mark.parametrize("sum_", [
    SUM,
    SUM.replace("SUM", "SUM coeff: 1 coeff: -0.5"),
    SUM.replace('top: "s"', 'bottom: "a" bottom: "b" top: "s"'),        # four, as many as a pass takes
    SUM.replace('bottom: "b"', 'bottom: "b" propagate_down: true propagate_down: false')])
def test_a_step_gives_what_the_layers_one_by_one_give(sum_, outputs, dtype):
    net, watched = two_nets(stack(outputs, sum_), dtype=dtype)
    for _ in range(2):
        step(net), step(watched)
        assert fused(net) == {"sum": ["relu"]} and not fused(watched)
        assert_same(net, watched)
    assert (net.blob_by_name("s").diff == 0).any() and (net.blob_by_name("s").diff != 0).any()


def test_the_gradient_of_the_sum_alone():
    """The backward of the sum after a fused forward is not that of the ReLU, too."""
    net, watched = two_nets(stack())
    for each in (net, watched):
        each.forward_from_to(0, len(each.layers) - 1)
        node = each.nodes[each.layer_index("sum")]
        assert (each.blob_by_name("s").data == 0).any()
        node.tops[0].diff[...] = 2
        each.backward_from_to(each.layer_index("sum"), each.layer_index("sum"))
        assert all((blob.diff == 2).all() for blob in node.bottoms)
        node.tops[0].diff[...] = 3
        each.backward_layer(each.layer_index("sum"))
        assert all((blob.diff == 3).all() for blob in node.bottoms)


@pytest.mark.parametrize(("sum_", "relu"), [
    (SUM, RELU.replace('"s" }', '"s" relu_param { negative_slope: 0.1 } }')),
    (SUM.replace('top: "s"', 'bottom: "a" bottom: "b" bottom: "a" top: "s"'), RELU)])      # more than a pass takes
def test_others_run_by_themselves(sum_, relu):
    net, watched = two_nets(stack(16, sum_, relu))
    for each in (net, watched):
        step(each)
    assert not fused(net)
    assert_same(net, watched)


@pytest.mark.parametrize("operation", ["PROD", "MAX"])
def test_other_operations_are_not_sums(operation):
    net, watched = two_nets(stack(16, SUM.replace("SUM", operation)))
    for each in (net, watched):
        step(each)
    assert "sum" not in {row["layer"] for row in net.engines()}
    assert_same(net, watched)


@pytest.mark.parametrize("cut", ["start", "hook", "one by one"])
def test_who_looks_between_gradients_gets_those_of_each_layer(cut):
    net, watched = two_nets(stack())
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    for each in (net, watched):
        each.forward_from_to(0, last)
    assert fused(net) == {"sum": ["relu"]}
    if cut == "hook":
        net.add_hook(BEFORE_BACKWARD, lambda index: None)
    for each in (net, watched):
        if cut == "start":
            each.backward_from_to(last, relu)
            each.backward_from_to(relu - 1, 0)
        elif cut == "hook":
            each.backward_from_to(last, 0)
        else:
            for i in range(last, 0, -1):
                each.backward_layer(i)
    assert_same(net, watched)


@pytest.mark.parametrize("plan", [None, "memory"])
def test_a_whole_backward_after_one_of_a_layer_alone(plan):
    net, watched = two_nets(stack())
    net.set_plan(plan, [], True)
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    for each in (net, watched):
        each.forward_from_to(0, last)
        each.blob_by_name("s").diff[...] = 1
        each.backward_layer(relu)
        each.backward_from_to(last, 0)
    for layer, other in zip(net.layers, watched.layers):
        for blob, wanted in zip(layer.blobs, other.blobs):
            np.testing.assert_allclose(blob.diff, wanted.diff, 1e-4, 1e-4 * np.abs(wanted.diff).max())


def test_a_sum_that_goes_without_its_relu_after_they_were_one():
    """Its gradient is that of the sum alone."""
    net, _ = two_nets(stack())
    step(net)
    assert fused(net) == {"sum": ["relu"]}
    index = net.layer_names.index("sum")
    net.forward_from_to(0, index)
    s, b = net.blob_by_name("s"), net.blob_by_name("b")
    assert (s.data < 0).any()
    s.diff[...] = 1
    net.backward_from_to(index, index)
    assert (b.diff == 1).all()


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_with_a_plan(phase, operation):
    net, watched = two_nets(stack(16, SUM.replace("SUM", operation)), phase, plan="memory")
    last = len(net.layers) - 1
    assert net.forward_from_to(0, last) == pytest.approx(watched.forward_from_to(0, last), 1e-5)
    assert operation != "SUM" or fused(net) in ({"sum": ["relu"]}, *([{"b": ["sum", "relu"]}] if phase == caffe.TEST else []))
    if phase == caffe.TRAIN:
        net.backward_from_to(last, 0), watched.backward_from_to(last, 0)
        for layer, other in zip(net.layers, watched.layers):
            for blob, wanted in zip(layer.blobs, other.blobs):
                np.testing.assert_allclose(blob.diff, wanted.diff, 1e-4, 1e-4 * np.abs(wanted.diff).max())


def test_not_a_number_stays_one():
    net, watched = two_nets(stack())
    for each in (net, watched):
        each.blob_by_name("x").data[0, 0, 2, 2] = np.nan
        each.forward_from_to(0, len(each.layers) - 1)
    np.testing.assert_array_equal(np.isnan(net.blob_by_name("s").data), np.isnan(watched.blob_by_name("s").data))
    assert np.isnan(net.blob_by_name("s").data).any()
