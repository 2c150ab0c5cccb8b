"""``minicaffe train``: files and options in, files, log, JSON lines and result out; signals; the display on a terminal."""

import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from rich.console import Console
from tiny import COMMAND, NET, Process, run

from minicaffe import cli
from minicaffe.cli import training_file
from minicaffe.cli.display import LiveDisplay
from minicaffe.cli.parse_log import read_run
from minicaffe.cli.records import Result
from minicaffe.proto import binary, upgrade


def iteration(path):
    return binary.read_solver_state(str(path)).iter


def own_solver():
    """The solver that ``minicaffe train net.prototxt`` makes."""
    net, _ = upgrade.read_net_file("net.prototxt")
    return training_file.build_solver(training_file.default_solver(net, "net.prototxt"))


def test_solver_file(folder):
    result = run("train", "solver.prototxt", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "Finished at iteration 30 of 30" in result.stdout and "test loss = " in result.stdout
    assert "wrote tiny_iter_30.caffemodel" in result.stdout and iteration(folder / "tiny_iter_30.solverstate") == 30
    second = run("train", "--solver=solver.prototxt", "-max_iter", "20", cwd=folder)
    assert second.returncode == 0 and iteration(folder / "tiny_iter_20.solverstate") == 20


def test_net_alone_shows_its_solver(folder):
    result = run("train", "net.prototxt", "--max-iter", "40", "--seed", "3", "--test-iter", "2", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "# net.prototxt is a net; it is trained by this solver:\n" in result.stderr
    assert result.stderr.count("random_seed: 3") == result.stderr.count("max_iter: 40") == 1      # in the log, not before it, too
    assert (folder / "net_iter_40.caffemodel").exists()
    assert re.search(r"^test loss = \S+ \(\* 1 = \S+ loss\)$", result.stdout, re.M)


def test_net_alone_shows_its_solver_on_a_terminal_too(folder):
    process = Process("train", "net.prototxt", "--max-iter", "10", "--seed", "3", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and process.text.count("random_seed: 3") == 1


def test_the_memory_plan_changes_no_bit(folder, capsys):
    models = []
    for plan in ("memory", "none"):
        assert cli.main(["train", "solver.prototxt", "--seed", "3", "--plan", plan, "--snapshot-prefix", plan, "--threads", "1"]) == 0
        models.append((folder / f"{plan}_iter_30.caffemodel").read_bytes())
    assert models[0] == models[1]
    assert cli.main(["train", "solver.prototxt", "--plan", "memry"]) == 2
    assert "'--plan': 'memry' is not one of 'memory', 'none'" in capsys.readouterr().err


def test_quiet_leaves_only_the_result(folder):
    result = run("train", "net.prototxt", "--max-iter", "10", "--quiet", cwd=folder)
    assert result.returncode == 0 and result.stderr == "" and "Finished at iteration 10" in result.stdout


def test_prefix_that_is_a_folder(folder, capsys):
    (folder / "out").mkdir()
    assert cli.main(["train", "solver.prototxt", "--snapshot-prefix", "out", "--threads", "1"]) == 0
    assert (folder / "out" / "solver_iter_30.solverstate").exists()


def test_level_and_stage_go_into_the_train_net(folder, capsys):
    (folder / "staged.prototxt").write_text("""
layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 1 } shape { dim: 2 dim: 1 } } }
layer { name: "a" type: "Scale" bottom: "x" top: "s" include { stage: "extra" min_level: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "s" bottom: "y" top: "loss" }
""")
    assert cli.main(["train", "staged.prototxt", "--max-iter", "1", "--stage", "extra,b", "--level", "2"]) == 0
    assert cli.main(["train", "staged.prototxt", "--max-iter", "1", "--stage", "extra"]) == 2
    assert "staged.prototxt:4: layer 'loss' (EuclideanLoss)" in capsys.readouterr().err


# ---- parse_log, by the rules of cli_and_tools.md

def parse_log(lines):
    """Read a log as Caffe's parse_log.py does; return the train and the test rows."""
    number = r"([\d.eE+-]+)"
    step, seconds_of_start, rows = None, None, {"Train": [], "Test": []}
    rate = math.nan
    for line in lines:
        if "Solving" in line and seconds_of_start is None:
            seconds_of_start = seconds(line)
        if match := re.search(r"Iteration (\d+)", line):
            step = int(match[1])
        if step is None:
            continue
        if match := re.search(rf"lr = {number}", line):
            assert line.split()[8] == match[1]  # parse_log.sh takes the ninth word
            rate = float(match[1])
            for row in rows["Train"]:
                row.setdefault("LearningRate", rate)
        if match := re.search(rf"(Train|Test) net output #(\d+): (\S+) = {number}", line):
            table = rows[match[1]]
            assert line.split()[10] == match[4]  # and the eleventh
            if not table or table[-1]["NumIters"] != step:
                table.append({"NumIters": step, "Seconds": seconds(line) - seconds_of_start})
            table[-1][match[3]] = float(match[4])
    return rows["Train"], rows["Test"]


def seconds(line):
    match = re.fullmatch(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d\.\d{6}) +(\d+) (\S+):(\d+)\] .*", line)
    assert match, line
    return int(match[3]) * 3600 + int(match[4]) * 60 + float(match[5])


def test_log_is_read_by_parse_log(folder):
    lines = run("train", "solver.prototxt", cwd=folder).stderr.splitlines()
    train, test = parse_log(lines)
    assert [row["NumIters"] for row in train] == [0, 10, 20]
    assert [row["NumIters"] for row in test] == [0, 10, 20, 30]
    assert all(row["LearningRate"] == 0.01 and row["loss"] >= 0 and 0 <= row["Seconds"] < 60 for row in train)
    assert all(set(row) == {"NumIters", "Seconds", "loss", "total"} for row in test)
    text = "\n".join(lines)
    assert all(words in text for words in (
        "] Solving tiny", "] Learning Rate Policy: fixed", ", Testing net (#0)", "Snapshotting to binary proto file tiny_iter_30",
        "] Iteration 30, loss = ", "] Optimization Done.", "] Use ", "] Starting Optimization"))


# ---- JSON lines, resuming

def test_json_lines_and_resume(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--json", "log.jsonl"]) == 0
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    displays = [record for record in records if record["event"] == "train"]
    assert [record["iteration"] for record in displays] == [0, 10, 20]
    assert [record["iteration"] for record in records if record["event"] == "test"] == [0, 10, 20, 30]
    assert all(record["lr"] == pytest.approx(0.01) and record["outputs"][0]["name"] == "loss" for record in displays)
    assert cli.main(["train", "solver.prototxt", "--json", "log.jsonl", "--snapshot", "tiny_iter_30.solverstate",
                     "--max-iter", "50"]) == 0
    again = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert again[: len(records)] == records  # what was there stays
    assert [record["iteration"] for record in again[len(records):] if record["event"] == "train"] == [30, 40]
    assert "20 iterations" in capsys.readouterr().out


def test_json_of_repeated_trainings(folder):
    for _ in range(2):
        assert cli.main(["train", "solver.prototxt", "--json", "log.jsonl", "--quiet"]) == 0
    for name in ("log.jsonl", "log.1.jsonl"):
        assert [json.loads(line)["iteration"] for line in (folder / name).read_text().splitlines()].count(30) == 1


def test_the_result_says_how_old_a_test_is_and_counts_all_batches(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--max-iter=25", "--iter-size=3", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^test loss = .* \(at iteration 20\)$", out, re.M)
    solver = own_solver()
    solver.param.iter_size, solver.iter = 3, 25
    result = Result()
    result.first_iter, result.seconds = 5, 2.0
    assert "20 iterations, 240 images/s" in list(result.lines(solver, None))[1]  # 8 pictures, 3 batches, 20 iterations, 2 seconds


def test_a_resumed_training_does_not_load_the_weights_it_began_with(folder, capsys):
    assert cli.main(["train", "solver.prototxt"]) == 0
    with open("solver.prototxt", "a") as file:
        file.write('weights: "gone.caffemodel"')
    assert cli.main(["train", "solver.prototxt", "--snapshot=tiny_iter_30.solverstate", "--max-iter=40", "--quiet"]) == 0
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 1
    assert "gone.caffemodel: no such" in capsys.readouterr().err


def test_json_on_a_full_disk_costs_only_the_records(folder):
    result = run("train", "solver.prototxt", "--json", "/dev/full", cwd=folder)
    assert result.returncode == 0 and iteration(folder / "tiny_iter_30.solverstate") == 30
    assert len(re.findall("^W.*/dev/full: cannot be written: No space left", result.stderr, re.M)) == 1


def test_not_a_number_is_null_in_json(folder):
    assert run("train", "solver.prototxt", "--base-lr", "1e30", "--nan=warn", "--json", "log.jsonl", cwd=folder).returncode == 0
    last = [json.loads(line, parse_constant=pytest.fail) for line in (folder / "log.jsonl").read_text().splitlines()][-1]
    assert last["outputs"][0]["value"] is None


# ---- numbers that are not finite

def test_diverging_training_reports_a_remedy(folder):
    result = run("train", "solver.prototxt", "--snapshot-interval", "1", "--base-lr", "1e15", "--quiet", "--plan", "none",
                 cwd=folder)
    message, error = result.stderr.splitlines()
    assert result.returncode == 1 and re.search("Iteration [1-9]: the loss is inf, .* 'loss' of layer 'loss' \\(EuclideanLoss\\)", message)
    assert error.startswith("minicaffe: solver.prototxt: iteration ") and "the first is layer 'scale' blobs[0]" in error
    bad = int(re.search(r"Iteration (\d)", message)[1])
    command = shlex.split(error.partition("resume with: ")[2])
    assert command[-2:] == ["--base-lr=1e+14", f"--snapshot=tiny_iter_{bad}.solverstate"]
    for path in folder.glob("*.caffemodel"):
        assert all(np.isfinite(blob.data).all() for layer in binary.read_net(str(path))[1] for blob in layer.blobs)
    again = run(*command[1:], "--max-iter", bad, cwd=folder)  # nothing is left to do: the state is read
    assert again.returncode == 0 and f"Finished at iteration {bad} of {bad}" in again.stdout


def test_divergence_without_a_snapshot(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--base-lr=1e30", "--quiet"]) == 1
    message = capsys.readouterr().err
    assert "which blob it came from is not known" in message      # by the plan blobs share memory
    assert message.endswith("no snapshot was written before, restart with: minicaffe train solver.prototxt --quiet "
                         "--base-lr=1e+29\n")
    assert not list(folder.glob("*.solverstate"))


def test_infinite_data_gets_no_rate(folder, capsys):
    (folder / "net.prototxt").write_text(NET.replace('data_filler { type: "gaussian" std: 1 }', "data_filler { value: inf }"))
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "layer 'in' (DummyData)" in err and "correct the data" in err and "--base-lr" not in err


# ---- what is wrong

@pytest.mark.parametrize("arguments, status, texts", [
    ([], 2, ["give one solver or net"]),
    (["solver.prototxt", "--solver", "solver.prototxt"], 2, ["give one solver or net"]),
    (["solver.prototxt", "--weights", "a", "--snapshot", "b"], 2, ["not both"]),
    (["solver.prototxt", "--weights", "none.caffemodel"], 1, ["none.caffemodel: no such file"]),
    (["solver.prototxt", "--snapshot", "none.solverstate"], 1, ["none.solverstate: no such file"]),
    (["solver.prototxt", "--snapshot", "net.prototxt"], 1, ["net.prototxt"]),
    (["solver.prototxt", "--weights", "net.prototxt"], 1, ["net.prototxt"]),
    (["solver.prototxt", "--net", "none.prototxt"], 1, ["none.prototxt: no such file"]),
    (["solver.prototxt", "--lr-policy", "stp"], 2, ["minicaffe: --lr-policy: ", "stp"]),
    (["solver.prototxt", "--type", "SDG"], 2, ["--type: ", "'SGD'"]),
    (["solver.prototxt", "--snapshot-prefix", "/no/such/place"], 1, ["/no/such"]),
    (["solver.prototxt", "--json", "/no/such/place"], 1, ["--json"]),
    (["solver.prototxt", "--batch-size", "4"], 2, ["--batch-size"]),
    ([".", ], 1, ["is a folder"]),
])
def test_faults_are_one_line(folder, capsys, arguments, status, texts):
    assert cli.main(["train", "--quiet", *arguments]) == status
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("minicaffe: ") and all(text in err for text in texts), err


def test_a_net_without_a_loss_is_not_trained(folder, capsys):
    (folder / "deploy.prototxt").write_text(NET.replace("DummyData", "Input").replace("dummy_data_param", "input_param")
                                            .partition("    data_filler")[0] + "} }")
    for file in ("deploy.prototxt", "solver.prototxt"):
        assert cli.main(["train", file, "--net", "deploy.prototxt", "--quiet"]) == 2
        assert capsys.readouterr().err.startswith("minicaffe: deploy.prototxt: the net has no loss in its TRAIN phase")
    assert not list(folder.glob("*.caffemodel"))


def test_faults_in_a_file_name_its_line(folder, capsys):
    (folder / "bad.prototxt").write_text("max_iter: 3\nlr_policy: \"fixed\"\nbase_lrr: 1\n")
    assert cli.main(["train", "bad.prototxt", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("minicaffe: bad.prototxt:3:1: base_lrr: unknown field in SolverParameter")
    (folder / "bad.prototxt").write_text('name: "x"\nlayer { name: "a" type: "Input" }\nlayer { name: "b" typ: "ReLU" }\n')
    assert cli.main(["train", "bad.prototxt", "--quiet"]) == 2
    assert "bad.prototxt:3:19: layer 'b': typ: unknown field in LayerParameter; did you mean 'type'" in capsys.readouterr().err
    (folder / "bad.prototxt").write_text('name: "x"\nlayer { name: "a" }\n')
    assert cli.main(["train", "bad.prototxt", "--quiet"]) == 2
    assert "bad.prototxt:2: layer 'a': type: unknown layer type ''; every layer needs a type" in capsys.readouterr().err
    (folder / "bad.prototxt").write_text('name: "x"\nlayer { name: "a" type: "Scal" }\n')
    assert cli.main(["train", "bad.prototxt", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "bad.prototxt:2: layer 'a' (Scal)" in err and "'Scale'" in err


def test_a_fault_of_a_layer_is_not_blamed_on_an_option_of_that_name(folder, capsys):
    (folder / "net.prototxt").write_text(NET.replace('"Scale"', '"Scal"'))
    assert cli.main(["train", "solver.prototxt", "--type=Adam", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("minicaffe: net.prototxt:5: layer 'scale' (Scal): type: ")


def test_missing_database_names_the_command_that_makes_it(folder, capsys):
    (folder / "mnist.prototxt").write_text('layer { name: "mnist" type: "Data" top: "data" data_param { source: '
                                           '"examples/mnist/mnist_train_lmdb" batch_size: 2 backend: LMDB } }')
    assert cli.main(["train", "mnist.prototxt", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "mnist.prototxt:1: layer 'mnist' (Data): data_param.source: examples/mnist/mnist_train_lmdb: no such database" in err
    assert err.endswith("make it with: minicaffe data mnist --out examples/mnist\n")


def test_gpu_mode_of_a_solver_file_trains_on_the_device(folder):
    result = run("train", "solver.prototxt", "--solver-mode", "GPU", cwd=folder, env={**os.environ, "MINICAFFE_DEVICE": "sim"})
    assert result.returncode == 0 and "GPU 0: minicaffe simulated device" in result.stderr


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_gpu_mode_of_a_solver_file_without_a_gpu_is_a_warning(folder):
    result = run("train", "solver.prototxt", "--solver-mode", "GPU", cwd=folder, env={**os.environ, "MINICAFFE_DEVICE": ""})
    assert result.returncode == 0 and re.search("^W.*no CUDA driver.*the CPU trains", result.stderr, re.M)


# ---- signals

LONG = ["--max-iter", "100000000", "--display", "1000", "--test-interval", "1000000"]


def test_ctrl_c_stops_snapshots_and_says_how_to_resume(folder):
    process = Process("train", "-solver", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Optimization stopped early." in process.text and out.startswith("Stopped at iteration")
    command = shlex.split(out.splitlines()[-1].partition("resume with: ")[2])
    state = command[-1].removeprefix("--snapshot=")
    stopped = iteration(folder / state)
    assert command[:3] == ["minicaffe", "train", "--solver=solver.prototxt"] and f"Stopped at iteration {stopped} " in out
    resumed = run(*command[1:], f"--max-iter={stopped + 5}", cwd=folder)
    assert resumed.returncode == 0 and iteration(folder / f"tiny_iter_{stopped + 5}.solverstate") == stopped + 5


def test_sigterm_stops_like_ctrl_c_with_its_own_status(folder):
    process = Process("train", "solver.prototxt", "--sigint-effect=none", "--sighup-effect=none", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGTERM)
    status, out = process.finish()
    state, = folder.glob("*.solverstate")
    assert status == 143 and f"Stopped at iteration {iteration(state)} of" in out and f"--snapshot={state.name}" in out


def test_a_stop_without_a_snapshot_says_so(folder):
    process = Process("train", "solver.prototxt", "--snapshot-after-train=false", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGTERM)
    status, out = process.finish()
    assert status == 143 and out.endswith("wrote no snapshot: snapshot_after_train is false\n")
    assert not list(folder.glob("*.solverstate"))


def test_signals_are_given_back(folder):
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 0
    assert [signal.getsignal(number) for number in numbers] == before


def test_help_says_what_signals_do(capsys):
    assert cli.main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "What SIGHUP does, which is sent when the terminal is closed" in text and "143 after SIGTERM" in text


def test_many_ctrl_c_corrupt_nothing(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    for _ in range(5):
        process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Traceback" not in process.text
    state, = folder.glob("*.solverstate")
    assert iteration(state) >= 1000 and binary.read_net(str(state.with_suffix(".caffemodel")))
    assert not list(folder.glob(".*.tmp"))


def test_sighup_snapshots_and_continues(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGHUP)
    process.read_until("Snapshotting solver state")
    process.read_until("Iteration ")
    process.signal(signal.SIGINT)
    assert process.finish()[0] == 0 and len(list(folder.glob("*.solverstate"))) == 2


def test_effects_can_be_chosen(folder):
    process = Process("train", "solver.prototxt", "-sigint_effect=none", "--sighup-effect", "stop", *LONG, cwd=folder)
    process.read_until("Iteration 1000 ")
    process.signal(signal.SIGINT)
    process.read_until("Iteration ")
    process.signal(signal.SIGHUP)
    status, out = process.finish()
    assert status == 0 and out.startswith("Stopped") and len(list(folder.glob("*.solverstate"))) == 1


def test_ctrl_c_in_a_test_pass_stops_it(folder):
    process = Process("train", "solver.prototxt", "--max-iter=10", "--test-iter=100000000", cwd=folder)
    process.read_until("Testing net (#0)")
    process.signal(signal.SIGINT)
    status, out = process.finish()
    assert status == 0 and "Test interrupted." in process.text and out.startswith("Stopped at iteration 0")


# ---- the terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


@pytest.mark.parametrize("size, environment", [
    ((24, 80), {}), ((24, 40), {}), ((5, 20), {}), ((24, 80), {"NO_COLOR": "1"}), ((50, 200), {"LC_ALL": "C", "PYTHONUTF8": "0"}),
])
def test_live_display(folder, size, environment):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder, size=size, **environment)
    process.read_until("iteration")
    process.read_until("iteration")
    process.resize(12, 40)
    process.read_until("iteration")
    process.signal(signal.SIGINT)
    status, _ = process.finish()
    shown = ESCAPES.sub("", process.text)
    assert status == 0 and "Stopped at iteration" in shown and "resume with:" in shown
    assert "Traceback" not in shown and "] Iteration" not in shown  # the log stays away
    assert process.text.rstrip().count("\x1b[?25h") >= 1  # the cursor is back
    if size[0] > 12:
        assert [word for word in ("loss", "speed", "iterations/s", "time left", "test") if word not in shown] == []
    if environment.get("NO_COLOR"):
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", process.text)


def test_a_training_on_a_terminal_leaves_its_log(folder):
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0
    assert process.text.count("wrote tiny.log") == 1 and "wrote tiny.log; draw it: minicaffe plot tiny.log" in process.text
    first = (folder / "tiny.log").read_text()
    tables = read_run(folder / "tiny.log").tables
    assert [row["NumIters"] for row in tables["train"]] == [0, 10, 20] and [row["NumIters"] for row in tables["test"]] == [0, 10, 20, 30]
    process = Process("train", "solver.prototxt", "--max-iter=50", "--snapshot=tiny_iter_30.solverstate", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and (folder / "tiny.log").read_text().startswith(first)
    assert [row["NumIters"] for row in read_run(folder / "tiny.log").tables["train"]] == [0, 10, 20, 30, 40]
    (folder / "tiny.log").unlink()
    (folder / "tiny.log").mkdir()
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and "tiny.log: cannot be written: Is a directory; the training leaves no log" in ESCAPES.sub("", process.text)
    assert "wrote tiny.log" not in process.text


@pytest.mark.parametrize("more", [[], ["--quiet"], ["--verbose"], ["--snapshot-after-train=false"]])
def test_a_training_without_a_terminal_leaves_its_log_too(folder, more):
    result = run("train", "solver.prototxt", *more, cwd=folder)
    assert result.returncode == 0 and result.stdout.count("wrote tiny.log; draw it: minicaffe plot tiny.log\n") == 1
    tables = read_run(folder / "tiny.log").tables
    assert [row["NumIters"] for row in tables["train"]] == [0, 10, 20] and [row["NumIters"] for row in tables["test"]] == [0, 10, 20, 30]
    assert "Setting up" not in (folder / "tiny.log").read_text()


def test_without_a_folder_for_it_a_training_says_that_it_leaves_no_log(folder):
    result = run("train", "solver.prototxt", "--snapshot-after-train=false", "--snapshot-prefix=none/x", cwd=folder)
    assert result.returncode == 0 and result.stderr.count("none/x.log: cannot be written: No such file or directory; the training leaves no log") == 1


def test_the_log_is_not_written_twice_to_one_file(folder):
    with open(folder / "tiny.log", "w") as file:
        done = subprocess.run([*COMMAND, "train", "solver.prototxt"], cwd=folder, stdout=subprocess.PIPE, stderr=file, text=True, timeout=60)
    assert done.returncode == 0 and "tiny.log" not in done.stdout and (folder / "tiny.log").read_text().count("Optimization Done.") == 2
    assert not (folder / "tiny.1.log").exists()


@pytest.mark.parametrize("arguments, text", [
    (["--json=./tiny.log"], "./tiny.log: --json: is the log of this training; name another file"),
    (["--net=tiny.log"], "tiny.log: snapshot_prefix: is a file that this training reads; name another")])
def test_the_log_is_no_other_file_of_the_training(folder, capsys, arguments, text):
    shutil.copy(folder / "net.prototxt", folder / "tiny.log")
    assert cli.main(["train", "solver.prototxt", "--quiet", *arguments]) == 2
    assert text in capsys.readouterr().err and (folder / "tiny.log").read_text() == NET


def test_a_full_disk_ends_the_log_and_not_the_training(folder):
    (folder / "tiny.log").symlink_to("/dev/full")
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0
    assert ESCAPES.sub("", process.text).count("tiny.log: cannot be written: No space left on device; no more log") == 1
    assert "wrote tiny_iter_30.caffemodel" in process.text and "wrote tiny.log" not in process.text


def test_the_rows_of_the_display(folder):
    solver = own_solver()
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=40, height=20))
    display.on_start(solver)
    display.on_display(solver, {"lr": 0.1})
    display.on_test(solver, {"net": 0, "iteration": 7, "outputs": [{"name": f"output{i}", "value": 0.5} for i in range(8)]})
    display.on_snapshot(solver, "a_long_folder/and_a_long_name_iter_7.caffemodel", "x")
    display.close()
    display.console.file = io.StringIO()
    display.console.print(display.table(solver))
    lines = ESCAPES.sub("", display.console.file.getvalue()).splitlines()
    assert [line.split()[0] for line in lines] == ["iteration", "━━━━━━━━━━━━━━━━━━━━━━━━━━━━", "loss", "rate", "speed", "test", "snapshot"]
    assert "at 7: output0 0.5" in lines[5] and "at 0: a_long_folder" in lines[6]


def display_of(width, height):
    return LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=width, height=height))


@pytest.mark.parametrize("stopped, state", [(True, "stopped"), (False, "done")])
def test_speed_from_the_first_iteration_and_the_state_at_the_end(folder, stopped, state):
    solver, display = own_solver(), display_of(40, 20)
    solver.iter = 300       # of an earlier training
    display.on_start(solver)
    display.tick(solver)
    assert display._speed(solver) == ("", "...")
    display.on_end(solver, stopped)
    assert f" of {solver.param.max_iter} {state}" in ESCAPES.sub("", display.console.file.getvalue())


def test_nothing_is_drawn_after_a_hang_up(folder):
    solver, display, drawn = own_solver(), display_of(40, 20), []

    def hung_up():
        drawn.append(solver.iter)
        raise OSError

    display.on_start(solver)
    live, display.live.refresh = display.live, hung_up
    for _ in range(2):
        display.next_draw = 0
        display.tick(solver)
    del live.refresh
    live.stop()
    assert drawn == [0] and display.live is None


def test_figures_of_an_earlier_iteration_say_so(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--max-iter=25", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^train loss = .*\(at iteration 20\)$", out, re.M) and re.search(r"^test loss = .*\(at iteration 20\)$", out, re.M)
    assert re.search(r"^smoothed loss = [^(]*$", out, re.M)


def test_dumb_terminal_gets_the_log(folder):
    process = Process("train", "solver.prototxt", cwd=folder, size=(24, 80), TERM="dumb")
    assert process.finish()[0] == 0
    assert "] Iteration 20, lr = 0.01" in process.text and "\x1b" not in process.text


def test_verbose_shows_the_log_on_a_terminal(folder):
    process = Process("train", "solver.prototxt", "--verbose", cwd=folder, size=(24, 80))
    assert process.finish()[0] == 0 and "] Iteration 20, lr = 0.01" in process.text


def test_errors_after_the_display_leave_the_terminal_in_order(folder):
    (folder / "folder").mkdir()
    process = Process("train", "solver.prototxt", *LONG, "--snapshot-interval", "3000", "--snapshot-prefix", "folder/x",
                      cwd=folder, size=(24, 80))
    process.read_until("iteration")
    (folder / "folder").rename(folder / "moved")
    status, _ = process.finish()
    assert status == 1 and "minicaffe: folder/x_iter_" in ESCAPES.sub("", process.text)
    assert process.text.rindex("\x1b[?25h") < process.text.rindex("minicaffe: ")


def test_a_hung_up_terminal_does_not_end_the_training(folder):
    process = Process("train", "solver.prototxt", *LONG, cwd=folder, size=(24, 80))
    process.read_until("iteration")
    os.close(process.source)  # the system sends SIGHUP
    end = time.monotonic() + 60
    while not list(folder.glob("*.solverstate")) and time.monotonic() < end:
        time.sleep(0.02)
    first = set(folder.glob("*.solverstate"))
    time.sleep(0.5)
    process.signal(signal.SIGINT)
    process.wait()
    assert len(first) == 1 and len(set(folder.glob("*.solverstate"))) == 2


@pytest.mark.parametrize("left, text", [(0, "0:00"), (65 * 100, "1:05"), (3725 * 100, "1:02:05")])
def test_speed_and_time_left(folder, left, text):
    solver = own_solver()
    solver.iter, solver.param.max_iter = 300, 300 + left
    display = LiveDisplay(Console(file=io.StringIO()))
    display.images = 8
    display.redraw_times.clear()
    display.redraw_times.extend([(10.0, 100), (11.0, 250), (12.0, 300)])
    assert display._speed(solver) == (text, "100.0 iterations/s, 800 images/s")


def test_the_sparkline_leaves_out_what_is_not_finite():
    display = LiveDisplay(Console(file=io.StringIO()))
    display.losses.extend([1, math.nan, math.inf, 8, -math.inf, 4.5])
    assert display.sparkline(9) == "▁█▅" and display.sparkline(1) == "▁"


def test_display_costs_little(folder):
    """Redraws take at most a tenth of a second in each second, and asking for one at most two microseconds."""
    solver = own_solver()
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=80))
    display.on_start(solver)
    drawing, ticks, begin = 0.0, 0, time.perf_counter()
    while time.perf_counter() - begin < 1:
        before = time.process_time()
        display.on_iteration(solver)
        drawing += time.process_time() - before
        ticks += 1
    display.close()
    assert ticks > 1000 and drawing < 0.1 + 2e-6 * ticks


def test_patience_default_interval(minicaffe, folder):
    minicaffe("train", "net.prototxt", "--max-iter=200", "--keep-best", "--patience=3", "--base-lr=0", "--test-iter=1")
    tested = [int(number) for number in re.findall(r"Iteration (\d+), Testing net", minicaffe.log)]
    assert tested == list(range(0, 10 * len(tested), 10)) and "the patience is 3" in minicaffe.log
