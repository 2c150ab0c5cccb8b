"""Dry runs: everything but computing."""

import contextlib
import itertools
import re
import threading
from collections import Counter

import numpy as np
import pytest
from helpers import layer_text, make_net, net_solver

import minicaffe
from minicaffe import memory
from minicaffe.device.threads import computing, dry_run, is_dry_run
from minicaffe.engines import engine
from minicaffe.proto import caffe_pb2

DATA = """name: "dry" layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param { shape { dim: 4 dim: 16 dim: 12 dim: 12 } shape { dim: 4 }
  data_filler { type: "uniform" min: 1 max: 2 } data_filler { type: "constant" value: 1 } } }
"""
CONVOLUTION = 'convolution_param { num_output: 32 kernel_size: %d pad: %d weight_filler { type: "xavier" } }'
NET = DATA + "".join(itertools.starmap(layer_text, [
    ("Convolution", "c1", "x", None, CONVOLUTION % (3, 1)), ("BatchNorm", "n1", "c1", "c1"), ("Scale", "s1", "c1", "c1", "scale_param { bias_term: true }"),
    ("ReLU", "r1", "c1", "c1"), ("Convolution", "c2", "c1", None, CONVOLUTION % (1, 0)), ("LRN", "l", "c2"),
    ("Pooling", "p", "l", None, "pooling_param { kernel_size: 2 stride: 2 }"), ("Dropout", "d", "p", "p"), ("Eltwise", "a", "p p"),
    ("InnerProduct", "ip", "a", None, 'inner_product_param { num_output: 5 weight_filler { type: "xavier" } }'),
    ("Accuracy", "acc", "ip label", None, "include { phase: TEST }"), ("SoftmaxWithLoss", "loss", "ip label")]))


def solver_of(plan, net=NET):
    minicaffe.set_random_seed(3)
    return net_solver(net, plan, base_lr=0.01)


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
    engine.prefer(preferred)
    real, dry = iterations(plan, False), iterations(plan, True)
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
    net = make_net(NET, caffe_pb2.TEST)
    with dry_run():
        for _ in range(4):
            net.forward_from_to(0, len(net.nodes) - 1)
    rows = {row.layers[0]: row for row in net.schedule().rows}
    assert rows["l"].reads == rows["l"].writes == 4 * 4 * 32 * 12 * 12
    assert rows["c1"].layers[1:3] == ["n1", "s1"] or rows["n1"].reads > rows["n1"].writes      # in place


def test_runs_in_runs():
    """The inner end leaves the outer run as it was, with an error, too; each thread has its own."""
    seen = []

    def check_inside(depth, dry):
        assert is_dry_run() == dry
        for run in (dry_run, computing) if depth else ():
            with run():
                check_inside(depth - 1, run is dry_run)
            assert is_dry_run() == dry
            with pytest.raises(ZeroDivisionError), run():
                raise ZeroDivisionError
            assert is_dry_run() == dry

    check_inside(3, False)
    with dry_run():
        other = threading.Thread(target=lambda: seen.append(is_dry_run()))
        other.start()
        other.join()
    assert seen == [False]


def test_data_alone_is_computed(on_cpu):
    """As labels are checked, also those that other layers have changed; nothing behind a layer with parameters is."""
    net = make_net(DATA + layer_text("Power", "two", "label", more="power_param { shift: 1 }") + layer_text("Power", "six", "two", more="power_param { scale: 3 }")
                   + layer_text("InnerProduct", "ip", "six", more='inner_product_param { axis: 0 num_output: 2 bias_filler { type: "constant" value: 8 } }'))
    net.blobs["ip"].data[...] = -1
    with dry_run():
        net.forward_from_to(0, 3)
    assert (net.blobs["two"].data == 2).all() and (net.blobs["six"].data == 6).all() and (net.blobs["ip"].data == -1).all()
