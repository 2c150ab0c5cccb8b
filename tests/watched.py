"""What tests of layers that are computed at once have in common: a net that may do so, and one that is observed."""

import numpy as np

from minicaffe.net.run import AFTER_FORWARD


def with_one_watched(nets):
    """Give two nets the same values, observe the second between its layers, and return both."""
    values = np.random.default_rng(3)
    for blob, other in zip(*([*net.input_blobs, *(blob for layer in net.layers for blob in layer.blobs)] for net in nets)):
        blob.data[...] = other.data[...] = values.uniform(-1, 2, blob.shape)
    for layer, other in zip(*(net.layers for net in nets)):
        if layer.type == "BatchNorm":
            layer.blobs[1].data[...] = other.blobs[1].data[...] = values.uniform(1, 4, layer.blobs[1].shape)
            layer.blobs[2].data[...] = other.blobs[2].data[...] = 2
    nets[1].add_hook(AFTER_FORWARD, lambda index: None)
    return nets


def step(net):
    """Forward and backward of all layers; gradients of parameters are added."""
    last = len(net.layers) - 1
    net.forward_from_to(0, last)
    net.backward_from_to(last, 0)


def fused(net):
    """Return the names of the layers that others computed, too, by those."""
    return {row["layer"]: row["fused"] for row in net.engines() if row["fused"]}
