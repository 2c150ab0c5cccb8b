"""Every update rule against its formula (minicaffe/solver/sgd.py) in float64, from the raw gradients of each iteration.

Tolerances: the float kernels round each operation (2^-24) and keep their histories in float; over 12 iterations 2e-5 of
the largest weight covers that. Double: 1e-12.
"""

import itertools

import numpy as np
import pytest
from bowl import BOWL, gradients_of_steps, make_solver, weights

from minicaffe.blob import Blob, Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.solver.update import Rule, update_params

CASES = {
    "SGD": "momentum: 0.9",
    "Nesterov": "momentum: 0.9",
    "AdaGrad": "delta: 1e-3",
    "RMSProp": "rms_decay: 0.9 delta: 1e-3",
    "AdaDelta": "momentum: 0.95 delta: 1e-4 base_lr: 1",
    "Adam": "momentum: 0.9 momentum2: 0.99 delta: 1e-4",
}
EXTRAS = ["", "weight_decay: 0.05", "weight_decay: 0.05 regularization_type: 'L1'", "iter_size: 3 weight_decay: 0.01",
          "clip_gradients: 1.5 iter_size: 2", "clip_gradients: 0", "clip_gradients: 7"]  # 7 is above some norms and below others


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("kind", CASES)
def test_the_kernel_computes_the_formula(kind, extra, dtype, device):
    solver = make_solver(f"type: '{kind}' {CASES[kind]} {extra}", dtype=dtype)
    assert type(solver).__name__ == kind + "Solver"
    param = solver.param
    w = [blob.astype(np.float64) for blob in weights(solver)]
    history = [[np.zeros(a.shape) for _ in range(solver.histories)] for a in w]
    steps, tolerance = gradients_of_steps(solver), 2e-5 if dtype == Dtype.FLOAT else 1e-12
    for _ in range(12):
        rate = solver.constants(param.base_lr)[0]
        for i, g in enumerate(next(steps)):
            decay = param.weight_decay * solver.net.params_weight_decay[i]
            g = g + decay * (np.sign(w[i]) if param.regularization_type == "L1" else w[i])
            step = solver.formula(g, history[i], rate * solver.net.params_lr[i])
            w[i] -= step
            blob = solver.net.learnable_params[i]
            np.testing.assert_allclose(blob.cpu_data, w[i], rtol=0, atol=tolerance * np.abs(w[i]).max())
            np.testing.assert_allclose(blob.cpu_diff, step, rtol=0, atol=tolerance * max(1, np.abs(step).max()))
    assert len(solver.history) == len(w) * (2 if kind in ("AdaDelta", "Adam") else 1)
    for blob, expected in zip(solver.history, [arrays[n] for n in range(solver.histories) for arrays in history], strict=True):
        np.testing.assert_allclose(blob.cpu_data, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("count", [1, 17, 16384 * 3 + 5])
def test_threads_do_not_change_the_bits(rule, count):
    random = np.random.default_rng(5)
    data, gradient = random.standard_normal((2, count))
    results = []
    for threads in (1, 2):
        set_num_threads(threads)
        param = Blob((count,))
        history = [Blob((count,)) for _ in range(2 if rule in (Rule.ADADELTA, Rule.ADAM) else 1)]
        param.data[...] = data
        for _ in range(3):
            param.diff[...] = gradient
            update_params(rule, [param], history, [1.0], [1.0], 0.1, 0.5, 0.01, False, 0.9, 0.99, 1e-3)
        results.append([blob.data.copy() for blob in (param, *history)])
    assert all(np.array_equal(a, b) for a, b in zip(*results))
    assert not np.array_equal(results[0][0], data.astype(np.float32))


def test_frozen_parameter_decays_in_history():
    solver = make_solver("momentum: 0.9 weight_decay: 0.5", BOWL.replace("lr_mult: 1", "lr_mult: 0"))
    before = weights(solver)
    solver.step(3)
    frozen, learned = solver.net.learnable_params
    assert np.array_equal(frozen.cpu_data, before[0]) and not np.array_equal(learned.cpu_data, before[1])


def test_apply_update_alone():
    """pycaffe's own test: diff 1 and rate 0.1 move every weight by -0.1; the rate may change between steps."""
    solver = make_solver()
    for rate in 0.1, 0:
        solver.param.base_lr = rate
        before = weights(solver)
        for blob in solver.net.learnable_params:
            blob.diff[...] = 1
        assert solver.apply_update() == pytest.approx(rate)
        for blob, old, mult in zip(solver.net.learnable_params, before, (1, 2)):
            np.testing.assert_allclose(blob.cpu_data, old - rate * mult, atol=1e-6)
    assert solver.iter == 2


def test_bad_constants():
    for fields, named in (("type: 'AdaGrad' momentum: 0.9", "momentum"), ("type: 'RMSProp' momentum: 0.9", "momentum"),
                          ("type: 'RMSProp' rms_decay: 1", "rms_decay"), ("type: 'RMSProp' rms_decay: -0.1", "rms_decay"),
                          ("type: 'Adam' momentum: 1", "momentum"), ("type: 'Adam' momentum2: 1.5", "momentum2"),
                          ("weight_decay: 0.1 regularization_type: 'L3'", "regularization_type")):
        with pytest.raises(ConfigError) as error:
            make_solver(fields)
        assert error.value.field == named
    for fields in ("regularization_type: 'L3'", "regularization_type: 'L3' weight_decay: 0"):     # without decay any will do
        make_solver(fields).step(1)


def test_history_of_another_net():
    with pytest.raises(ShapeError, match=r"history\[0\]"):
        update_params(Rule.SGD, [Blob((3,))], [Blob((4,))], [1.0], [1.0], 0.1)
    for rule, fits in ((Rule.SGD, (1, 1, 1)), (Rule.ADAM, (2, 1, 1))):
        for counts in set(itertools.product(range(3), repeat=3)) - {fits}:
            with pytest.raises(ShapeError) as caught:
                update_params(rule, [Blob((3,))], [Blob((3,)) for _ in range(counts[0])], [1.0] * counts[1], [1.0] * counts[2], 0.1)
            assert str(caught.value) == ("1 parameters with {} history blobs, {} lr_mults and {} decay_mults; they must belong to one "
                                         "net").format(*counts)
