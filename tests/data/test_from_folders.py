"""``minicaffe data images --from-folders``: a folder for each class becomes databases, names and a mean."""

import os

import cv2
import numpy as np
import pytest
from command_line import data

from minicaffe.data.class_folders import convert_folders
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.mean_file import read_mean
from minicaffe.errors import ConfigError

KINDS = {"ant": 5, "bee": 10, "cow": 1}


def write_pictures(folder, *names, height=6):
    os.makedirs(folder, exist_ok=True)
    for name in names:
        cv2.imwrite(f"{folder}/{name}.png", np.zeros((height, 5, 3), np.uint8))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name, count in KINDS.items():
        write_pictures(f"zoo/{name}")
        for i in range(count):
            cv2.imwrite(f"zoo/{name}/{i}.png", random.integers(0, 256, (6, 5, 3), np.uint8))
    return tmp_path


def run(*arguments, status=0):
    result = data("images", *arguments)
    assert result.exit_code == status, result.stderr
    return result.stdout if status == 0 else result.stderr


def records(path, backend="lmdb"):
    with open_db(path, backend) as db:
        return [(bytes(key).decode(), read_datum(value).label, picture_of(read_datum(value))) for key, value in db.records()]


def test_what_is_made(folder):
    for name in "bee/broken.png", "bee/.hidden", "notes.txt":
        (folder / "zoo" / name).write_bytes(b"nothing")
    (folder / "zoo" / "ant" / "more").mkdir()
    out = run("--from-folders", "zoo", "db")
    assert "1 pictures could not be read" in out and "1 left out (.txt 1): zoo/notes.txt; " in out
    assert sorted(os.listdir("db")) == ["labels.txt", "mean.binaryproto", "test_lmdb", "train_lmdb"]
    assert (folder / "db" / "labels.txt").read_text() == "ant\nbee\ncow\n"
    train, test = records("db/train_lmdb"), records("db/test_lmdb")
    assert len(train) + len(test) == sum(KINDS.values()) == len({key.split("_", 1)[1] for key, _, _ in train + test})
    assert f"db/train_lmdb: {len(train)} records of 3 x 6 x 5" in out and f"db/test_lmdb: {len(test)} records" in out
    for split in (train, test):
        for key, label, pixels in split:
            name = key.split("_", 1)[1]
            assert ["ant", "bee", "cow"][label] == name.split("/")[0] and (pixels == cv2.imread(f"zoo/{name}").transpose(2, 0, 1)).all()
        labels = [label for _, label, _ in split]
        assert labels != sorted(labels)
    assert sorted({label for _, label, _ in test}) == [0, 1] and sum(label == 0 for _, label, _ in test) == 1
    np.testing.assert_allclose(read_mean("db/mean.binaryproto"), np.mean([pixels for _, _, pixels in train], axis=0), rtol=1e-6)


def test_kinds_of_pictures(folder):
    cow, pictures = folder / "zoo" / "cow" / "2024", ("one.JPG", "two.jpeg", "3.bmp", "4.webp", "5.tiff")
    (cow / "may").mkdir(parents=True)
    for name in pictures:
        cv2.imwrite(str(cow / "may" / name), np.zeros((6, 5, 3), np.uint8))
    for name in ("6.heic", "7.HEIC", "film.mp4", "README"):
        (cow / name).write_bytes(b"x")
    (folder / "zoo" / "cow" / "more").symlink_to(folder / "zoo" / "bee")
    out = run("--from-folders", "zoo", "db", "--quiet")
    assert "5 left out (no extension 2, .heic 2, .mp4 1): zoo/cow/more, zoo/cow/2024/6.heic, zoo/cow/2024/7.HEIC, " in out
    names = {key.split("_", 1)[1] for split in ("train", "test") for key, label, _ in records(f"db/{split}_lmdb") if label == 2}
    assert names == {"cow/0.png", *(f"cow/2024/may/{name}" for name in pictures)}
    out = run("--from-folders", "zoo", "db2", "--ext", "png, .BMP")
    assert "9 left out (" in out and ".mp4 1, .webp 1, .tiff 1, .jpg 1, .jpeg 1): " in out
    assert len(records("db2/train_lmdb")) + len(records("db2/test_lmdb")) == 17


def test_size_seed_and_share(folder):
    how = ("--from-folders", "zoo", "--resize-width", 3, "--resize-height", 4, "--gray")
    run(*how, "one")
    run(*how, "two")
    assert [key for key, _, _ in records("one/train_lmdb")] == [key for key, _, _ in records("two/train_lmdb")]
    assert records("one/train_lmdb")[0][2].shape == (1, 4, 3)
    assert "exists already" in run(*how, "two", status=1)
    run(*how, "two", "--force", "--seed", 2, "--test-share", 0.5)
    assert [key for key, _, _ in records("one/train_lmdb")] != [key for key, _, _ in records("two/train_lmdb")]
    assert len(records("two/test_lmdb")) == 2 + 5  # of 5 and 10
    run(*how, "three", "--test-share", 0.99)
    assert len(records("three/train_lmdb")) == 3  # one of each class stays
    out = run("--from-folders", "zoo", "--test-share", "0", "four")
    assert sorted(os.listdir("four")) == ["labels.txt", "mean.binaryproto", "train_lmdb"]
    assert len(records("four/train_lmdb")) == sum(KINDS.values()) and "no database for tests\n" in out


@pytest.mark.parametrize(("arguments", "status", "text"), [
    (("--from-folders", "nowhere", "db"), 1, "nowhere: must be a folder with a folder of pictures for each class"),
    (("--from-folders", "zoo/ant", "db"), 1, "zoo/ant: holds no folders"),
    (("--from-folders", ".", "db"), 1, "./zoo: holds folders and no pictures; name the folder whose folders are the classes"),
    (("--from-folders", "all", "db"), 1, "all/Val: holds folders and no pictures; name the folder whose folders are the classes"),
    (("--from-folders", "zoo", "db", "--test-share", "1"), 2, "1.0 is not in the range 0<=x<1"),
    (("--from-folders", "zoo", "db", "--resize-width", "4"), 2, "give both above 0, or neither, got 4 and 0"),
    (("--from-folders", "zoo", "db", "--ext", "png,"), 2, "must be extensions with commas, such as jpg,png, got 'png,'"),
    (("--from-folders", "zoo", "db", "--ext", "gif"), 1, "zoo/ant: holds no pictures"),
    (("--from-folders", "zoo", "list", "db"), 2, "give DB alone with --from-folders DIR"),
    (("zoo", "db"), 2, "give ROOT, LIST and DB, or --from-folders DIR and DB; got zoo db")])
def test_faults(folder, arguments, status, text):
    for path in [f"all/{split}/{name}" for split in ("train", "Val") for name in "ab"] if "all" in arguments else []:
        write_pictures(path, 1)
    assert text in " ".join(run(*arguments, status=status).replace("│", " ").split())
    assert not (folder / "db").exists()


def test_a_folder_that_cannot_be_read(folder, monkeypatch):
    (folder / "zoo" / "bee" / "more").mkdir()
    scandir = os.scandir

    def refuse(path):
        if os.path.basename(path) == "more":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)      # root may read every folder
    assert "zoo/bee/more: cannot be read: Permission denied" in run("--from-folders", "zoo", "db", status=1)
    assert not (folder / "db").exists()


def test_faults_of_the_pictures(folder):
    (folder / "zoo" / "dog").mkdir()
    assert "zoo/dog: holds no pictures; remove it" in run("--from-folders", "zoo", "db", status=1)
    write_pictures("zoo/dog", "a", height=9)
    assert "--resize-width and --resize-height make all of one size" in run("--from-folders", "zoo", "db", status=1)
    assert sorted(os.listdir(".")) == ["zoo"]  # nothing half done
    for share in -0.1, 1, 1.5, float("nan"):
        with pytest.raises(ConfigError, match=f"^test_share: must be at least 0 and below 1, got {share:g}$"):
            convert_folders("zoo", "db", test_share=share)


def test_one_class_and_inner_folders(folder):
    """Two classes whose names are those of no split have inner folders, too."""
    for name in ("/.git", "/b", "/a", ""):
        write_pictures(f"one/bee{name}", int(name != ""))
    (folder / "one" / ".hidden").mkdir()
    out = run("--from-folders", "one", "db")
    assert sorted(key.split("_", 1)[1] for split in ("train", "test") for key, _, _ in records(f"db/{split}_lmdb")) == [
        "bee/0.png", "bee/a/1.png", "bee/b/1.png"]
    assert "train_lmdb: 2 records" in out and (folder / "db" / "labels.txt").read_text() == "bee\n"
    for name in ("cat", "dog"):
        write_pictures(f"pets/{name}/2024", 0, 1)
    run("--from-folders", "pets", "pets_db")
    assert (folder / "pets_db" / "labels.txt").read_text() == "cat\ndog\n"


def test_drawn_pictures(folder, backend):
    """Not the first ones of each class, which may have been taken one after the other."""
    drawn, kind = set(), backend.lower()
    for seed in range(4):
        convert_folders("zoo", "db", seed=seed, force=True, backend=kind)
        test, train = ([key.split("_", 1)[1] for key, _, _ in records(f"db/{split}_{kind}", kind)] for split in ("test", "train"))
        drawn.add(frozenset(test))
        assert len(test) + len(train) == sum(KINDS.values())
    assert len(drawn) > 1


# ---- folders that are divided already

@pytest.fixture
def divided(folder):
    for name, count in (("ant", 2), ("bee", 3)):
        write_pictures(f"val/{name}", *(f"v{i}" for i in range(count)))
    return folder


def test_a_folder_for_tests(divided):
    result = data("images", "--from-folders", "zoo", "--test-from", "val", "db")
    assert len(records("db/train_lmdb")) == sum(KINDS.values()) and "db/test_lmdb: 5 records" in result.stdout
    assert sorted((key.split("_", 1)[1], label) for key, label, _ in records("db/test_lmdb")) == [
        ("ant/v0.png", 0), ("ant/v1.png", 0), ("bee/v0.png", 1), ("bee/v1.png", 1), ("bee/v2.png", 1)]
    assert (divided / "db" / "labels.txt").read_text() == "ant\nbee\ncow\n"
    assert "val: has no pictures of 1 classes: cow" in result.stderr


@pytest.mark.parametrize("arguments, status, words", [
    (("zoo", "--test-from", "nowhere"), 1, "nowhere: must be a folder with a folder of pictures for each class: No such file"),
    (("zoo", "--test-from", "val"), 1, "val: holds classes that zoo does not have: elk"), (("zoo", "--test-from", "zoo"), 2, "zoo: and zoo hold the same pictures"),
    (("deep", "--test-from", "deep/val"), 2, "deep/val: and deep hold the same pictures"), (("zoo", "--test-from", "zoo/ant"), 1, "zoo/ant: holds no folders"),
    (("zoo", "--test-from", "val", "--test-share", "0.5"), 2, "--test-share: for folders that are not divided"),
    (("zoo", "--test-from", "empty"), 1, "empty/ant: holds no pictures"),
    (("both",), 1, "both/train: holds folders and no pictures; name the folder whose folders are the classes, and if there")])  # fmt: skip
def test_wrong_folders_for_tests(divided, arguments, status, words):
    (divided / "empty" / "ant").mkdir(parents=True)
    for name in "val/elk", "both/train/ant", "both/val/ant", "deep/bee", "deep/val/ant":
        write_pictures(name, "x")
    assert words in run("--from-folders", *arguments, "db", status=status)
    assert not (divided / "db").exists()
