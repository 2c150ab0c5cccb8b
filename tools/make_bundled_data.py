"""Make the small databases in models/data from the original files of Fashion-MNIST.

    python tools/make_bundled_data.py --from DIR [--out models/data]

Takes the first pictures of each class, 900 from the training files and 100 from the test files, in the order of the
files. The same files give the same bytes on every run. Beside them are the names of the classes, and the first ankle boot of the
test files as a picture.
"""

import argparse
import tempfile
from pathlib import Path

import cv2
import lmdb
import numpy as np

from minicaffe.data.datasets import CLASSES, raw_datum, read_mnist
from minicaffe.data.db import open_db

PER_CLASS = {"train": 900, "test": 100}
NAMES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PICTURE = "ankle boot"


def first_of_each_class(labels, count):
    """Return the ascending indices of the first `count` records of each class."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(CLASSES)]))


def main():
    """Write both databases; each must not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "models" / "data")
    arguments = parser.parse_args()
    for split, per_class in PER_CLASS.items():
        images, labels = read_mnist(arguments.source, split)
        target = arguments.out / f"fashion_mnist_{split}_lmdb"
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            with open_db(f"{scratch}/db", "LMDB", "w") as db:
                for number, i in enumerate(first_of_each_class(labels, per_class)):
                    db.put(b"%08d" % number, raw_datum(images[i], int(labels[i])))
            # The compact copy leaves out free pages and everything that shows how the file grew.
            with lmdb.open(f"{scratch}/db", readonly=True, lock=False) as grown:
                grown.copy(str(target), compact=True)
        print(f"{target}: {per_class * CLASSES} records, {(target / 'data.mdb').stat().st_size} bytes")
    (arguments.out / "labels.txt").write_text("".join(f"{name}\n" for name in NAMES))
    first = images[np.flatnonzero(labels == NAMES.index(PICTURE))[0]]
    cv2.imwrite(str(arguments.out / f"{PICTURE.replace(' ', '_')}.png"), np.squeeze(first))


if __name__ == "__main__":
    main()
