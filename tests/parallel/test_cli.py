"""Commands that mpiexec starts several times: what one process writes, once; and what goes wrong, in one line."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import cv2
import numpy as np
import pytest
import ranks
import small_ssd
from helpers import layer_text

import minicaffe
from minicaffe import cuda
from minicaffe.cli import app, training_file
from minicaffe.cli import ranks as cli_ranks
from minicaffe.data.db import open_db
from minicaffe.device.threads import get_num_threads, set_num_threads, usable_processors
from minicaffe.errors import ConfigError, DependencyError
from minicaffe.parallel import launch
from minicaffe.parallel.group import Group
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

pytestmark = pytest.mark.slow(28)    # all together

def product(bottom):
    return layer_text("InnerProduct", "ip", bottom, more='inner_product_param { num_output: 3 weight_filler { type: "xavier" } }')


NET = (layer_text("HDF5Data", "data", "", "data label", 'hdf5_data_param { source: "list.txt" batch_size: 12 }') + product("data")
       + layer_text("SoftmaxWithLoss", "loss", "ip label") + layer_text("Accuracy", "accuracy", "ip label", more="include { phase: TEST }"))
DEPLOY = layer_text("Input", "data", more="input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } }") + product("data") + layer_text("Softmax", "prob", "ip")
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 12 display: 3 random_seed: 3
test_iter: 5 test_interval: 6 snapshot_prefix: "weights" """


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    random = np.random.default_rng(0)
    ranks.write_rows(folder, data=random.random((40, 3, 4, 4)), label=random.integers(0, 3, 40))
    for name, text in (("net.prototxt", NET), ("solver.prototxt", SOLVER), ("deploy.prototxt", DEPLOY)):
        (folder / name).write_text(text)
    (folder / "pictures").mkdir()
    paths = [str(folder / f"pictures/{i}.png") for i in range(7)]
    for path in paths:
        cv2.imwrite(path, random.integers(0, 256, (4, 4, 3)).astype(np.uint8))
    (folder / "pictures.txt").write_text("\n".join(paths))
    (folder / "boxes.prototxt").write_text(small_ssd.DETECTOR % (4, 4))
    minicaffe.Net(str(folder / "boxes.prototxt"), minicaffe.TEST).save(str(folder / "boxes.caffemodel"))
    return folder


def run_commands(folder, *commands):
    """Run commands in `folder`, one after the other; return what each wrote on standard output, and its status."""
    from minicaffe.cli import classify
    classify.CHUNK = 2      # pictures that a rank takes at once: more than one turn of them
    results = []
    with contextlib.chdir(folder):
        for words in commands:
            with contextlib.redirect_stdout(io.StringIO()) as output:
                status = app.run(words)
            results.append([re.sub(r"in [0-9.]+ s|[0-9.]+ s for.*", "", output.getvalue()), status])
    return results


@pytest.fixture(scope="module")
def trained(folder):
    """The displays and tests of one process, and its weights in the folder."""
    assert run_commands(folder, ["train", "solver.prototxt", "--json", "one.json"])[0][1] == 0
    return records(folder / "one.json")


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_first_rank_writes(folder, trained, group_size):
    status, output, errors = ranks.command(group_size, "train", "solver.prototxt", "--global-batch", "--json", "two.json", "--snapshot-prefix",
                                           "two", "--watch", folder=folder, OMP_NUM_THREADS="")
    assert status == 0, errors
    assert output.count("Finished at iteration 12 of 12") == output.count("wrote two_iter_12.caffemodel") == 1
    assert re.search(rf"^{group_size} ranks: {group_size} on .*; {max(1, usable_processors() // group_size)} threads? each$", errors, re.M)
    assert f"\nbatches of {12 // group_size}, 12 together; learning rate not scaled" in errors
    assert len(set(re.findall(r"^I\d+ [\d:.]+ +(\d+) ", errors, re.M))) == 1     # one process logs
    together = records(folder / "two.json")
    assert [r["iteration"] for r in together if r["event"] == "watch"] == [0, 3, 6, 9]
    together = [r for r in together if r["event"] != "watch"]
    assert [(r["event"], r["iteration"]) for r in together] == [(r["event"], r["iteration"]) for r in trained]
    for ours, theirs in zip(together, trained, strict=True):
        if ours["event"] == "train":
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        else:
            assert [o["value"] for o in ours["outputs"]] == pytest.approx([o["value"] for o in theirs["outputs"]], rel=1e-5)


@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
def test_ranks_score_like_one_process(folder, trained, group_size):
    def commands(name):
        weights = ["--weights", "weights_iter_12.caffemodel"]
        net = ["--model", "deploy.prototxt", "--mean", "", *weights]
        return [["test", "net.prototxt", *weights, "--iterations", "5"],
                ["test", "net.prototxt", *weights],     # each record once
                ["test", "net.prototxt", *weights, "--confusion", "--per-class", "--json", f"{name}.json", "--force"],
                ["extract_features", "weights_iter_12.caffemodel", "net.prototxt", "label", f"{name}_label", "0", "--force"],
                ["extract_features", "weights_iter_12.caffemodel", "net.prototxt", "ip,loss", f"{name}_ip,{name}_loss", "5", "--force"],
                ["classify", "pictures.txt", "--out", f"{name}.npy", "--list", "--force", *net],
                ["classify", "pictures", "--ext", "png", *net],
                ["detect", "pictures", "--out", f"{name}.csv", "--force", "--threshold", "0.1", "--model", "boxes.prototxt", *net[2:-2],
                 "--weights", "boxes.caffemodel"]]

    alone = run_commands(folder, *commands("one"))
    first, *others = ranks.run(group_size, __file__, "run_commands", str(folder), *commands("all"))
    assert [[re.sub(r"\ball(?=[._])", "one", output), status] for output, status in first] == alone
    assert all(status == 0 for _, status in alone)
    assert all(status == 0 for rank in others for _, status in rank)
    with open_db(folder / "all_label", "lmdb") as db:
        assert len(db) == 40
    for name in ("{}_ip/data.mdb", "{}_label/data.mdb", "{}_loss/data.mdb", "{}.npy", "{}.csv"):
        assert (folder / name.format("one")).read_bytes() == (folder / name.format("all")).read_bytes(), name


def test_trace_of_ranks_with_exchange(folder, tmp_path):
    status, output, errors = ranks.command(2, "trace", "solver.prototxt", "--perfetto", tmp_path / "p.json", folder=folder)
    assert status == 0, errors
    assert output.count("gradients sent between processes: 1, ") == output.count("wrote ") == errors.count("2 ranks: 2 on ") == 1
    assert [row["ph"] for row in json.loads((tmp_path / "p.json").read_text())["traceEvents"] if row.get("cat") == "travel"] == ["b", "e"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_signal_to_mpiexec(folder, number):
    if number != signal.SIGUSR1 and ranks.open_mpi():
        pytest.skip("Open MPI's mpiexec kills its processes half a second after this signal")
    prefix = f"stopped{number}"
    process = ranks.start(2, "-m", "minicaffe", "train", "solver.prototxt", "--max-iter", 10 ** 8, "--snapshot-prefix", prefix,
                          "--json", f"{prefix}.json", folder=folder)
    end = time.monotonic() + ranks.SECONDS
    while not ((folder / f"{prefix}.json").exists() and len(records(folder / f"{prefix}.json")) > 3):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(number)
    output, errors = ranks.finish(process)
    states = [path.name for path in folder.glob(f"{prefix}_iter_*.solverstate")]
    assert len(states) == 1 and output.count("Stopped at iteration") == len(re.findall(f"wrote {prefix}_iter_[0-9]+.caffemodel", output)) == 1, output + errors
    assert process.returncode == (128 + number if number == signal.SIGTERM else 0)
    status, output, errors = ranks.command(2, "train", "solver.prototxt", "--max-iter", int(re.search("[0-9]+(?=[.]s)", states[0])[0]) + 3,
                                           "--snapshot", states[0], "--snapshot-prefix", prefix, folder=folder)
    assert status == 0 and output.count("Finished at iteration") == 1, errors


@pytest.mark.parametrize(("count", "words", "expected"), [
    (3, "['train', 'missing.prototxt']", r"rank 0 of 3 \(.*\): missing.prototxt: no such file"),
    (2, "['train', 'solver.prototxt', '--quiet', *['--max-iter=x'] * rank()]", r"rank 1 of 2 \(.*\): .*max-iter"),    # the other waits in distribute
    (2, "[['train', 'test'][rank()], 'x']", "the command differs: 'test' on rank 1 of 2"),
    (2, "['upgrade', 'net_text', 'net.prototxt', 'new.prototxt']",
     "upgrade is for one process, and 2 were started together; start it without mpiexec. For several are train, test")])
def test_errors_end_all_ranks(folder, count, words, expected):
    """One line of one rank says why."""
    process = ranks.start(count, "-c", f"import sys\nfrom minicaffe.cli import main\nfrom minicaffe.parallel import rank\nsys.exit(main({words}))", folder=folder)
    _, errors = ranks.finish(process)
    said, = ranks.said(errors)
    assert process.returncode != 0 and re.search(expected, said) and "Abort(" not in errors, errors
    assert not (folder / "new.prototxt").exists()


def test_scoring_says_who_takes_part(folder, trained):
    status, _, errors = ranks.command(2, "classify", "pictures.txt", "--list", "--model", "deploy.prototxt", "--mean", "",
                                      "--weights", "weights_iter_12.caffemodel", folder=folder)
    assert status == 0 and errors.count("2 ranks: 2 on ") == 1, errors


def test_several_gpus_get_a_process_each(folder, trained):
    ranks.mpiexec()
    done = subprocess.run([sys.executable, "-m", "minicaffe", "train", "solver.prototxt", "--gpu", "all", "--global-batch", "--max-iter",
                           "6", "--snapshot-prefix", "gpus"], cwd=folder, capture_output=True, text=True, timeout=ranks.SECONDS,
                          env={**os.environ, **ranks.ENVIRONMENT, "MINICAFFE_DEVICE": "sim", "MINICAFFE_SIM": "devices=2"})
    assert done.returncode == 0, done.stderr
    assert "\n2 ranks: " in f"\n{done.stderr}" and "share GPU" not in done.stderr
    loss = float(re.search("^test loss = ([0-9.]+)", done.stdout, re.M)[1])
    assert loss == pytest.approx(next(r["outputs"][1]["value"] for r in trained if r["event"] == "test" and r["iteration"] == 6), rel=1e-4)


def scale_in(folder, kind, warmup):
    with contextlib.chdir(folder):
        solver = create_solver(parse_text(SOLVER.replace("fixed", "step") + "gamma: 0.5 stepsize: 4", caffe_pb2.SolverParameter)[0])
        solver.distribute(scale_lr=kind, warmup=warmup)
    rates = []
    for solver.iter in range(6):
        rates.append(solver.learning_rate())
    return rates


def test_rate_rises_to_scale(folder, monkeypatch):
    rates, *others = ranks.run(3, __file__, "scale_in", str(folder), "linear", 4)
    assert others == [rates, rates]
    assert rates == pytest.approx([0.15, 0.2, 0.25, 0.3, 0.15, 0.15])
    monkeypatch.chdir(folder)
    solver = create_solver(parse_text(SOLVER, caffe_pb2.SolverParameter)[0])
    assert solver.learning_rate() == pytest.approx(0.1)
    for wrong in ({"scale_lr": "cube"}, {"warmup": 5}, {"scale_lr": "sqrt", "warmup": -1}):
        with pytest.raises(ConfigError, match="scale_lr|warmup"):
            solver.distribute(**wrong)


@pytest.mark.parametrize("words, message", [
    (["--warmup", "5"], "--warmup raises the rate to that of --scale-lr"),
    (["--scale-lr", "sqrt", "--global-batch"], "--global-batch keeps the total batch"),
    (["--scale-lr", "cube"], "'cube' is not one of 'linear', 'sqrt'"),
    (["--gpu", "0,0"], "must be the number of a GPU, got '0,0'; several have commas"),
])
def test_options_that_say_nothing_are_refused(folder, capsys, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    assert app.run(["train", "solver.prototxt", *words]) == 2
    assert message in capsys.readouterr().err


def test_group_options_refused_by_one(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert app.run(["train", "solver.prototxt", "--wire", "bf16", "--overlap", "--scale_lr=linear", "--max-iter", "0"]) == 0
    assert "--scale-lr, --wire, --overlap: for several processes, and this one was started alone" in capsys.readouterr().err


# ---- without other processes

def test_single_training_imports_no_ranks(folder):
    program = ("import sys\nfrom minicaffe.cli import main\nassert main(['train', '--quiet', 'solver.prototxt', '--snapshot-prefix', 'alone']) == 0\n"
               "print(sorted(name for name in sys.modules if name.startswith(('mpi4py', 'minicaffe.parallel', 'nccl'))))")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "['minicaffe.parallel']", done.stderr


def fake_group(rank, size, gathered=None, **more):
    import socket
    group = types.SimpleNamespace(rank=rank, size=size, hosts=[socket.gethostname()] * size, local_rank=rank, local_size=size, **more)
    group.gather = lambda value: gathered if gathered is not None else [value] * size
    group.check_equal = lambda facts: None
    return group


def test_divisible_batch():
    tested = 'layer { name: "tested" type: "HDF5Data" top: "x" include { phase: TEST } hdf5_data_param { batch_size: 5 } }'
    net, positions = parse_text(NET + tested, caffe_pb2.NetParameter)
    net.state.phase = caffe_pb2.TRAIN
    training_file.divide_batch_size(net, 3)
    assert [net.layer[i].hdf5_data_param.batch_size for i in (0, -1)] == [4, 5]
    with pytest.raises(ConfigError, match=r"^net.prototxt:1: layer 'data' \(HDF5Data\): hdf5_data_param.batch_size: must be a multiple "
                                          "of 3.* got 4"):
        training_file.divide_batch_size(net, 3, "net.prototxt", positions)
    with pytest.raises(ConfigError, match="--global-batch: divides a batch_size, and no layer"):
        training_file.divide_batch_size(parse_text(DEPLOY, caffe_pb2.NetParameter)[0], 2)


@pytest.mark.parametrize("ids, begin, rank, count, used", [
    (None, None, 3, 2, 1), (None, 1, 3, 8, 4), ([2, 5], None, 1, 8, 5), ([2, 5], None, 2, 8, 2), ([3], None, 1, 8, 3), (None, None, 1, 0, None)])
def test_rank_takes_its_gpu(monkeypatch, ids, begin, rank, count, used):
    taken = []
    monkeypatch.setattr(cuda, "count", lambda: count, raising=False)
    monkeypatch.setattr(cuda, "use_gpu", taken.append, raising=False)
    monkeypatch.setattr(cli_ranks, "group", fake_group(rank, 8))
    cli_ranks.use_gpu(ids, begin)
    monkeypatch.setattr(cli_ranks, "group", cli_ranks.SINGLE_PROCESS)
    cli_ranks.use_gpu([4, 5])
    cli_ranks.use_gpu()
    assert taken == [used, 4, None]


def test_who_shares_a_gpu_is_said(monkeypatch):
    replies = [[2, 2, 1, 2], [("a", None, 0), ("a", None, 0), ("b", "0", 0), ("b", "1", 0)]]
    group = fake_group(0, 4)
    group.hosts, group.gather = ["a", "a", "b", "b"], lambda value: replies.pop(0)
    monkeypatch.setattr(cli_ranks, "group", group)
    monkeypatch.setattr("minicaffe.common.Caffe.mode", "gpu", raising=False)
    monkeypatch.setattr(cuda, "current", lambda: types.SimpleNamespace(index=0), raising=False)
    assert cli_ranks.lines() == ["4 ranks: 2 on a, 2 on b; 1 to 2 threads each", "ranks 0, 1 share GPU 0 of a"]


def test_processors_of_other_hosts(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("minicaffe.parallel.group.usable_processors", lambda: 2)
    group = fake_group(0, 2, [{0, 1}, {0, 1}])
    group.hosts = ["a", "b"]
    assert Group.processors(group) == 2


def test_resume_command_names_the_processes(monkeypatch):
    assert cli_ranks.mpiexec_words(0) == []
    monkeypatch.setattr(cli_ranks, "group", fake_group(0, 4))
    assert cli_ranks.mpiexec_words(1) == ["mpiexec", "-n", "4"]
    assert cli_ranks.mpiexec_words(4) == []     # --gpu 0,1,2,3 starts them


def test_several_gpus_need_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(launch.shutil, "which", lambda *_, **__: None)
    with pytest.raises(DependencyError, match=r'no mpiexec.*pip install "minicaffe\[mpi\]"'):
        cli_ranks.start_on_gpus([0, 1], "train", [])
    with pytest.raises(Exception, match="--gpu: time computes on one GPU, got 0,1"):
        cli_ranks.start_on_gpus([0, 1], "time", [])


def test_mpiexec_is_that_of_the_library(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/mpiexec"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("MPI4PY_LIBMPI", str(tmp_path / "lib/libmpi.so.40"))
    assert launch.mpiexec() == str(program)
    monkeypatch.setenv("MPI4PY_LIBMPI", "libmpi.so.40")
    assert launch.mpiexec() != str(program)


def test_missing_mpi4py_named_once(tmp_path):
    """Two processes as mpiexec would start them, of which the one with local rank 0 talks."""
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError('mpi4py')")
    for local, hints in (("0", 1), ("1", 0)):
        done = subprocess.run([sys.executable, "-m", "minicaffe", "train", "x"], capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": str(tmp_path), "PMI_SIZE": "2", "PMI_RANK": local, "MPI_LOCALRANKID": local})
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count('pip install "minicaffe[mpi]"') == hints, done.stderr


def test_threads_stay_where_the_environment_says(monkeypatch):
    """`join` with a group of two that share the processors."""
    before = get_num_threads()
    monkeypatch.setattr(cli_ranks.parallel, "launched", lambda: 2)
    monkeypatch.setattr("minicaffe.parallel.group.Group", lambda: fake_group(0, 2, processors=lambda: 7))
    try:
        for threads, expected in (("3", before), ("", 7)):
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
            monkeypatch.setattr(cli_ranks, "group", cli_ranks.SINGLE_PROCESS)
            cli_ranks.init_process_group("train")
            assert get_num_threads() == expected
    finally:
        set_num_threads(before)


def test_other_mpiexec_noticed(monkeypatch):
    world = types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(size=1), Get_library_version=lambda: "MPICH Version: 5.0\nand more")
    monkeypatch.setattr(launch, "launched", lambda: 4)
    monkeypatch.setattr(launch, "mpi", lambda: world)
    monkeypatch.setattr("minicaffe.parallel.group.mpi", lambda: world)
    with pytest.raises(ConfigError, match=r"4 processes were started together, and mpi4py's MPI library \(MPICH Version: 5.0\) reports 1"):
        cli_ranks.init_process_group("train")


LABELS = (layer_text("HDF5Data", "data", "", "data label", 'hdf5_data_param { source: "labels.txt" batch_size: 10 }') + product("data")
          + layer_text("SigmoidCrossEntropyLoss", "loss", "ip label"))


def test_best_by_labels_and_keep(folder):
    """Two ranks that divide the batches of a test find the mean F1 of one process; older snapshots are deleted once."""
    random = np.random.default_rng(1)
    ranks.write_rows(folder, "labels", "labels.txt", data=random.random((20, 3, 4, 4)) - 0.5, label=random.integers(0, 2, (20, 3)))
    (folder / "labels.prototxt").write_text(LABELS)
    words = ("train", "labels.prototxt", "--max-iter=9", "--snapshot-interval=3", "--test-interval=3", "--test-iter=2", "--keep-best", "--keep=1",
             "--seed=1", "--global-batch")
    best = []
    for count in 1, 2:
        status, output, errors = ranks.command(count, *words, f"--snapshot-prefix=l{count}", folder=folder)
        assert status == 0 and "cannot be deleted" not in errors, errors
        best += re.findall(r"best test mean F1 = [\d.]+ at iteration \d+", output)
        assert sorted(path.name for path in folder.glob(f"l{count}_*")) == [
            f"l{count}_best.caffemodel", f"l{count}_iter_9.caffemodel", f"l{count}_iter_9.solverstate"]
    assert len(best) == 2 and best[0] == best[1]
    status, _, errors = ranks.command(2, *words, "--max-iter=12", "--snapshot-prefix=l2", "--resume", folder=folder)
    assert status == 0 and errors.count("--resume: from l2_iter_9.solverstate") == 1 and not (folder / "l2_iter_9.solverstate").exists()
