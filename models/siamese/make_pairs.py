"""Make the databases of random pairs that net.prototxt reads, from the bundled pictures.

    python models/siamese/make_pairs.py [--out data] [--per-picture 2] [--seed 1]

Each record has two channels, the two pictures, and label 1 where both are of one class, else 0 (Caffe's
convert_mnist_siamese_data). `minicaffe data idx --pairs IMAGES LABELS DB` does the same from the files of an MNIST set.
"""

import argparse
import random
from pathlib import Path

import numpy as np

from minicaffe.data.datasets import raw_datum
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import new_database, open_db

PICTURES = Path(__file__).resolve().parents[1] / "data"


def write_pairs(source, target, per_picture, seed):
    """Write `per_picture` random pairs for each picture of the LMDB `source` to the new LMDB `target`; return their number."""
    db = open_db(source, "LMDB")
    values = [value for _, value in db.records()]
    pictures = [picture_of(read_datum(value)) for value in values]
    classes = [read_datum(value).label for value in values]
    db.close()
    numbers = random.Random(seed)
    count = per_picture * len(pictures)
    with new_database(target, "LMDB", force=True) as out:
        for i in range(count):
            a, b = numbers.randrange(len(pictures)), numbers.randrange(len(pictures))
            out.put(b"%08d" % i, raw_datum(np.concatenate([pictures[a], pictures[b]]), int(classes[a] == classes[b])))
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder for the two databases (default: data)")
    parser.add_argument("--per-picture", type=int, default=2, help="pairs for each picture (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        target = arguments.out / f"fashion_mnist_siamese_{split}_lmdb"
        count = write_pairs(PICTURES / f"fashion_mnist_{split}_lmdb", target, arguments.per_picture, arguments.seed)
        print(f"{target}: {count} pairs")


if __name__ == "__main__":
    main()
