"""The training loop: what happens when, what is logged and reported, which nets are built, and every refusal."""

import itertools
import logging
import re
from types import SimpleNamespace

import numpy as np
import pytest
from bowl import BOWL, make_solver, solver_param, weights
from fake_mpi import Job

from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN, caffe
from minicaffe.errors import ConfigError, ConfigWarning, FileError, NotFiniteError, ShapeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.solver import AdamSolver, NesterovSolver, SGDSolver, Solver, create_solver, finite, load_solver, solver_types
from minicaffe.solver import solver as solver_module
from minicaffe.solver.report import RecordCounts, batch_size
from minicaffe.workspace import Workspace

TESTED = "test_iter: 3 test_interval: 4"
DATA = "layer { name: 'd' type: 'DummyData' top: 'x' dummy_data_param { shape { dim: 32 dim: 2 } } }"


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "minicaffe.solver")
    return caplog


def recorded(*arguments, **keywords):
    """A solver, and a listener that records its calls."""
    solver, events = make_solver(*arguments, **keywords), []
    solver.listeners.append(SimpleNamespace(
        events=events, records=lambda kind: [value for name, value in events if name == kind],
        on_start=lambda solver: events.append(("start", solver.iter)), on_iteration=lambda solver: events.append(("iteration", solver.iter)),
        on_display=lambda solver, record: events.append(("display", record)), on_test=lambda solver, record: events.append(("test", record)),
        on_end=lambda solver, stopped: events.append(("end", stopped))))
    return solver, solver.listeners[-1]


def listen_to_losses(solver):
    """Return a list that gets the smoothed loss of each iteration."""
    shown = []
    solver.listeners.append(SimpleNamespace(on_iteration=lambda solver: shown.append(solver.smoothed_loss)))
    return shown


# ---- the loop

def losses_of(solver):
    """Return a list that gets the loss of each forward pass."""
    losses = []
    solver.net.add_hook(1, lambda layer: losses.append(float(solver.net.blob_by_name("loss").cpu_data)))
    return losses


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_smoothing_follows_caffes_window(begin):
    """The mean of the last three losses, and of fewer before; a new `step` begins a new window; an infinite loss leaves it. The loss of an
    iteration is the mean of its passes.
    """
    solver = make_solver("iter_size: 4 base_lr: 0")
    losses = losses_of(solver)
    assert solver.smoothed_loss == 0
    solver.step(1)
    assert len(losses) == 4 and solver.smoothed_loss == pytest.approx(np.mean(losses))
    solver = make_solver("average_loss: 3 base_lr: 0")
    solver.step(begin)
    losses, shown = losses_of(solver), listen_to_losses(solver)
    solver.step(8)
    assert shown == pytest.approx([np.mean(losses[max(0, t - 2):t + 1]) for t in range(8)])
    solver.step(1)
    assert solver.smoothed_loss == pytest.approx(losses[-1])
    for size in 1, 3:
        solver = make_solver(f"average_loss: {size} base_lr: 0")
        shown = listen_to_losses(solver)
        solver.net.add_hook(1, lambda layer, solver=solver: solver.net.blob_by_name("loss").data.fill(np.inf if solver.iter == 4 else solver.iter))
        solver.step(10)
        assert shown[4:4 + size] == [np.inf] * size and shown[9] == pytest.approx(np.mean(range(10)[-size:]))


def test_callbacks_in_order():
    solver, calls = make_solver(), []
    solver.add_callback(lambda: calls.append("start"), lambda: calls.append("ready"))
    solver.net.add_hook(0, lambda layer: calls.append("forward"))
    solver.step(2)
    assert calls == ["start", "forward", "ready"] * 2
    solver = make_solver(net=LINE)
    before = weights(solver)
    solver.add_callback(lambda: None, lambda: [blob.diff.fill(0) for blob in solver.net.learnable_params])
    solver.step(5)  # enough for a device to record a graph, which must not hold the update
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(solver)))


def test_subclasses_change_update_and_rate():
    class Frozen(SGDSolver):
        def apply_update(self):
            for blob in self.net.learnable_params:
                blob.diff[...] = 0
            return super().apply_update()

    class Silent:
        def gradients(self):
            loss = super().gradients()
            for blob in self.net.learnable_params:
                blob.diff[...] = 0
            return loss

    class Still(SGDSolver):
        def rate_factor(self):
            return 0.0

    for kind in Frozen, type("Derived", (Frozen,), {}), type("Mixed", (Silent, SGDSolver), {}), Still:
        for plan in None, "memory":
            solver = kind(solver_param("", LINE), plan=plan)
            before = weights(solver)
            solver.step(5)
            assert solver.iter == 5 and all(np.array_equal(a, b) for a, b in zip(before, weights(solver)))

    class Named:
        def __init_subclass__(cls, **options):
            cls.options = options

    class Own(SGDSolver, Named, name="own"):
        def step(self, n):
            for _ in range(n):
                self.gradients()
                self.apply_update()

    solver = Own(solver_param("display: 2 max_iter: 4"))
    solver.solve()
    assert Own.options == {"name": "own"} and solver.iter == 4 and solver.smoothed_loss > 0


def test_debug_info_only_on_displays(log):
    log.set_level(logging.INFO, "minicaffe.net")
    solver = make_solver("debug_info: true display: 2 " + TESTED)
    log.clear()
    solver.step(2)
    assert sum("[Backward] Layer bowl, param blob 0" in m for m in log.messages) == 1
    assert all(net.debug_info for net in solver.test_nets)
    log.clear()
    make_solver("max_iter: 5 display: 2").solve()
    assert not any(message.startswith("Iteration 5") for message in log.messages)


# ---- log and listeners

def test_log_lines_of_a_solve(log):
    solver = make_solver("max_iter: 4 display: 2 test_compute_loss: true clip_gradients: 0.5 " + TESTED)
    assert log.messages[0].startswith('Initializing solver from parameters: \n')
    log.clear()
    solver.solve()
    shown = [line for line in log.messages if "Gradient" not in line]
    kinds = [line.split(" = ")[0] for line in shown]
    assert kinds[:3] == ["Solving bowls", "Learning Rate Policy: fixed", "Iteration 0, Testing net (#0)"]
    assert re.fullmatch(r"Test loss: [\d.]+", shown[3])
    assert kinds[4:6] == ["    Test net output #0: loss", "    Test net output #1: numbers"]
    assert kinds[-2] == "    Test net output #3: numbers" and kinds[-1] == "Optimization Done."
    rate = kinds.index("Iteration 0, lr")
    assert re.fullmatch(r"    Train net output #0: loss = ([\d.]+) \(\* 1 = \1 loss\)", shown[rate - 4])
    assert re.fullmatch(r"Iteration 2 \([\d.e+]+ iter/s, [\d.e-]+s/2 iters\), loss = [\d.]+", shown[rate + 1])
    assert "Iteration 0, lr = 0.1" in shown and "Iteration 2, lr = 0.1" in shown
    final = kinds.index("Iteration 4, loss")
    assert kinds[final + 1] == "Iteration 4, Testing net (#0)"
    assert any(re.fullmatch(r"Gradient clipping: scaling down gradients \(L2 norm [\d.]+ > 0.5\) by scale factor [\d.]+", line)
               for line in log.messages)


def test_display_and_test_records(monkeypatch):
    solver, recorder = recorded("max_iter: 4 display: 2 iter_size: 2 " + TESTED)
    solver.solve()
    assert [r["iteration"] for r in recorder.records("display")] == [0, 2]
    record = recorder.records("display")[1]
    assert record.keys() == {"iteration", "loss", "lr", "seconds", "iters_per_second", "images_per_second", "outputs"}
    assert record["lr"] == pytest.approx(0.1) and record["seconds"] > 0
    assert record["iters_per_second"] == pytest.approx(2 / record["seconds"])
    assert record["images_per_second"] is None
    assert [(o["name"], o["index"], o["loss_weight"]) for o in record["outputs"]] == [
        ("loss", 0, 1), ("numbers", 1, 0), ("numbers", 2, 0), ("numbers", 3, 0)]
    assert record["outputs"][1]["value"] == 6  # passes so far: the last of the iter_size passes is shown
    tests = recorder.records("test")
    assert [(r["iteration"], r["net"], r["loss"]) for r in tests] == [(0, 0, None), (4, 0, None)]
    assert [o["value"] for o in tests[0]["outputs"][1:3]] == [2, 4]  # means of 1 2 3 and of 2 4 6
    assert recorder.records("iteration") == [1, 2, 3, 4]
    assert recorder.events[0] == ("start", 0) and recorder.events[-1] == ("end", False)
    solver, recorder = recorded("display: 2")
    monkeypatch.setattr(solver_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))    # a second between two calls
    solver.step(6)
    assert [(r["seconds"], r["iters_per_second"]) for r in recorder.records("display")] == [(1, 0), (1, 2), (1, 2)]


def test_images_per_second():
    solver = make_solver(net="layer { name: 'w' type: 'Parameter' top: 'w' parameter_param { shape { dim: 3 } } }" + DATA)
    assert batch_size(solver.net) == 32
    assert batch_size(make_solver().net) is None  # the loss is a scalar
    solver, recorder = recorded("display: 1 iter_size: 2", DATA + BOWL)
    solver.step(2)
    record = recorder.records("display")[1]
    assert record["images_per_second"] == pytest.approx(64 * record["iters_per_second"])


def test_test_records():
    solver, recorder = recorded("max_iter: 1 test_compute_loss: true " + TESTED)
    solver.solve()
    record, = recorder.records("test")
    assert record["loss"] == pytest.approx(record["outputs"][0]["value"])
    solver.whole_tests[0] = RecordCounts(5, 2, "")      # the last batch, of one record, counts half
    record = solver.test(0)
    assert record["loss"] == pytest.approx(record["outputs"][0]["value"])
    for fields, use, iterations in ("max_iter: 5 test_initialization: false ", Solver.solve, [4]), ("", Solver.test_all, [0]):
        solver, recorder = recorded(fields + TESTED)
        use(solver)
        assert [record["iteration"] for record in recorder.records("test")] == iterations
    solver = make_solver("test_iter: 0 test_interval: 1 test_compute_loss: true")
    assert solver.test(0) == {"iteration": 0, "net": 0, "loss": None, "outputs": []}


def test_test_nets_share_the_parameters():
    solver = make_solver(TESTED)
    solver.step(1)
    solver.test_all()
    assert solver.test_nets[0].blob_by_name("numbers").cpu_data[2] == pytest.approx(weights(solver)[0].mean(), abs=1e-6)
    embedded = BOWL.replace("dummy_data_param {", f"blobs {{ shape {{ dim: 5 dim: 3 }} {'data: 7 ' * 15} }} blobs {{ shape {{ dim: 4 }} {'data: 1 ' * 4} }} "
                            "dummy_data_param {")
    solver = make_solver(f"test_net_param {{ {embedded} }} {TESTED}")
    solver.step(1)
    value = solver.test_nets[0].blob_by_name("numbers").cpu_data[2]
    assert value == pytest.approx(weights(solver)[0].mean(), abs=1) and value != 7
    solver = make_solver(TESTED)
    net = solver.test_nets[0]
    net.add_hook(1, lambda i: net.tops[0][1].reshape(net.layers[0].passes))
    with pytest.raises(ShapeError, match="'numbers' has 2 values"):     # within a test outputs keep their size
        solver.test(0)


# ---- actions

def test_stop_ends_after_the_update(log):
    solver, recorder = recorded("max_iter: 100")
    solver.action = lambda: "stop" if solver.iter == 7 else "none"
    solver.solve()
    assert solver.iter == 7 and recorder.events[-1] == ("end", True) and log.messages[-1] == "Optimization stopped early."
    solver.step(2)
    assert solver.iter == 9
    solver, recorder = recorded(TESTED)
    solver.action = lambda: "stop" if solver.iter == 2 else "none"
    solver.step(9)
    assert solver.iter == 2
    solver.action = None
    solver.step(4)
    assert solver.iter == 6 and [record["iteration"] for record in recorder.records("test")] == [0, 4]
    solver, recorder = recorded("max_iter: 100 test_iter: 3 test_iter: 3 test_interval: 4")
    answers = iter(["none", "stop"])        # the second in a test
    solver.action = lambda: next(answers, "none")
    solver.solve()
    assert solver.iter == 0 and not recorder.records("test") and log.messages.count("Test interrupted.") == 1
    assert "Iteration 0, Testing net (#1)" not in log.messages


def test_snapshot_action(tmp_path, log):
    solver = make_solver(f"snapshot_prefix: '{tmp_path}/s' {TESTED}")
    answers = iter(["snapshot", "snapshot"])
    solver.action = lambda: next(answers, "none")
    solver.step(1)  # asked before the first test batch, twice
    solver = make_solver(f"snapshot_prefix: '{tmp_path}/t'")
    solver.action = lambda: "snapshot" if solver.iter == 2 else "none"
    solver.step(3)
    assert solver.iter == 3 and sorted(p.name for p in tmp_path.iterdir()) == [
        f"{name}.{kind}" for name in ("s_iter_0", "t_iter_2") for kind in ("caffemodel", "solverstate")]
    state = str(tmp_path / "t_iter_2.solverstate")
    make_solver("max_iter: 1").solve(state)
    assert log.messages.count(f"Restoring previous solver status from {state}") == 1


def test_first_numbered_solver_tests_and_writes(monkeypatch, tmp_path):
    """As programs for pycaffe do by `set_solver_rank`; all update."""
    for rank in 0, 1:
        monkeypatch.setattr(caffe, "solver_rank", rank)
        solver, recorder = recorded(f"max_iter: 2 display: 1 test_iter: 1 test_interval: 1 snapshot: 1 snapshot_prefix: '{tmp_path}/{rank}'")
        solver.solve()
        kinds = [kind for kind, _ in recorder.events]
        assert solver.iter == kinds.count("iteration") == 2
        assert (kinds.count("display"), kinds.count("test"), len(list(tmp_path.glob(f"{rank}_*")))) == ((2, 3, 4) if rank == 0 else (0, 0, 0))


@pytest.mark.parametrize("use", ["test", "snapshot"])
def test_log_of_averaged_statistics_once(use, log, monkeypatch, tmp_path):
    """Ranks that have all the same statistics keep them."""
    job = Job(2, mirror=True)
    job.use(monkeypatch)
    net = LINE + 'layer { name: "norm" type: "BatchNorm" bottom: "x" top: "norm" }'
    solver = make_solver(f"test_iter: 1 test_interval: 9 test_initialization: false snapshot_prefix: '{tmp_path}/s'", net)
    solver.distribute(job.comm(0))
    solver.step(1)
    before = [blob.cpu_data.copy() for blob in solver.net.layer_dict["norm"].blobs]
    for _ in range(2):
        solver.test(0) if use == "test" else solver.snapshot()
    assert sum(line.startswith("BatchNorm's running statistics are each rank's own") for line in log.messages) == 1
    assert before[0].any() and all((blob.cpu_data == was).all() for blob, was in zip(solver.net.layer_dict["norm"].blobs, before, strict=True))


def test_rate_rises_to_all_ranks(monkeypatch):
    for scale, factor in ("linear", 4), ("sqrt", 2):
        job = Job(4, mirror=True)
        job.use(monkeypatch)
        solver, factors = make_solver(), []
        solver.distribute(job.comm(0), scale_lr=scale, warmup=4)
        for _ in range(6):
            factors.append(solver.rate_factor())
            solver.step(1)
        assert factors == [1 + min(1, n / 4) * (factor - 1) for n in range(1, 7)]
    for options, message in [
            ({"warmup": -1, "scale_lr": "linear"}, "warmup: must be a number of iterations, with scale_lr, got -1"),
            ({"warmup": 1}, "warmup: must be a number of iterations, with scale_lr, got 1"),
            ({"scale_lr": "cubic"}, "scale_lr: must be one of linear, sqrt, got 'cubic'"),
            ({"timeout": -1}, "timeout: must be a number of seconds, or 0 for no limit, got -1"),
            ({"timeout": np.inf}, "timeout: must be a number of seconds, or 0 for no limit, got inf")]:
        with pytest.raises(ConfigError) as caught:
            make_solver().distribute(**options)
        assert str(caught.value) == message


# ---- numbers that are not finite

LINE = """
layer { name: "in" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 8 dim: 4 } shape { dim: 8 dim: 4 } data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "scale" type: "Scale" bottom: "x" top: "y" }
layer { name: "half" type: "Power" bottom: "y" top: "y" power_param { scale: 0.5 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""
DIVERGES = "base_lr: 1e20 max_iter: 12"


def all_finite(arrays):
    return all(np.isfinite(array).all() for array in arrays)


def warnings_of(log):
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


@pytest.mark.no_plan("which blob was not finite first is not known where blobs share memory")
def test_first_infinite_loss_is_reported_once(log):
    solver = make_solver("base_lr: 100 momentum: 0.9", LINE)     # no hooks: a device replays a graph
    losses = listen_to_losses(solver)
    solver.step(60)
    first = next(i for i, loss in enumerate(losses) if not np.isfinite(loss))
    seen, lost = warnings_of(log)
    assert seen == (f"Iteration {first}: the loss is {losses[first]:g}, with learning rate 100; the first blob that is not finite is "
                    "'loss' of layer 'loss' (EuclideanLoss); try a lower base_lr, or clip_gradients")
    assert "parameters are no longer finite, the first is layer 'scale' blobs[0]" in lost and solver.iter == 60


def test_parameters_checked_only_with_reason(monkeypatch, tmp_path):
    looked, check = [], Solver.check_finite
    monkeypatch.setattr(Solver, "check_finite", lambda solver, effect=None: looked.append(solver.iter) or check(solver, effect))
    make_solver("base_lr: 0.01", LINE).step(9)
    assert looked == []
    make_solver(f"base_lr: 0.01 max_iter: 9 display: 4 test_iter: 1 test_interval: 7 snapshot: 6 snapshot_prefix: '{tmp_path}/s'",
                LINE).solve()
    assert sorted(set(looked)) == [0, 1, 5, 6, 7, 9]


def test_no_snapshot_of_lost_numbers(log, tmp_path):
    solver, recorder = recorded(f"snapshot: 1 snapshot_after_train: true snapshot_prefix: '{tmp_path}/s' {DIVERGES}", LINE)
    solver.solve()
    written = sorted(tmp_path.glob("*.caffemodel"))
    assert solver.iter == 12 and not all_finite(weights(solver)) and written and len(warnings_of(log)) == 2
    for path in written:
        solver.net.copy_from(path)
        assert all_finite(weights(solver))
    solver.net.learnable_params[0].data[1] = np.nan
    with pytest.raises(NotFiniteError, match="parameters are no longer finite"):
        solver.snapshot()
    assert sorted(tmp_path.glob("*.caffemodel")) == written
    for blob, value in ((solver.net.learnable_params[0], 1), *((blob, 0) for blob in solver.history)):
        blob.data[...] = value      # corrected, it continues, and the next one is reported again
    log.clear()
    solver.snapshot()
    solver.step(5)
    assert len(warnings_of(log)) == 2


@pytest.mark.parametrize("use", ["restore", "snapshot", "test_all", "step", "smoothed_loss"])
def test_deferred_loss_reported_with_iteration(use, log, tmp_path):
    solver = make_solver(f"test_iter: 1 test_interval: 9 snapshot_prefix: '{tmp_path}/s'", LINE)
    solver.step(1)
    _, state = solver.snapshot()
    solver.step(2)
    solver._deferred_loss = lambda: np.nan, 0.1     # as `step` leaves it on a device
    {"restore": lambda: solver.restore(state), "snapshot": solver.snapshot, "test_all": solver.test_all, "step": lambda: solver.step(0),
     "smoothed_loss": lambda: solver.smoothed_loss}[use]()
    assert [line.split(",")[0] for line in warnings_of(log)] == ["Iteration 2: the loss is nan"]


@pytest.mark.parametrize("iter_size", [1, 2])
def test_mean_of_read_and_deferred_losses(iter_size):
    """On a device the last loss of `step` is read later; a window has it once."""
    fields, losses = f"average_loss: 3 random_seed: 4 iter_size: {iter_size}", []
    one = make_solver(fields, LINE)
    for _ in range(5):
        one.step(1)
        losses.append(one.smoothed_loss)
    other = make_solver(fields, LINE)       # which draws the same numbers
    other.step(5)
    assert other.smoothed_loss == other.smoothed_loss == pytest.approx(np.mean(losses[-3:]), rel=1e-6)
    other._deferred_loss = lambda: 9.0, 0.1     # as `step` leaves it on a device
    assert other.check_finite() and other._deferred_loss is None
    assert other.smoothed_loss == pytest.approx(np.mean([*losses[-2:], 9]), rel=1e-6)
    other._deferred_loss = lambda: 9.0, 0.1
    other.step(1)       # a new window
    assert other.smoothed_loss < 9 and other._deferred_loss is None


def test_stop_raises(tmp_path):
    solver = make_solver(f"snapshot: 1 snapshot_prefix: '{tmp_path}/s' {DIVERGES}", LINE, file="solver.prototxt")
    solver.nan = "stop"
    with pytest.raises(NotFiniteError, match="^solver.prototxt: iteration .: parameters are") as error:
        solver.solve()
    assert error.value.remedy == finite.LOWER_RATE and solver.iter < 12
    solver.restore(max(tmp_path.glob("*.solverstate")))
    assert solver.nan == "stop" and all_finite(weights(solver)) and solver.iter > 0
    solver.nan = "warn"
    solver.nan = "stop"     # another effect does not change the iteration at which this training began
    solver.net.learnable_params[0].data[...] = 1e30
    with pytest.raises(NotFiniteError) as error:
        solver.step(1)
    assert error.value.remedy == finite.CHECK_START  # the numbers were lost before this training did anything


@pytest.mark.parametrize("where", ["display: 1", "test_iter: 1 test_interval: 1", ""])
def test_infinite_parameters_behind_finite_loss(where):
    solver = make_solver(f"max_iter: 1 {where}", LINE + 'layer { name: "aside" type: "Scale" bottom: "x" top: "aside" }')
    solver.nan = "stop"
    solver.net.layer_dict["aside"].blobs[0].data[0] = np.inf
    with pytest.raises(NotFiniteError, match="layer 'aside' blobs"):
        solver.solve()
    # An infinite square of a gradient makes every further step 0, and nothing else shows that
    solver = make_solver("type: 'Adam' display: 1", LINE)
    assert solver.nan == "warn"
    solver.nan = "stop"
    solver.history[1].data[2] = np.inf
    with pytest.raises(NotFiniteError, match="the history of parameters is no longer finite, the first is layer 'scale' blobs"):
        solver.step(1)
    with pytest.raises(ConfigError, match="nan: must be one of warn, stop, got 'halt'"):
        solver.nan = "halt"


# ---- nets

def write(path, text):
    path.write_text(text)
    return str(path)


def test_nets_from_files_and_states(tmp_path):
    net = BOWL + """
    layer { name: "quiet" type: "SolverTestBowl" top: "q" loss_weight: 0 dummy_data_param { shape { dim: 1 } }
            include { phase: TEST stage: "loud" } }"""
    path = write(tmp_path / "net.prototxt", net)
    solver = make_solver(f"net: '{path}' test_iter: 1 test_iter: 1 test_interval: 2 "
                         "test_state {} test_state { stage: 'loud' }", net=None)
    assert solver.net.phase == TRAIN and [n.phase for n in solver.test_nets] == [TEST, TEST]
    assert [len(n.layers) for n in (solver.net, *solver.test_nets)] == [1, 1, 2]
    assert solver.net.learnable_params[0] is solver.test_nets[0].learnable_params[0]


def test_state_upgrade_and_workspace(monkeypatch):
    solver = make_solver("train_state { level: 2 stage: 'b' }", "state { level: 1 stage: 'a' }" + BOWL)
    assert (solver.net.state.level, list(solver.net.state.stage), solver.net.phase) == (2, ["a", "b"], TRAIN)
    solver = make_solver("", "input: 'x' input_shape { dim: 2 dim: 3 } layers { name: 'r' type: SIGMOID bottom: 'x' top: 'y' }")
    assert [layer.type for layer in solver.net.layers] == ["Input", "Sigmoid"]
    workspace = Workspace()
    solver = make_solver(workspace=workspace, dtype=Dtype.DOUBLE)
    assert workspace.blob("bowl[0]") is solver.net.learnable_params[0] and solver.history[0].dtype == Dtype.DOUBLE
    solver, net = make_solver(), Net(solver_param("").net_param)
    solver.share_weights(net)
    solver.step(1)
    assert np.array_equal(net.learnable_params[0].cpu_data, weights(solver)[0])
    first, again, other = (weights(make_solver(f"random_seed: {seed}")) for seed in (7, 7, 8))
    assert np.array_equal(first[0], again[0]) and not np.array_equal(first[0], other[0])
    assert make_solver("random_seed: 0").generator.seed == 0
    monkeypatch.setattr(caffe, "solver_rank", 2)
    assert make_solver("random_seed: 7").generator.seed == 9


def test_net_without_loss_warns(tmp_path, recwarn):
    net = LINE.partition('layer { name: "loss"')[0]
    with pytest.warns(ConfigWarning, match="^solver.prototxt: the net has no loss in its TRAIN phase, so it learns nothing"):
        make_solver(net=net, file="solver.prototxt")
    path = write(tmp_path / "net.prototxt", net)
    with pytest.warns(ConfigWarning, match=f"^{path}: the net has no loss"):
        make_solver(f"net: '{path}'", None)
    make_solver(net=LINE.partition('layer { name: "half"')[0].replace('top: "y" }', 'top: "y" loss_weight: 1 }'))
    assert not recwarn.list


def test_different_input_sizes_are_reported():
    net = """layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: %d } } include { phase: %s } }"""
    both = net % (4, "TRAIN") + net % (3, "TEST") + """
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" loss_weight: 1 inner_product_param { num_output: 2 } }"""
    with pytest.raises(ShapeError, match=r"layer 'ip' .*blobs\[0\]: has shape \[2, 3\] and float32, and \[2, 4\] and float32 in the net "
                                         "that it shares its parameters with.*; .*give both inputs of one size"):
        make_solver("test_iter: 1 test_interval: 1", both)


TRAIN_NETS = "a solver needs exactly one of net, net_param, train_net, train_net_param; "
MORE_NETS = "; a solver without net or net_param tests only what test_net and test_net_param name"


@pytest.mark.parametrize(("fields", "net", "message"), [
    ("", None, f"net: {TRAIN_NETS}none is given"),
    ("net: 'x.prototxt'", BOWL, f"net_param: {TRAIN_NETS}net and net_param are given"),
    (f"train_net: 'x.prototxt' train_net_param {{ {BOWL} }} net: 'x.prototxt'", None,
     f"train_net: {TRAIN_NETS}net and train_net and train_net_param are given"),
    (f"test_net_param {{ {BOWL} }} test_net: 'x.prototxt' test_iter: 1", BOWL, "test_iter: needs an entry for each of the 2 test nets, got 1"),
    (f"train_net_param {{ {BOWL} }} test_iter: 1 test_interval: 1", None, "test_iter: needs exactly one entry for each of the 0 test nets, "
                                                                         f"got 1{MORE_NETS}"),
    (f"train_net_param {{ {BOWL} }} test_net_param {{ {BOWL} }}", None, "test_iter: needs exactly one entry for each of the 1 test nets, "
                                                                       f"got 0{MORE_NETS}"),
    (TESTED + " test_state {} test_state {}", BOWL, "test_state: give none or one for each of the 1 test nets, got 2"),
    ("test_iter: 0", BOWL, "test_interval: must be at least 1 where test_iter is given, got 0"),
    ("test_iter: 3 test_iter: -1 test_interval: 1", BOWL, "test_iter[1]: must be at least 0, got -1"),
    ("average_loss: 0", BOWL, "average_loss: must be at least 1, got 0"),
    ("iter_size: 0", BOWL, "iter_size: must be at least 1, got 0"),
    ("max_iter: -1", BOWL, "max_iter: must be at least 0, got -1"),
    ("snapshot: 5", BOWL, "snapshot_prefix: is not set, and snapshots need it; set it, or snapshot: 0 and snapshot_after_train: false"),
    ("type: 'SDG'", BOWL, "type: "),
])
def test_refusals(fields, net, message):
    with pytest.raises(ConfigError) as error:
        create_solver(solver_param(fields, net), file="solver.prototxt")
    assert str(error.value).startswith(f"solver.prototxt: {message}")
    assert str(error.value) == f"solver.prototxt: {message}" or message == "type: "


def test_log_names_net_sources(log, tmp_path):
    net, saved = write(tmp_path / "net.prototxt", BOWL), str(tmp_path / "a.caffemodel")
    make_solver().net.save(saved)
    files, inline = f"test_net: '{net}' test_net_param {{ {BOWL} }} test_interval: 1", "test_iter: 1 " * 4
    for fields, given, lines in (
            (f"train_net: '{net}' {files} test_iter: 1 test_iter: 1 weights: '{saved} , {saved}' debug_info: true", None,
             [f"Creating training net from train_net file: {net}", "Creating test net (#0) specified by test_net_param",
              f"Creating test net (#1) specified by test_net file: {net}", f"Finetuning from {saved}", f"Finetuning from {saved}"]),
            (f"{files} {inline}", BOWL, ["Creating training net specified in net_param.", "Creating test net (#0) specified by test_net_param",
                                         f"Creating test net (#1) specified by test_net file: {net}", "Creating test net (#2) specified by net_param",
                                         "Creating test net (#3) specified by net_param"])):
        log.clear()
        solver = make_solver(fields, given)
        assert [record.getMessage() for record in log.records if record.name == "minicaffe.solver"][1:] == [*lines, "Solver scaffolding done."]
        assert [net.debug_info for net in solver.test_nets] == ([True] * 2 if given is None else [False] * 4)


def test_errors_name_the_file(tmp_path):
    wrong, file = BOWL.replace("SolverTestBowl", "SolverTestBowel"), tmp_path / "solver.prototxt"
    path = write(tmp_path / "net.prototxt", wrong)
    with pytest.raises(FileError, match="nowhere.prototxt"):
        make_solver("net: 'nowhere.prototxt'", None)
    with pytest.raises(ConfigError) as error:
        make_solver(f"net: '{path}'", None, file="solver.prototxt")
    assert error.value.file == path and error.value.layer == "bowl"
    for text, message in ((f"net_param {{ {BOWL} }}\nbase_lr: 0.1\nlr_policy: 'wobbly'\n",
                           f"{BOWL.count(chr(10)) + 3}: lr_policy: unknown learning-rate policy 'wobbly'"),
                          (f"lr_policy: 'fixed'\nnet_param {{ {wrong} }}", "4: layer 'bowl' (SolverTestBowel): type")):
        with pytest.raises(ConfigError) as error:
            load_solver(write(file, text))
        assert str(error.value).startswith(f"{file}:{message}")
    # A place that cannot be written is met before training
    with pytest.raises(FileError, match="snapshot_prefix: .*does not exist"):
        make_solver(f"snapshot: 10 snapshot_prefix: '{tmp_path}/no/s'")
    solver = make_solver(f"max_iter: 5 snapshot_after_train: true snapshot_prefix: '{tmp_path}/no/s'")
    with pytest.raises(FileError):
        solver.solve()
    assert solver.iter == 0


# ---- reading files

def test_load_solver(tmp_path):
    write(tmp_path / "net.prototxt", BOWL)
    path = write(tmp_path / "solver.prototxt", f"net: '{tmp_path}/net.prototxt' lr_policy: 'fixed' solver_type: ADAM")
    solver = load_solver(path)
    assert type(solver) is AdamSolver
    assert solver.param.snapshot_prefix == str(tmp_path / "solver")
    assert type(load_solver(path, NesterovSolver)) is NesterovSolver
    assert list(solver_types()) == ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"]


def test_weights_field(tmp_path):
    first, second, other, tested = (str(tmp_path / name) for name in ("a.caffemodel", "b.caffemodel.h5", "c.caffemodel", "d.caffemodel"))
    source = make_solver("random_seed: 11")
    source.net.save(first)
    source.net.save_hdf5(second)
    make_solver("random_seed: 12").net.save(other)
    for files in (f"weights: '{first} , {second}' {TESTED}", f"weights: '{other}' weights: '{first}'", f"weights: '{other},{first}'"):  # the later one counts
        assert np.array_equal(weights(make_solver(files))[0], weights(source)[0])
    own = BOWL + """     # of a test net alone
        layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } include { phase: TEST } }
        layer { name: "own" type: "Bias" bottom: "x" top: "z" bias_param { filler { type: "uniform" } } include { phase: TEST } }
        layer { name: "z" type: "Silence" bottom: "z" include { phase: TEST } }"""
    source = make_solver("random_seed: 11 " + TESTED, own)
    source.test_nets[0].save(tested)
    solver = make_solver(f"random_seed: 12 weights: '{tested}' {TESTED}", own)
    found, wanted = (one.test_nets[0].learnable_params[-1].cpu_data for one in (solver, source))
    assert wanted.any() and np.array_equal(found, wanted)


def test_a_solver_type_of_ones_own(tmp_path):
    class Frozen(Solver):
        def learning_rate(self):
            return 0.0

        def apply_update(self):
            self.iter += 1
            return 0.0

    solver, other = Frozen(solver_param(f"snapshot_prefix: '{tmp_path}/s'")), Frozen(solver_param("random_seed: 8"))
    solver.step(3)
    assert solver.iter == 3 and solver.history == [] and isinstance(solver.param, caffe_pb2.SolverParameter)
    other.restore(solver.snapshot()[1])
    assert other.iter == 3 and np.array_equal(weights(other)[0], weights(solver)[0])
