"""Checks the answers of chapter6.py against solver and net."""

import numpy as np
from chapter6 import momentum_step, rate_inv, read_twice

from minicaffe.net.definitions import LayerDef, insert_splits
from minicaffe.proto import caffe_pb2
from minicaffe.solver.policy import rate


def test_rate_inv():
    param = caffe_pb2.SolverParameter(base_lr=0.01, lr_policy="inv", gamma=1e-4, power=0.75)
    for iteration in (0, 1, 500, 10_000):
        assert np.isclose(rate_inv(0.01, 1e-4, 0.75, iteration), rate(param, iteration, 0), rtol=1e-6)


def test_momentum_step():
    w, v, g = (np.array(values) for values in ([1.0, -2.0], [0.5, 0.0], [2.0, 4.0]))
    new_w, new_v = momentum_step(w, v, g, rate=0.1, momentum=0.9, decay=0.5)
    np.testing.assert_allclose(new_v, [0.7, 0.3])       # 0.9 * 0.5 + 0.1 * (2 + 0.5 * 1), and 0.1 * (4 - 0.5 * 2)
    np.testing.assert_allclose(new_w, [0.3, -2.3])
    assert w.tolist() == [1, -2] and v.tolist() == [0.5, 0]


def test_read_twice():
    nets = [[([], ["x"]), (["x"], ["y"]), (["x"], ["z"]), (["y", "z"], ["loss"])],
            [([], ["x"]), (["x"], ["h"]), (["h"], ["h"]), (["h"], ["y"])],                              # in place: nothing is read twice
            [([], ["x", "label"]), (["x"], ["h"]), (["h"], ["h"]), (["h"], ["a"]), (["h"], ["b"]), (["a", "label"], ["l"]), (["b", "label"], ["m"])]]
    for layers in nets:
        made = [LayerDef(caffe_pb2.LayerParameter(name=f"layer{i}", bottom=bottoms, top=tops)) for i, (bottoms, tops) in enumerate(layers)]
        assert read_twice(layers) == [layer.param.bottom[0] for layer in insert_splits(made) if layer.param.type == "Split"], layers
