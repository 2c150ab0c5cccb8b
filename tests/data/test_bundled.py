"""The databases in models/data: what their README says."""

from collections import Counter
from pathlib import Path

import pytest

from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db

FOLDER = Path(__file__).resolve().parents[2] / "models" / "data"


@pytest.mark.parametrize(("split", "per_class"), [("train", 900), ("test", 100)])
def test_records(split, per_class):
    with open_db(FOLDER / f"fashion_mnist_{split}_lmdb", "LMDB") as db:
        records = [(bytes(key), read_datum(value)) for key, value in db.records()]
    infos = [info for _, info in records]
    assert [key for key, _ in records] == [b"%08d" % i for i in range(10 * per_class)]
    assert {(info.channels, info.height, info.width) for info in infos} == {(1, 28, 28)}
    assert Counter(info.label for info in infos) == dict.fromkeys(range(10), per_class)
    assert [info.label for info in infos[:4]] == {"train": [9, 0, 0, 3], "test": [9, 2, 1, 1]}[split]
    assert len({picture_of(info).tobytes() for info in infos}) > 9.9 * per_class
    if split == "test":
        cv2 = pytest.importorskip("cv2")
        names = (FOLDER / "labels.txt").read_text().splitlines()
        assert names[infos[0].label] == "ankle boot" and len(names) == 10
        assert (cv2.imread(str(FOLDER / "ankle_boot.png"), cv2.IMREAD_UNCHANGED) == picture_of(infos[0])[0]).all()
    assert [p.name for p in FOLDER.glob("*_lmdb/*")] == ["data.mdb", "data.mdb"]
