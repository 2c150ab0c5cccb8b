"""Make the databases, labels and mean of a training from a folder with a folder of pictures per class."""

import os
import random
from collections import namedtuple
from pathlib import Path

from minicaffe.data.convert import compute_mean, resize_size, write_pictures
from minicaffe.data.db import new_folder, open_db
from minicaffe.data.mean_file import write_mean
from minicaffe.errors import ConfigError, DataError, FileError

FolderConversion = namedtuple("FolderConversion", "classes train test unreadable left_out shape mean")
FolderConversion.__doc__ = """What `convert_folders` made: names of the classes, records of either database, unreadable pictures (a
number), paths left out (files beside the class folders, folders inside them), shape of a picture, mean of each channel."""


def convert_folders(root, path, *, backend="lmdb", gray=False, resize_width=0, resize_height=0, encoded=False, encode_type="",
                    test_share=0.2, seed=1, force=False, progress=None):
    """Make the folder `path` from pictures that lie in folders named after their classes.

    In it: ``train_lmdb`` and ``test_lmdb`` (or ``..._leveldb``), shuffled, with `test_share` of each class in the latter;
    ``labels.txt``, whose line n (from 0) names class n, in alphabetical order; ``mean.binaryproto`` of the training pictures.

    Parameters
    ----------
    root, path : str or Path
    test_share : float
        Above 0 and below 1. A class of two or more pictures has at least one in each database, a single picture is for training.
    seed : int
        Of the shuffling: the same pictures and seed give the same databases.
    backend, gray, resize_width, resize_height, encoded, encode_type, force, progress
        As for `minicaffe.data.convert.convert_images`; without a size all pictures must have one.

    Returns
    -------
    FolderConversion

    Raises
    ------
    ConfigError, FileError, DataError
        `root` is not such a folder, a class has no pictures, pictures differ in size.
    """
    if not 0 < test_share < 1:
        raise ConfigError(f"must be above 0 and below 1, got {test_share:g}", field="test_share")
    size = resize_size(resize_width, resize_height)
    classes, left_out = _classes(str(root))
    shuffle = random.Random(seed).shuffle
    train, test = [], []
    for label, (name, files) in enumerate(classes.items()):
        entries = [(f"{name}/{file}", label) for file in files]
        shuffle(entries)
        count = min(max(1, round(test_share * len(entries))), len(entries) - 1)
        test += entries[:count]
        train += entries[count:]
    if not test:
        raise DataError("no class has two pictures, so none is left for tests", file=str(root))
    how = dict(backend=backend, gray=gray, size=size, check_size=True, encoded=encoded, encode_type=encode_type, progress=progress)
    counts, unreadable = [], 0
    with new_folder(path, force) as folder:
        folder.mkdir()
        for split, entries in (("train", train), ("test", test)):
            shuffle(entries)
            written, skipped = write_pictures(f"{root}/", entries, folder / f"{split}_{backend}", str(root), **how)
            counts.append(written)
            unreadable += skipped
        (folder / "labels.txt").write_text("".join(f"{name}\n" for name in classes), errors="surrogateescape")
        with open_db(folder / f"train_{backend}", backend) as db:
            mean = compute_mean(db, progress)
        write_mean(folder / "mean.binaryproto", mean)
    return FolderConversion(list(classes), *counts, unreadable, left_out, mean.shape, mean.mean(axis=(1, 2), dtype=float))


def _classes(root):
    """Return the sorted file names of each class, and the other paths; hidden files are ignored."""
    try:
        entries = sorted((entry for entry in os.scandir(root) if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise FileError(f"must be a folder with a folder of pictures for each class: {error.strerror}", file=root) from None
    left_out = [entry.path for entry in entries if not entry.is_dir()]
    classes = {}
    for entry in entries:
        if not entry.is_dir():
            continue
        inside = sorted(p for p in Path(entry.path).iterdir() if not p.name.startswith("."))
        classes[entry.name] = [p.name for p in inside if not p.is_dir()]
        left_out += [str(p) for p in inside if p.is_dir()]
        if not classes[entry.name]:
            folders = any(p.is_dir() for p in inside)
            raise DataError("holds folders and no pictures; name the folder whose folders are the classes" if folders else
                            "holds no pictures; remove it, or put the pictures of this class into it", file=entry.path)
    if not classes:
        raise DataError("holds no folders; put the pictures of each class into a folder named after it", file=root)
    return classes, left_out
