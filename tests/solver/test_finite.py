"""The watch for values that are not finite: what it reports of losses, parameters and ranks, and the first blob that has one."""

import logging
import math
from types import SimpleNamespace

import pytest
from helpers import make_net

from minicaffe.errors import ConfigWarning, NotFiniteError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver, finite
from minicaffe.solver.finite import CHECK_START, CORRECT_DATA, LOWER_RATE, FiniteWatch

BLOB, DATA = ("a blob", False), ("the data", True)


@pytest.mark.parametrize("begin, late, inputs, found, place, remedy, where", [
    (3, False, [1], [BLOB], "a blob", LOWER_RATE, ""), (4, False, [1], [BLOB], "a blob", CHECK_START, ""), (4, True, [1], [DATA], "the data", CORRECT_DATA, ""),
    (3, True, [1], [BLOB], "a blob, unless it came from an input that was fed again since", LOWER_RATE, ""), (3, True, [], [BLOB], "a blob", LOWER_RATE, ""),
    (3, False, [], [None, DATA, BLOB], "on rank 1 the data", CORRECT_DATA, ", after the loss of rank 1, rank 2"),
    (3, True, [1], [BLOB] * 12, "on rank 0 a blob, unless it came from an input that was fed again since", LOWER_RATE,
     f", after the loss of {', '.join(f'rank {i}' for i in range(8))}"),
    (3, False, [1], [None, None], "a blob", LOWER_RATE, ""),        # only the sum of their losses is not finite
])
def test_reports_of_a_loss(caplog, monkeypatch, begin, late, inputs, found, place, remedy, where):
    """One line until the parameters, which were lost, are finite again; the first rank that has such a loss names the blob."""
    caplog.set_level(logging.INFO, "minicaffe.solver")
    lost = []
    monkeypatch.setattr(finite, "first_parameter", lambda solver: lost[0] if lost else None)
    for rank, own in enumerate(found):
        def gather(mine, own=own):
            assert mine == own
            return found

        group = SimpleNamespace(rank=rank, size=len(found), gather=gather, name=lambda rank: f"rank {rank}")
        solver = SimpleNamespace(group=group, net=SimpleNamespace(input_blobs=inputs), iter=5, file=None,
                                 exchange=SimpleNamespace(losses=[1.0 if one is None else math.nan for one in found]))
        monkeypatch.setattr(finite, "first_blob", lambda net, own=own: own or BLOB)
        watch = FiniteWatch("warn", begin)
        report = ("WARNING" if rank == 0 else "INFO", f"Iteration 4: the loss is nan, with learning rate 0.5; {place}; {remedy}")
        text = f"iteration 5: parameters are lost{where}; {remedy}"
        caplog.clear()
        for _ in range(2):
            watch.loss(solver, math.nan, 0.5, late)
        lost.append("parameters are lost")
        assert not watch.parameters(solver) and not watch.parameters(solver)
        with pytest.raises(NotFiniteError) as caught:
            watch.parameters(solver, "stop")
        assert (str(caught.value), caught.value.remedy, caught.value.since) == (text, remedy, 4)
        lost.clear()
        assert watch.parameters(solver)
        watch.loss(solver, math.nan, 0.5, late)
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert lines == [report, ("WARNING", f"{text}; no snapshots are written until they are finite again"), report]
        lost.append("parameters are lost")
        with pytest.raises(NotFiniteError, match=f"parameters are lost; {LOWER_RATE if begin < 5 else CHECK_START}$") as caught:
            FiniteWatch("stop", begin).parameters(solver)
        assert caught.value.since == 4
        lost.clear()


NET = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" } layer { name: "two" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 2 } }
layer { name: "out" type: "Sigmoid" bottom: "z" top: "o" }"""
GONE = ("no blob holds such a value any more", False)
SHARED = ("which blob it came from is not known, as blobs share memory (find it with --plan none)", False)


@pytest.mark.parametrize("plan, spoiled, found", [
    (None, "", GONE), (None, "x", ("the first blob that is not finite is 'x' of layer 'in' (Input)", True)),
    (None, "yo", ("the first blob that is not finite is 'y' of layer 'ip' (InnerProduct) and layer 'relu' (ReLU)", False)),
    (None, "o", ("the first blob that is not finite is 'o' of layer 'out' (Sigmoid)", False)),
    ("memory", "", SHARED), ("memory", "o", SHARED),        # what was before it is gone
    ("memory", "xo", ("the first blob that is not finite is 'x' of layer 'in' (Input)", True)),
])
@pytest.mark.no_plan("compares a net without one")
def test_the_first_blob(plan, spoiled, found):
    net = make_net("state { phase: TEST } " + NET, plan=plan)
    net.forward_from_to(0, len(net.nodes) - 1)
    for name in spoiled:
        net.blobs[name].data[-1, -1] = math.nan
    assert finite.first_blob(net) == found


@pytest.mark.parametrize("kind, histories", [("SGD", 1), ("Adam", 2)])
def test_the_first_parameter(kind, histories):
    """Parameters come before their history; of two histories of a parameter both have its place."""
    param = parse_text(f"net_param {{ {NET} }} type: '{kind}' base_lr: 1 lr_policy: 'fixed'", caffe_pb2.SolverParameter)[0]
    with pytest.warns(ConfigWarning, match="no loss"):
        solver = create_solver(param)
    assert finite.first_parameter(solver) is None
    blobs, places = [*solver.net.learnable_params, *solver.history], [f"layer '{name}' blobs[{i}]" for name in ("ip", "two") for i in range(2)]
    assert len(blobs) == 4 * (1 + histories)
    for k in reversed(range(len(blobs))):
        blobs[k].data.reshape(-1)[-1] = math.inf
        what = "parameters are" if k < 4 else "the history of parameters is"
        assert finite.first_parameter(solver) == f"{what} no longer finite, the first is {places[k % 4]}"
