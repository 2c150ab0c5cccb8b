"""What layers keep in scratch blobs, here the softmax's probabilities, is read on the CPU after replays of a training's CUDA graph."""

import numpy as np
from training import NET, losses, make_solver

import minicaffe


def test_cpu_backward_between_replays():
    found = []
    for graphs in (True, False):
        solver = make_solver(NET)
        solver.use_graphs = graphs
        for _ in range(2):
            losses(solver, 3)
            minicaffe.set_mode_cpu()
            solver.net.clear_param_diffs()
            solver.net.backward_from_to(len(solver.net.nodes) - 1, 0)
            found.append([blob.cpu_diff.copy() for blob in solver.net.learnable_params])
            minicaffe.set_mode_gpu()
    for ours, theirs in zip(found[:2], found[2:]):
        for one, other in zip(ours, theirs):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)
