"""Parts of runs, forward and backward, in any order after whole runs that fuse layers: what a net computes that fuses nothing.

The other net has a hook, so that each of its runs goes layer by layer.
"""

import random

import numpy as np
import pytest
from helpers import layer_text, make_net

import minicaffe
from minicaffe.errors import ConfigError, Error
from minicaffe.net.run import BEFORE_BACKWARD, BEFORE_FORWARD

INPUT = """force_backward: true
layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 3 dim: 16 dim: 4 dim: 4 } shape { dim: 3 } } }
"""
LOSS = """layer { name: "score" type: "InnerProduct" bottom: "%s" top: "score" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


def layer(name, kind, bottoms, top, param=""):
    return layer_text(kind, name, bottoms, top, param)


def conv(name, bottom):
    return layer(name, "Convolution", bottom, name, 'convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }')


def scale(name, blob):
    return layer(name, "Scale", blob, blob, 'scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "gaussian" } }')


NETS = {
    "norms in place": INPUT + conv("a", "x") + layer("an", "BatchNorm", "a", "a") + scale("as", "a") + layer("ar", "ReLU", "a", "a")
                      + conv("b", "a") + layer("bn", "BatchNorm", "b", "b") + scale("bs", "b") + conv("c", "b") + layer("cn", "BatchNorm", "c", "c")
                      + layer("cr", "ReLU", "c", "c", "relu_param { negative_slope: 0.1 }") + LOSS % "c",
    "norms out of place": INPUT + conv("a", "x") + layer("an", "BatchNorm", "a", "n") + scale("as", "n") + layer("ar", "ReLU", "n", "n")
                          + conv("b", "n") + layer("sum", "Eltwise", "b n", "s") + layer("sr", "ReLU", "s", "s") + LOSS % "s",
    "joined": INPUT + conv("a", "x") + layer("ar", "ReLU", "a", "a") + conv("b", "a") + layer("br", "ReLU", "b", "b")
              + layer("j", "Concat", "a b", "j") + layer("jn", "BatchNorm", "j", "j") + scale("js", "j") + layer("jr", "ReLU", "j", "j")
              + layer("d", "Dropout", "j", "j") + LOSS % "j",
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
    try:
        if kind == "feed":
            values = np.random.default_rng(seed)
            net.blobs["x"].data[...] = values.uniform(-1, 1, net.blobs["x"].shape)
            net.blobs["label"].data[...] = values.integers(0, 4, 3)
        elif kind == "forward":
            net.forward_from_to(low, high)
        elif kind == "backward":
            net.backward_from_to(high, low)
        elif kind == "layer":
            net.backward_layer(low)
        else:
            net.clear_param_diffs()
    except Error as error:
        return type(error).__name__


@pytest.mark.parametrize("phase", [minicaffe.TRAIN, minicaffe.TEST], ids=["train", "test"])
@pytest.mark.parametrize("name", NETS)
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
    for forward in (True, False):
        for low in ends:
            for high in ends:
                seen.clear()
                run = (lambda low=low, high=high: net.forward_from_to(low, high)) if forward else (lambda low=low, high=high: net.backward_from_to(high, low))
                if 0 <= low <= count and -1 <= high < count:
                    run()
                    assert seen == list(range(low, high + 1))[::1 if forward else -1]
                else:
                    with pytest.raises(ConfigError) as caught:
                        run()
                    assert str(caught.value) == f"layers {low}..{high} are out of range, the net has {count}" and not seen
    for index in (-2**31, -1, count, 2**31 - 1):
        with pytest.raises(ConfigError) as caught:
            net.backward_layer(index)
        assert str(caught.value) == f"index: must be from 0 to {count - 1}, got {index}"
    net.backward_layer(0)
