"""RNN, LSTM and LSTMUnit: against NumPy step by step, gradients, the state between forwards, sharing, and wrong nets."""

import itertools
import json
import logging

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text, make_net

import minicaffe
from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, Error, ShapeError

STATES = {"RNN": ("h",), "LSTM": ("h", "c")}
FILLERS = 'weight_filler { type: "uniform" min: -1 max: 1 } bias_filler { type: "uniform" min: -1 max: 1 }'


def text(kind, d=3, static=False, expose=False, more=""):
    states = STATES[kind] * expose
    return layer_text(kind, "r", " ".join(["x", "cont", *["static"] * static, *(f"{s}0" for s in states)]), " ".join(["y", *(f"{s}T" for s in states)]),
                      f"recurrent_param {{ num_output: {d} {FILLERS} expose_hidden: {str(expose).lower()} }} {more}")


def inputs(kind, t=4, n=2, d=3, static=False, expose=False, shape=(2,)):
    random = np.random.default_rng(t)
    cont = random.integers(0, 2, (t, n)).astype(float)
    cont[0] = expose  # without exposed states the finite differences need a fresh start
    arrays = [random.standard_normal((t, n, *shape)), cont, *[random.standard_normal((n, 5))] * static]
    return arrays + [random.standard_normal((1, n, d)) for _ in STATES[kind]] * expose


def inputs_text(t, n):
    shapes = {"x": [t, n, 2], "cont": [t, n]}
    return "".join(layer_text("Input", name, more=f"input_param {{ shape {{ dim: {shape} }} }}") for name, shape in shapes.items())


def parameters(net, layer=-1):
    return [blob.cpu_data.astype(float) for blob in net.layers[layer].blobs]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(kind, params, x, cont, static=None, h=0.0, c=0.0):
    w, b, *v, u = params[:3 + (static is not None)]
    h, c = np.zeros((x.shape[1], u.shape[1])) + h, np.zeros((x.shape[1], u.shape[1])) + c
    outputs = []
    for t in range(len(x)):
        z = x[t].reshape(-1, w.shape[1]) @ w.T + b + (cont[t][:, None] * h) @ u.T
        z = z + (static.reshape(-1, v[0].shape[1]) @ v[0].T if v else 0)
        if kind == "RNN":
            h = np.tanh(z)
            outputs.append(np.tanh(h @ params[-2].T + params[-1]))
        else:
            i, f, o, g = np.split(z, 4, axis=1)
            c = cont[t][:, None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
    return np.stack(outputs), h, c


kinds = pytest.mark.parametrize("kind", ["RNN", "LSTM"])


@kinds
@pytest.mark.parametrize("dtype, tolerance", [(Dtype.FLOAT, 2e-5), (Dtype.DOUBLE, 1e-13)])
@pytest.mark.parametrize("t, n, static, expose", [(1, 1, False, False), (1, 3, True, True), (4, 2, False, True), (7, 2, True, False)])
def test_forward(kind, t, n, static, expose, dtype, tolerance):
    arrays = inputs(kind, t, n, static=static, expose=expose, shape=(2, 3))
    net = forward_net(text(kind, static=static, expose=expose), arrays, dtype)
    shapes = [(3, 6), (3,), (3, 5), (3, 3), (3, 3), (3,)] if kind == "RNN" else [(12, 6), (12,), (12, 5), (12, 3)]     # in Caffe's order
    assert [blob.shape for blob in net.learnable_params] == [shape for shape in shapes if static or shape[1:] != (5,)]
    states = [state[0] for state in arrays[2 + static:]]
    wanted = reference(kind, parameters(net), *arrays[:2], arrays[2] if static else None, *states)
    assert net.tops[-1][0].shape == (t, n, 3)
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, wanted[0], atol=tolerance)
    for blob, state in zip(net.tops[-1][1:], wanted[1:]):
        np.testing.assert_allclose(blob.cpu_data, state[None], atol=tolerance)


@kinds
@pytest.mark.parametrize("t, static", [(1, False), (3, True), (3, False)])
def test_gradient(kind, t, static):
    # a smaller step than elsewhere, as the curvature grows with the number of steps
    check_gradient(text(kind, static=static), inputs(kind, t, static=static), check=[0, 2] if static else [0], step=1e-4)


@kinds
@pytest.mark.parametrize("t, static", [(1, True), (3, False)])
def test_no_gradient_crosses_exposed_states(kind, t, static):
    """The last ones give none, and the first ones get zeros where they are asked for."""
    arrays = inputs(kind, t, static=static, expose=True)
    net = forward_net(text(kind, static=static, expose=True), arrays)
    seed, direction = np.random.default_rng(1).standard_normal((2, *net.tops[-1][0].shape[:2], 3))
    direction, states = direction[..., :2], net.bottoms[-1][2 + static:]
    for blob in net.bottoms[-1]:
        blob.diff[...] = 7
    run_backward(net, [0, 2] if static else [0], [seed] + [np.full(b.shape, 9.0) for b in net.tops[-1][1:]])
    outputs = [reference(kind, parameters(net), arrays[0] + step * direction, arrays[1], arrays[2] if static else None,
                         *(state[0] for state in arrays[2 + static:]))[0] for step in (1e-4, -1e-4)]
    difference = (seed * (outputs[0] - outputs[1])).sum() / 2e-4
    assert abs(difference - (net.blob_by_name("x").cpu_diff * direction).sum()) < 1e-6
    assert all((blob.cpu_diff == 7).all() for blob in states)
    run_backward(net, [i for i in range(len(net.bottoms[-1])) if i != 1])
    assert not any(blob.cpu_diff.any() for blob in states)


@kinds
def test_state_between_forwards(kind):
    x, cont = inputs(kind, t=6)
    cont[...] = 1
    net = forward_net(text(kind), [x[:3], cont[:3]])
    whole = reference(kind, parameters(net), x, cont)[0]
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[:3])
    state = json.loads(json.dumps(net.layers[-1].get_state()))
    for _ in range(2):
        forward_again(net, x=x[3:])
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[3:])
        net.layers[-1].set_state(state)
    net.layers[-1].reset()
    forward_again(net, x=x[:3])
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[:3])
    # Also for a single step, where Caffe's Concat shares its memory.
    net = make_net(inputs_text(1, 2) + text(kind) + layer_text("Power", "p", "y", "y", "power_param { scale: 100 }"), dtype=Dtype.DOUBLE)
    x = np.random.default_rng(1).standard_normal((1, 2, 2))
    net.blob_by_name("x").data[...], net.blob_by_name("cont").data[...] = x, 1
    wanted = reference(kind, parameters(net, 2), np.concatenate([x, x]), np.ones((2, 2)))[0]
    for t in range(2):
        run_forward(net)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data[0], 100 * wanted[t])
    net = forward_net(text(kind), inputs(kind, n=2))
    for n in (5, 1, 0, 3):
        x, cont = inputs(kind, n=n)
        cont[...] = 1  # the state is reset without `cont`
        forward_again(net, x=x, cont=cont)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(kind, parameters(net), x, cont)[0])
        run_backward(net, [0], [np.ones((4, n, 3))])


@kinds
@pytest.mark.parametrize("spoil, error", [
    (lambda s: s.pop("h"), DataError), (lambda s: s["h"].update(data="?"), DataError),
    (lambda s: s["h"].update(shape=[1, 3, 3]), ShapeError), (lambda s: s["h"].update(data=s["h"]["data"][:8]), ShapeError),
])
def test_a_wrong_state_changes_nothing(kind, spoil, error):
    layer = forward_net(text(kind), inputs(kind)).layers[-1]
    before = layer.get_state()
    state = json.loads(json.dumps(before))
    spoil(state)
    with pytest.raises(error, match="state 'h'"):
        layer.set_state(state)
    assert layer.get_state() == before


@kinds
@pytest.mark.parametrize("static", [False, True])
def test_costs(kind, static):
    t, n, d, gates = 4, 2, 3, 4 if kind == "LSTM" else 1
    net = layer_net(text(kind, d, static), inputs(kind, t, n, d, static))
    layer, blobs = net.layers[-1], (net.bottoms[-1], net.tops[-1])
    of_x, of_static, others = t * n * gates * d * 2, static * n * gates * d * 5, t * n * d * (gates * d + (kind == "RNN") * d)
    products = of_x + of_static + others
    assert layer.multiply_adds(*blobs) == products and layer.flops(*blobs) == 2 * products
    for needs in itertools.product([True, False], repeat=2 + static):
        unneeded = (not needs[0]) * of_x + (static and not needs[2]) * of_static
        assert layer.backward_flops(*blobs, needs) == 4 * products - 2 * unneeded


@kinds
def test_layers_that_share_by_name(kind):
    """A parameter's memory may be another layer's, and its values change: the steps must use them."""
    names = "".join(f'param {{ name: "p{i}" }} ' for i in range(3 if kind == "LSTM" else 5))
    one, two = text(kind, more=names), text(kind, more=names).replace('"r"', '"r2"').replace('"y"', '"y2"')
    net = make_net("force_backward: true " + inputs_text(4, 2) + one + two, dtype=Dtype.DOUBLE)
    for blob in net.learnable_params:
        blob.data[...] /= 2
    net.blob_by_name("x").data[...], net.blob_by_name("cont").data[...] = inputs(kind)
    run_forward(net)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, net.blob_by_name("y2").cpu_data)
    for name in ("y", "y2"):
        net.blob_by_name(name).diff[...] = 1
    net.backward_from_to(len(net.layers) - 1, 0)
    single = layer_net(text(kind), inputs(kind))
    for mine, other in zip(single.layers[-1].blobs, net.learnable_params):
        mine.data[...] = other.cpu_data
    run_forward(single)
    run_backward(single, [0], [np.ones((4, 2, 3))])
    np.testing.assert_array_equal(single.blob_by_name("y").cpu_data, net.blob_by_name("y").cpu_data)
    for mine, other in zip(single.layers[-1].blobs, net.learnable_params):
        np.testing.assert_allclose(other.cpu_diff, 2 * mine.cpu_diff)


def test_state_log_and_graph(caplog):
    assert layer_net(text("LSTM", expose=True), inputs("LSTM", expose=True)).layers[-1].get_state() is None     # exposed states are the caller's
    caplog.set_level(logging.WARNING, "minicaffe.layers.recurrent")
    layer_net(text("LSTM").replace("num_output", "debug_info: true num_output"), inputs("LSTM"))
    assert "layer 'r': recurrent_param.debug_info has nothing to show" in caplog.text
    for kind in STATES:
        assert layer_net(text(kind), inputs(kind)).layers[-1].capture_obstacle() is None


def test_all_products_follow_the_settings(onednn):
    """Also the one that never goes forward: they differ in which engines refused, as oneDNN leaves float32 to CAFFE."""
    net = layer_net(text("LSTM"), inputs("LSTM"), Dtype.FLOAT)
    for use in (True, False, True):
        onednn(use)
        run_forward(net)
        run_backward(net, [0], [np.ones((4, 2, 3))])
        assert [list(product.describe()["refused"]) for product in net.layers[-1].operations()] == [["ONEDNN"] * use] * 2


@kinds
def test_wrong_shapes_and_sizes(kind):
    for shapes, error in (([(4, 2), (4, 2)], r"bottom\[0\]: needs at least 3 axes"), ([(4, 2, 2), (2, 4)], r"bottom\[1\]: must have shape \[4, 2\]"),
                          ([(4, 2, 2), (4, 2), (3, 5)], r"bottom\[2\]: must have at least 2 axes, the first of size 2"),
                          ([(4, 2, 2), (4, 2), (2,)], r"bottom\[2\]: must have at least 2 axes"),
                          ([(0, 2, 2), (0, 2)], r"bottom\[0\]: axis 0 is the number of steps")):
        with pytest.raises(ShapeError, match=rf"test.prototxt.*layer 'r' \({kind}\): {error}"):
            layer_net(text(kind, static=len(shapes) > 2), [np.empty(shape) for shape in shapes])
    for d, error in ((0, "must be given"), (4294967295, "from 1 to 2"), (2**30, "elements|size")):
        with pytest.raises(Error, match=rf"layer 'r' \({kind}\): recurrent_param.num_output: .*({error})"):
            layer_net(text(kind, d), inputs(kind))


def test_wrong_states_and_no_sequence():
    arrays = inputs("LSTM", expose=True)
    arrays[3] = arrays[3][:, :, :2]
    for words, given, error in ((text("LSTM", expose=True), arrays, r"bottom\[3\]: must have shape \[1, 2, 3\]"),
                                (text("LSTM").replace("expose_hidden: false", "expose_hidden: true"), inputs("LSTM"), "takes at least 4, got 2"),
                                (text("LSTM").replace("uniform", "unknown"), inputs("LSTM"), "recurrent_param.weight_filler.type")):
        with pytest.raises(ShapeError if "bottom" in error else ConfigError, match=error):
            layer_net(words, given)
    net = forward_net(text("LSTM"), [np.empty((2**20, 0, 2)), np.empty((2**20, 0))])
    run_backward(net, [0])
    assert net.tops[-1][0].shape == (2**20, 0, 3) and not any(blob.cpu_diff.any() for blob in net.layers[-1].blobs)


@kinds
@pytest.mark.parametrize("t, n, d, count", [(3, 1, 64, 1), (6, 19, 65, 3), (3, 33, 16, 2), (2, 40, 100, 3), (3, 1, 401, 2), (3, 2, 256, 4),
                                              (5, 1, 40, 1), (5, 3, 33, 1), (5, 8, 16, 1), (5, 19, 70, 1)])
def test_types_in_whole_tiles_on_threads(kind, t, n, d, count):
    """Whole panels of columns, tiles of 8 rows, a static input of many sequences, and fewer sequences than threads, which
    share each step's product then. Gradients in float64 by a difference along one random direction, in float32 by those.
    """
    random = np.random.default_rng(n)
    x, cont, static = random.standard_normal((t, n, 6)), random.choice([0, 1, 1, 0.5 if kind == "RNN" else 1], (t, n)), random.standard_normal((n, 5))
    seed = random.standard_normal((t, n, d))
    minicaffe.set_num_threads(count)
    found, params = {}, []
    for dtype in (Dtype.FLOAT, Dtype.DOUBLE):
        net = layer_net(text(kind, d, static=True).replace("min: -1 max: 1", "min: -0.3 max: 0.3"), [x, cont, static], dtype)
        for blob, same in zip(net.learnable_params, params):
            blob.data[...] = same
        run_forward(net)
        run_backward(net, [0, 2], [seed])
        params = parameters(net)
        gradients = [blob.cpu_diff for blob in (*net.layers[-1].blobs, net.blob_by_name("x"), net.blob_by_name("static"))]
        found[dtype] = [net.tops[-1][0].cpu_data, *gradients]
    np.testing.assert_allclose(found[Dtype.DOUBLE][0], reference(kind, params, x, cont, static)[0], rtol=0, atol=1e-11)
    values = [*params, x, static]
    directions = [random.standard_normal(array.shape) for array in values]

    def moved(step):
        *weights, x, static = (array + step * direction for array, direction in zip(values, directions))
        return reference(kind, weights, x, cont, static)[0]
    difference = (seed * (moved(1e-5) - moved(-1e-5))).sum() / 2e-5
    analytic = sum((gradient * direction).sum() for gradient, direction in zip(found[Dtype.DOUBLE][1:], directions))
    assert abs(analytic - difference) <= 1e-6 * sum(np.linalg.norm(gradient) for gradient in gradients)
    for mine, right in zip(*found.values(), strict=True):
        np.testing.assert_allclose(mine, right, rtol=0, atol=3e-5 * max(1, np.abs(right).max()))


# ---- LSTMUnit

UNIT = layer_text("LSTMUnit", "u", "c g cont", "c1 h1")


def unit_inputs(n=3, d=4):
    random = np.random.default_rng(4)
    return [random.standard_normal((1, n, d)), random.standard_normal((1, n, 4 * d)), (np.arange(n) % 3 > 0.0)[None] * 1.0]


@pytest.mark.parametrize("dtype, tolerance", [(Dtype.FLOAT, 1e-6), (Dtype.DOUBLE, 1e-14)])
@pytest.mark.parametrize("n, d", [(1, 1), (3, 4), (5, 257), (0, 4), (3, 0)])
def test_unit_forward(n, d, dtype, tolerance):
    c, gates, cont = unit_inputs(n, d)
    i, f, o, g = np.split(gates, 4, axis=-1)
    new = cont[..., None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    for blob, wanted in zip(forward_net(UNIT, [c, gates, cont], dtype).tops[-1], (new, sigmoid(o) * np.tanh(new))):
        assert blob.shape == (1, n, d)
        np.testing.assert_allclose(blob.cpu_data, wanted, atol=tolerance)


def test_unit_gradient_and_far_values():
    """cont is 0 or 1 in use; between them the gradient is the CPU's of Caffe, f' (1 - f') with f' = cont f."""
    check_gradient(UNIT, unit_inputs(), check=[0, 1])
    c, gates, cont = unit_inputs(1, 1)
    cont[...] = 0.5
    net = forward_net(UNIT, [c, gates, cont])
    run_backward(net, [0, 1], [np.ones((1, 1, 1)), np.zeros((1, 1, 1))])
    kept = 0.5 * sigmoid(gates[0, 0, 1])
    np.testing.assert_allclose(net.blob_by_name("g").cpu_diff[0, 0, 1], c[0, 0, 0] * kept * (1 - kept))
    net = forward_net(text("LSTM", 1, expose=True), [np.ones((1, 1, 2)), cont, c, c])
    w, b, u = parameters(net)
    _, f, o, _ = sigmoid(w.sum(1) + b + 0.5 * c[0, 0, 0] * u[:, 0])
    run_backward(net, [0], [np.ones((1, 1, 1)), None, None])
    through = o * (1 - np.tanh(net.blob_by_name("cT").cpu_data[0, 0, 0]) ** 2)
    np.testing.assert_allclose(net.layers[-1].blobs[1].cpu_diff[1], through * c[0, 0, 0] * 0.5 * f * (1 - 0.5 * f))
    c, gates, cont = unit_inputs(2, 1)
    gates[0, 0, 1], cont[...] = np.nan, [[0, 1]]
    assert np.isfinite(forward_net(UNIT, [c, gates, cont]).blob_by_name("c1").cpu_data).all()
    net = forward_net(UNIT, [np.full((1, 1, 1), 2.0), np.array([[[-1e4, 1e4, 1e4, -1e4]]]), np.ones((1, 1))], Dtype.FLOAT)
    run_backward(net, [0, 1], [np.ones((1, 1, 1)), np.ones((1, 1, 1))])
    np.testing.assert_allclose(net.blob_by_name("c1").cpu_data, [[[2]]])
    np.testing.assert_array_equal(net.blob_by_name("g").cpu_diff, np.zeros((1, 1, 4)))
