"""Make the databases, labels and mean of a training from a folder with a folder of pictures per class."""

import logging
import os
import random
from collections import namedtuple

from minicaffe.data.convert import compute_mean, write_pictures
from minicaffe.data.db import new_folder, open_db
from minicaffe.data.image_list import PICTURE_ENDINGS, ending
from minicaffe.data.mean_file import write_mean
from minicaffe.errors import ConfigError, DataError, FileError

FolderConversion = namedtuple("FolderConversion", "classes train test unreadable left_out shape mean")
FolderConversion.__doc__ = """What `convert_folders` made: names of the classes, records of either database, unreadable pictures (a
number), paths left out (files beside the class folders, files of other kinds, links to folders), shape of a picture, mean of each
channel."""
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}     # folders of a data set that are no classes


def convert_folders(root, path, *, backend="lmdb", test_share=0.2, test_from=None, seed=1, endings=PICTURE_ENDINGS, force=False,
                    progress=None, **options):
    """Make the folder `path` from pictures that lie in folders named after their classes, or in folders inside those.

    In it: ``train_lmdb`` and ``test_lmdb`` (or ``..._leveldb``), shuffled, with `test_share` of each class in the latter;
    ``labels.txt``, whose line n (from 0) names class n, in alphabetical order; ``mean.binaryproto`` of the training pictures.

    A class of two or more pictures has at least one in each database, a single picture is for training. With `test_share` 0 there
    is no database for tests; `test_from` is such a folder with the pictures for tests instead of a share. The same pictures and
    `seed` give the same databases. `endings` are extensions of pictures, in small letters; other files are left out. All other
    parameters are as of `minicaffe.data.convert.write_pictures`; without a size all pictures must have one.

    Raises ConfigError, FileError or DataError if `root` or `test_from` is not such a folder, one lies in the other, a class has no
    pictures, none is left for training or tests, or pictures differ in size.
    """
    if not 0 <= test_share < 1:
        raise ConfigError(f"must be at least 0 and below 1, got {test_share:g}", field="test_share")
    classes, left_out = _classes(str(root), endings)
    test_classes = {}
    if test_from is not None:
        test_share, (test_classes, more) = 0, _classes(str(test_from), endings)
        left_out += more
        paths = [os.path.realpath(root), os.path.realpath(test_from)]
        if os.path.commonpath(paths) in paths:
            raise ConfigError(f"and {root} hold the same pictures; give folders of which none lies in the other",
                              file=str(test_from))
        if unknown := sorted(test_classes.keys() - classes.keys()):
            raise DataError(f"holds classes that {root} does not have: {', '.join(unknown[:10])}", file=str(test_from))
        if missing := sorted(classes.keys() - test_classes.keys()):
            few = ", ".join(missing[:10])
            logging.getLogger(__name__).warning("%s: has no pictures of %d classes: %s", test_from, len(missing), few)
    shuffle = random.Random(seed).shuffle
    train, test = [], []
    for label, (name, files) in enumerate(classes.items()):
        entries = [(f"{name}/{file}", label) for file in files]
        shuffle(entries)
        count = min(max(1, round(test_share * len(entries))), len(entries) - 1) if test_share else 0
        test += entries[:count] + [(f"{name}/{file}", label) for file in test_classes.get(name, ())]
        train += entries[count:]
    if test_share and not test:
        raise DataError("no class has two pictures, so none is left for tests", file=str(root))
    counts, unreadable = [], 0
    with new_folder(path, force) as folder:
        folder.mkdir()
        for split, source, entries in (("train", root, train), ("test", test_from or root, test)):
            shuffle(entries)
            db = folder / f"{split}_{backend}"
            written, skipped = (0, 0) if not entries else write_pictures(
                f"{source}/", entries, db, str(source), backend=backend, check_size=True, progress=progress, **options)
            counts.append(written)
            unreadable += skipped
        (folder / "labels.txt").write_text("".join(f"{name}\n" for name in classes), errors="surrogateescape")
        with open_db(folder / f"train_{backend}", backend) as db:
            mean = compute_mean(db, progress)
        write_mean(folder / "mean.binaryproto", mean)
    return FolderConversion(list(classes), *counts, unreadable, left_out, mean.shape, mean.mean(axis=(1, 2), dtype=float))


def _classes(root, endings):
    """Return a dict from class names to sorted paths of pictures, relative to the class's folder; and a list of paths left out.

    Hidden files and folders are ignored. Raises DataError for a folder that is no class, such as one above the classes.
    """
    try:
        entries = sorted((entry for entry in os.scandir(root) if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise FileError(f"must be a folder with a folder of pictures for each class: {error.strerror}", file=root) from None
    left_out = [entry.path for entry in entries if not entry.is_dir()]
    classes = {}
    for entry in entries:
        if not entry.is_dir():
            continue
        pictures = []
        for folder, inside, files in os.walk(entry.path, onerror=_raise_unreadable):
            left_out += [link for link in (os.path.join(folder, name) for name in inside) if os.path.islink(link)]
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            paths = [os.path.join(folder, name) for name in sorted(files) if not name.startswith(".")]
            found = [path for path in paths if ending(path) in endings]
            left_out += [path for path in paths if ending(path) not in endings]
            pictures += [os.path.relpath(path, entry.path) for path in found]
        if not pictures:
            raise DataError("holds no pictures; remove it, put the pictures of this class into it, or name their extension "
                            "by --ext", file=entry.path)
        classes[entry.name] = pictures
    if not classes:
        raise DataError("holds no folders; put the pictures of each class into a folder named after it", file=root)
    if not any(os.sep not in path for pictures in classes.values() for path in pictures) and (
            len(classes) == 1 or SPLITS.issuperset(name.lower() for name in classes)):
        raise DataError("holds folders and no pictures; name the folder whose folders are the classes, and if there is such a "
                        "folder for tests, that by --test-from",
                        file=os.path.join(root, next(iter(classes))))
    return classes, left_out


def _raise_unreadable(error):
    """Raise FileError for a folder that os.walk, which calls this, cannot read: else its pictures are missing silently."""
    raise FileError(f"cannot be read: {error.strerror}", file=error.filename)
