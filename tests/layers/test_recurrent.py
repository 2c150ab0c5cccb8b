"""RNN and LSTM: against NumPy step by step, gradients, the state between forwards, sharing, and wrong nets."""

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
    names = ["x", "cont"] + ["static"] * static + [f"{s}0" for s in STATES[kind]] * expose
    tops = ["y"] + [f"{s}T" for s in STATES[kind]] * expose
    blobs = "".join(f' bottom: "{n}"' for n in names) + "".join(f' top: "{n}"' for n in tops)
    return (f'layer {{ name: "r" type: "{kind}"{blobs} recurrent_param {{ num_output: {d} {FILLERS} '
            f"expose_hidden: {str(expose).lower()} }} {more} }}")


def inputs(kind, t=4, n=2, d=3, static=False, expose=False, shape=(2,)):
    random = np.random.default_rng(t)
    cont = random.integers(0, 2, (t, n)).astype(float)
    cont[0] = expose  # without exposed states the finite differences need a fresh start
    arrays = [random.standard_normal((t, n, *shape)), cont]
    arrays += [random.standard_normal((n, 5))] * static
    return arrays + [random.standard_normal((1, n, d)) for _ in STATES[kind]] * expose


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(kind, params, x, cont, static=None, h=0.0, c=0.0):
    """Return outputs and last states."""
    params = [np.asarray(p, np.float64) for p in params]
    w, b = params[:2]
    v = params.pop(2) if static is not None else None
    u = params[2]
    h, c = np.zeros((x.shape[1], u.shape[1])) + h, np.zeros((x.shape[1], u.shape[1])) + c
    outputs = []
    for t in range(len(x)):
        z = x[t].reshape(-1, w.shape[1]) @ w.T + b + (cont[t][:, None] * h) @ u.T
        if v is not None:
            z = z + static.reshape(-1, v.shape[1]) @ v.T
        if kind == "RNN":
            h = np.tanh(z)
            outputs.append(np.tanh(h @ params[3].T + params[4]))
        else:
            i, f, o, g = np.split(z, 4, axis=1)
            c = cont[t][:, None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
    return np.stack(outputs), h, c


def both(test):
    return pytest.mark.parametrize("kind", ["RNN", "LSTM"])(test)


@both
@pytest.mark.parametrize("dtype, tolerance", [(Dtype.FLOAT, 2e-5), (Dtype.DOUBLE, 1e-13)])
@pytest.mark.parametrize("t, n, static, expose", [(1, 1, False, False), (1, 3, True, True), (4, 2, False, True), (7, 2, True, False)])
def test_forward(kind, t, n, static, expose, dtype, tolerance):
    arrays = inputs(kind, t, n, static=static, expose=expose, shape=(2, 3))
    net = forward_net(text(kind, static=static, expose=expose), arrays, dtype)
    params = [blob.cpu_data for blob in net.layers[-1].blobs]
    states = [state[0] for state in arrays[2 + static:]]
    wanted = reference(kind, params, *arrays[:2], arrays[2] if static else None, *states)
    assert net.tops[-1][0].shape == (t, n, 3)
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, wanted[0], atol=tolerance)
    for blob, state in zip(net.tops[-1][1:], wanted[1:]):
        np.testing.assert_allclose(blob.cpu_data, state[None], atol=tolerance)


@pytest.mark.parametrize("kind, shapes", [
    ("RNN", [(3, 6), (3,), (3, 5), (3, 3), (3, 3), (3,)]),
    ("LSTM", [(12, 6), (12,), (12, 5), (12, 3)]),
])
def test_parameters_in_caffes_order(kind, shapes):
    net = layer_net(text(kind, static=True), inputs(kind, static=True, shape=(2, 3)))
    assert [blob.shape for blob in net.layers[-1].blobs] == shapes
    assert len(net.learnable_params) == len(shapes)


@both
@pytest.mark.parametrize("t, static", [(1, False), (3, True), (3, False)])
def test_gradient(kind, t, static):
    # a smaller step than elsewhere, as the curvature grows with the number of steps
    check_gradient(text(kind, static=static), inputs(kind, t, static=static), check=[0, 2] if static else [0], step=1e-4)


@both
@pytest.mark.parametrize("t, static", [(1, True), (3, False)])
def test_no_gradient_crosses_exposed_states(kind, t, static):
    """The last ones give none, and the first ones get zeros where they are asked for."""
    arrays = inputs(kind, t, static=static, expose=True)
    net = forward_net(text(kind, static=static, expose=True), arrays)
    random = np.random.default_rng(1)
    seed = random.standard_normal(net.tops[-1][0].shape)
    for blob in net.bottoms[-1]:
        blob.diff[...] = 7
    run_backward(net, [0, 2] if static else [0], [seed] + [np.full(b.shape, 9.0) for b in net.tops[-1][1:]])
    x, gradient, step = net.blob_by_name("x"), net.blob_by_name("x").cpu_diff.copy(), 1e-4

    def objective(i, value):
        net.blob_by_name("x").data.reshape(-1)[i] = value
        run_forward(net)
        return (net.tops[-1][0].cpu_data * seed).sum()

    for i, kept in enumerate(x.cpu_data.ravel().tolist()):
        difference = (objective(i, kept + step) - objective(i, kept - step)) / (2 * step)
        objective(i, kept)
        assert abs(difference - gradient.ravel()[i]) < 1e-6
    states = net.bottoms[-1][2 + static:]
    assert all((blob.cpu_diff == 7).all() for blob in states)
    run_backward(net, [i for i in range(len(net.bottoms[-1])) if i != 1])
    assert not any(blob.cpu_diff.any() for blob in states)


# ---- the state between forwards

@both
def test_state_continues_in_next_forward(kind):
    x, cont = inputs(kind, t=6)
    cont[...] = 1
    net = layer_net(text(kind), [x[:3], cont[:3]])
    whole = reference(kind, [blob.cpu_data for blob in net.layers[-1].blobs], x, cont)[0]
    run_forward(net)
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[:3])
    state = json.loads(json.dumps(net.layers[-1].get_state()))
    for _ in range(2):
        forward_again(net, x=x[3:])
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[3:])
        net.layers[-1].set_state(state)
    net.layers[-1].reset()
    forward_again(net, x=x[:3])
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, whole[:3])


@both
def test_layer_in_place_keeps_state(kind):
    """Also for a single step, where Caffe's Concat shares its memory."""
    net = make_net(f"""
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 2 dim: 2 }} }} }}
        layer {{ name: "cont" type: "Input" top: "cont" input_param {{ shape {{ dim: 1 dim: 2 }} }} }}
        {text(kind)} layer {{ name: "p" type: "Power" bottom: "y" top: "y" power_param {{ scale: 100 }} }}""", dtype=Dtype.DOUBLE)
    x = np.random.default_rng(1).standard_normal((1, 2, 2))
    net.blob_by_name("x").data[...], net.blob_by_name("cont").data[...] = x, 1
    params = [blob.cpu_data for blob in net.layers[2].blobs]
    wanted = reference(kind, params, np.concatenate([x, x]), np.ones((2, 2)))[0]
    for t in range(2):
        run_forward(net)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data[0], 100 * wanted[t])


@both
def test_another_number_of_sequences(kind):
    net = forward_net(text(kind), inputs(kind, n=2))
    for n in (5, 1, 0, 3):
        x, cont = inputs(kind, n=n)
        cont[...] = 1  # the state is reset without `cont`
        forward_again(net, x=x, cont=cont)
        params = [blob.cpu_data for blob in net.layers[-1].blobs]
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(kind, params, x, cont)[0])
        run_backward(net, [0], [np.ones((4, n, 3))])


@both
@pytest.mark.parametrize("spoil, error", [
    (lambda s: s.pop("h"), DataError),
    (lambda s: s["h"].update(data="?"), DataError),
    (lambda s: s["h"].update(shape=[1, 3, 3]), ShapeError),
    (lambda s: s["h"].update(data=s["h"]["data"][:8]), ShapeError),
])
def test_a_wrong_state_changes_nothing(kind, spoil, error):
    net = forward_net(text(kind), inputs(kind))
    layer = net.layers[-1]
    before = layer.get_state()
    state = json.loads(json.dumps(before))
    spoil(state)
    with pytest.raises(error, match="state 'h'"):
        layer.set_state(state)
    assert layer.get_state() == before


# ---- parameters of several nets and layers

@both
def test_two_nets_of_a_workspace_share(kind):
    first = layer_net(text(kind), inputs(kind))
    second = make_net(layer_text("Input", "x", more="input_param { shape { dim: [6, 1, 2] } }")
                      + layer_text("Input", "cont", more="input_param { shape { dim: [6, 1] } }") + text(kind), dtype=Dtype.DOUBLE, workspace=first.parameters)
    x, cont = inputs(kind, t=6, n=1)
    second.blob_by_name("x").data[...], second.blob_by_name("cont").data[...] = x, cont
    for blob in first.layers[-1].blobs:
        blob.data[...] = blob.cpu_data / 2
    run_forward(second)
    params = [blob.cpu_data for blob in first.layers[-1].blobs]
    np.testing.assert_allclose(second.blob_by_name("y").cpu_data, reference(kind, params, x, cont)[0])


@both
@pytest.mark.parametrize("static", [False, True])
def test_costs(kind, static):
    t, n, d, gates = 4, 2, 3, 4 if kind == "LSTM" else 1
    net = layer_net(text(kind, d, static), inputs(kind, t, n, d, static))
    layer, bottoms, tops = net.layers[-1], net.bottoms[-1], net.tops[-1]
    of_x, of_static, others = t * n * gates * d * 2, static * n * gates * d * 5, t * n * d * (gates * d + (kind == "RNN") * d)
    products = of_x + of_static + others
    assert layer.multiply_adds(bottoms, tops) == products
    assert layer.flops(bottoms, tops) == 2 * products
    for needs in itertools.product([True, False], repeat=2 + static):
        unneeded = (not needs[0]) * of_x + (static and not needs[2]) * of_static
        assert layer.backward_flops(bottoms, tops, needs) == 4 * products - 2 * unneeded


@both
def test_layers_that_share_by_name(kind):
    """A parameter's memory may be another layer's: the steps must use it."""
    names = "".join(f'param {{ name: "p{i}" }} ' for i in range(3 if kind == "LSTM" else 5))
    one, two = text(kind, more=names), text(kind, more=names).replace('"r"', '"r2"').replace('"y"', '"y2"')
    net = make_net("force_backward: true " + layer_text("Input", "x", more="input_param { shape { dim: [4, 2, 2] } }")
                   + layer_text("Input", "cont", more="input_param { shape { dim: [4, 2] } }") + one + two, dtype=Dtype.DOUBLE)
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


# ---- what cannot be

@both
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


def test_wrong_states_and_counts():
    arrays = inputs("LSTM", expose=True)
    arrays[3] = arrays[3][:, :, :2]
    with pytest.raises(ShapeError, match=r"bottom\[3\]: must have shape \[1, 2, 3\]"):
        layer_net(text("LSTM", expose=True), arrays)
    with pytest.raises(ConfigError, match="takes at least 4, got 2"):
        layer_net(text("LSTM").replace("expose_hidden: false", "expose_hidden: true"), inputs("LSTM"))
    with pytest.raises(ConfigError, match=r"recurrent_param.weight_filler.type"):
        layer_net(text("LSTM").replace("uniform", "unknown"), inputs("LSTM"))


def test_many_steps_of_no_sequence():
    net = forward_net(text("LSTM"), [np.empty((2**20, 0, 2)), np.empty((2**20, 0))])
    run_backward(net, [0])
    assert net.tops[-1][0].shape == (2**20, 0, 3) and not any(blob.cpu_diff.any() for blob in net.layers[-1].blobs)


def gradients(kind, params, x, cont, seed, static):
    """Return the gradients of the parameters, x and the static input in float64, for states that begin at 0."""
    params = [np.asarray(p, np.float64) for p in params]
    w, b, v, u = params[:4]
    x, n, d = x.reshape(len(x), -1, w.shape[1]), x.shape[1], u.shape[1]
    h, c, seen = np.zeros((n, d)), np.zeros((n, d)), []
    for t in range(len(x)):
        kept, before = cont[t][:, None] * h, c
        z = x[t] @ w.T + b + kept @ u.T + static @ v.T
        if kind == "RNN":
            h = np.tanh(z)
            seen.append((kept, h, np.tanh(h @ params[4].T + params[5])))
        else:
            i, f, o, g = np.split(z, 4, axis=1)
            i, f, o, g = sigmoid(i), cont[t][:, None] * sigmoid(f), sigmoid(o), np.tanh(g)
            c = f * before + i * g
            h = o * np.tanh(c)
            seen.append((kept, i, f, o, g, before, np.tanh(c)))
    grads, dx, dstatic = [np.zeros_like(p) for p in params], np.zeros_like(x), np.zeros_like(static)
    dh, dc = np.zeros((n, d)), np.zeros((n, d))
    for t in reversed(range(len(x))):
        kept = seen[t][0]
        if kind == "RNN":
            _, h, y = seen[t]
            do = seed[t] * (1 - y * y)
            grads[4] += do.T @ h
            grads[5] += do.sum(0)
            dz = (dh + do @ params[4]) * (1 - h * h)
        else:
            _, i, f, o, g, before, squashed = seen[t]
            dh = dh + seed[t]
            q = dc + dh * o * (1 - squashed * squashed)
            dz = np.concatenate([q * g * i * (1 - i), q * before * f * (1 - f), dh * squashed * o * (1 - o), q * i * (1 - g * g)], axis=1)
            dc = q * f
        for grad, other in zip(grads, (x[t], None, static, kept)):
            grad += dz.sum(0) if other is None else dz.T @ other
        dx[t], dh = dz @ w, cont[t][:, None] * (dz @ u)
        dstatic += dz @ v
    return [*grads, dx, dstatic]


@both
@pytest.mark.parametrize("dtype, tolerance", [(Dtype.FLOAT, 3e-5), (Dtype.DOUBLE, 1e-11)])
@pytest.mark.parametrize("t, n, d, count", [(3, 1, 64, 1), (6, 19, 65, 3), (3, 33, 16, 2), (2, 40, 100, 3), (3, 1, 401, 2), (3, 2, 256, 4),
                                              (5, 1, 40, 1), (5, 3, 33, 1), (5, 8, 16, 1), (5, 19, 70, 1)])
def test_types_in_whole_tiles_on_threads(kind, dtype, tolerance, t, n, d, count):
    """Whole panels of columns, tiles of 8 rows, a static input of many sequences, marks between 0 and 1, and fewer sequences than
    threads, which share each step's product then."""
    random = np.random.default_rng(n)
    x, cont, static = random.standard_normal((t, n, 6)), random.choice([0, 1, 1, 0.5], (t, n)), random.standard_normal((n, 5))
    seed = random.standard_normal((t, n, d))
    minicaffe.set_num_threads(count)
    net = forward_net(text(kind, d, static=True).replace("min: -1 max: 1", "min: -0.3 max: 0.3"), [x, cont, static], dtype)
    run_backward(net, [0, 2], [seed])
    blobs = net.layers[-1].blobs
    params = [blob.cpu_data for blob in blobs]
    got = [net.tops[-1][0].cpu_data, *[b.cpu_diff for b in blobs], net.blob_by_name("x").cpu_diff, net.blob_by_name("static").cpu_diff]
    wanted = [reference(kind, params, x, cont, static)[0], *gradients(kind, params, x, cont, seed, static)]
    for mine, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, right, rtol=0, atol=tolerance * max(1, np.abs(right).max()))
