"""The same training on the device and on the CPU: the same losses, iteration by iteration.

Both run the same kernels, but sums are taken in another order and with fused multiply-adds here or there; the differences grow
with the iterations, from 1e-7 to some 1e-5.
"""

from pathlib import Path

import numpy as np
import pytest
from training import losses, make_solver

import minicaffe
from minicaffe.engines import engine
from minicaffe.net.net import read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto import text as prototxt

ROOT = Path(__file__).resolve().parent.parent.parent
TOLERANCE = 1e-4


def on_both(new_solver, iterations):
    """Return the losses on the device and on the CPU, there by engine CAFFE, and the solvers."""
    device_solver = new_solver()
    device = losses(device_solver, iterations)
    minicaffe.set_mode_cpu()
    before = engine.preferred()
    engine.prefer("CAFFE")
    cpu_solver = new_solver()
    cpu = losses(cpu_solver, iterations)
    engine.prefer(before)
    minicaffe.set_mode_gpu()
    return np.array(device), np.array(cpu), device_solver, cpu_solver


def lenet(monkeypatch, batch):
    monkeypatch.chdir(ROOT)
    param, _ = read_net("models/lenet/net.prototxt", caffe_pb2.TRAIN)
    for layer in param.layer:
        if layer.type == "Data":
            layer.data_param.batch_size = batch
    return prototxt.write_text(param)


@pytest.mark.parametrize(("graphs", "iterations"), [pytest.param(True, 50, marks=pytest.mark.slow(6)), (False, 8)], ids=["graph", "launches"])
def test_lenet(monkeypatch, graphs, iterations):
    net = lenet(monkeypatch, 4)  # the simulated device is slow

    def new_solver():
        solver = make_solver(net, base_lr=0.01, lr_policy="inv", gamma=0.0001, power=0.75, weight_decay=0.0005)
        solver.use_graphs = graphs
        return solver

    device, cpu, solver, other = on_both(new_solver, iterations)
    assert iterations < 50 or cpu[-10:].mean() < 0.7 * cpu[0]  # it learns
    np.testing.assert_allclose(device, cpu, atol=TOLERANCE, rtol=0)
    for ours, theirs in zip(solver.net.learnable_params, other.net.learnable_params):
        np.testing.assert_allclose(ours.cpu_data, theirs.cpu_data, atol=TOLERANCE, rtol=0, err_msg=ours.name)


WIDE = """layer {{ name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {{ shape {{ dim: [{batch}, 4] }}
  shape {{ dim: [{batch}, {channels}] }} data_filler {{ type: "gaussian" std: 1 }} data_filler {{ type: "uniform" }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: {channels} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }}"""


@pytest.mark.parametrize(("channels", "batch"), [
    (64, 4096), (1024, 64), (4096, 64), *(pytest.param(*sizes, marks=pytest.mark.slow(1)) for sizes in ((256, 2048), (512, 1024), (1024, 512), (2048, 256)))])
def test_sums_beside_the_learning_rate(channels, batch):
    """Sums over many channels fill the scratch memory, and the rate of a recorded iteration stays what it is."""
    def new_solver(graphs=True):
        solver = make_solver(WIDE.format(channels=channels, batch=batch), base_lr=0.001, lr_policy="step", gamma=0.7, stepsize=2)
        solver.use_graphs = graphs
        return solver

    device, cpu, *_ = on_both(new_solver, 6)
    np.testing.assert_allclose(device, losses(new_solver(graphs=False), 6), rtol=1e-6)
    np.testing.assert_allclose(device, cpu, rtol=TOLERANCE)
