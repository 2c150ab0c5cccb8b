"""LSTM, the recurrent operator of ONNX that is a layer of Caffe, too."""

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer

ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


@importer("LSTM")
def lstm(made, node):
    """The gates are i, o, f, g in ONNX, and i, f, o, g in Caffe, whose indicator of sequences is a constant here.

    A backward direction has its input and its output in reverse order.
    """
    weights, recurrent, biases, lengths, *states, peepholes = (made.constant(i, "weight or state") for i in range(1, 8))
    (steps, batch), (count, _, size) = made.shape()[:2], recurrent.shape
    if made.attribute("activations", ACTIVATIONS * count) != ACTIVATIONS * count:
        raise Unsupported(f"its activations are other than {', '.join(ACTIVATIONS)}")
    if made.attribute("clip") or made.attribute("layout", 0):
        raise Unsupported("it has a clip, or the batch is axis 0")
    if made.attribute("input_forget", 0) or peepholes is not None:
        raise Unsupported("its input and forget gates are coupled (input_forget), or it has peepholes")
    if any(state is not None and np.any(state) for state in states):
        raise Unsupported("its states do not begin with 0")
    if lengths is not None and np.any(lengths != steps):
        raise Unsupported("it has sequences of several lengths")
    has_all, has_last = (len(node.output) > i and node.output[i] in made.readers for i in (0, 1))
    if not has_all and not has_last:
        raise Unsupported("neither all its states nor the last one are read")
    biases = np.zeros((count, 8 * size), np.float32) if biases is None else biases
    indicator = np.ones((steps, batch), np.float32)
    indicator[0] = 0
    every, last = [], []
    for i, reverse in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[made.attribute("direction", "forward")]):
        blob = reversed_steps(made, made.bottom(), steps) if reverse else made.bottom()
        arrays = [array.reshape(4, size, -1)[[0, 2, 1, 3]] for array in (weights[i], biases[i].reshape(2, -1).sum(0), recurrent[i])]
        continued = made.layer("Parameter", [], arrays=[indicator], shape=indicator.shape)
        blob = made.layer("LSTM", [blob, continued], "recurrent_param", arrays, num_output=size)
        if has_last:
            last.append(made.sliced(blob, steps, 0, steps - 1, 1))
        if has_all:
            blob = reversed_steps(made, blob, steps) if reverse else blob
            every.append(made.reshaped(blob, (steps, batch, size), (steps, 1, batch, size), last=count == 1))
    if has_all and count > 1:
        made.layer("Concat", every, "concat_param", last=True)
    if has_last:
        blob = made.layer("Concat", last, "concat_param", axis=0) if count > 1 else last[0]
        made.blobs[node.output[1]] = blob
        made.checked[blob] = node.output[1]


def reversed_steps(made, blob, steps):
    """Return a blob with the steps, axis 0, in reverse order."""
    if steps == 1:
        return blob
    return made.layer("Concat", made.layer("Slice", [blob], "slice_param", tops=steps, axis=0)[::-1], "concat_param", axis=0)
