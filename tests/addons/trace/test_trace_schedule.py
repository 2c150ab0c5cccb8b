"""The schedule in the document of a trace: whose it is, when there is none, and that it changes neither the record nor the net."""

import gc

import pytest

import minicaffe
from minicaffe.addons import trace
from minicaffe.addons.trace.model import Trace
from minicaffe.engines import engine
from minicaffe.errors import ConfigError
from minicaffe.memory import reporter
from minicaffe.net.run import BEFORE_FORWARD


def test_it_is_that_of_the_net_and_older_documents_have_none(where, make_solver, tmp_path):
    solver = make_solver(plan="memory")
    with trace.record(solver) as made:
        solver.step(1)
    assert made.document["schedule"] == solver.net.schedule().as_dict() and made.document["schedule"]["peak"] > 0
    rows = made.document["schedule"]["rows"]
    for step in made.steps:     # each has one row
        if step["node"] is not None:
            assert len([row for row in rows if row["direction"] == step["kind"] and step["layer"] in row["layers"]]) == 1, step
    made.save(tmp_path / "new.json")
    assert trace.load(tmp_path / "new.json").document["schedule"]["rows"] == rows
    del made.document["schedule"]
    made.save(tmp_path / "old.json")
    assert "schedule" not in trace.load(tmp_path / "old.json").document
    with trace.record() as alone:
        solver.step(1)
    assert "schedule" not in alone.document and "schedule" not in Trace(None).document


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("plan", [None, "memory"])
def test_it_changes_no_record(where, make_solver, plan, observed):
    """A record of which a trace is made after each iteration has the events and steps of one that is left alone."""
    found = []
    for often in (False, True):
        solver = make_solver(plan=plan)
        if observed:
            solver.net.add_hook(BEFORE_FORWARD, lambda layer: None)
        recorder = trace.Recorder(solver)
        solver.step(1)      # what is taken once only
        recorder.start()
        for _ in range(3):
            solver.step(1)
            if often:
                documents = [recorder.trace().document for _ in range(2)]
                for node in documents[0]["net"]["nodes"] + documents[1]["net"]["nodes"]:
                    del node["engine"]      # a schedule names one for a layer that others computed so far, too
                assert documents[0] == documents[1]
        recorder.stop()
        made = recorder.trace()
        assert "schedule" in made.document
        events = [(event.kind, event.name, event.detail, event.nbytes) for event in made.events]
        found.append([(step["kind"], step["layer"], step["with"], step["loss"], sorted(events[step["first"]:step["last"]]))
                      for step in made.steps])      # sorted, as frees of one step have no order
        del solver, recorder, made
        gc.collect()
    assert found[0] == found[1]


def test_an_observed_run_has_the_rows_all_the_same(on_cpu, make_solver):
    solver = make_solver()
    with trace.record(solver) as plain:
        solver.step(1)
    solver.net.add_hook(BEFORE_FORWARD, lambda layer: None)
    with trace.record(solver) as made:
        solver.step(1)
    assert made.document["schedule"]["rows"] == plain.document["schedule"]["rows"]
    assert ["norm", "relu"] in [row["layers"] for row in made.document["schedule"]["rows"]]
    assert not any(step["with"] for step in made.steps) and any(step["with"] for step in plain.steps)
    assert plain.document["schedule"]["observed"] is None
    assert made.document["schedule"]["observed"] == "callbacks run between layers"


@pytest.mark.parametrize("plan", [None, "memory"])
def test_it_keeps_no_memory_of_the_net(where, make_solver, plan):
    make_solver(plan=plan).step(1)      # what stays for the next net
    gc.collect()

    def names():
        return sorted(block.name for block in reporter.live() if block.name.startswith(("conv", "norm", "ip")))

    before, solver = names(), make_solver(plan=plan)
    with trace.record(solver) as made:
        solver.step(1)
    during = names()
    del solver
    gc.collect()
    assert len(during) > len(before) == len(names()) and made.document["schedule"]["rows"]


def test_a_net_that_would_be_reshaped_or_compiled_for_it_has_none(on_cpu, make_solver):
    net, preferred = make_solver().net, engine.preferred()
    with trace.record(net) as made:
        net.forward_from_to(0, 5)
        net.blobs["ip"].reshape(2, 3)
    assert "schedule" not in made.document and list(net.blobs["ip"].shape) == [2, 3]
    with trace.record(net) as made:
        net.forward_from_to(0, 5)       # of another shape than when the record began
    assert "schedule" not in made.document
    try:
        with trace.record(net) as made:
            net.forward_from_to(0, 5)
            engine.prefer("CAFFE")
        assert "schedule" not in made.document
    finally:
        engine.prefer(preferred)
    with trace.record(net) as made:
        net.forward_from_to(0, 5)
    assert "schedule" in made.document


def test_a_solver_has_that_of_its_last_iteration(on_cpu, make_solver):
    solver = make_solver()
    with trace.record(solver) as made:
        solver.step(1)
        solver.net.blobs["ip"].reshape(2, 3)
        solver.step(1)
    assert made.document["schedule"]["rows"]


def test_the_error_of_a_net_that_cannot_be_compiled_is_that_of_its_run(on_cpu, make_solver):
    net = make_solver().net
    minicaffe.set_precision("tf32")     # which the CPU has not
    try:
        with pytest.raises(ConfigError, match="tf32"), trace.record(net) as made:
            net.forward_from_to(0, 5)
        assert len(made) and "schedule" not in made.document
    finally:
        minicaffe.set_precision("float32")
