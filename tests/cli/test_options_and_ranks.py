"""Options and ranks of commands: the GPU and the file of each rank, what a shell completes, which values are applied, which notices come."""

import contextlib
import importlib
import logging
from types import SimpleNamespace

import pytest

from minicaffe import cuda
from minicaffe.cli import options, ranks
from minicaffe.cli.records import Result
from minicaffe.cli.train import train
from minicaffe.common import caffe
from minicaffe.engines import engine
from minicaffe.errors import DeviceError
from minicaffe.solver.report import run_batches

TRAIN, TEST = (importlib.import_module(f"minicaffe.cli.{name}") for name in ("train", "test"))


@pytest.fixture
def group(monkeypatch):
    """A function that makes this process rank `rank` of `size` on one machine."""
    def make(rank, size=4):
        monkeypatch.setattr(ranks, "group", SimpleNamespace(rank=rank, local_rank=rank, size=size))
    return make


@pytest.fixture
def logger():
    """The logger of minicaffe, which a command changes."""
    logger = logging.getLogger("minicaffe")
    before = logger.level, list(logger.handlers), logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = before[1:]
    logger.setLevel(before[0])


@pytest.mark.parametrize("rank, ids, begin, count, wanted", [
    (None, None, None, 3, None), (None, None, 1, 3, 1), (None, [2, 0], None, 3, 2), (0, None, None, 3, 0), (2, None, None, 3, 2), (4, None, None, 3, 1),
    (1, None, 2, 3, 0), (1, [4, 5], None, 3, 5), (2, [4, 5], None, 3, 4), (1, None, None, 0, None)])
def test_each_rank_of_a_machine_takes_the_next_gpu(group, monkeypatch, rank, ids, begin, count, wanted):
    taken = []
    monkeypatch.setattr(cuda, "count", lambda: count)
    monkeypatch.setattr(cuda, "use_gpu", taken.append)
    if rank is not None:
        group(rank)
    ranks.use_gpu(ids, begin)
    assert taken == [wanted]


def test_output_of_ranks(group, capsys):
    for rank in (None, 0, 2):
        if rank is not None:
            group(rank)
        with ranks.one_output():
            print(f"rank {rank}")
    assert capsys.readouterr().out == "rank None\nrank 0\n"


@pytest.mark.parametrize("text, size, started", [("1", 1, False), ("1", 2, False), ("0,1", 1, True), ("all", 1, True), ("0,1", 2, False)])
def test_several_gpus_start_processes_once(group, monkeypatch, text, size, started):
    """The processes that mpiexec starts have the same option."""
    calls = []
    monkeypatch.setattr(cuda, "count", lambda: 2)
    monkeypatch.setattr(ranks, "start_on_gpus", lambda *given: calls.append(given))
    monkeypatch.setattr(ranks, "use_gpu", calls.append)
    group(0, size)
    context = SimpleNamespace(meta={"arguments": ["a"]}, info_name="extract-features")
    options._use_gpu(context, text)
    ids = [1] if text == "1" else [0, 1]
    assert calls == [(ids, "extract_features", ["a"])] * started + [ids]
    assert (context.meta["device"], context.meta["gpus"]) == ("gpu", len(ids))


@pytest.mark.parametrize("words, applied", [([], []), (["--exact"], [True])])
def test_an_option_that_is_not_given_sets_nothing(logger, monkeypatch, words, applied):
    """The environment variable of the option stays in effect."""
    found = []
    monkeypatch.setattr(engine, "set_exact", found.append)
    context = train.make_context("train", ["f", *words])
    assert found == applied and context.meta["exact"] == bool(words) and "exact" not in context.params


@pytest.mark.parametrize("words, wanted", [([], False), (["--allow-python-layers"], True)])
def test_modules_of_a_file_run_only_if_allowed(logger, monkeypatch, words, wanted):
    """Not those of the working directory, either, which a program's net may name."""
    monkeypatch.setattr(caffe, "allow_python_layers", None)
    train.make_context("train", ["f", *words])
    assert caffe.allow_python_layers is wanted


def test_the_device_is_chosen_before_its_allocator(logger, monkeypatch):
    """In whatever order the options are given."""
    done = []
    for name in ("device", "gpu", "allocator"):
        monkeypatch.setitem(options.SETTINGS, name, lambda ctx, value, name=name: done.append(name))
    train.make_context("train", ["--allocator=plain", "--gpu=0", "--device=sim", "f"])
    assert done == ["device", "gpu", "allocator"]


def test_a_completion_sets_nothing(monkeypatch):
    monkeypatch.setattr(options, "apply_settings", lambda ctx: pytest.fail("sets options"))
    train.make_context("train", ["--gpu", "7", "--quiet"], resilient_parsing=True)


def test_a_text_is_completed_as_a_file_or_a_choice():
    context = train.make_context("train", [], resilient_parsing=True)
    params = {param.name: param for param in train.params}
    for name, word, wanted in (("solver", "net", [("file", "net")]), ("json_path", "", [("file", "")]), ("precision", "t", [("plain", "tf32")])):
        assert [(item.type, item.value) for item in params[name].shell_complete(context, word)] == wanted


@pytest.mark.parametrize("word, wanted", [("--no-debug-info", "--debug-info=false"), ("--to-debug-info", "--to-debug-info"),
                                          ("--no-debug-info=true", "--no-debug-info=true"), ("--no-snapshot-prefix", "--no-snapshot-prefix")])
def test_no_before_the_name_of_a_boolean_field(word, wanted):
    assert options.normalize_arguments([word], train.params) == [wanted]


@pytest.mark.parametrize("words, error", [
    (["--scale-lr=linear"], None), (["--global-batch"], None), (["--scale-lr=sqrt", "--warmup=3"], None),
    (["--scale-lr=linear", "--global-batch"], "--global-batch keeps the total batch size"), (["--warmup=3"], "give --scale-lr, too")])
def test_rates_of_several_processes(folder, minicaffe, words, error):
    found = minicaffe("train", "solver.prototxt", "--max-iter=1", *words, status=2 if error else 0)
    assert error is None or error in found


@pytest.mark.parametrize("rank, quiet, wanted", [(0, False, (False, "")), (0, True, (True, "")), (2, False, (True, "[rank 2] "))])
def test_the_log_of_a_rank(group, monkeypatch, rank, quiet, wanted):
    """Only warnings of other ranks than the first are shown, with their number."""
    found = []
    monkeypatch.setattr(options.log, "start", lambda quiet, verbose, prefix: found.append((quiet, prefix)))
    group(rank)
    context = train.make_context("train", ["f", *["--quiet"] * quiet])
    assert found == [wanted] and context.meta["quiet"] == wanted[0]


@pytest.mark.parametrize("field, words, wanted", [
    ("", [], [0]), ("device_id: 1", [], [1]), ("device_id: -1", [], [None]), ("", ["--device=cpu"], []), ("", ["--solver-mode=CPU"], [])])
def test_the_gpu_of_a_solver_file(folder, minicaffe, monkeypatch, field, words, wanted):
    """The option --device takes precedence."""
    taken = []
    monkeypatch.delenv("MINICAFFE_DEVICE", raising=False)
    monkeypatch.setattr(ranks, "use_gpu", lambda begin: taken.append(begin))
    monkeypatch.setattr("minicaffe.cuda.missing", lambda: None)
    (folder / "solver.prototxt").write_text((folder / "solver.prototxt").read_text().replace("solver_mode: CPU", f"solver_mode: GPU {field}"))
    minicaffe("train", "solver.prototxt", "--max-iter=1", *words)
    assert taken == wanted


def test_solver_file_without_a_device(folder, minicaffe, monkeypatch):
    """A driver without a GPU is as no driver: the CPU trains."""
    monkeypatch.delenv("MINICAFFE_DEVICE", raising=False)
    monkeypatch.setattr("minicaffe.cuda.driver.count", lambda: (_ for _ in ()).throw(DeviceError("no GPU is visible", code="CUDA_ERROR_NO_DEVICE")))
    (folder / "solver.prototxt").write_text((folder / "solver.prototxt").read_text().replace("solver_mode: CPU", "solver_mode: GPU"))
    minicaffe("train", "solver.prototxt", "--max-iter=1")
    assert "solver.prototxt: solver_mode: GPU: no GPU is visible; the CPU trains" in minicaffe.log


@pytest.mark.parametrize("given, images, mode, wanted", [
    ({}, 0, "cpu", "learning rate not scaled"), ({"scale_lr": "linear"}, 8, "cpu", "batches of 8, 32 together; learning rate times 4"),
    ({"scale_lr": "sqrt", "warmup": 7}, 8, "gpu", "batches of 8, 32 together; learning rate times 4 after 7 iterations; gradients are sent by nccl")])
def test_what_several_processes_train_with(group, monkeypatch, given, images, mode, wanted):
    lines, calls = [], []
    group(0)
    ranks.group.comm = "comm"
    given = dict.fromkeys(TRAIN.RANK_OPTIONS) | given
    solver = SimpleNamespace(net=None, rate_scale=4.0, carrier="nccl", distribute=lambda comm, **named: calls.append((comm, named)))
    monkeypatch.setattr(TRAIN, "batch_size", lambda net: images)
    monkeypatch.setattr(TRAIN, "caffe", SimpleNamespace(mode=mode))
    monkeypatch.setattr(TRAIN.options, "notify", lines.append)
    TRAIN.distribute(solver, given)
    assert lines == [wanted]
    assert calls == [("comm", {name: given[name] for name in TRAIN.RANK_OPTIONS if name != "global_batch"} | {"warmup": given["warmup"] or 0, "timeout": 600})]


@pytest.mark.parametrize("hosts, gpus, threads, wanted", [
    ("aabb", None, [2, 2, 2, 2], ["4 ranks: 2 on a, 2 on b; 2 threads each"]),
    ("abcdefgh", None, [1] * 8, ["8 ranks: 1 on a, 1 on b, 1 on c, 1 on d, 1 on e, 1 on f, 1 on g, 1 on h; 1 thread each"]),
    ("abcdefghij", None, [1, 3] * 5, ["10 ranks: 1 on a, 1 on b, 1 on c, 1 on d, 1 on e, 1 on f, 1 on g, 1 on h and 2 machines more; 1 to 3 threads each"]),
    ("aab", [("a", None, 0), ("a", None, 1), ("b", None, 0)], [1] * 3, ["3 ranks: 2 on a, 1 on b; 1 thread each"]),
    ("aabbb", [("a", None, 0), ("a", None, 0), ("b", None, 0), ("b", "1", 0), ("b", None, 0)], [1] * 5,
     ["5 ranks: 2 on a, 3 on b; 1 thread each", "ranks 0, 1 share GPU 0 of a", "ranks 2, 4 share GPU 0 of b"])])
def test_lines_about_ranks(group, monkeypatch, hosts, gpus, threads, wanted):
    """Each with its hosts; ranks with GPUs of their own by CUDA_VISIBLE_DEVICES share none."""
    gathered = [threads, gpus]
    group(0, len(hosts))
    ranks.group.hosts, ranks.group.gather = list(hosts), lambda value: gathered.pop(0)
    monkeypatch.setattr("minicaffe.common.caffe", SimpleNamespace(mode="gpu" if gpus else "cpu"))
    monkeypatch.setattr(cuda, "current", lambda: SimpleNamespace(index=0))
    assert ranks.lines() == wanted


@pytest.mark.parametrize("terminal, words, shown", [(True, [], True), (True, ["--quiet"], False), (True, ["--verbose"], False), (False, [], False)])
def test_which_training_has_a_display(folder, minicaffe, monkeypatch, terminal, words, shown):
    """It is drawn by each step of a test, too, and ends with the training."""
    displays = []

    class Display(Result):
        def __init__(self):
            super().__init__()
            self.ticks, self.closed = 0, 0
            displays.append(self)

        def tick(self, solver):
            self.ticks += 1

        def close(self):
            self.closed += 1

    monkeypatch.setattr(TRAIN.log, "is_terminal", lambda stream: terminal)
    monkeypatch.setattr("minicaffe.cli.display.LiveDisplay", Display)
    assert "Finished at iteration 30 of 30" in minicaffe("train", "solver.prototxt", *words)
    assert [(display.ticks > 30, display.closed) for display in displays] == [(True, 1)] * shown


@pytest.mark.parametrize("words, first", [
    ([], "Starting Optimization"), (["--snapshot=tiny_iter_30.solverstate", "--max-iter=31"], "Resuming from tiny_iter_30.solverstate")])
def test_the_log_around_a_training(folder, minicaffe, words, first):
    minicaffe("train", "solver.prototxt")
    minicaffe("train", "solver.prototxt", "--watch", "--json=r.jsonl", *words, "--force")
    lines = [line.partition("] ")[2].rstrip() for line in minicaffe.log.splitlines()]
    assert [line for line in lines if line.startswith(("Resuming from", "Starting"))] == [first] + ["Starting Optimization"] * bool(words)
    assert lines[-2:] == ["Optimization Done."] * 2      # by the solver and by the command, as in Caffe


def test_a_net_is_shown_apart_from_the_result(folder, minicaffe):
    assert "# net.prototxt is a net" not in minicaffe("train", "net.prototxt", "--max-iter=1")
    assert "# net.prototxt is a net; it is trained by this solver:\n" in minicaffe.messages


def test_a_test_prints_on_the_first_rank_alone(group, folder, minicaffe, monkeypatch):
    minicaffe("train", "solver.prototxt", "--max-iter=1")
    reported = []
    monkeypatch.setattr(TEST.bars, "progress", lambda: contextlib.nullcontext(lambda *given: reported.append(given)))
    monkeypatch.setattr(TEST, "run_batches", lambda net, batches, group, **named: run_batches(net, batches, **named))
    for first in (True, False):
        group(0 if first else 1, size=1)
        assert minicaffe("test", "net.prototxt", "--weights=tiny_iter_1.caffemodel", "--iterations=3").startswith("Loss: ") == first
        assert ("Use " in minicaffe.log) == first
        assert reported == [("testing", i, 3) for i in (1, 2, 3)]
        reported.clear()


def test_output_before_mpiexec_is_not_lost(monkeypatch):
    """The process becomes mpiexec, which keeps the environment and drops what Python has not written yet."""
    done = []
    stream = SimpleNamespace(flush=lambda: done.append("flush"))
    monkeypatch.setattr("minicaffe.parallel.launch.mpiexec", lambda: "/bin/mpiexec")
    monkeypatch.setattr(ranks.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(ranks, "os", SimpleNamespace(environ={}, execv=lambda program, words: done.append((program, words))))
    monkeypatch.setattr(ranks, "sys", SimpleNamespace(stdout=stream, stderr=stream, executable="python"))
    ranks.start_on_gpus([3, 5], "test", ["--gpu=3,5"])
    assert done[:2] == ["flush"] * 2 and ranks.os.environ == {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert done[2:] == [("/bin/mpiexec", ["/bin/mpiexec", "--bind-to", "none", "-n", "2", "python", "-P", "-m", "minicaffe", "test", "--gpu=3,5"])]


@pytest.mark.parametrize("size, local_size, gpus, wanted", [(1, 1, 0, []), (2, 2, 2, []), (2, 2, 0, ["mpiexec", "-n", "2"]), (4, 2, 2, ["mpiexec", "-n", "4"]),
                                                            (4, 2, 4, ["mpiexec", "-n", "4"])])
def test_the_words_that_start_as_many_processes_again(group, size, local_size, gpus, wanted):
    """The option --gpu starts processes on one machine."""
    if size > 1:
        group(0, size)
        ranks.group.local_size = local_size
    assert ranks.mpiexec_words(gpus) == wanted
