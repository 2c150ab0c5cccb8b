"""``minicaffe convert``: databases from files, by the names and arguments of Caffe's converters.

``data`` makes the same sets from a folder or a download; here every file is named (Caffe convert_imageset.cpp,
convert_mnist_data.cpp, convert_cifar_data.cpp, convert_mnist_siamese_data.cpp; SSD's convert_annoset.cpp).
"""

import random
from pathlib import Path

import click
import numpy as np

from minicaffe.cli import bars, options
from minicaffe.cli.data import backend_option, from_list, images
from minicaffe.addons.ssd.annosets import convert_annotated
from minicaffe.data.datasets import raw_datum, read_cifar, read_idx
from minicaffe.data.db import new_database
from minicaffe.errors import DataError
from minicaffe.proto.atomic import check_free


@click.group(cls=options.CaffeGroup, no_args_is_help=False)
def convert():
    """Make databases as Caffe's converters do."""


convert.add_command(images)


@convert.command(cls=options.CaffeCommand)
@click.argument("root")
@click.argument("list_file", metavar="LIST")
@click.argument("db")
@click.option("--label_map_file", "--label-map-file", "label_map", metavar="FILE", help="A LabelMap: numbers of the names.")
@click.option("--label_type", "--label-type", type=click.Choice(["xml", "json", "txt"]), default="xml", show_default=True)
@from_list
@click.option("--min_dim", "--min-dim", type=click.IntRange(0, options.INT_MAX), default=0,
              help="Scale the shorter side to this; 0: do not.")
@click.option("--max_dim", "--max-dim", type=click.IntRange(0, options.INT_MAX), default=0,
              help="The longer side gets no longer than this; 0: any length.")
@options.messages
def annoset(root, list_file, db, **more):
    """Make DB of pictures and the boxes on them, for AnnotatedData (SSD's convert_annoset).

    Each line of LIST is the path of a picture, a space and that of its annotation: VOC's xml, COCO's json, or lines of a label's
    number and four corners in pixels. ROOT is put before both unchanged.
    """
    with bars.progress() as progress:
        written, skipped = convert_annotated(root, list_file, db, progress=progress, **more)
    click.echo(f"{db}: {written} records" + (f", {skipped} pictures could not be read" if skipped else ""))


of_idx_files = options.combine_options(
    click.argument("images", type=Path), click.argument("labels", type=Path), click.argument("db"), backend_option, options.force,
    options.messages)


@convert.command(cls=options.CaffeCommand)
@of_idx_files
def mnist(images, labels, db, backend, force):
    """Make DB from the two IDX files of an MNIST set, packed or unpacked (convert_mnist_data)."""
    pictures, classes = read_pair(images, labels)
    write(db, backend, force, 8, pictures[:, np.newaxis], classes)


@convert.command(cls=options.CaffeCommand)
@click.argument("source", metavar="IN_DIR", type=Path)
@click.argument("out", metavar="OUT_DIR", type=Path)
@click.argument("backend", metavar="DB_TYPE", type=click.Choice(["lmdb", "leveldb"], case_sensitive=False), default="lmdb")
@options.force
@options.messages
def cifar(source, out, backend, force):
    """Make cifar10_train_DB_TYPE and cifar10_test_DB_TYPE in OUT_DIR from CIFAR-10's binary files (convert_cifar_data)."""
    paths = {split: out / f"cifar10_{split}_{backend}" for split in ("train", "test")}
    for path in paths.values():     # both, before one is written
        check_free(path, force)
    for split, path in paths.items():
        write(path, backend, force, 5, *read_cifar(source, split))


@convert.command(cls=options.CaffeCommand)
@of_idx_files
@click.option("--seed", type=click.IntRange(0), help="Of the random pairs; by default they differ each time.")
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
