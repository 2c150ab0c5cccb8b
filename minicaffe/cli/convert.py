"""``minicaffe convert``: databases from files, by the names and arguments of Caffe's converters.

``data`` makes the same sets from a folder or a download; here every file is named (Caffe convert_imageset.cpp,
convert_mnist_data.cpp, convert_cifar_data.cpp, convert_mnist_siamese_data.cpp).
"""

import random
from pathlib import Path

import click
import numpy as np

from minicaffe.cli import bars, options
from minicaffe.cli.data import backend_option, images
from minicaffe.data.datasets import raw_datum, read_cifar, read_idx
from minicaffe.data.db import new_database
from minicaffe.errors import DataError


@click.group(no_args_is_help=False)
def convert():
    """Make databases as Caffe's converters do."""


convert.add_command(images)


@convert.command(cls=options.CaffeCommand)
@click.argument("images", type=Path)
@click.argument("labels", type=Path)
@click.argument("db")
@backend_option
@options.force
@options.debug
def mnist(images, labels, db, backend, force):
    """Make DB from the two IDX files of an MNIST set, packed or unpacked (convert_mnist_data)."""
    pictures, classes = read_pair(images, labels)
    write(db, backend, force, 8, pictures[:, np.newaxis], classes)


@convert.command(cls=options.CaffeCommand)
@click.argument("source", metavar="IN_DIR", type=Path)
@click.argument("out", metavar="OUT_DIR", type=Path)
@click.argument("backend", metavar="DB_TYPE", type=click.Choice(["lmdb", "leveldb"], case_sensitive=False), default="lmdb")
@options.force
@options.debug
def cifar(source, out, backend, force):
    """Make cifar10_train_DB_TYPE and cifar10_test_DB_TYPE in OUT_DIR from CIFAR-10's binary files (convert_cifar_data)."""
    for split in ("train", "test"):
        write(out / f"cifar10_{split}_{backend}", backend, force, 5, *read_cifar(source, split))


@convert.command(cls=options.CaffeCommand)
@click.argument("images", type=Path)
@click.argument("labels", type=Path)
@click.argument("db")
@backend_option
@click.option("--seed", type=int, help="Of the random pairs; by default they differ each time.")
@options.force
@options.debug
def siamese(images, labels, db, backend, seed, force):
    """Make DB of random pairs of pictures of an MNIST set: two channels, label 1 for the same digit.

    Caffe's convert_mnist_siamese_data writes LevelDB; give --backend leveldb for the same.
    """
    pictures, classes = read_pair(images, labels)
    numbers = random.Random(seed)
    pairs = np.array([(numbers.randrange(len(pictures)), numbers.randrange(len(pictures))) for _ in range(len(pictures))])
    write(db, backend, force, 8, pictures[pairs], classes[pairs[:, 0]] == classes[pairs[:, 1]])


def read_pair(images, labels):
    """Return the pictures (N, H, W) and labels (N,) of two IDX files."""
    pictures, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pictures) != len(classes):
        raise DataError(f"holds {len(classes)} labels, but {images} holds {len(pictures)} pictures", file=str(labels))
    return pictures, classes


def write(path, backend, force, digits, pictures, labels):
    """Write a database of pictures (N, C, H, W) whose keys are their numbers."""
    with new_database(path, backend, force=force) as db, bars.progress() as report:
        for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            db.put(b"%0*d" % (digits, i), raw_datum(picture, int(label)))
            if i % 1000 == 999:
                report(str(path), i + 1, len(pictures))
    click.echo(f"{path}: {len(pictures)} records")
