"""Parts of runs, forward and backward, in any order after whole runs that fuse layers: what a net computes that fuses nothing.

The other net has a hook, so that each of its runs goes layer by layer.
"""

import itertools
import random
from contextlib import nullcontext

import numpy as np
import pytest
from helpers import layer_text, make_net, one_of

import minicaffe
from minicaffe.errors import ConfigError, Error
from minicaffe.net.run import BEFORE_BACKWARD, BEFORE_FORWARD

INPUT = """force_backward: true
layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 3 dim: 16 dim: 4 dim: 4 } shape { dim: 3 } } }
"""
LOSS = """layer { name: "score" type: "InnerProduct" bottom: "%s" top: "score" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


def conv(name, bottom):
    return layer_text("Convolution", name, bottom, more='convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }')


def norm(name, scaled=True, relu=""):
    """Layers in place: BatchNorm, Scale, and a ReLU with parameters, unless None."""
    return layer_text("BatchNorm", name + "n", name, name) + layer_text("Scale", name + "s", name, name, SCALED) * scaled + (
        "" if relu is None else layer_text("ReLU", name + "r", name, name, relu))


SCALED = 'scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "gaussian" } }'
NETS = {
    "norms in place": INPUT + conv("a", "x") + norm("a") + conv("b", "a") + norm("b", relu=None) + conv("c", "b")
                      + norm("c", False, "relu_param { negative_slope: 0.1 }") + LOSS % "c",
    "norms out of place": INPUT + conv("a", "x") + layer_text("BatchNorm", "n", "a") + norm("n").partition("\n")[2] + conv("b", "n")
                          + layer_text("Eltwise", "s", "b n") + layer_text("ReLU", "sr", "s", "s") + LOSS % "s",
    "joined": INPUT + conv("a", "x") + layer_text("ReLU", "ar", "a", "a") + conv("b", "a") + layer_text("ReLU", "br", "b", "b")
              + layer_text("Concat", "j", "a b") + norm("j") + layer_text("Dropout", "d", "j", "j") + LOSS % "j",
}


def net_of(name, phase, hooked):
    minicaffe.set_random_seed(1)
    net = make_net(NETS[name], phase)
    if hooked:
        net.add_hook(BEFORE_FORWARD, lambda index: None)
    return net


def state_of(net):
    return {**{f"{blob.name} data": blob.cpu_data.copy() for blob in [*net.blob_list, *net.param_table.params]},
            **{f"{blob.name} diff": blob.cpu_diff.copy() for blob in [*net.param_table.params, net.blobs["x"]]}}


def assert_same(nets, when):
    found, wanted = map(state_of, nets)
    for key in wanted:
        np.testing.assert_allclose(found[key], wanted[key], rtol=2e-3, atol=1e-4 * max(1, np.abs(wanted[key]).max(initial=0)), err_msg=f"{key} {when}")


def do(net, call, seed):
    """Do one call on a net, with the random numbers of `seed`; return the name of the error that it raises, if any."""
    minicaffe.set_random_seed(seed)
    kind, low, high = call
    if kind == "feed":
        values = np.random.default_rng(seed)
        net.blobs["x"].data[...] = values.uniform(-1, 1, net.blobs["x"].shape)
        net.blobs["label"].data[...] = values.integers(0, 4, 3)
    elif kind == "clear":
        net.clear_param_diffs()
    try:
        if kind == "forward":
            net.forward_from_to(low, high)
        elif kind == "backward":
            net.backward_from_to(high, low)
        elif kind == "layer":
            net.backward_layer(low)
    except Error as error:
        return type(error).__name__


@pytest.mark.parametrize("phase", [minicaffe.TRAIN, minicaffe.TEST], ids=["train", "test"])
@pytest.mark.parametrize("name", one_of(3, NETS))
def test_parts_in_any_order(name, phase, device):
    for seed in range(4):
        dice, nets, done = random.Random(seed), [net_of(name, phase, hooked) for hooked in (False, True)], []
        last = len(nets[0].nodes) - 1
        calls = [("feed", 0, 0), ("forward", 0, last), ("clear", 0, 0), ("backward", 0, last)]
        for _ in range(10):
            low, high = sorted(dice.randint(1, last) for _ in range(2))
            calls += dice.choice([[("forward", low, high)], [("forward", low, last), ("backward", 0, last)], [("backward", 0, last)],
                                  [("backward", low, last)], [("backward", 0, low)], [("backward", low, high)], [("forward", 0, last), ("backward", 0, last)], [("layer", low, 0)],
                                  [("forward", 0, high), ("forward", high, last), ("backward", 0, last)], [("clear", 0, 0)], [("feed", 0, 0)]])
        for number, call in enumerate(calls):
            done.append(call)
            errors = [do(net, call, 100 * seed + number) for net in nets]
            assert errors[0] == errors[1], (seed, done)
            assert_same(nets, f"of seed {seed} after {done}")


@pytest.mark.no_plan("a plan frees what the layers before the end of the part need to run again")
@pytest.mark.parametrize("name", NETS)
def test_part_ending_inside_fused_layers(name, device):
    nets = [net_of(name, minicaffe.TRAIN, hooked) for hooked in (False, True)]
    last = len(nets[0].nodes) - 1
    for end in range(1, last):
        for start in range(1, end + 1):
            calls = ("feed", 0, 0), ("clear", 0, 0), ("forward", 0, last), ("forward", start, end), ("backward", 0, last)
            errors = [[do(net, call, number) for number, call in enumerate(calls)] for net in nets]
            assert errors[0] == errors[1], (start, end)
            assert_same(nets, f"after {start} to {end}")


def test_ranges_of_layers():
    """Of every range whether it runs, and what is said; no layer runs where it does not."""
    net, seen = net_of("joined", "TRAIN", False), []
    count = len(net.nodes)
    net.forward_from_to(0, count - 1)
    net.add_hook(BEFORE_FORWARD, seen.append)
    net.add_hook(BEFORE_BACKWARD, seen.append)
    ends = (-2**31, -2, -1, 0, 1, count - 1, count, count + 1, 2**31 - 1)
    for order, low, high in itertools.product((1, -1), ends, ends):
        seen.clear()
        with nullcontext() if 0 <= low <= count and -1 <= high < count else pytest.raises(ConfigError) as caught:
            net.forward_from_to(low, high) if order == 1 else net.backward_from_to(high, low)
        assert seen == ([] if caught else list(range(low, high + 1))[::order])
        assert not caught or str(caught.value) == f"layers {low}..{high} are out of range, the net has {count}"
    for index in (-2**31, -1, count, 2**31 - 1):
        with pytest.raises(ConfigError) as caught:
            net.backward_layer(index)
        assert str(caught.value) == f"index: must be from 0 to {count - 1}, got {index}"
    net.backward_layer(0)
