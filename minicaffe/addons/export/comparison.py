"""The values of a net's blobs on given inputs, and how far others are from them: how folded nets and models of ONNX are checked."""

from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-4    # of the greatest absolute value of an output


def classes(axis):
    return 1, lambda node: node.bottoms[0].shape[axis(node.param)]


INTEGERS = {        # type -> the bottom whose values are integers from 0 on, and how many values there are
    "Embed": (0, lambda node: node.param.embed_param.input_dim), "BatchReindex": (1, lambda node: node.bottoms[0].shape[0]),
    "LSTM": (1, lambda node: 2), "RNN": (1, lambda node: 2), "Filter": (-1, lambda node: 2), "ContrastiveLoss": (2, lambda node: 2),
    "SigmoidCrossEntropyLoss": (1, lambda node: 2), "Accuracy": classes(lambda param: param.accuracy_param.axis),
    "SoftmaxWithLoss": classes(lambda param: param.softmax_param.axis), "HingeLoss": classes(lambda param: 1),
    "InfogainLoss": classes(lambda param: param.infogain_loss_param.axis), "MultinomialLogisticLoss": classes(lambda param: 1)}


class Difference(NamedTuple):
    """Difference of the values of a blob from those of the model.

    Attributes
    ----------
    blob : str
    shape : tuple of int
    absolute : float
        Greatest absolute difference.
    relative : float
        That, divided by the greatest absolute value of the net's blob.
    """

    blob: str
    shape: tuple
    absolute: float
    relative: float

    def __str__(self):
        return (f"{self.blob} {' x '.join(map(str, self.shape))}: differs by at most {self.absolute:.2g}, "
                f"{self.relative:.1g} of the greatest value")


def random_inputs(net):
    """Return arrays of random numbers for the inputs of a net: integers where a layer needs them, else normal numbers.

    Parameters
    ----------
    net : minicaffe.net.net.Net

    Returns
    -------
    dict of str to ndarray
        float32, of the shapes of the inputs.
    """
    rng, made = np.random.default_rng(0), {}
    for blob in net.input_blobs:
        made[blob.name] = rng.normal(0, 1, blob.shape).astype(np.float32)
    origin = {name: name for name in made}
    for node in net.nodes:
        if node.type == "Split" and node.bottoms[0].name in origin:
            origin |= {blob.name: origin[node.bottoms[0].name] for blob in node.tops}
        for i, bottom in enumerate(node.bottoms):
            name = origin.get(bottom.name)
            if name is None:
                continue
            at, count = INTEGERS.get(node.type, (None, None))
            if at is not None and i == at % len(node.bottoms):
                made[name] = rng.integers(0, count(node), made[name].shape).astype(np.float32)
            elif node.type in ("Log", "Power", "MultinomialLogisticLoss"):
                made[name] = np.abs(made[name]) + np.float32(0.5)
    return made


def run_layers(net, inputs):
    """Return (index of the layer, blob) -> value, for all tops of a net; layer by layer, so that none is freed or left out."""
    net.feed(**inputs)
    made = {}
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        made.update(((i, blob.name), np.array(blob.data)) for blob in node.tops)
    return made


def run_net(net, inputs):
    """Return the values of all blobs of a net after a forward."""
    return {name: value for (_, name), value in run_layers(net, inputs).items()}


def difference(name, wanted, found):
    """Return the Difference of two arrays; infinite where their shapes or what is not finite differ."""
    if wanted.shape != found.shape:
        return Difference(name, found.shape, np.inf, np.inf)
    if not wanted.size:
        return Difference(name, found.shape, 0.0, 0.0)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], found[~finite], equal_nan=True):
        return Difference(name, found.shape, np.inf, np.inf)
    largest = float(np.abs(np.subtract(wanted, found, where=finite, out=np.zeros_like(wanted))).max())
    scale = float(np.abs(wanted, where=finite, out=np.zeros_like(wanted)).max())
    return Difference(name, found.shape, largest, largest / scale if scale else largest)
