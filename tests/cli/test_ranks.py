"""Ranks of commands: the GPU and the log of each, their inputs and lines, and what one that fails does."""

import importlib
from types import SimpleNamespace

import click
import pytest

from minicaffe import cuda
from minicaffe.cli import app, main, options, ranks
from minicaffe.cli.train import train
from minicaffe.errors import DeviceError
from minicaffe.solver.report import run_batches

TRAIN = importlib.import_module("minicaffe.cli.train")


@pytest.fixture
def group(monkeypatch):
    """A function that makes this process rank `rank` of `size` on one machine."""
    def make(rank, size=4):
        monkeypatch.setattr(ranks, "group", SimpleNamespace(rank=rank, local_rank=rank, size=size))
    return make


@pytest.mark.parametrize("rank, ids, begin, count, wanted", [
    (None, None, None, 3, None), (None, None, 1, 3, 1), (None, [2, 0], None, 3, 2), (0, None, None, 3, 0), (2, None, None, 3, 2), (4, None, None, 3, 1),
    (1, None, 2, 3, 0), (1, [4, 5], None, 3, 5), (2, [4, 5], None, 3, 4), (1, None, None, 0, None)])
def test_gpu_of_a_rank(group, monkeypatch, rank, ids, begin, count, wanted):
    taken = []
    monkeypatch.setattr(cuda, "count", lambda: count)
    monkeypatch.setattr(cuda, "use_gpu", taken.append)
    if rank is not None:
        group(rank)
    ranks.use_gpu(ids, begin)
    assert taken == [wanted]


@pytest.mark.parametrize("text, size, started", [("1", 1, False), ("1", 2, False), ("0,1", 1, True), ("all", 1, True), ("0,1", 2, False)])
def test_several_gpus(group, monkeypatch, text, size, started):
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


@pytest.mark.parametrize("words, error", [
    (["--scale-lr=linear"], None), (["--global-batch"], None), (["--scale-lr=sqrt", "--warmup=3"], None),
    (["--scale-lr=linear", "--global-batch"], "--global-batch keeps the total batch size"), (["--warmup=3"], "give --scale-lr, too")])
def test_rates(folder, minicaffe, words, error):
    found = minicaffe("train", "solver.prototxt", "--max-iter=1", *words, status=2 if error else 0)
    assert error is None or error in found


@pytest.mark.parametrize("rank, quiet, wanted", [(0, False, (False, "")), (0, True, (True, "")), (2, False, (True, "[rank 2] "))])
def test_log_and_output_of_a_rank(group, monkeypatch, capsys, rank, quiet, wanted):
    found = []
    monkeypatch.setattr(options.log, "start", lambda quiet, verbose, prefix: found.append((quiet, prefix)))
    group(rank)
    context = train.make_context("train", ["f", *["--quiet"] * quiet])
    assert found == [wanted] and context.meta["quiet"] == wanted[0]
    monkeypatch.setattr(app.parallel, "launched", lambda: 3)
    monkeypatch.setattr(ranks, "init_process_group", lambda command: None)
    assert app.run(["--version"]) == 0 and capsys.readouterr().out.count("\n") == (rank == 0)


def test_test_on_ranks(group, folder, minicaffe, monkeypatch):
    minicaffe("train", "solver.prototxt", "--max-iter=1")
    module = importlib.import_module("minicaffe.cli.test")
    monkeypatch.setattr(module, "run_batches", lambda net, batches, group, **named: run_batches(net, batches, **named))
    for rank in 0, 1:
        group(rank, size=1)
        said = minicaffe("test", "net.prototxt", "--weights=tiny_iter_1.caffemodel", "--iterations=3")
        assert (said.startswith("Loss: "), "Use " in minicaffe.log) == (rank == 0, rank == 0)


@pytest.mark.parametrize("field, words, wanted", [
    ("", [], [0]), ("device_id: 1", [], [1]), ("device_id: -1", [], [None]), ("", ["--device=cpu"], []), ("", ["--solver-mode=CPU"], [])])
def test_gpu_of_a_solver_file(folder, minicaffe, monkeypatch, field, words, wanted):
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
def test_line_about_a_training(group, monkeypatch, given, images, mode, wanted):
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


def test_output_before_mpiexec(monkeypatch):
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
def test_mpiexec_words(group, size, local_size, gpus, wanted):
    if size > 1:
        group(0, size)
        ranks.group.local_size = local_size
    assert ranks.mpiexec_words(gpus) == wanted


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
def test_inputs_of_ranks(count, size, monkeypatch):
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


@pytest.mark.parametrize("threads", [None, "2", "0", "1025"])
@pytest.mark.parametrize("command", [*ranks.PARALLEL_COMMANDS, None])
def test_init_process_group(command, threads, monkeypatch):
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
    assert made == [((group,), {"timeout": 0})] * (command not in ("train", "trace")) + [3] * (threads != "2")
    ranks.init_process_group(command)     # has joined
    assert len(group.calls) == 1


def test_single_and_failing_processes(monkeypatch, capsys):
    monkeypatch.setattr(ranks, "group", ranks.SINGLE_PROCESS)
    monkeypatch.setattr(ranks.parallel, "launched", lambda: 2)
    with pytest.raises(click.UsageError, match="draw is for one process, and 2 were started together"):
        ranks.init_process_group("draw")
    assert ranks.group is ranks.SINGLE_PROCESS
    monkeypatch.setattr(ranks.parallel, "launched", lambda: 1)
    monkeypatch.setattr(ranks, "init_process_group", lambda command: pytest.fail("joined"))
    assert main(["train", "--help"]) == 0
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
