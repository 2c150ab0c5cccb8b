"""A layer of the user's own that writes a part of an array, and finds in the rest what it wrote there before, with a plan as without."""

import numpy as np
import pytest
from test_memory_plan import CONV, INPUT, LOSS, feed, layer, net_of

from minicaffe.layer import Layer, register_layer


class PartsLayer(Layer):
    """Copies the records of its bottom that have their turn; the others keep what they had, in the top and in the gradient."""

    exact_num_bottom_blobs = exact_num_top_blobs = 1
    turn = 0

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward_cpu(self, bottom, top):
        self.turn += 1
        mine = slice(self.turn % 2, None, 2)
        top[0].data[mine] = bottom[0].cpu_data[mine]

    def backward_cpu(self, top, propagate_down, bottom):
        mine = slice(self.turn % 2, None, 2)
        if propagate_down[0]:
            bottom[0].diff[mine] = top[0].cpu_diff[mine]


register_layer("OwnParts", PartsLayer)


def chain(before, after):
    """A net with the layer between `before` and `after` convolutions, each of which takes and frees memory."""
    text, last = INPUT, "x"
    for i in range(before):
        text, last = text + layer(f"a{i}", "Convolution", [last], [f"a{i}"], CONV.format(4)) + layer(f"r{i}", "ReLU", [f"a{i}"], [f"a{i}"]), f"a{i}"
    text, last = text + layer("own", "OwnParts", [last], ["own"]), "own"
    for i in range(after):
        text, last = text + layer(f"b{i}", "Convolution", [last], [f"b{i}"], CONV.format(4)), f"b{i}"
    return text + LOSS % last


@pytest.mark.parametrize(("before", "after"), [(1, 0), (1, 2), (3, 0), (3, 3)])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_unwritten_data_returns(before, after, phase, device):
    found = []
    for plan in (None, "memory"):
        net, seen = net_of(chain(before, after), phase, plan=plan), []
        for seed in range(6):
            feed(net, seed)
            if phase == "TEST":
                seen += [np.array(net.forward_from_to(0, len(net.nodes) - 1)), *(blob.cpu_data.copy() for blob in net.output_blobs)]
                continue
            net.clear_param_diffs()
            seen.append(np.array(net.forward_backward()))
            for blob in net.learnable_params:
                seen.append(blob.cpu_diff.copy())
                blob.data[...] -= 0.1 * blob.cpu_diff
        found.append(seen)
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6, err_msg=f"number {number}")
