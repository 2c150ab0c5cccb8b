"""A training keeps the files of earlier ones under numbered names, and overwrites its own and, with --force, theirs."""

import logging
import os
import re

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.cli import earlier_files


@pytest.fixture
def trains(minicaffe, folder):
    """Run the tiny training, which makes a snapshot every 10 of 20 iterations."""
    return lambda *more, status=0: minicaffe("train", "solver.prototxt", "--max-iter=20", "--snapshot-interval=10", *more, status=status)


@pytest.mark.parametrize("form", ["", ".h5"])
def test_files_of_an_earlier_training(trains, folder, form):
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


def test_lines_about_kept_files(minicaffe, trains):
    for _ in range(2):
        trains("--json=run.jsonl")
    assert re.findall(r"^W.*\] (.*)$", minicaffe.log, re.M) == [
        "run.jsonl of an earlier run is kept as run.1.jsonl; --force overwrites it",
        "tiny.log of an earlier run is kept as tiny.1.log; --force overwrites it",
        "tiny_iter_10.caffemodel and tiny_iter_10.solverstate of an earlier training are kept as tiny_iter_10.1.caffemodel and "
        "tiny_iter_10.1.solverstate, and so is each later one; --force overwrites them"]


def test_force_and_resume(trains, folder):
    trains("--json=run.jsonl", "--random-seed=1")
    names = {path.name for path in folder.iterdir()}
    trains("--json=run.jsonl", "--force")
    assert {path.name for path in folder.iterdir()} == names
    trains("--json=run.jsonl", "--snapshot=tiny_iter_10.solverstate")
    assert {path.name for path in folder.iterdir()} == names
    trains("--random-seed=2")
    # The earlier training continues: its snapshots of iteration 20 were renamed, and the later one's stay.
    later = (folder / "tiny_iter_20.caffemodel").read_bytes()
    trains("--snapshot=tiny_iter_10.1.solverstate")
    assert (folder / "tiny_iter_20.2.caffemodel").read_bytes() == later
    assert (folder / "tiny_iter_20.caffemodel").read_bytes() == (folder / "tiny_iter_20.1.caffemodel").read_bytes()


def test_links_and_devices(trains, folder):
    (folder / "elsewhere").write_text("weights of long ago")
    (folder / "tiny_iter_10.caffemodel").symlink_to("elsewhere")
    trains("--json=/dev/null")
    assert (folder / "elsewhere").read_text() == "weights of long ago" and not (folder / "tiny_iter_10.caffemodel").is_symlink()
    assert (folder / "tiny_iter_10.1.caffemodel").resolve().name == "elsewhere"


def test_names():
    for path, name in (("a.log", "a.3.log"), ("d.x/a", "d.x/a.3"), ("a.b.jsonl", "a.b.3.jsonl"), ("n_iter_5.caffemodel.h5", "n_iter_5.3.caffemodel.h5"),
                       ("n.solverstate", "n.3.solverstate")):
        assert earlier_files.numbered(path, 3) == name
    assert earlier_files.is_same_training("a/n_iter_5.solverstate", "a/n") and earlier_files.is_same_training("./a/n_iter_5.solverstate.h5", "a/n")
    for state in ("a/n_iter_5.1.solverstate", "n_iter_5.solverstate", "a/n_iter_5.caffemodel", "a/m_iter_5.solverstate", "a/no_iter_5.solverstate"):
        assert not earlier_files.is_same_training(state, "a/n")
    assert earlier_files.is_same_training("a+b_iter_5.solverstate", "a+b") and earlier_files.is_same_training("a_iter_5.solverstate", os.path.abspath("a"))


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_inputs_are_not_renamed(minicaffe, folder, force):
    there = sorted(path.name for path in folder.iterdir())
    for name in ("solver.prototxt", "net.prototxt"):
        error = minicaffe("train", "solver.prototxt", "--max-iter=2", f"--json={name}", *force, status=2)
        assert f"{name}: --json: is a file that this training reads; name another" in error
    assert sorted(path.name for path in folder.iterdir()) == there


def test_file_that_another_rank_renames(tmp_path, monkeypatch):
    """Of ranks that train together the first renames files of earlier trainings, and the others check the same names."""
    there, read = tmp_path / "two.json", tmp_path / "net.prototxt"
    there.write_text(""), read.write_text("")
    before = os.path.samefile

    def renamed(a, b):
        there.rename(tmp_path / "two.1.json")
        return before(a, b)

    monkeypatch.setattr(os.path, "samefile", renamed)
    assert not earlier_files.is_same(str(there), str(read))
    monkeypatch.undo()
    assert earlier_files.is_same(str(read), str(read))


def test_numbers_of_kept_snapshots(tmp_path, monkeypatch, caplog):
    """One that no file of the snapshot has; only the first line is a warning; a training's own files are overwritten."""
    monkeypatch.chdir(tmp_path)
    for name in "n10.caffemodel", "n10.1.solverstate", "n20.caffemodel", "n20.solverstate":
        (tmp_path / name).write_text("old")
    listener = earlier_files.EarlierSnapshots()
    with caplog.at_level(logging.INFO, "minicaffe.cli"):
        for number in 10, 20, 10:
            listener.before_snapshot(None, f"n{number}.caffemodel", f"n{number}.solverstate")
            (tmp_path / f"n{number}.caffemodel").write_text("new")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "n10.caffemodel of an earlier training is kept as n10.2.caffemodel, and so is each later one; "
                    "--force overwrites them"),
        ("INFO", "n20.caffemodel and n20.solverstate of an earlier training are kept as n20.1.caffemodel and n20.1.solverstate")]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        **dict.fromkeys(("n10.caffemodel", "n20.caffemodel"), "new"),
        **dict.fromkeys(("n10.2.caffemodel", "n10.1.solverstate", "n20.1.caffemodel", "n20.1.solverstate"), "old")}
