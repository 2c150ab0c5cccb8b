"""What a training step costs in counts, which neither a clock nor other programs change: allocations, copies between sides, reorders
between layouts, calls of Python functions and kernel launches of one step, after a few that made what is kept. A count that falls is
progress: lower its number here. One that rises has to say why.
"""

import sys
from collections import Counter

import pytest
from helpers import layer_text, net_solver

from minicaffe import memory
from minicaffe.engines import engine

INPUT = """layer {{ name: "in" type: "Input" top: "data" top: "label" input_param {{ shape {{ dim: 2 dim: {} dim: 16 dim: 16 }} shape {{ dim: 2 }} }} }}"""


def conv(name, bottom, outputs, size=3):
    return layer_text("Convolution", name, bottom, more=f'convolution_param {{ num_output: {outputs} kernel_size: {size} pad: {size // 2} '
                      'weight_filler { type: "xavier" } }')


def relu(name):
    return layer_text("ReLU", f"{name}/relu", name, name)


def norm(name):
    """BatchNorm and Scale in place, as in ResNet-50."""
    return layer_text("BatchNorm", f"{name}/bn", name, name) + layer_text("Scale", f"{name}/scale", name, name, "scale_param { bias_term: true }")


def pool(name, bottom, kind="MAX"):
    return layer_text("Pooling", name, bottom, more=f"pooling_param {{ pool: {kind} kernel_size: 2 stride: 2 }}")


def loss(bottom):
    return layer_text("InnerProduct", "ip", bottom, more='inner_product_param { num_output: 10 weight_filler { type: "xavier" } }') + layer_text(
        "SoftmaxWithLoss", "loss", "ip label")


NETS = {
    "lenet": [INPUT.format(1), conv("c1", "data", 20, 5), pool("p1", "c1"), conv("c2", "p1", 50, 5), pool("p2", "c2"), loss("p2")],
    "inception": [INPUT.format(3), conv("c1", "data", 32), relu("c1"), conv("a", "c1", 16, 1), relu("a"), conv("b", "c1", 32), relu("b"),
                  pool("s", "c1"), layer_text("Concat", "join", "a b"), pool("p", "join"), conv("c2", "p", 32), relu("c2"), loss("c2")],
    "residual": [INPUT.format(3), conv("c1", "data", 32), norm("c1"), relu("c1"), conv("c2", "c1", 32), norm("c2"), relu("c2"),
                 conv("c3", "c2", 32), norm("c3"), layer_text("Eltwise", "sum", "c1 c3"), relu("sum"), pool("p", "sum", "AVE"), loss("p")],
}


def solver_of(name, plan=None):
    """A solver that has made four steps."""
    solver = net_solver("".join(NETS[name]), plan, base_lr=0.01, weight_decay=5e-4, max_iter=10, random_seed=1)
    solver.net.blob_by_name("data").data[...] = 1
    solver.step(4)
    return solver


def counted(name):
    """What happened in the fifth step of a solver: kinds of events with their names, without the layers themselves and scratch memory, which
    operations take in turn from a cache.
    """
    solver = solver_of(name)
    with memory.record() as events:
        solver.step(1)
    return [(event.kind, event.name) for event in events
            if event.name != "scratch data" and event.kind not in ("cache hit", "split", "merge", "begin", "end", "loss")]


@pytest.mark.no_plan("a plan takes and gives back blocks in each step")
@pytest.mark.parametrize("name", NETS)
def test_caffe_engine_moves_no_memory(on_cpu, name):
    """No block is taken, nothing is copied, no side of a blob changes, but that gradients of parameters begin as zeros."""
    engine.prefer("CAFFE")
    assert [(kind, who) for kind, who in counted(name) if kind != "head" or not who.endswith("] diff")] == []


@pytest.mark.parametrize(("name", "reordered"), [("lenet", {"p2 data": 1, "p2 diff": 1}), ("inception", {"c2 data": 1, "c2 diff": 2}),
                                                 ("residual", {"p data": 1, "p diff": 1})])
@pytest.mark.no_plan("a plan takes and gives back blocks in each step")
def test_onednn_reorders_at_stack_end(onednn, name, reordered):
    """Between the last convolution and the inner product; no block is taken."""
    events = counted(name)
    assert {kind for kind, _ in events} == {"head", "reorder"}
    assert Counter(who for kind, who in events if kind == "reorder") == reordered


@pytest.mark.parametrize(("name", "engine_name", "most"), [
    ("lenet", "CAFFE", 60), ("inception", "CAFFE", 70), ("residual", "CAFFE", 130),
    ("lenet", "ONEDNN", 60), ("inception", "ONEDNN", 90), ("residual", "ONEDNN", 130),
])
@pytest.mark.no_plan("a plan calls more functions")
def test_python_calls_of_a_step(onednn, name, engine_name, most):
    """Functions of Python that a step calls, and what these call, a quarter more allowed; of Cython's functions those that Python calls."""
    engine.prefer(engine_name)
    solver, calls = solver_of(name), Counter()

    def count(frame, event, function):
        if event in ("call", "c_call"):
            calls[frame.f_code.co_name if event == "call" else function.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        solver.step(1)
    finally:
        sys.setprofile(before)
    for name in ("setprofile", "__eq__", "__hash__", "hash"):     # how often a dict compares keys depends on their addresses
        del calls[name]
    assert calls.total() <= most, calls.most_common(20)


@pytest.mark.parametrize("name", NETS)
def test_small_parameters_updated_together(on_cpu, monkeypatch, name):
    """A plan lets the update follow each gradient, but small ones wait for each other."""
    solver, calls = solver_of(name, plan="memory"), []
    update = solver.update
    monkeypatch.setattr(solver, "update", lambda rate, which, part: (calls.append(sorted(which)), update(rate, which, part)))
    solver.step(1)
    assert calls == [list(range(len(solver.net.learnable_params)))]


@pytest.mark.parametrize(("name", "launches"), [("lenet", 37), ("inception", 67), ("residual", 83)])
def test_launches_of_a_step(device, name, launches):
    """On a device a step waits once, for the loss, and starts this many kernels."""
    if device == "cpu":
        pytest.skip("kernels are launched on devices: pytest --device sim")
    from minicaffe import cuda
    cuda.current().record_launches(True)
    try:
        events = counted(name)
    finally:
        cuda.current().record_launches(False)
    kinds = Counter(kind for kind, _ in events)
    assert [who for kind, who in events if kind == "copy"] == ["loss data"]
    assert kinds["alloc"] == 0 and kinds["launch"] <= launches, kinds
