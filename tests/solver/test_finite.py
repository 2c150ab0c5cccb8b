"""The watch for values that are not finite, against a second implementation: random losses, parameters and ranks, one after another."""

import logging
import math
import random
from types import SimpleNamespace

import pytest
from helpers import make_net

from minicaffe.errors import ConfigWarning, NotFiniteError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver, finite
from minicaffe.solver.finite import CHECK_START, CORRECT_DATA, LOWER_RATE, FiniteWatch


class Ranks:
    """The group of `rank`; `gather` gives what the others would have found."""

    def __init__(self, rank, size):
        self.rank, self.size, self.found = rank, size, None

    def gather(self, mine):
        assert mine == self.found[self.rank]
        return self.found

    def name(self, rank):
        return f"rank {rank}"


class PlainWatch:
    """The reports of the watch: each method returns the lines of the log and the error that is raised, (text, remedy, since)."""

    def __init__(self, effect, begin):
        self.effect, self.begin, self.since, self.where, self.lost = effect, begin, None, "", False

    def remedy(self, iteration):
        return LOWER_RATE if iteration > self.begin else CHECK_START

    def loss(self, solver, loss, rate, late, own, parameter):
        lines = []
        if self.since is None:
            text, from_data = own
            if solver.group.size > 1 and (ranks := [rank for rank, there in enumerate(solver.group.found) if there]):
                self.where = f", after the loss of {', '.join(f'rank {rank}' for rank in ranks[:8])}"
                text, from_data = solver.group.found[ranks[0]]
                text = f"on rank {ranks[0]} {text}"
            if late and solver.net.input_blobs and not from_data:
                text += ", unless it came from an input that was fed again since"
            self.since = solver.iter - 1, CORRECT_DATA if from_data else self.remedy(solver.iter - 1)
            lines = [f"Iteration {solver.iter - 1}: the loss is {loss:g}, with learning rate {rate:g}; {text}; {self.since[1]}"]
        more, raised = self.parameters(solver, parameter)
        return lines + more, raised

    def parameters(self, solver, parameter, effect=None):
        lines = []
        if parameter:
            since, remedy = self.since or (solver.iter - 1, self.remedy(solver.iter))
            text = f"iteration {solver.iter}: {parameter}{self.where}"
            if (effect or self.effect) == "stop":
                return [], (f"{text}; {remedy}", remedy, since)
            if not self.lost:
                lines = [text]
        elif self.lost:
            self.since, self.where = None, ""
        self.lost = bool(parameter)
        return lines, None


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 3), (1, 3), (2, 12)])
def test_any_sequence_of_losses(caplog, monkeypatch, rank, size):
    for seed in range(30):
        pick = random.Random(seed)
        begin = pick.choice([0, 3])
        group, net = Ranks(rank, size), SimpleNamespace(input_blobs=pick.choice([[], [1]]))
        solver = SimpleNamespace(group=group, net=net, iter=begin, file=None, exchange=SimpleNamespace(losses=[0.0] * size))
        effect = pick.choice(finite.EFFECTS)
        watch, plain = FiniteWatch(effect, begin), PlainWatch(effect, begin)
        for _ in range(20):
            solver.iter += pick.random() < 0.7
            own = pick.choice(["a blob", "another"]), pick.random() < 0.3
            parameter = pick.choice([None, None, "parameters are lost"])
            losses = [pick.choice([1.0, 2.0, math.nan, math.inf]) for _ in range(size)]
            if pick.random() < 0.3:
                losses = [1e308] * size     # only their sum is not finite
            solver.exchange.losses = losses
            group.found = [None if math.isfinite(loss) else own if i == rank else (f"blob of {i}", i % 2 == 0)
                           for i, loss in enumerate(losses)]
            monkeypatch.setattr(finite, "first_blob", lambda _, own=own: own)
            monkeypatch.setattr(finite, "first_parameter", lambda _, parameter=parameter: parameter)
            caplog.clear()
            caplog.set_level(logging.INFO, "minicaffe.solver")
            raised = None
            try:
                if pick.random() < 0.6:
                    loss, late = pick.choice([math.nan, math.inf]), pick.random() < 0.5
                    expected = plain.loss(solver, loss, 0.5, late, own, parameter)
                    watch.loss(solver, loss, 0.5, late)
                else:
                    effect = pick.choice([None, None, "stop"])
                    expected = plain.parameters(solver, parameter, effect)
                    assert watch.parameters(solver, effect) == (parameter is None)
            except NotFiniteError as error:
                raised = error.message, error.remedy, error.since
            lines, expected_error = expected
            assert raised == expected_error, seed
            records = [record for record in caplog.records if record.name == "minicaffe.solver"]
            assert len(records) == len(lines) and all(r.getMessage().startswith(line) for r, line in zip(records, lines)), seed
            assert all((r.levelno == logging.WARNING) == (rank == 0 or "the loss is" not in line) for r, line in zip(records, lines))


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
