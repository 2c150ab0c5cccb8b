"""The best test: which one it is, its file, the end of a training that no longer improves, and both after a resume."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import layer_text

import minicaffe as caffe
from minicaffe.addons.workflows.best_test import BestTest
from minicaffe.cli import app
from minicaffe.errors import ConfigError, FileError
from minicaffe.solver.report import RecordCounts

# y = a x with a = 3 at first; x = 1, the target is 1.
NET = """layer { name: "in" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 2 dim: 1 } shape { dim: 2 dim: 1 }
  data_filler { type: "constant" value: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "scale" type: "Scale" bottom: "x" top: "y" scale_param { filler { type: "constant" value: 3 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" %s }
%s"""
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0 max_iter: 40 display: 0
test_iter: 1 test_interval: 10 snapshot_prefix: "s" solver_mode: CPU random_seed: 1 """
@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def solver(more="", net="", of_loss=""):
        (tmp_path / "net.prototxt").write_text(NET % (of_loss, net))
        (tmp_path / "solver.prototxt").write_text(SOLVER + more)
        return caffe.get_solver("solver.prototxt")

    return solver


def record(iteration, loss):
    return {"iteration": iteration, "net": 0, "loss": None, "outputs": [{"name": "loss", "index": 0, "value": loss, "loss_weight": 1.0}]}


def kept(path="s_best.caffemodel"):
    return float(caffe.Net("net.prototxt", caffe.TEST, weights=path).params["scale"][0].data[0])


def test_files_of_the_best_test(make, tmp_path):
    solver, heard = make(), []
    solver.best = BestTest(solver)
    solver.listeners.append(SimpleNamespace(before_snapshot=lambda solver, *paths: heard.append(paths)))
    (tmp_path / "s_best.caffemodel").mkdir()
    with pytest.raises(FileError, match="s_best.caffemodel: cannot be written") as caught:
        solver.solve()
    assert not [*tmp_path.glob(".*")] and caught.value.file == "s_best.caffemodel" and heard == [("s_best.caffemodel",)]
    solver = make()
    solver.net.params["scale"][0].data[...] = np.inf
    assert judged(solver, [1.0], keep=False)[0] == [0] and judged(solver, [1.0])[0] == []


@pytest.mark.parametrize("form", ["", ".h5"])
def test_parameters_of_the_best_test(make, tmp_path, form):
    solver = make("snapshot_format: HDF5" if form else "snapshot_format: BINARYPROTO")
    solver.best = best = BestTest(solver, patience=3)
    scale = solver.net.params["scale"][0]
    for iteration, (value, loss) in enumerate([(1, 5.0), (2, float("nan")), (3, 4.0), (4, 4.5), (5, 4.0), (6, float("inf"))]):
        scale.data[...] = value
        best.record_test(solver, record(iteration, loss))
    assert (best.output, best.value, best.iteration, best.count, best.exhausted) == ("loss", 4.0, 2, 3, True)
    assert best.path == f"s_best.caffemodel{form}" and kept(best.path) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.prototxt", f"s_best.caffemodel{form}", "solver.prototxt"]
    best.record_test(solver, {**record(7, 1.0), "net": 1})        # of another test net
    best.record_test(solver, record(5, 1.0))                      # judged before
    assert best.value == 4.0 and "no better test loss in 3 tests, the patience is 3" == best.reason()
    scale.data[...] = np.inf
    best.record_test(solver, record(8, 1.0))
    assert kept(best.path) == 3 and best.value == 4.0        # parameters that are not finite are no best ones


def accuracy(name, top_k=1, more=""):
    return f"""layer {{ name: "rows of {name}" type: "DummyData" top: "r{name}" top: "l{name}" include {{ phase: TEST }}
      dummy_data_param {{ shape {{ dim: 2 dim: 3 }} shape {{ dim: 2 }} }} }}
    layer {{ name: "{name}" type: "Accuracy" bottom: "r{name}" bottom: "l{name}" top: "{name}" accuracy_param {{ top_k: {top_k} }} include {{ phase: TEST }} }}
    """ + more


def test_measures_of_the_best(make):
    def silence(*bottoms):
        return layer_text("Silence", "s", " ".join(bottoms), "", "include { phase: TEST }")

    solver = make(net=accuracy("five", 2) + accuracy("first") + accuracy("last"))
    best = BestTest(solver)
    assert (best.output, best.higher_is_better) == ("last", True)
    solver.test_all()
    best.record_test(solver, {**solver.test(0), "iteration": 0})
    assert best.value == 0      # all scores are equal
    without_loss = {"of_loss": "include { phase: TRAIN }", "net": silence("y", "t")}
    solver = make(**without_loss, more="test_compute_loss: true")
    assert BestTest(solver)._value_of(solver.test(0)) == 0
    for other in solver, make(net=accuracy("a") + silence("a")):       # what another layer reads is no output
        best = BestTest(other)
        assert (best.output, best.higher_is_better) == ("loss", False)
    with pytest.raises(ConfigError, match="net.prototxt: has neither an Accuracy nor a loss as output"):
        BestTest(make(**without_loss))
    with pytest.raises(ConfigError, match="patience: must be at least 1, got 0"):
        BestTest(make(), patience=0)
    solver = make()
    solver.param.test_iter[0] = 0
    with pytest.raises(ConfigError, match="solver.prototxt: the best test is wanted, and this solver makes none"):
        BestTest(solver)
    solver.whole_tests[0] = RecordCounts(5, 2, "")
    assert BestTest(solver, patience=1).output == "loss"


def judged(solver, values, higher=False, **options):
    """The iterations of the tests that were the best so far, and the BestTest, after tests of these values."""
    best = BestTest(solver, **options)
    best.higher_is_better, found = higher, []
    for iteration, value in enumerate(values):
        best.record_test(solver, record(iteration, value))
        found += [iteration] * (best.iteration == iteration)
    return found, best


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("values, lower, higher", [
    ([NAN, INF, -INF, 2, 2, 1, 1, 3, 3, NAN, 0.5], [3, 5, 10], [3, 7]), ([0, 0, -1, 1], [0, 2], [0, 3]), ([NAN, INF], [], [])])
def test_which_test_is_the_best(make, values, lower, higher, caplog):
    """The first of equal ones; none whose value is not finite, also not the first of all."""
    solver = make()
    caplog.set_level("INFO", "minicaffe.solver")
    for is_higher, wanted in ((False, lower), (True, higher)):
        caplog.clear()
        found, best = judged(solver, values, is_higher, keep=False, patience=1)
        assert found == wanted and best.value == (values[wanted[-1]] if wanted else None) and best.path is None
        since, lines = 0, []       # tests since the best one
        for i, value in enumerate(values):
            since = 0 if i in wanted else since + 1
            lines.append(f"Iteration {i}: no better test loss in {since} test{'s' if since > 1 else ''}, the patience is 1" if since else
                         f"Iteration {i}: best test loss so far = {value:g}")
        assert caplog.messages == lines and best.exhausted == (since > 0)


STATE = {"output": "loss", "value": 2.0, "iteration": 7, "count": 3, "last": 9, "path": "there.caffemodel"}
FROM_HERE = "the best one is that of the tests from here on"


@pytest.mark.parametrize("state, keep, message", [
    (STATE, True, ""), (STATE, False, ""),
    (None, True, f"The solver state has no best test, so {FROM_HERE}"),
    ({**STATE, "output": "top1"}, True, f"The solver state has the best test top1, and this training measures loss: {FROM_HERE}"),
    ({**STATE, "path": None}, True, "The parameters of the best test so far, iteration 7, were not kept; the next better ones are kept"),
    ({**STATE, "path": None}, False, ""),
    ({**STATE, "path": "gone"}, True, "The parameters of the best test so far, iteration 7, are no longer in gone; the next better ones are kept"),
    ({**STATE, "path": "gone"}, False, ""),
    ({**STATE, "value": None, "iteration": None, "path": None}, True, "")])
def test_best_test_in_states(make, tmp_path, caplog, state, keep, message):
    best = BestTest(make(), keep=keep)
    (tmp_path / "there.caffemodel").touch()
    before = best.get_state()
    best.set_state(state)
    assert caplog.messages == [message] * bool(message)
    assert best.get_state() == (before if state is None or state["output"] != "loss" else state)


def train(*arguments, capsys, status=0):
    capsys.readouterr()
    got = app.run(["train", "solver.prototxt", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert got == status, err
    return (out, err) if status == 0 else err


def test_training_stops_after_its_best(make, tmp_path, capsys):
    make()
    out, err = train("--keep-best", "--patience=2", "--max-iter=100", "--base-lr=2.1", "--snapshot-interval=5", capsys=capsys)   # diverges
    assert "Iteration 0: best test loss so far = 2, kept in s_best.caffemodel" in err
    assert out.startswith("Stopped at iteration 20 of 100: no better test loss in 2 tests, the patience is 2\n")
    assert "\nbest test loss = 2 at iteration 0: s_best.caffemodel\n" in out and kept() == 3
    resume = re.search("^resume with more patience: minicaffe (.*)$", out, re.M)[1]
    assert "--patience=4 " in resume and "--patience=2" not in resume and resume.endswith("--snapshot=s_iter_20.solverstate")
    assert app.run(resume.split()) == 0
    assert "no better test loss in 4 tests" in capsys.readouterr().out
    # With the same patience there is nothing left to do.
    out, err = train("--keep-best", "--patience=2", "--max-iter=100", "--base-lr=2.1", "--snapshot=s_iter_20.solverstate", capsys=capsys)
    assert out.startswith("Stopped at iteration 20 of 100: no better")
    out, _ = train("--keep-best", "--snapshot-prefix=t", "--max-iter=20", capsys=capsys)
    assert out.startswith("Finished at iteration 20 of 20\n") and re.search("^best test loss = .* at iteration 20: t_best.caffemodel$", out, re.M)
    assert kept("t_best.caffemodel") == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_resumed_training_continues_counting(make, capsys, form):
    make(f"snapshot_format: {form}")
    state = "s_iter_20.solverstate" + (".h5" if form == "HDF5" else "")
    common = ("--keep-best", "--patience=4", "--base-lr=0")
    out, _ = train(*common, "--max-iter=100", "--snapshot-prefix=whole", capsys=capsys)
    assert out.startswith("Stopped at iteration 40 of 100: ")
    train(*common, "--max-iter=20", capsys=capsys)
    out, _ = train(*common, "--max-iter=100", f"--snapshot={state}", capsys=capsys)
    assert out.startswith("Stopped at iteration 40 of 100: no better test loss in 4 tests") and "best test loss = 2 at iteration 0: s_best" in out
    Path(re.search("s_best.caffemodel.*", out)[0]).unlink()
    _, err = train(*common, "--max-iter=100", f"--snapshot={state}", "--force", capsys=capsys)
    assert "The parameters of the best test so far, iteration 0, are no longer in s_best.caffemodel" in err


def test_a_state_without_a_best_test(make, capsys):
    make()
    train("--max-iter=20", capsys=capsys)
    out, err = train("--keep-best", "--max-iter=40", "--snapshot=s_iter_20.solverstate", capsys=capsys)
    assert FROM_HERE in err and "at iteration 40: s_best" in out
    train("--patience=5", "--max-iter=20", "--force", capsys=capsys)
    assert "iteration 10, were not kept" in train("--keep-best", "--max-iter=20", "--snapshot=s_iter_20.solverstate", capsys=capsys)[1]
    solver = make()
    solver.best = BestTest(solver)
    solver.best.output = "accuracy"
    solver.restore("s_iter_20.solverstate")
    assert solver.best.value is None
    solver.best.get_state = lambda: 7
    with pytest.raises(caffe.errors.DataError, match="resume_state: is not what minicaffe writes there"):
        solver.restore(solver.snapshot()[1])


def test_an_earlier_best_is_kept(make, tmp_path, capsys):
    make()
    (tmp_path / "s_best.caffemodel").write_text("years of work")
    train("--keep-best", "--max-iter=10", capsys=capsys)
    assert (tmp_path / "s_best.1.caffemodel").read_text() == "years of work" and kept() != 3
    train("--keep-best", "--max-iter=10", "--force", capsys=capsys)
    assert not (tmp_path / "s_best.2.caffemodel").exists()


def test_what_is_wrong(make, tmp_path, capsys):
    make()
    assert "none/s_iter_0: snapshot_prefix: cannot be written" in train("--keep-best", "--snapshot-after-train=false", "--snapshot-prefix=none/s", capsys=capsys, status=1)
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace("test_iter: 1 test_interval: 10", ""))
    for option in ("--keep-best", "--patience=3"):
        assert f"{option.partition('=')[0]}: the best test is wanted, and this solver makes none; give it test_iter" in train(option, capsys=capsys, status=2)


def solve_together(folder):
    """Train on a rank; return its iteration and its best test."""
    import os
    os.chdir(folder)
    solver, writes = caffe.get_solver("solver.prototxt"), []
    solver.distribute()
    solver.best = BestTest(solver, patience=2)
    solver.listeners.append(SimpleNamespace(before_snapshot=lambda solver, *paths: writes.append(paths)))
    solver.solve()
    ended, found = solver.iter, solver.best.get_state()
    if solver.group.rank:
        solver.best.value = solver.best.iteration = solver.best.path = None
    solver.restore(f"s_iter_{ended}.solverstate")
    assert solver.best.get_state() == found     # on each rank
    return ended, found, len(writes)


def test_ranks_agree(make, tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "parallel"))
    import ranks
    make()
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace("base_lr: 0.1", "base_lr: 2.1"))
    first, second = ranks.run(2, __file__, "solve_together", str(tmp_path))
    assert first[:2] == second[:2] == [20, {"output": "loss", "value": 2.0, "iteration": 0, "count": 2, "last": 20, "path": "s_best.caffemodel"}]
    assert first[2] == 2 and second[2] == 0 and kept() == 3     # the best and the last snapshot, written by rank 0 alone


@pytest.mark.parametrize("fits, changes", [
    (True, [{}, {"value": 3}, {"path": None}, {"value": None, "iteration": None}, {"more": 1}, {"iteration": 2**63 - 1}]),
    (False, [{"value": wrong} for wrong in (None, True, "2", 1e30)] + [{"iteration": wrong} for wrong in (None, 4.0, True, 2**63)]
     + [{"count": wrong} for wrong in (None, 1.0, -2**63, False)] + [{"last": wrong} for wrong in (None, 5.0, 2**63)]
     + [{"output": None}, {"output": 1}, {"path": 1}])])
def test_wrong_best_test_of_states(fits, changes):
    def is_refused(state):
        try:
            BestTest.check_state(None, state)
        except caffe.errors.DataError:
            return True
        return False

    for change in changes:
        assert is_refused({**STATE, **change}) is not fits, change
    for name in STATE:
        assert is_refused({key: value for key, value in STATE.items() if key != name}) or name == "path"
    assert is_refused([STATE]) and not is_refused(None)
