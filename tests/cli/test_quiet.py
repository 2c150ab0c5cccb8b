"""What commands print off a terminal: the lines about building a net only with --verbose, names in full, engines with --verbose."""

import json
import re

import pytest
import small_ssd
from tiny import SOLVER, Process, commands, run

import minicaffe as caffe
from minicaffe import cli
from minicaffe.data.class_folders import convert_folders

cv2 = pytest.importorskip("cv2")
BLOCKS = 30
BLOCK = """layer {{ name: "a_block_with_a_long_name_{n}/conv" type: "Convolution" bottom: "{below}" top: "c{n}"
  convolution_param {{ num_output: 3 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu{n}" type: "ReLU" bottom: "c{n}" top: "c{n}" }}
"""
BODY = "".join(BLOCK.format(n=n, below=f"c{n - 1}" if n else "data") for n in range(BLOCKS)) + """
layer { name: "ip" type: "InnerProduct" bottom: "c29" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""
TRAINING = """layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } shape { dim: 2 } } }
""" + BODY + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }\n'
DEPLOY = """layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
""" + BODY + 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }\n'
COMMON = "--model deploy.prototxt --weights w.caffemodel --mean= --scale=1"
# Most lines that the log of a command may have (on standard error), and the command. The nets have 64 layers.
COMMANDS = {
    "classify": (6, f"classify 0.png {COMMON}"),
    "detect": (6, "detect 0.png --out=o.csv --model boxes.prototxt --weights w.caffemodel --mean= --scale=1"),
    "extract_features": (6, "extract_features w.caffemodel net.prototxt ip features 1"),
    "test": (12, "test net.prototxt --weights w.caffemodel --iterations 2"),
    "trace": (26, "trace net.prototxt --json t.json"),            # the solver's fields
    "summary": (0, "summary net.prototxt"),
    "deploy": (6, "deploy net.prototxt w.caffemodel -o o --shape 3x4x4"),
    "fold": (3, "fold deploy.prototxt w.caffemodel -o folded"),
    "export": (3, "export deploy.prototxt w.caffemodel -o net.onnx --no-check"),
    "export --to torch": (3, "export deploy.prototxt w.caffemodel --to torch -o net --no-check"),
    "gradcheck": (6, "gradcheck net.prototxt --layer ip --elements 1"),
    "draw": (1, "draw net.prototxt n.svg --shapes --phase=TEST"),
    "time": (15 + 2 * (3 + 2 * BLOCKS), "time net.prototxt --iterations 2"),    # two lines a layer are Caffe's result
    "finetune": (60, "finetune deploy.prototxt w.caffemodel db -o o --max-iter 2 --display 1"),
    "train": (50, "train solver.prototxt --max-iter 2 --display 1"),                 # the solver's fields, and four lines a display
}


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(TRAINING)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    first, _, rest = (small_ssd.DETECTOR % (4, 4)).partition("\n")
    (tmp_path / "boxes.prototxt").write_text(first + BODY + rest)
    for path in ("0.png", *(f"pictures/{name}/{i}.png" for name in "ab" for i in range(2))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(path, caffe.io.np.full((4, 4, 3), 90, "uint8"))
    convert_folders("pictures", "db")
    caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
    return tmp_path


@pytest.mark.slow(30)
@pytest.mark.parametrize("name", COMMANDS)
def test_lines_of_the_log(there, name):
    most, words = COMMANDS[name]
    done = run(*words.split(), cwd=there)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) <= most, done.stderr
    assert not re.search(r"Setting up|Creating Layer|Top shape|Memory required|does not need backward|initialization done", done.stderr)
    verbose = run(*words.split(), "--verbose", *(["--force"] if name not in ("test", "summary", "gradcheck") else []), cwd=there)
    assert verbose.returncode in (0, 2), verbose.stderr     # 2: --force is unknown to the command
    if verbose.returncode == 0:
        assert verbose.stderr.count("] Setting up ") >= 2 + 2 * BLOCKS


def test_commands_that_build_nets():
    """By the options of a model file, which commands that only read a definition lack or do not use."""
    for (name, *_), command in commands():
        assert name in COMMANDS or "untrusted" not in {param.name for param in command.params}, name


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_has_quiet_and_verbose(words, capsys):
    assert cli.main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: minicaffe {' '.join(words)}" in out and "--quiet" in out and "--verbose" in out


@pytest.mark.parametrize("size", [None, (24, 80)], ids=["pipe", "terminal"])
def test_lines_of_classify(there, size):
    process = Process(*COMMANDS["classify"][1].split(), cwd=there, size=size)
    status, out = process.finish()
    shown = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", process.text + (out or "")).splitlines() if line.strip()]
    assert status == 0 and len(shown) <= 12 and "0.png:" in shown, shown


@pytest.mark.slow(2)
def test_commands_on_terminals(there, minicaffe):
    process = Process(*COMMANDS["classify"][1].split(), "--verbose", cwd=there, size=(24, 80))
    assert process.finish()[0] == 0 and process.text.count("] Setting up ") == 3 + 2 * BLOCKS
    process = Process("summary", "net.prototxt", cwd=there, size=(24, 90))
    assert process.finish()[0] == 0
    assert re.search("left out at 90 columns: (scratch, )?diff", process.text) and LONG.format(29) in process.text
    assert "left out" not in run("summary", "net.prototxt", cwd=there).stdout
    (there / "old.prototxt").write_text("input: 'x' input_dim: [1, 1, 1, 1, 5] layers { name: 'a' type: RELU bottom: 'x' top: 'y' }")
    process = Process("upgrade", "net_text", "old.prototxt", "new.prototxt", cwd=there, size=(24, 80))
    assert process.finish()[0] == 0
    for words in ("Upgraded a net of version 1", "Turned input fields into an Input layer", "5 input_dim for 1 inputs", "wrote new"):
        assert process.text.count(words) == 1, process.text
    for name in ("trace", "gradcheck"):
        out = minicaffe(*COMMANDS[name][1].split())
        assert len(out.splitlines()) >= 5 and not re.search(" $", out, re.M), out


# ---- tables

LONG = "a_block_with_a_long_name_{}/conv"


def test_time_in_a_pipe(there, device, minicaffe):
    done = run("time", "net.prototxt", "--iterations", 1, "--quiet", cwd=there)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "engine" not in lines[0] and "refused" not in done.stdout and "…" not in done.stdout
    for n in range(BLOCKS):
        assert sum(LONG.format(n) in line for line in lines) == 2      # forward and backward
    verbose = minicaffe("time", "net.prototxt", "--iterations", 1, "--verbose", "--device", device)
    assert verbose.splitlines()[0].split()[:3] == ["layer", "type", "engine"] and "CAFFE" in verbose
    assert device != "cpu" or " refused: " in verbose      # on the simulated device there is no other engine


@pytest.mark.parametrize("size", [(24, 60), pytest.param((24, 120), marks=pytest.mark.slow(1))])
def test_time_on_a_terminal(there, size):
    process = Process("time", "net.prototxt", "--iterations", "1", cwd=there, size=size)
    assert process.finish()[0] == 0 and "…" not in process.text and "share" in process.text and "  engine  " not in process.text
    assert "100.0%" in process.text and "Benchmark" not in process.text


def test_rows_and_depth_of_summary(there, minicaffe, capsys):
    lines = minicaffe("summary", "net.prototxt").splitlines()
    end = lines.index("", 2)
    assert lines[2].split()[:4] == ["layer", "type", "output", "parameters"] and "computed by" not in lines[2]
    assert [line.split()[0] for line in lines[3:end]] == [
        "in", *(name for n in range(BLOCKS) for name in (LONG.format(n), f"relu{n}")), "ip", "loss"]
    assert lines[end + 1].startswith("63 layers, 556 parameters")
    verbose = minicaffe("summary", "net.prototxt", "--verbose").splitlines()
    assert verbose[2].endswith("computed by") and "CAFFE" in "\n".join(verbose)
    assert cli.main(["summary", "net.prototxt", "--depth", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    end = lines.index("", 2)
    assert [line.split()[0] for line in lines[3:end]] == ["in", *(LONG.format(n).partition("/")[0] for n in range(BLOCKS)), "ip", "loss"]
    assert all(re.search(r"_name_\d+ +2 layers +2x3x4x4 +12 ", line) for line in lines[4:end - 2])
    assert lines[end + 1].startswith("63 layers in 33 rows, 556 parameters")
    assert cli.main(["summary", "net.prototxt", "--depth=1", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["rows"]) == 33 and made["layers"] == 63 and sum(row["parameters"] for row in made["rows"]) == made["parameters"]
    assert made["rows"][1]["block"] == "a_block_with_a_long_name_0"
