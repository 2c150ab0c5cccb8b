"""``train --resume``: the newest complete snapshot; ``--keep N``: the last ones only."""

import os

import pytest

from minicaffe.errors import FileError
from minicaffe.solver import snapshot

TRAIN = ("train", "solver.prototxt", "--snapshot-interval=10")


def names(folder, kind="solverstate"):
    return sorted(path.name for path in folder.glob(f"*.{kind}*"))


def test_resume_continues_with_the_newest(minicaffe, folder):
    whole = minicaffe(*TRAIN, "--snapshot-prefix=whole")
    assert "--resume: there is no complete snapshot tiny_iter_N, so the training starts at the beginning" in " ".join(
        (minicaffe(*TRAIN, "--resume", "--max-iter=20"), minicaffe.messages)[1].split())
    assert "Resuming" not in minicaffe.log
    out = minicaffe(*TRAIN, "--resume")
    assert "--resume: from tiny_iter_20.solverstate\n" in minicaffe.messages
    assert "Resuming from tiny_iter_20.solverstate" in minicaffe.log and "wrote tiny_iter_10" not in out
    assert (folder / "tiny_iter_30.caffemodel").read_bytes() == (folder / "whole_iter_30.caffemodel").read_bytes()
    assert next(line for line in whole.splitlines() if line.startswith("test")) in out


@pytest.mark.parametrize("broken, said", [("model", ""), ("name", ""), ("older", "; tiny_iter_30.solverstate has an older date")])
def test_resume_leaves_out_the_incomplete(minicaffe, folder, broken, said):
    minicaffe(*TRAIN)
    if broken == "model":
        (folder / "tiny_iter_30.caffemodel").unlink()
    for kind in "solverstate", "caffemodel":
        path = folder / f"tiny_iter_30.{kind}"
        if broken == "name":       # of an earlier training
            path.rename(folder / f"tiny_iter_30.1.{kind}")
        elif broken == "older":
            os.utime(path, (1, 1))
    minicaffe(*TRAIN, "--resume")
    assert f"--resume: from tiny_iter_20.solverstate{said}\n" in minicaffe.messages


def test_resume_with_weights(minicaffe, folder):
    minicaffe(*TRAIN, "--snapshot-prefix=first", "--max-iter=10")
    words = (*TRAIN, "--resume", "--weights=first_iter_10.caffemodel")
    minicaffe(*words, "--max-iter=20")
    assert "Finetuning from first_iter_10.caffemodel" in minicaffe.log
    minicaffe(*words)
    assert "Finetuning" not in minicaffe.log and "Resuming from tiny_iter_20.solverstate" in minicaffe.log
    assert "--resume goes without --snapshot" in minicaffe(*TRAIN, "--resume", "--snapshot=tiny_iter_20.solverstate", status=2)


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
@pytest.mark.parametrize("keep, left", [(1, [30]), (2, [20, 30]), (9, [10, 20, 30])])
def test_keep_deletes_older_snapshots(minicaffe, folder, keep, left, form):
    out = minicaffe(*TRAIN, f"--keep={keep}", f"--snapshot-format={form}", "--keep-best")
    end = ".h5" if form == "HDF5" else ""
    assert names(folder) == [f"tiny_iter_{n}.solverstate{end}" for n in left]
    assert names(folder, "caffemodel") == sorted([f"tiny_best.caffemodel{end}", *(f"tiny_iter_{n}.caffemodel{end}" for n in left)])
    assert [line for line in out.splitlines() if line.startswith("wrote tiny_iter")] == [
        f"wrote tiny_iter_{n}.{kind}{end}" for n in left for kind in ("caffemodel", "solverstate")]


def test_keep_deletes_no_foreign_files(minicaffe, folder):
    foreign = ["tiny_iter_5", "tiny_iter_7.1", "other_iter_10", "tiny_iter_99"]
    for name in foreign:
        for kind in "solverstate", "caffemodel":
            (folder / f"{name}.{kind}").write_bytes(b"")
    minicaffe(*TRAIN, "--keep=1", "--max-iter=20")
    assert names(folder) == sorted(f"{name}.solverstate" for name in [*foreign, "tiny_iter_20"])


def test_keep_counts_those_before_a_resume(minicaffe, folder):
    minicaffe(*TRAIN, "--max-iter=20", "--keep=2")
    minicaffe(*TRAIN, "--max-iter=30", "--keep=2", "--resume")
    assert names(folder) == ["tiny_iter_20.solverstate", "tiny_iter_30.solverstate"]
    minicaffe(*TRAIN, "--max-iter=40", "--keep=1", "--snapshot=tiny_iter_30.solverstate")
    assert names(folder) == ["tiny_iter_40.solverstate"]


def test_keep_waits_for_the_newer_one(minicaffe, folder, monkeypatch):
    write = snapshot.write_model

    def write_first(solver, path):
        if solver.iter >= 20:
            raise FileError("no space left on device", file=path)
        return write(solver, path)

    monkeypatch.setattr(snapshot, "write_model", write_first)
    minicaffe(*TRAIN, "--keep=1", status=1)
    assert names(folder) == ["tiny_iter_10.solverstate"] and names(folder, "caffemodel") == ["tiny_iter_10.caffemodel"]


def test_keep_says_what_cannot_be_deleted(minicaffe, folder, monkeypatch):
    def remove(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "remove", remove)
    minicaffe(*TRAIN, "--keep=2")
    assert "tiny_iter_10.solverstate: cannot be deleted: Permission denied" in minicaffe.messages and len(names(folder)) == 3
