"""No command overwrites a file without --force; a training keeps the files of earlier ones under numbered names."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from test_classify import DEPLOY, pictures  # noqa: F401  (a fixture)
from tiny import Process

import minicaffe as caffe
from minicaffe.cli import app, earlier_files
from minicaffe.errors import ConfigError

LOG = """I1121 03:31:07.123456 12345 solver.cpp:1] Solving n
I1121 03:31:08.123456 12345 solver.cpp:1] Iteration 0, loss = 2
I1121 03:31:08.123456 12345 solver.cpp:1]     Train net output #0: loss = 2 (* 1 = 2 loss)
I1121 03:31:08.123456 12345 solver.cpp:1] Iteration 0, lr = 0.01
I1121 03:31:08.123456 12345 solver.cpp:1] Iteration 0, Testing net (#0)
I1121 03:31:08.123456 12345 solver.cpp:1]     Test net output #0: accuracy = 0.5
I1121 03:31:09.123456 12345 solver.cpp:1] Optimization Done.
"""
COMMON = ["--model", "net.prototxt", "--weights", "w.caffemodel"]
WRITERS = {     # the command, and the file that it writes
    "classify .npy": (["classify", "1.png", "--out", "o.npy", *COMMON], "o.npy"),
    "classify .csv": (["classify", "1.png", "--out", "o.csv", *COMMON], "o.csv"),
    "classify .json": (["classify", "1.png", "--out", "o.json", *COMMON], "o.json"),
    "test --wrong": (["test", *COMMON, "--wrong", "o"], "o"),
    "test --json": (["test", *COMMON, "--per-class", "--json", "o.json"], "o.json"),
    "time": (["time", "net.prototxt", "--iterations=1", "--json", "o.json"], "o.json"),
    "draw": (["draw", "net.prototxt", "o.svg"], "o.svg"),
    "draw --shapes": (["draw", "net.prototxt", "o.svg", "--shapes", "--phase=TEST"], "o.svg"),
    "export": (["export", "d.prototxt", "-o", "o.onnx"], "o.onnx"),
    "export --to torch": (["export", "d.prototxt", "--to", "torch", "-o", "o", "--no-check"], "o.py"),
    "import": (["import", "m.onnx", "-o", "o"], "o.prototxt"),
    "deploy": (["deploy", "net.prototxt", "-o", "o"], "o.prototxt"),
    "fold": (["fold", "d.prototxt", "w.caffemodel", "-o", "o"], "o.prototxt"),
    "plot": (["plot", "t.log", "--out", "o.svg"], "o.svg"),
    "plot --csv": (["plot", "t.log", "--csv", "."], "t.log.test"),
    "convolution": (["convolution", "--html", "o.html"], "o.html"),
    "trace --html": (["trace", "net.prototxt", "--html", "o.html"], "o.html"),
    "trace --json": (["trace", "net.prototxt", "--json", "o.json"], "o.json"),
    "trace --perfetto": (["trace", "net.prototxt", "--perfetto", "o.json"], "o.json"),
    "data mean": (["data", "mean", "db", "o.binaryproto"], "o.binaryproto"),
    "data info --png": (["data", "info", "db", "--png", "o.png"], "o.png"),
    "upgrade": (["upgrade", "net_text", "net.prototxt", "o.prototxt"], "o.prototxt"),
    "extract_features": (["extract_features", "w.caffemodel", "net.prototxt", "ip,data", "f,o", "1"], "o"),
    "data images": (["data", "images", "./", "list.txt", "o", "--resize_width=5", "--resize_height=5"], "o"),
}


@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_overwritten_without_force(minicaffe, pictures, tmp_path, writer):  # noqa: F811
    command, out = WRITERS[writer]
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
    if command[0] in ("export", "import") and "torch" not in command:
        pytest.importorskip("onnxruntime")
    pictures("scale: 0.004")
    (tmp_path / "t.log").write_text(LOG)
    (tmp_path / "d.prototxt").write_text(DEPLOY % (3, 7, 8))
    if command[0] == "import":
        minicaffe("export", "d.prototxt", "-o", "m.onnx", "--no-check")
    (tmp_path / "out").mkdir()
    (tmp_path / out).write_text("years of work")
    there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert f"{out}: exists already; --force replaces it" in minicaffe(*command, status=1)
    now = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert now == there     # another file of the same command was not written either
    minicaffe(*command, "--force")
    path = tmp_path / out
    assert path.is_dir() or path.read_bytes() != b"years of work"


def test_every_option_and_argument_that_names_an_output_is_tried(minicaffe):
    """A command with --force is one that writes; those whose outputs are not listed above have tests of their own."""
    own = {"train", "data", "convert_annoset", "finetune", "detect"}
    for name in app.commands():
        if "--force" in minicaffe(name, "--help"):
            assert name in own or any(command[0] == name for command, _ in WRITERS.values()), name


def test_a_second_picture_is_an_input(minicaffe, pictures, tmp_path):  # noqa: F811
    scores = pictures("scale: 0.004")[0]
    kept = (tmp_path / "2.png").read_bytes()
    out = minicaffe("classify", "1.png", "2.png", *COMMON)
    assert re.findall("^(.*):$", out, re.M) == ["1.png", "2.png"] and (tmp_path / "2.png").read_bytes() == kept
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "0.png", tmp_path / "folder" / "0.png")
    np.save("a.npy", np.zeros((2, 7, 8, 3), np.float32))
    out = minicaffe("classify", "[12].png", "folder", "a.npy", "--ext=png", "--out=all.csv", *COMMON)
    names = ["1.png", "2.png", "folder/0.png", "a.npy[0]", "a.npy[1]"]
    assert re.findall("^(.*):$", out, re.M) == names
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()]
    assert rows[0] == ["filename", "class0", "class1", "class2", "class3"] and [row[0] for row in rows[1:]] == names
    np.testing.assert_allclose(np.array([row[1:] for row in rows[1:4]], float), scores[[1, 2, 0]], rtol=2e-4)
    (tmp_path / "labels.txt").write_text("cat\ndog\nnewt\nauk\n")
    minicaffe("classify", "1.png", "--out=all.json", *COMMON)
    made = json.loads((tmp_path / "all.json").read_text())
    assert made["classes"] == ["cat", "dog", "newt", "auk"] and made["pictures"][0]["filename"] == "1.png"
    np.testing.assert_allclose(made["pictures"][0]["scores"], scores[1], rtol=2e-4)


def test_an_output_in_the_place_of_an_input_is_named(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("scale: 0.004")
    assert "scores.npy: no such picture or folder, and no pattern that fits one; results are written to a file by --out scores.npy" in \
        minicaffe("classify", "1.png", "scores.npy", *COMMON, status=1)
    assert "--out: must end in .npy, .csv or .json" in minicaffe("classify", "1.png", "--out=2.png", *COMMON, status=2)
    assert "has no DetectionOutput layer, so it finds no boxes; give the deploy net of an SSD" in minicaffe("detect", "1.png", *COMMON, status=2)
    (tmp_path / "deploy.prototxt").write_text((DEPLOY % (3, 7, 8)).replace('type: "InnerProduct"', 'type: "Convolution"').replace(
        "inner_product_param { num_output: 4 }", "convolution_param { num_output: 4 kernel_size: 1 }"))
    caffe.Net("deploy.prototxt", caffe.TEST).save("c.caffemodel")
    (tmp_path / "net.prototxt").unlink()
    there = ["--model", "deploy.prototxt", "--weights", "c.caffemodel"]
    assert "must end in .npy, as each picture has 4 x 7 x 8 scores" in minicaffe("classify", "1.png", "--out=x.csv", *there, status=2)
    minicaffe("classify", "1.png", "--out=x.npy", *there)
    assert np.load("x.npy").shape == (1, 4, 7, 8)


def test_mean_by_numbers(minicaffe, pictures, tmp_path):  # noqa: F811
    want, shape = pictures("scale: 0.01 mean_value: 90")
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    (tmp_path / "net.prototxt").unlink()
    there = ["--model", "deploy.prototxt", "--weights", "w.caffemodel", "--force"]
    for mean in ("90", "90,90,90"):
        minicaffe("classify", "[012].png", "--out=x.npy", *there, f"--mean={mean}", "--scale=0.01")
        np.testing.assert_allclose(np.load("x.npy"), want, rtol=2e-4, atol=1e-6)
        assert f"minus mean {mean}, times 0.01" in minicaffe.messages
    assert "--mean: must be one number, or one for each of the 3 channels" in minicaffe("classify", "0.png", *there, "--mean=1,2", status=2)
    assert "nan: no such file" in minicaffe("classify", "0.png", *there, "--mean=nan", status=1)


# ---- trainings

@pytest.fixture
def trains(minicaffe, folder):
    """Run the tiny training, which makes a snapshot every 10 of 20 iterations."""
    return lambda *more, status=0: minicaffe("train", "solver.prototxt", "--max-iter=20", "--snapshot-interval=10", *more, status=status)


@pytest.mark.parametrize("form", ["", ".h5"])
def test_an_earlier_training_is_kept(trains, folder, form):
    more = ("--snapshot-format=HDF5",) if form else ()
    trains("--random-seed=1", "--json=run.jsonl", *more)
    first = {path.name: path.read_bytes() for path in folder.glob("tiny_iter_*")}
    assert set(first) == {f"tiny_iter_{i}.{kind}{form}" for i in (10, 20) for kind in ("caffemodel", "solverstate")}
    records = (folder / "run.jsonl").read_text()
    trains("--random-seed=2", "--json=run.jsonl", "--base-lr=0.02", *more)
    for name, content in first.items():
        stem, extension = name.split(".", 1)
        assert (folder / f"{stem}.1.{extension}").read_bytes() == content != (folder / name).read_bytes()
    assert (folder / "run.1.jsonl").read_text() == records != (folder / "run.jsonl").read_text()
    trains("--random-seed=3", *more)
    assert (folder / f"tiny_iter_20.2.caffemodel{form}").exists()
    # The state that was renamed continues from the weights that were, not from those that have their name now.
    solver = caffe.get_solver("solver.prototxt")
    solver.restore(f"tiny_iter_20.1.solverstate{form}")
    kept = caffe.Net("net.prototxt", caffe.TRAIN, weights=f"tiny_iter_20.1.caffemodel{form}")
    np.testing.assert_array_equal(solver.net.params["scale"][0].data, kept.params["scale"][0].data)
    now = caffe.Net("net.prototxt", caffe.TRAIN, weights=f"tiny_iter_20.caffemodel{form}")
    assert (now.params["scale"][0].data != kept.params["scale"][0].data).any()


def test_what_is_kept_is_said_in_one_line(minicaffe, trains):
    for _ in range(2):
        trains("--json=run.jsonl")
    assert re.findall(r"^W.*\] (.*)$", minicaffe.log, re.M) == [
        "run.jsonl of an earlier run is kept as run.1.jsonl; --force overwrites it",
        "tiny.log of an earlier run is kept as tiny.1.log; --force overwrites it",
        "tiny_iter_10.caffemodel and tiny_iter_10.solverstate of an earlier training are kept as tiny_iter_10.1.caffemodel and "
        "tiny_iter_10.1.solverstate, and so is each later one; --force overwrites them"]


def test_force_overwrites_as_caffe_does(trains, folder):
    trains("--json=run.jsonl")
    names = {path.name for path in folder.iterdir()}
    trains("--json=run.jsonl", "--force")
    assert {path.name for path in folder.iterdir()} == names


def test_resumed_training_overwrites_its_own(trains, folder):
    trains("--json=run.jsonl", "--random-seed=1")
    names = {path.name for path in folder.iterdir()}
    trains("--json=run.jsonl", "--snapshot=tiny_iter_10.solverstate")
    assert {path.name for path in folder.iterdir()} == names
    trains("--random-seed=2")
    # The earlier training continues: its snapshots of iteration 20 were renamed, and the later one's stay.
    later = (folder / "tiny_iter_20.caffemodel").read_bytes()
    trains("--snapshot=tiny_iter_10.1.solverstate")
    assert (folder / "tiny_iter_20.2.caffemodel").read_bytes() == later
    assert (folder / "tiny_iter_20.caffemodel").read_bytes() == (folder / "tiny_iter_20.1.caffemodel").read_bytes()


def test_the_api_overwrites_as_pycaffe_does(folder):
    for _ in range(2):
        solver = caffe.get_solver("solver.prototxt")
        solver.step(1)
        solver.snapshot()
        solver.net.save("w.caffemodel")
    assert {path.name for path in folder.iterdir()} == {"net.prototxt", "solver.prototxt", "w.caffemodel", "tiny_iter_1.caffemodel",
                                                        "tiny_iter_1.solverstate"}


def test_a_link_or_device_is_not_renamed_or_followed(trains, folder):
    (folder / "elsewhere").write_text("weights of long ago")
    (folder / "tiny_iter_10.caffemodel").symlink_to("elsewhere")
    trains("--json=/dev/null")
    assert (folder / "elsewhere").read_text() == "weights of long ago" and not (folder / "tiny_iter_10.caffemodel").is_symlink()
    assert (folder / "tiny_iter_10.1.caffemodel").resolve().name == "elsewhere"


def test_names_of_what_is_kept():
    for path, name in (("a.log", "a.3.log"), ("d.x/a", "d.x/a.3"), ("a.b.jsonl", "a.b.3.jsonl"), ("n_iter_5.caffemodel.h5", "n_iter_5.3.caffemodel.h5"),
                       ("n.solverstate", "n.3.solverstate")):
        assert earlier_files.numbered(path, 3) == name
    assert earlier_files.is_same_training("a/n_iter_5.solverstate", "a/n") and earlier_files.is_same_training("./a/n_iter_5.solverstate.h5", "a/n")
    for state in ("a/n_iter_5.1.solverstate", "n_iter_5.solverstate", "a/n_iter_5.caffemodel", "a/m_iter_5.solverstate"):
        assert not earlier_files.is_same_training(state, "a/n")


def test_a_file_that_the_training_reads_is_not_renamed(minicaffe, folder):
    there = sorted(path.name for path in folder.iterdir())
    for name in ("solver.prototxt", "net.prototxt"):
        for force in ((), ("--force",)):
            error = minicaffe("train", "solver.prototxt", "--max-iter=2", f"--json={name}", *force, status=2)
            assert f"{name}: --json: is a file that this training reads; name another" in error
    assert sorted(path.name for path in folder.iterdir()) == there


def test_a_number_is_free_for_all_files_of_a_snapshot(tmp_path):
    """Else the state that was kept first would continue from the model of the second training."""
    model, state = (str(tmp_path / f"n_iter_5.{kind}") for kind in ("caffemodel", "solverstate"))
    for path in (model, earlier_files.numbered(state, 1)):
        with open(path, "w") as file:
            file.write("x")
    assert earlier_files.keep_files([model, state]) == ([model], [earlier_files.numbered(model, 2)])


def test_the_log_of_an_earlier_training_is_kept(folder):
    for _ in range(2):
        process = Process("train", "solver.prototxt", cwd=folder, size=(24, 100))
        assert process.finish()[0] == 0
    assert " ".join(process.text.split()).count("tiny.log of an earlier run is kept as tiny.1.log") == 1
    assert "Optimization Done." in (folder / "tiny.1.log").read_text() and "Optimization Done." in (folder / "tiny.log").read_text()


def test_force_replaces_no_folder_of_something_else(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("")
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            shutil.copy(tmp_path / f"{i}.png", tmp_path / "photos" / name)
    made = ("data", "images", "--from-folders", "photos")
    assert "photos: is a folder without a database, so --force does not replace it" in minicaffe(*made, "photos", "--force", status=1)
    assert len(list((tmp_path / "photos").rglob("*.png"))) == 4
    for force in ((), ("--force",)):
        minicaffe(*made, "dbs", *force)
    (tmp_path / "empty").mkdir()
    minicaffe(*made, "empty", "--force")


def test_both_databases_of_cifar_are_looked_at_first(minicaffe, tmp_path):
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (tmp_path / name).write_bytes(bytes(3073))
    (tmp_path / "cifar10_test_lmdb").mkdir()
    assert "cifar10_test_lmdb: exists already" in minicaffe("data", "cifar10", "--from", ".", "--out", ".", status=1)
    assert not (tmp_path / "cifar10_train_lmdb").exists()


def test_a_file_that_another_process_renames_just_now_is_not_one_that_is_read(tmp_path, monkeypatch):
    """Of ranks that train together the first renames files of earlier trainings, and the others check the same names."""
    there, read = tmp_path / "two.json", tmp_path / "net.prototxt"
    there.write_text(""), read.write_text("")
    before = os.path.samefile

    def renamed(a, b):
        there.rename(tmp_path / "two.1.json")
        return before(a, b)

    monkeypatch.setattr(os.path, "samefile", renamed)
    earlier_files.check_is_no_input(str(there), "--json", [str(read)])
    monkeypatch.undo()
    earlier_files.check_is_no_input(None, "--json", [str(read)])
    with pytest.raises(ConfigError, match="is a file that this training reads"):
        earlier_files.check_is_no_input(str(read), "--json", [None, str(there), str(read)])
