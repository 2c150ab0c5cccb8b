"""Parts of commands against plain models: signals, log lines, counts of records, earlier files, numbers that a command chooses."""

import contextlib
import io
import json
import logging
import os
import random
import re
import signal
import sys
from types import SimpleNamespace

import click
import numpy as np
import pytest

from minicaffe.addons.workflows import finetune
from minicaffe.addons.workflows.class_weights import inverse_frequencies
from minicaffe.addons.workflows.wrong_pictures import _safe, picture_source
from minicaffe.cli import earlier_files, log, main, plot, ranks, records, show, signals, summary, training_file
from minicaffe.cli.app import command_first, command_of, commands, explain
from minicaffe.cli.bars import progress
from minicaffe.cli.options import normalize_arguments
from minicaffe.cli.parse_log import Run
from minicaffe.cli.train import train
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver.report import RecordCounts

SEEDS = pytest.mark.parametrize("seed", range(20))


# ---- signals and log


@SEEDS
def test_signals_become_actions_one_by_one(seed, monkeypatch):
    """The most urgent first; each once, however often it came. A second Ctrl-C, not one sent twice, interrupts where the first stops."""
    dice, now, handlers = random.Random(seed), [100.0], {}
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals.signal, "signal", lambda number, handler: handlers.update({number: handler}) or f"before {number}")
    order = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]
    on_int, on_hup = dice.choice(signals.EFFECTS), dice.choice(signals.EFFECTS)
    effects = dict(zip(order, ["stop", "stop", on_hup, on_int], strict=True))
    waiting, first, terminated = set(), None, False
    with signals.Signals(on_int, on_hup) as found:
        assert set(handlers) == set(order)
        for _ in range(30):
            now[0] += dice.choice([0.0, 0.4, 0.7, 3.0])
            if dice.random() < 0.6:
                number = dice.choice(order)
                waiting.add(number)
                try:
                    handlers[number](number, None)
                    assert not (number == signal.SIGINT and on_int == "stop" and first is not None and now[0] - first > 1)
                except KeyboardInterrupt:
                    assert number == signal.SIGINT and on_int == "stop" and first is not None and now[0] - first > 1
                if number == signal.SIGINT and first is None:
                    first = now[0]
            else:
                number = next((one for one in order if one in waiting), None)
                waiting.discard(number)
                terminated |= number == signal.SIGTERM
                assert found.poll() == effects.get(number, "none") and found.terminated == terminated
    assert handlers == {number: f"before {number}" for number in order}


def record(level=logging.INFO, name="minicaffe.solver", text="a line"):
    made = logging.LogRecord(name, level, "/somewhere/solver.py", 237, text, (), None)
    made.created = 1_700_000_000.000123
    return made


def test_a_line_of_glog():
    for level, letter in ((logging.DEBUG, "I"), (logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.CRITICAL, "F")):
        assert re.fullmatch(letter + r"111[45] \d\d:\d\d:\d\d\.000123 +\d+ solver\.py:237\] a line", log.GlogFormatter().format(record(level)))


@pytest.fixture
def logger():
    """The logger of minicaffe, which the test changes."""
    logger = logging.getLogger("minicaffe")
    before = logger.level, list(logger.handlers), logger.propagate, [handler.level for handler in logger.handlers]
    yield logger
    logger.handlers[:], logger.propagate = before[1:3]
    for handler, level in zip(logger.handlers, before[3], strict=True):
        handler.setLevel(level)
    logger.setLevel(before[0])


def test_details_are_those_of_building_and_compiling(logger, capsys):
    """Warnings of these are shown always."""
    for details in (True, False):
        log.start(verbose=details, prefix="> ")
        for name in ("minicaffe.net.build", "minicaffe.cuda.compile", "minicaffe.net"):
            for level in (logging.INFO, logging.WARNING):
                logger.handle(record(level, name, f"{name} {level}"))
        wanted = [f"> {name} {level}" for name in ("minicaffe.net.build", "minicaffe.cuda.compile", "minicaffe.net") for level in (20, 30)
                  if details or level == 30 or name == "minicaffe.net"]
        assert capsys.readouterr().err.splitlines() == wanted


def test_a_file_of_the_log_leaves_standard_error_as_it_was(logger, tmp_path, capsys):
    for quiet, verbose, shown in ((True, False, ["W"]), (False, True, ["D", "I", "W"]), (False, False, ["I", "W"])):
        log.start(quiet, verbose)
        logger.handlers[0].setFormatter(logging.Formatter("%(message)s"))
        handler = log.add_log_file(tmp_path / "log", False)
        for level, text in ((logging.DEBUG, "D"), (logging.INFO, "I"), (logging.WARNING, "W")):
            logger.log(level, text)
        log.remove_log_file(handler)
        log.remove_log_file(handler)
        assert capsys.readouterr().err.split() == shown
        assert [line[-1] for line in open(tmp_path / "log").read().split("\n")[:-1]] == (["D"] if verbose else []) + ["I", "W"]


def test_a_full_disk_ends_the_log_with_one_warning(logger, capsys):
    """Errors of a line's own arguments are not taken for it."""
    log.start(prefix="> ")
    handler = log.add_log_file("/dev/full", True)
    for number in range(3):
        logger.info("line %d", number)
    warning = "> /dev/full: cannot be written: No space left on device; no more log, the training continues"
    assert capsys.readouterr().err.splitlines() == ["> line 0", warning, "> line 1", "> line 2"] and handler not in logger.handlers


# ---- words of the command line


@SEEDS
def test_the_command_before_its_options(seed):
    """As gflags has it: a word that follows an option without ``=`` may be its value, unless no other word is a command."""
    dice = random.Random(seed)
    options = [dice.choice(["--solver=x", "-iterations=3", "--quiet", "-gpu"]) for _ in range(dice.randint(1, 3))]
    command = dice.choice(list(commands()))
    before = [] if "=" in options[-1] else ["value"]
    rest = ["a.prototxt", "--phase=TEST"][: dice.randint(0, 2)]
    assert command_first([*options, *before, command, *rest]) == [command, *options, *before, *rest]
    if "=" not in options[-1]:
        assert command_first([*options, command, "file", *rest]) == [command, *options, "file", *rest]
    assert command_first([command, *options, "test"]) == [command, *options, "test"]
    assert command_first(["-model", "test", "--solver=x", command]) == [command, "-model", "test", "--solver=x"]
    assert command_first(["file", command]) == ["file", command] and command_first(options) == options


@pytest.mark.parametrize("words, wanted", [
    ([], None), (["--help"], None), (["nosuch"], None), (["nosuch", "train"], None), (["train"], "train"), (["device-query", "-gpu", "0"], "device_query"),
    (["--solver=x", "extract-features"], "extract_features")])
def test_the_command_that_several_processes_agree_on(words, wanted):
    assert command_of(words) == wanted


@pytest.mark.parametrize("error, wanted", [
    (ConfigError("rule", file="f", line=3), ("f:3: rule", 2)), (ShapeError("rule"), ("rule", 2)), (FileError("gone", file="f"), ("f: gone", 1)),
    (DataError("no"), ("no", 1)), (OSError(28, "No space left"), ("No space left", 1)), (OSError(2, "No such file", "f"), ("f: No such file", 1)),
    (OSError("said by a library"), ("said by a library", 1)), (MemoryError(), ("out of memory", 1)), (MemoryError("3 GB"), ("3 GB", 1))])
def test_the_line_and_the_status_of_an_error(error, wanted):
    assert explain(error) == wanted


# ---- ranks


class FakeGroup:
    """A Group of `size` ranks of which this is one; `calls` has what was called."""

    def __init__(self, rank, size, compute=None, count=0):
        self.rank, self.local_rank, self.size, self.compute, self.count, self.comm, self.calls, self.begin = rank, rank, size, compute, count, "comm", [], 0

    def check_equal(self, values):
        self.calls.append(values)

    def gather_to_root(self, value):
        begin, self.begin = self.begin, self.begin + self.size
        assert value == (self.compute(begin + self.rank) if begin + self.rank < self.count else None)
        return None if self.rank else [self.compute(i) if i < self.count else None for i in range(begin, self.begin)]

    def processors(self):
        return 3

    def name(self):
        return f"rank {self.rank} of {self.size}"


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_inputs_are_shared_among_ranks(count, size, monkeypatch):
    """Rank r computes inputs r, r + size, ...; rank 0 alone gets the results, in order, and none for the ranks left over at the end."""
    def square(i):
        return i * i

    for rank in range(size):
        group, done = FakeGroup(rank, size, square, count), []
        monkeypatch.setattr(ranks, "group", group)

        def compute(i):
            done.append(i)  # noqa: B023 (called within the loop's turn)
            return square(i)

        assert list(ranks.map_over_ranks(count, compute)) == ([] if rank else list(map(square, range(count))))
        assert done == list(range(rank, count, size)) and group.calls == [{"the number of inputs": count}]


@pytest.mark.parametrize("threads", [None, "2"])
@pytest.mark.parametrize("command", [*ranks.PARALLEL_COMMANDS, None])
def test_joining_the_processes_of_a_command(command, threads, monkeypatch):
    """A solver starts its own heartbeat. Threads that the user has set stay."""
    group, made = FakeGroup(0, 2), []
    monkeypatch.setattr(ranks, "group", ranks.SINGLE_PROCESS)
    monkeypatch.setattr(ranks.parallel, "launched", lambda: 2)
    monkeypatch.setattr("minicaffe.parallel.group.Group", lambda: group)
    monkeypatch.setattr("minicaffe.parallel.heartbeat.Heartbeat", lambda *arguments, **options: made.append((arguments, options)))
    monkeypatch.setattr("minicaffe.device.threads.set_num_threads", made.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    ranks.init_process_group(command)
    assert ranks.group is group and group.calls == [{"the command": command}]
    assert made == [((group,), {"timeout": 0})] * (command not in ("train", "trace")) + [3] * (threads is None)
    ranks.init_process_group(command)     # has joined
    assert len(group.calls) == 1


def test_a_command_for_one_process_joins_none(monkeypatch, capsys):
    monkeypatch.setattr(ranks, "group", ranks.SINGLE_PROCESS)
    monkeypatch.setattr(ranks.parallel, "launched", lambda: 2)
    with pytest.raises(click.UsageError, match="draw is for one process, and 2 were started together"):
        ranks.init_process_group("draw")
    assert ranks.group is ranks.SINGLE_PROCESS
    monkeypatch.setattr(ranks.parallel, "launched", lambda: 1)
    monkeypatch.setattr(ranks, "init_process_group", lambda command: pytest.fail("joined"))
    assert main(["train", "--help"]) == 0


def test_a_rank_that_fails_waits_for_the_first_ones_line_and_ends_all(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(ranks, "group", FakeGroup(1, 2))
    monkeypatch.setattr("minicaffe.parallel.group.wait_for_root_error", lambda rank: calls.append(("wait", rank, capsys.readouterr().err)))
    monkeypatch.setattr("minicaffe.parallel.group.abort", lambda comm, status: calls.append((comm, status, capsys.readouterr().err)))
    ranks.report_failure("broken", 2)
    assert calls == [("wait", 1, ""), ("comm", 2, "minicaffe: rank 1 of 2: broken\n")]
    monkeypatch.setattr(ranks, "group", ranks.SINGLE_PROCESS)
    slept = []
    monkeypatch.setattr(ranks.time, "sleep", slept.append)
    for local, err in ((0, "minicaffe: broken\n"), (1, "")):     # before they have joined, one of a machine says it
        monkeypatch.setattr(ranks.parallel, "local_rank", lambda: local)  # noqa: B023
        assert ranks.report_failure("broken", 2) == 2 and capsys.readouterr().err == err
    assert len(slept) == 1


@pytest.mark.parametrize("quiet", [None, False, True])      # None: outside of a command
@pytest.mark.parametrize("terminal", [False, True])
def test_a_bar_is_drawn_on_a_terminal_alone(quiet, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    context = contextlib.nullcontext() if quiet is None else click.Context(train)
    if quiet is not None:
        context.meta["quiet"] = quiet
    with context, progress() as report:
        for done in range(4):
            report("pictures of a test", done, 3)
    assert ("pictures of a test" in stream.getvalue()) == (terminal and not quiet) and bool(stream.getvalue()) == (terminal and not quiet)


@pytest.mark.parametrize(("words", "wanted"), [
    (["-max_iter", "5", "f"], ["--max-iter=5", "f"]), (["--max-iter=5", "--", "-quiet", "--x"], ["--max-iter=5", "--", "-quiet", "--x"]),
    (["--watch", "7", "f"], ["--watch=7", "f"]), (["--watch", "f"], ["--watch=0", "f"]), (["--watch=3"], ["--watch=3"]),
    (["--debug-info", "net"], ["--debug-info=true", "net"]), (["--debug_info", "false", "f"], ["--debug-info=false", "f"]),
    (["--nodebug-info"], ["--nodebug-info"]), (["--no-debug-info", "f"], ["--debug-info=false", "f"]), (["--no-overlap", "f"], ["--no-overlap", "f"]),
    (["-quiet", "f"], ["--quiet", "f"]), (["-5", "f"], ["-5", "f"]), (["--json", "a=b"], ["--json=a=b"]), (["--json"], ["--json"])])
def test_each_option_is_one_word(words, wanted):
    assert normalize_arguments(words, train.params) == wanted


# ---- counts of records, and numbers that are chosen


@SEEDS
def test_how_a_test_counts_records(seed, monkeypatch):
    dice, said = random.Random(seed), []
    monkeypatch.setattr(training_file, "notify", said.append)
    for _ in range(20):
        size, why = dice.randint(1, 9), dice.choice(["", "", "a reason"])
        records = dice.choice([None, dice.randint(1, 40), size * dice.randint(1, 4)])
        batches = dice.choice([None, 0, dice.randint(1, 9), *([-(-records // size), records // size] if records else [])])
        said.clear()
        training_file.report_records("x", RecordCounts(records, size, why), batches)
        if records is None:
            wanted = [f"x: {why}, so 50 batches are tested"] if batches is None else []
        elif batches is None:
            full, last = divmod(records, size)
            count = full + bool(last)
            each = (f", {size - last} of them twice: a reason" if why else ", each once") if last else ", each once"
            wanted = [f"x: {records} records{each}, in {count} {'batch' if count == 1 else 'batches'} of {size}" + (f", the last of {last}" if last and not why else "")]
        else:
            wanted, together = [], batches * size
            if batches and together < records:
                wanted = [f"x: {batches} batches of {size} are {together} of the {records} records of the test data; the others are left out of a test, "
                          "and the next one begins with them"]
            elif together > records:
                wanted = [f"x: {batches} batches of {size} are {together} records, and the test data hold {records}: they begin again, so some may count "
                          "more often than others"]
        assert said == wanted


@SEEDS
def test_the_training_that_finetune_chooses(seed):
    """40 epochs within 300 and 3000 iterations, with some 20 tests, the last of which ends it; what is given stays."""
    dice = random.Random(seed)
    for _ in range(20):
        records, batch = dice.randint(1, 5000), dice.randint(1, 64)
        passed = {f"field_{name}": None for name in ("max_iter", "test_interval", "display", "lr_policy", "stepvalue")} | {"seed": 1, "field_stepvalue": ()}
        given = {name: value for name, value in (("max_iter", dice.randint(1, 900)), ("test_interval", 0), ("display", 7), ("lr_policy", "step"))
                 if dice.random() < 0.3}
        passed |= {f"field_{name}": value for name, value in given.items()}
        words = dict(word.removeprefix("--").split("=") for word in finetune.default_solver_arguments(records, batch, passed))
        wanted = given.get("max_iter") or min(3000, max(300, 40 * records // batch))
        interval = max(1, wanted // 20)
        wanted -= wanted % interval
        expected = {"max-iter": wanted, "test-interval": interval, "display": interval}
        if "lr_policy" not in given:
            expected |= {"lr-policy": "poly", "power": 1}
        assert words == {name: str(value) for name, value in expected.items() if name.replace("-", "_") not in given}


@pytest.mark.parametrize(("text", "wanted"), [
    ("num_output: 7", [(1, 1), (2, 0)]), ("num_output: 7 bias_term: false", [(1, 1)]),
    ("num_output: 7 } param { lr_mult: 0 } param { name: 'w' lr_mult: 5 decay_mult: 3", [(1, 1), (5, 0)]),
    ("num_output: 7 } param { lr_mult: 3", [(3, 1)])])
@pytest.mark.parametrize("suffix", ["db", "taken"])
def test_the_layer_that_finetune_replaces(text, wanted, suffix):
    """It learns even where the old one did not, shares nothing, and has a name of its own."""
    net = parse_text(f'layer {{ name: "fc_taken" }} layer {{ name: "fc_taken_" }} layer {{ name: "fc" type: "InnerProduct" inner_product_param {{ {text} }} }}',
                     caffe_pb2.NetParameter)[0]
    assert finetune.replace_last_layer(net, net.layer[2], 3, suffix) == ("fc", 7)
    head = net.layer[2]
    assert head.name == {"db": "fc_db", "taken": "fc_taken__"}[suffix] and head.inner_product_param.num_output == 3
    assert [(spec.lr_mult, spec.decay_mult, spec.name) for spec in head.param] == [(*rates, "") for rates in wanted]
    assert (head.inner_product_param.weight_filler.type, head.inner_product_param.weight_filler.std) == ("gaussian", pytest.approx(0.01))
    net = parse_text('layer { name: "in" top: "x" } layer { name: "c" type: "Convolution" bottom: "x" top: "prob" }', caffe_pb2.NetParameter)[0]
    assert [(layer.name, list(layer.bottom), list(layer.top)) for layer in finetune.with_softmax(net).layer][2:] == [("prob_", ["prob"], ["prob_"])]
    assert len(net.layer) == 2


@SEEDS
def test_weights_of_classes_have_the_mean_1_over_the_records(seed):
    counts = np.random.default_rng(seed).integers(0, 5, 6)
    counts[seed % 6] += 1
    found = inverse_frequencies(counts)
    assert (found * counts).sum() == pytest.approx(counts.sum()) and ((found > 0) == (counts > 0)).all()
    products = [weight * count for weight, count in zip(found, counts, strict=True) if count]
    assert products == pytest.approx([products[0]] * len(products))


def test_a_trial_leaves_random_numbers_and_the_log_alone():
    logger, state = logging.getLogger("minicaffe"), (caffe.generator.seed, caffe.generator.offset)
    level = logger.level
    for error in (None, KeyError):
        try:
            with training_file.trial():
                assert not logger.isEnabledFor(logging.CRITICAL)
                caffe.generator.seed, caffe.generator.offset = 12345, 678
                if error:
                    raise error
        except KeyError:
            pass
        assert (caffe.generator.seed, caffe.generator.offset) == state and logger.level == level


@pytest.mark.parametrize(("layers", "wanted"), [
    ('layer { name: "a" type: "SoftmaxWithLoss" }', True), ('layer { name: "a" type: "Reduction" loss_weight: 0.5 }', True),
    ('layer { name: "a" type: "Reduction" loss_weight: 0 }', False), ('layer { name: "a" type: "Accuracy" }', False),
    ('layer { name: "a" type: "SoftmaxWithLoss" include { phase: TEST } }', False)])
def test_which_nets_can_be_trained(layers, wanted):
    assert summary.has_loss(parse_text(layers, caffe_pb2.NetParameter)[0], "net.prototxt") is wanted


# ---- files


@SEEDS
def test_snapshots_of_earlier_trainings_are_kept(seed, tmp_path, monkeypatch, caplog):
    """Trainings in one folder: each overwrites its own files alone, and those of one snapshot get one number."""
    monkeypatch.chdir(tmp_path)
    dice, there = random.Random(seed), {}      # name -> content
    ending = dice.choice(["", ".h5"])
    for training in range(4):
        listener, own, logged = earlier_files.EarlierSnapshots(), set(), 0
        for _ in range(dice.randint(1, 6)):
            number = dice.choice([10, 20])
            names = [f"n_iter_{number}.{kind}{ending}" for kind in ("caffemodel", "solverstate")][: dice.choice([1, 2, 2])]
            caplog.clear()
            with caplog.at_level(logging.INFO, "minicaffe.cli"):
                listener.before_snapshot(None, *names)
            foreign = [name for name in names if name not in own]
            stems = {name: name.split(".")[0] for name in names}
            free = next(n for n in range(1, 99) if not any(f"{stems[name]}.{n}{name[len(stems[name]):]}" in there for name in foreign))
            renamed = {name: f"{stems[name]}.{free}{name[len(stems[name]):]}" for name in foreign if name in there}
            for old, new in renamed.items():
                there[new] = there.pop(old)
            lines = [(one.levelno, one.getMessage()) for one in caplog.records]
            are = "is" if len(renamed) == 1 else "are"
            text = f"{' and '.join(renamed)} of an earlier training {are} kept as {' and '.join(renamed.values())}"
            first = (logging.WARNING, text + ", and so is each later one; --force overwrites them")
            assert lines == ([] if not renamed else [first if not logged else (logging.INFO, text)])
            logged += bool(renamed)
            own.update(names)
            for name in names:
                there[name] = f"{training} {dice.random()}"
                (tmp_path / name).write_text(there[name])
            assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == there


def test_the_state_of_the_same_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for state, prefix, same in (("a_iter_5.solverstate", "a", True), ("./a_iter_5.solverstate.h5", str(tmp_path / "a"), True),
                                ("a_iter_5.1.solverstate", "a", False), ("ab_iter_5.solverstate", "a", False), ("a_iter_5.solverstate", "b", False),
                                ("a+b_iter_5.solverstate", "a+b", True), ("sub/a_iter_5.solverstate", "a", False)):
        assert earlier_files.is_same_training(state, prefix) is same


def test_parameters_of_hdf5_are_in_the_order_of_their_numbers(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i in (0, 2, 11, 1, 10, 3):
            file[f"data/a/{i}"] = np.float32([i])
    assert [(one.name, one.array.tolist()) for one in show.read_parameters(tmp_path / "w.h5")] == [(f"a[{i}]", [i]) for i in (0, 1, 2, 3, 10, 11)]


# ---- pictures


def test_the_layer_that_gives_pictures():
    def node(kind, axes, bottoms=()):
        return SimpleNamespace(type=kind, tops=[SimpleNamespace(num_axes=count) for count in axes], bottoms=bottoms)

    wanted = node("Data", [4, 1])
    others = [node("Silence", []), node("Data", [2]), node("Parameter", [4]), node("Convolution", [4], ["x"])]
    assert picture_source(SimpleNamespace(nodes=[*others, wanted, node("Data", [4])])) is wanted
    assert picture_source(SimpleNamespace(nodes=others)) is None


@pytest.mark.parametrize("end, rate", [(7.5, ", 32 images/s"), (5.0, "")])
def test_the_time_of_a_training(monkeypatch, end, rate):
    moments = iter([5.0, end])
    monkeypatch.setattr(records.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: 4)
    solver, result = SimpleNamespace(iter=10, best=None, param=SimpleNamespace(max_iter=30)), records.Result()
    result.on_start(solver)
    solver.iter = 30
    result.on_end(solver, False)
    assert list(result.lines(solver, None)) == ["Finished at iteration 30 of 30", f"time: {end - 5:.1f} s for 20 iterations{rate} (with tests and snapshots)"]


# ---- curves


def test_curves_of_logs_of_one_name_have_paths():
    rows = [{"NumIters": 0, "Seconds": 0.0, "LearningRate": 0.1, "accuracy": 0.5, "loss": 1.0}]
    runs = [Run(path, {"train": rows, "test": rows}, []) for path in ("a/log", "b/log", "b/other")]
    assert [one.label for one in plot.curves(runs[:2], "rate", "NumIters")] == ["a/log: learning rate", "b/log: learning rate"]
    assert [one.label for one in plot.curves(runs[1:], "rate", "NumIters")] == ["log: learning rate", "other: learning rate"]
    assert [one.label for one in plot.curves(runs[:1], "rate", "NumIters")] == ["learning rate"]
    for panel, labels in {"outputs": ["train accuracy", "test accuracy"], "loss": [], "accuracy": [], "rate": []}.items():
        assert [one.label for one in plot.curves(runs[:1], panel, "NumIters", "accuracy")] == labels


def test_scales_of_panels(monkeypatch, tmp_path, minicaffe):
    """Gradients, their blobs and activations are logarithmic always."""
    sample = {"layer": "a", "norm": 1.0, "zeros": 0, "saturated": None, "not_finite": 0}
    lines = [{"event": "watch", "time": 1.0, "iteration": i, "samples": [{**sample, "parameter": "a[0]"}, {**sample, "diff": "x"}, {**sample, "blob": "x"}]}
             for i in (0, 10)] + [{"event": "train", "time": 2.0, "iteration": 0, "lr": 0.1, "outputs": [{"name": "loss", "value": 1.0}]}]
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pytest.importorskip("matplotlib")
    drawn, titles = [], ("loss", "rate", "gradients", "diffs", "activations")
    monkeypatch.setattr(plot, "plot_panel", lambda axes, name, found, logarithmic, runs: drawn.append((name, logarithmic)))
    for more, loud in (([], titles[2:]), (["--log"], titles)):
        drawn.clear()
        minicaffe("plot", "r", "--force", *more)
        assert drawn == [(title, title in loud) for title in titles]


@pytest.mark.parametrize("verbose", [True, False])
def test_the_level_of_the_environment_hides_lines_here_alone(logger, verbose, monkeypatch, tmp_path, capsys):
    """Also with --verbose; a file of the log has them."""
    monkeypatch.setenv("GLOG_minloglevel", "2")
    log.start(verbose=verbose)
    handler = log.add_log_file(tmp_path / "log", False)
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, f"level {level}")
    log.remove_log_file(handler)
    assert [line[-8:] for line in capsys.readouterr().err.splitlines()] == ["level 40"]
    assert [line[-8:] for line in open(tmp_path / "log").read().splitlines()] == ["level 20", "level 30", "level 40"]


def test_lines_with_names_that_are_not_utf8(logger, tmp_path):
    """A training that was resumed from a state of such a name failed when its log named the state."""
    handler = log.add_log_file(tmp_path / "log", False)
    handler.handle(record(text="Resuming from " + os.fsdecode(b"a\xff.solverstate")))
    log.remove_log_file(handler)
    assert open(tmp_path / "log").read().endswith("] Resuming from a\\udcff.solverstate\n")


def test_nets_in_files_whose_names_are_not_utf8(minicaffe, tmp_path):
    """Texts that name the file have an escape; a solver, which is a prototxt, cannot name it."""
    name = os.fsdecode(b"net\xff.prototxt")
    (tmp_path / name).write_text("""name: "small"
layer { name: "in" type: "MemoryData" top: "x" top: "l" memory_data_param { batch_size: 2 channels: 1 height: 4 width: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "l" top: "loss" }""")
    minicaffe("deploy", name, "-o", "deploy")
    assert (tmp_path / "deploy.prototxt").read_text().startswith("# The deploy net of net\\udcff.prototxt.\n")
    for command in "summary", "train":
        assert "its name is not UTF-8" in minicaffe(command, name, status=2)


# ---- nets and names that a command makes


KINDS = {"IP": "InnerProduct", "DROPOUT": "Dropout", "RELU": "ReLU"}


def net_of(text):
    """Return a NetParameter of a text such as ``IP x>a, RELU a>a``: the type, the bottom and the top of each layer."""
    net = caffe_pb2.NetParameter()
    for i, (kind, bottom, top) in enumerate(re.findall(r"(\w+) (\w+)>(\w+)", text)):
        net.layer.add(name=f"l{i}", type=KINDS[kind], bottom=[bottom], top=[top])
    return net


@pytest.mark.parametrize("layers, wanted", [
    ("IP x>a, IP a>b, RELU b>c", "b"), ("IP x>a, IP a>b, RELU a>c", "a"), ("IP x>a, RELU x>side, IP side>other, RELU a>c", "a"),
    ("IP x>a, RELU a>a, DROPOUT a>a", "a"), ("RELU x>a", "wrong")])
def test_the_layer_that_makes_the_scores(layers, wanted):
    """Layers between it and the scores have one bottom; layers that make other blobs do not count."""
    net = net_of(layers)
    if wanted == "wrong":
        with pytest.raises(ConfigError, match="no InnerProduct or Convolution alone makes the scores"):
            finetune.last_layer(net, "f")
    else:
        assert finetune.last_layer(net, "f").top[0] == wanted


@pytest.mark.parametrize("name, wanted", [
    ("cat", "cat"), ("great auk", "great-auk"), ("a_b", "a-b"), ("a/b\\c:d", "a-b-c-d"), ("../up", "-up"), (".hidden.", "hidden"), ("...", "-"), ("", "-"),
    ("/", "-"), ("a  ,;  b", "a-b"), ("é_9.5", "é-9.5"), ("x" * 50, "x" * 40), ("x" * 39 + ".y", "x" * 39)])
def test_a_name_of_a_class_in_the_name_of_a_file(name, wanted):
    assert _safe(name) == wanted
