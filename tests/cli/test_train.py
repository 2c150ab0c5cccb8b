"""``minicaffe train``: files and options in, files, log, JSON lines and result out; signals; the display on a terminal."""

import json
import os
import re
import shlex

import numpy as np
import pytest
from tiny import NET, Process, run, snapshot_iteration

from minicaffe import cli
from minicaffe.proto import binary


@pytest.mark.parametrize("size", [None, (24, 80)])
def test_net_alone(folder, size):
    process = Process("train", "net.prototxt", "--max-iter", "40", "--seed", "3", "--test-iter", "2", cwd=folder, size=size)
    status, out = process.finish()
    assert status == 0 and (folder / "net_iter_40.caffemodel").exists() and process.text.count("random_seed: 3") == 1       # in the log, not before it, too
    if size is None:
        assert "# net.prototxt is a net; it is trained by this solver:\n" in process.text and process.text.count("max_iter: 40") == 1
        assert "# net.prototxt" not in out and re.search(r"^test loss = \S+ \(\* 1 = \S+ loss\)$", out, re.M)


def test_quiet_and_json(folder):
    result = run("train", "net.prototxt", "--max-iter", "10", "--quiet", cwd=folder)
    assert result.returncode == 0 and result.stderr == "" and "Finished at iteration 10" in result.stdout
    result = run("train", "solver.prototxt", "--json", "/dev/full", cwd=folder)
    assert result.returncode == 0 and snapshot_iteration(folder / "tiny_iter_30.solverstate") == 30
    assert len(re.findall("^W.*/dev/full: cannot be written: No space left", result.stderr, re.M)) == 1
    assert run("train", "solver.prototxt", "--base-lr", "1e30", "--nan=warn", "--json", "log.jsonl", cwd=folder).returncode == 0
    last = [json.loads(line, parse_constant=pytest.fail) for line in (folder / "log.jsonl").read_text().splitlines()][-1]
    assert last["outputs"][0]["value"] is None


def test_prefix_level_and_stage(folder, capsys):
    (folder / "out").mkdir()
    assert cli.main(["train", "solver.prototxt", "--snapshot-prefix", "out", "--threads", "1"]) == 0
    assert (folder / "out" / "solver_iter_30.solverstate").exists()
    (folder / "staged.prototxt").write_text("""
layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 1 } shape { dim: 2 dim: 1 } } }
layer { name: "a" type: "Scale" bottom: "x" top: "s" include { stage: "extra" min_level: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "s" bottom: "y" top: "loss" }
""")
    assert cli.main(["train", "staged.prototxt", "--max-iter", "1", "--stage", "extra,b", "--level", "2"]) == 0
    assert cli.main(["train", "staged.prototxt", "--max-iter", "1", "--stage", "extra"]) == 2
    assert "staged.prototxt:4: layer 'loss' (EuclideanLoss)" in capsys.readouterr().err


def test_resume_without_the_first_weights(folder, capsys):
    assert cli.main(["train", "solver.prototxt"]) == 0
    with open("solver.prototxt", "a") as file:
        file.write('weights: "gone.caffemodel"')
    assert cli.main(["train", "solver.prototxt", "--snapshot=tiny_iter_30.solverstate", "--max-iter=40", "--quiet"]) == 0
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 1
    assert "gone.caffemodel: no such" in capsys.readouterr().err


def test_divergence(folder):
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


def test_divergence_and_infinite_data(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--base-lr=1e30", "--quiet"]) == 1
    message = capsys.readouterr().err
    assert "which blob it came from is not known" in message      # by the plan blobs share memory
    assert message.endswith("no snapshot was written before, restart with: minicaffe train solver.prototxt --quiet "
                         "--base-lr=1e+29\n")
    assert not list(folder.glob("*.solverstate"))
    (folder / "net.prototxt").write_text(NET.replace('data_filler { type: "gaussian" std: 1 }', "data_filler { value: inf }"))
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "layer 'in' (DummyData)" in err and "correct the data" in err and "--base-lr" not in err


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
    (["solver.prototxt", "--plan", "memry"], 2, ["'--plan': 'memry' is not one of 'memory', 'none'"]),
    ([".", ], 1, ["is a folder"])])
def test_faults_are_one_line(folder, capsys, arguments, status, texts):
    assert cli.main(["train", "--quiet", *arguments]) == status
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("minicaffe: ") and all(text in err for text in texts), err


def test_faults_of_nets(folder, capsys):
    (folder / "deploy.prototxt").write_text(NET.replace("DummyData", "Input").replace("dummy_data_param", "input_param")
                                            .partition("    data_filler")[0] + "} }")
    for file in ("deploy.prototxt", "solver.prototxt"):
        assert cli.main(["train", file, "--net", "deploy.prototxt", "--quiet"]) == 2
        assert capsys.readouterr().err.startswith("minicaffe: deploy.prototxt: the net has no loss in its TRAIN phase")
    assert not list(folder.glob("*.caffemodel"))
    (folder / "net.prototxt").write_text(NET.replace('"Scale"', '"Scal"'))
    assert cli.main(["train", "solver.prototxt", "--type=Adam", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("minicaffe: net.prototxt:5: layer 'scale' (Scal): type: ")
    (folder / "mnist.prototxt").write_text('layer { name: "mnist" type: "Data" top: "data" data_param { source: '
                                           '"examples/mnist/mnist_train_lmdb" batch_size: 2 backend: LMDB } }')
    assert cli.main(["train", "mnist.prototxt", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "mnist.prototxt:1: layer 'mnist' (Data): data_param.source: examples/mnist/mnist_train_lmdb: no such database" in err
    assert err.endswith("make it with: minicaffe data mnist --out examples/mnist\n")


@pytest.mark.parametrize("text, texts", [
    ('max_iter: 3\nlr_policy: "fixed"\nbase_lrr: 1\n', ["minicaffe: bad.prototxt:3:1: base_lrr: unknown field in SolverParameter"]),
    ('name: "x"\nlayer { name: "a" type: "Input" }\nlayer { name: "b" typ: "ReLU" }\n',
     ["bad.prototxt:3:19: layer 'b': typ: unknown field in LayerParameter; did you mean 'type'"]),
    ('name: "x"\nlayer { name: "a" }\n', ["bad.prototxt:2: layer 'a': type: unknown layer type ''; every layer needs a type"]),
    ('name: "x"\nlayer { name: "a" type: "Scal" }\n', ["bad.prototxt:2: layer 'a' (Scal)", "'Scale'"])])
def test_lines_of_faults(folder, capsys, text, texts):
    (folder / "bad.prototxt").write_text(text)
    assert cli.main(["train", "bad.prototxt", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert all(one in err for one in texts), err


@pytest.mark.parametrize("device, line", [("sim", "GPU 0: minicaffe simulated device"), pytest.param(
    "", "(?m)^W.*no CUDA driver.*the CPU trains", marks=pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU"))])
def test_gpu_mode_of_a_solver(folder, device, line):
    result = run("train", "solver.prototxt", "--solver-mode", "GPU", cwd=folder, env={**os.environ, "MINICAFFE_DEVICE": device})
    assert result.returncode == 0 and re.search(line, result.stderr)


def test_patience_default_interval(minicaffe, folder):
    minicaffe("train", "net.prototxt", "--max-iter=200", "--keep-best", "--patience=3", "--base-lr=0", "--test-iter=1")
    tested = [int(number) for number in re.findall(r"Iteration (\d+), Testing net", minicaffe.log)]
    assert tested == list(range(0, 10 * len(tested), 10)) and "the patience is 3" in minicaffe.log
