"""Dry runs: everything but computing."""

import contextlib
import re
import threading
from collections import Counter

import numpy as np
import pytest

import minicaffe
from minicaffe import memory
from minicaffe.device.threads import computing, dry_run, is_dry_run
from minicaffe.engines import engine
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

DATA = """name: "dry" layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param { shape { dim: 4 dim: 16 dim: 12 dim: 12 } shape { dim: 4 }
  data_filler { type: "uniform" min: 1 max: 2 } data_filler { type: "constant" value: 1 } } }
"""
NET = DATA + """layer { name: "c1" type: "Convolution" bottom: "x" top: "c1" convolution_param { num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "n1" type: "BatchNorm" bottom: "c1" top: "c1" } layer { name: "s1" type: "Scale" bottom: "c1" top: "c1" scale_param { bias_term: true } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param { num_output: 32 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "l" type: "LRN" bottom: "c2" top: "l" } layer { name: "p" type: "Pooling" bottom: "l" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "d" type: "Dropout" bottom: "p" top: "p" } layer { name: "a" type: "Eltwise" bottom: "p" bottom: "p" top: "a" }
layer { name: "ip" type: "InnerProduct" bottom: "a" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "acc" type: "Accuracy" bottom: "ip" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def solver_of(plan, net=NET):
    param = caffe_pb2.SolverParameter(base_lr=0.01, lr_policy="fixed", momentum=0.9, type="SGD", max_iter=9)
    param.net_param.CopyFrom(parse_text(net, caffe_pb2.NetParameter)[0])
    minicaffe.set_random_seed(3)
    return create_solver(param, plan=plan)


def iterations(plan, dry):
    """Train; return what happened in three iterations: what ran in which order, what happened to memory, the most bytes that lived."""
    solver = solver_of(plan)
    with memory.record() as events:
        for _ in range(3):
            with dry_run() if dry else contextlib.nullcontext():
                solver.step(1)
    live, peak = 0, 0
    for event in events:
        live += event.nbytes * ((event.kind == "alloc") - (event.kind == "free"))
        peak = max(peak, live)
    ran = [(event.kind, event.name, event.detail) for event in events if event.kind in ("begin", "end")]
    return ran, Counter((e.kind, str(e.place), e.name, e.nbytes, re.sub(r"oneDNN \d+", "oneDNN", e.detail)) for e in events
                        if e.kind in ("alloc", "free", "head", "copy", "reorder")), peak


@pytest.mark.parametrize("preferred", ["", "CAFFE", "PLAIN"])
@pytest.mark.parametrize("plan", ["memory", None])
def test_memory_and_events(plan, preferred):
    before = engine.preferred()
    engine.prefer(preferred)
    try:
        real, dry = iterations(plan, False), iterations(plan, True)
    finally:
        engine.prefer(before)
    assert len(real[0]) > 90 and sum(real[1].values()) > 100
    assert dry == real


@pytest.mark.parametrize("preferred", ["CAFFE", "PLAIN"])   # others keep weights in layouts, whose values are undefined afterwards
def test_nothing_is_computed_but_batches(preferred):
    engine.prefer(preferred)
    solver = solver_of(None)
    weights = [blob.cpu_data.copy() for blob in solver.net.learnable_params]
    assert any(values.any() for values in weights)
    with dry_run():
        solver.step(1)
    engine.prefer("")
    for blob, values in zip(solver.net.learnable_params, weights, strict=True):
        np.testing.assert_array_equal(blob.cpu_data, values)
    assert not solver.net.blobs["c1"].cpu_data.any()        # new memory
    x = solver.net.blobs["x"].cpu_data
    assert x.min() >= 1 and x.max() <= 2 and (solver.net.blobs["label"].cpu_data == 1).all()


def test_other_threads_compute():
    """A training beside a dry run has the numbers of one alone."""
    net = NET.replace('type: "uniform" min: 1 max: 2', 'type: "constant" value: 1').replace('type: "Dropout"', 'type: "TanH"')    # all draw from one stream
    alone, beside = solver_of(None, net), solver_of(None, net)
    alone.step(3)
    with dry_run():
        thread = threading.Thread(target=beside.step, args=(3,))
        thread.start()
        solver_of("memory", net).step(2)
        thread.join()
    for one, other in zip(alone.net.learnable_params, beside.net.learnable_params, strict=True):
        assert one.cpu_data.any() and np.isfinite(one.cpu_data).all()
        np.testing.assert_allclose(one.cpu_data, other.cpu_data, rtol=1e-5, atol=1e-6)


def test_forwards(device):
    net = Net(parse_text("state { phase: TEST } " + NET, caffe_pb2.NetParameter)[0])
    with dry_run():
        for _ in range(4):
            net.forward_from_to(0, len(net.nodes) - 1)
    rows = {row.layers[0]: row for row in net.schedule().rows}
    assert rows["l"].reads == rows["l"].writes == 4 * 4 * 32 * 12 * 12
    assert rows["c1"].layers[1:3] == ["n1", "s1"] or rows["n1"].reads > rows["n1"].writes      # in place


def test_runs_in_runs():
    """The inner end leaves the outer run as it was, with an error, too; each thread has its own."""
    seen = []
    assert not is_dry_run()
    with dry_run():
        with dry_run():
            assert is_dry_run()
        assert is_dry_run()
        with computing():
            assert not is_dry_run()
            with computing():
                assert not is_dry_run()
            assert not is_dry_run()
            with dry_run():
                assert is_dry_run()
            assert not is_dry_run()
        assert is_dry_run()
        for inner in computing, dry_run:
            with pytest.raises(ZeroDivisionError), inner():
                raise ZeroDivisionError
            assert is_dry_run()
        other = threading.Thread(target=lambda: seen.append(is_dry_run()))
        other.start()
        other.join()
    assert not is_dry_run() and seen == [False]
    with computing():
        assert not is_dry_run()
    with pytest.raises(ZeroDivisionError), dry_run():
        raise ZeroDivisionError
    assert not is_dry_run()


def test_data_alone_is_computed(on_cpu):
    """As labels are checked, also those that other layers have changed; nothing behind a layer with parameters is."""
    text = DATA + """layer { name: "two" type: "Power" bottom: "label" top: "two" power_param { shift: 1 } }
      layer { name: "six" type: "Power" bottom: "two" top: "six" power_param { scale: 3 } }
      layer { name: "ip" type: "InnerProduct" bottom: "six" top: "ip" inner_product_param { axis: 0 num_output: 2 bias_filler { type: "constant" value: 8 } } }"""
    net = Net(parse_text(text, caffe_pb2.NetParameter)[0])
    net.blobs["ip"].data[...] = -1
    with dry_run():
        net.forward_from_to(0, 3)
    assert (net.blobs["two"].data == 2).all() and (net.blobs["six"].data == 6).all() and (net.blobs["ip"].data == -1).all()
