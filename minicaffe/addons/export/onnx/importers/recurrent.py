"""Recurrent operators. LSTM is Caffe's layer. Caffe has no GRU, and its RNN has a second product: both become layers for each step.
"""

import numpy as np

from minicaffe.addons.export.onnx.conversion import Unsupported, importer

MAX_STEPS = 1024    # of an operator that becomes layers for each step
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@importer("LSTM")
def lstm(made, node):
    """The gates are i, o, f, g in ONNX, and i, f, o, g in Caffe, whose indicator of sequences is a constant here."""
    if made.attribute("input_forget", 0):
        raise Unsupported("its input and forget gates are coupled (input_forget)")
    if made.constant(7, "peepholes") is not None:
        raise Unsupported("it has peepholes")

    def ordered(array, size):
        return array.reshape(4, size, -1)[[0, 2, 1, 3]].reshape(4 * size, -1)

    def add(blob, steps, batch, weight, recurrent, bias):
        size = recurrent.shape[1]
        indicator = np.ones((steps, batch), np.float32)
        indicator[0] = 0
        continued = made.layer("Parameter", [], arrays=[indicator], shape=indicator.shape)
        arrays = [ordered(weight, size), ordered(bias[0] + bias[1], size)[:, 0], ordered(recurrent, size)]
        return made.layer("LSTM", [blob, continued], "recurrent_param", arrays, num_output=size)

    directions(made, node, 4, add)


@importer("GRU")
def gru(made, node):
    """H' = n + z (H - n), n = tanh(x_n + r h_n), z and r = sigmoid(x + h); x and h: products of the input and of the state H."""
    reset_behind = made.attribute("linear_before_reset", 0)     # PyTorch's form; else r is multiplied with H before the product

    def add(blob, steps, batch, weight, recurrent, bias):
        size = recurrent.shape[1]
        inner = np.zeros_like(bias[1])
        if reset_behind:
            inner[2 * size:] = bias[1, 2 * size:]
        inputs = split_steps(made, product(made, blob, weight, bias[0] + bias[1] - inner), steps)
        parts = [recurrent] if reset_behind else [recurrent[:2 * size], recurrent[2 * size:]]
        names = [made.parameter_name() for _ in parts]

        def cell(x, state):
            x_z, x_r, x_n = made.layer("Slice", [x], "slice_param", tops=3, axis=2, slice_point=[size, 2 * size])
            if reset_behind:
                h = product(made, state, recurrent, inner, names[0])
                h_z, h_r, h_n = made.layer("Slice", [h], "slice_param", tops=3, axis=2, slice_point=[size, 2 * size])
            else:
                h_z, h_r = made.layer("Slice", [product(made, state, parts[0], None, names[0])], "slice_param", tops=2, axis=2)
            z, r = (made.layer("Sigmoid", [made.layer("Eltwise", pair)]) for pair in ([x_z, h_z], [x_r, h_r]))
            h_n = made.product(r, h_n) if reset_behind else product(made, made.product(r, state), parts[1], None, names[1])
            n = made.layer("TanH", [made.layer("Eltwise", [x_n, h_n])])
            change = made.layer("Eltwise", [state, n], "eltwise_param", coeff=[1, -1])
            return made.layer("Eltwise", [n, made.product(z, change)])

        return unrolled(made, inputs, (1, batch, size), cell)

    directions(made, node, 3, add)


@importer("RNN")
def rnn(made, node):
    """H' = tanh(x + h)."""
    def add(blob, steps, batch, weight, recurrent, bias):
        inputs, name = split_steps(made, product(made, blob, weight, bias[0] + bias[1]), steps), made.parameter_name()

        def cell(x, state):
            return made.layer("TanH", [made.layer("Eltwise", [x, product(made, state, recurrent, None, name)])])

        return unrolled(made, inputs, (1, batch, recurrent.shape[1]), cell)

    directions(made, node, 1, add)


def directions(made, node, gates, add):
    """Add the layers of a recurrent operator in each of its directions; backward, its input and its output are in reverse order.

    Parameters
    ----------
    gates : int
        How many products of a step have an own weight.
    add : callable
        Called with a blob (T, N, I), T, N and the arrays of a direction: weight (gates H, I), recurrent weight (gates H, H), biases
        (2, gates H). Returns a blob (T, N, H).
    """
    weight, recurrent, bias = (made.constant(i, "weight") for i in (1, 2, 3))
    steps, batch = made.shape()[:2]
    count, size = len(recurrent), recurrent.shape[2]
    if made.attribute("activations", ACTIVATIONS[node.op_type] * count) != ACTIVATIONS[node.op_type] * count:
        raise Unsupported(f"its activations are other than {', '.join(ACTIVATIONS[node.op_type])}")
    if made.attribute("clip") or made.attribute("layout", 0):
        raise Unsupported("it has a clip, or the batch is axis 0")
    lengths, states = made.constant(4, "lengths"), [made.constant(i, "state") for i in (5, 6)]
    if any(state is not None and np.any(state) for state in states):
        raise Unsupported("its states do not begin with 0")
    if lengths is not None and np.any(lengths != steps):
        raise Unsupported("it has sequences of several lengths")
    if node.op_type != "LSTM" and steps > MAX_STEPS:
        raise Unsupported(f"it becomes layers for each of at most {MAX_STEPS} steps, and has {steps}")
    bias = np.zeros((count, 2 * gates * size), np.float32) if bias is None else bias
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[made.attribute("direction", "forward")]
    has_all, has_last = (len(node.output) > i and node.output[i] in made.readers for i in (0, 1))
    if not has_all and not has_last:
        raise Unsupported("neither all its states nor the last one are read")
    every, last = [], []
    for i, reverse in enumerate(backward):
        blob = reversed_steps(made, made.bottom(), steps) if reverse else made.bottom()
        blob = add(blob, steps, batch, weight[i], recurrent[i], bias[i].reshape(2, -1))
        if has_last:
            last.append(made.part(blob, steps, 0, steps - 1, 1))
        if has_all:
            blob = reversed_steps(made, blob, steps) if reverse else blob
            every.append(made.reshaped(blob, (steps, batch, size), (steps, 1, batch, size), last=count == 1))
    if has_all and count > 1:
        made.layer("Concat", every, "concat_param", last=True)
    if has_last:
        blob = made.layer("Concat", last, "concat_param", axis=0) if count > 1 else last[0]
        made.blobs[node.output[1]] = blob
        made.checked[blob] = node.output[1]


def product(made, blob, weight, bias, name=None):
    """Add an InnerProduct of the last of three axes; parameters of one `name` are shared."""
    top = made.layer("InnerProduct", [blob], "inner_product_param", [weight, bias], axis=2, num_output=len(weight),
                     bias_term=bias is not None)
    if name:
        for suffix in ("weight", "bias")[:1 if bias is None else 2]:
            made.param.layer[-1].param.add(name=f"{name}/{suffix}")
    return top


def split_steps(made, blob, steps):
    """Return the names of the blobs (1, N, C) of the steps of a blob (T, N, C)."""
    if steps == 1:
        return [blob]
    return made.layer("Slice", [blob], "slice_param", tops=steps, axis=0)


def reversed_steps(made, blob, steps):
    """Return a blob with the steps, axis 0, in reverse order."""
    parts = split_steps(made, blob, steps)
    return made.layer("Concat", parts[::-1], "concat_param", axis=0) if steps > 1 else blob


def unrolled(made, inputs, shape, cell):
    """Return the states of all steps, (T, N, H): `cell` adds the layers of one and returns the next state."""
    state, states = made.layer("Parameter", [], arrays=[np.zeros(shape)], shape=shape), []
    for x in inputs:
        state = cell(x, state)
        states.append(state)
    return made.layer("Concat", states, "concat_param", axis=0) if len(states) > 1 else state
