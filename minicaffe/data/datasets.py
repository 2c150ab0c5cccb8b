"""The data sets of Caffe's examples, from their original files to databases (convert_mnist_data, convert_cifar_data).

fashion-mnist and mnist (IDX files): 8-digit keys, 1 x 28 x 28 bytes; cifar10 (binary files): 5-digit keys, 3 x 32 x 32
bytes, planes in the file's order red, green, blue. Records are in the order of the files. Each database has
a labels.txt with the names of its classes in its own folder, as several data sets may be beside each other.

Checksums: Fashion-MNIST by SHA-256; MNIST and CIFAR-10 by the MD5 sums of their publishers and mirrors, which detect damage but
not forgery. Files from a directory of the user are not summed (they may be unpacked or other pictures of that format); their
lengths are checked.
"""

import contextlib
import gzip
import math
import random
import struct
import tarfile
import zlib
from collections import namedtuple
from pathlib import Path

import numpy as np

from minicaffe.data.db import new_database
from minicaffe.data.download import fetch
from minicaffe.data.numbers import label_fields
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import check_free

CLASSES = 10
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: label, red, green, blue
IDX_MAX = 1 << 31  # bytes of pixels; far above any data set of this kind


# The stem of the names of its databases, the address of its files, the names of its classes, checksum by name of a file.
DataSet = namedtuple("DataSet", "stem url classes files")


def _idx_files(*checksums):
    """Return the names of the four packed files of an MNIST-like set, with their checksums."""
    names = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return dict(zip(names, checksums, strict=True))


DATA_SETS = {
    "fashion-mnist": DataSet(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        _idx_files(
            "sha256:b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
            "sha256:0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
            "sha256:cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
            "sha256:8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05")),
    "mnist": DataSet(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        tuple("0123456789"),
        _idx_files(
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "md5:9fb629c4189551a2d022fa330f9573f3",
            "md5:ec29112dd5afa0611ce80d1b7f02629c")),
    "cifar10": DataSet(
        "cifar10",
        "https://www.cs.toronto.edu/~kriz/",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"}),
}


def make_data_set(name, out, *, source=None, url=None, limit=None, backend="lmdb", force=False, progress=None):
    """Make the train and test database of a data set; return the path of each and its number of records.

    The databases are in the folder `out`, such as ``<out>/mnist_train_lmdb``, each with a labels.txt. The original files, packed or
    unpacked, are in the folder `source`, or are downloaded, from `url` instead of the usual address, to ``<out>/<name>_files``. Of
    each split the first `limit` records are taken. ``progress(text, done, total or None)`` is called during the work. Raises
    FileError or DataError if a file is missing, damaged or not of the format, a database exists, or the download failed.
    """
    data_set = DATA_SETS[name]
    if limit is not None and limit < 1:
        raise ConfigError(f"must be at least 1, got {limit}", field="limit")
    targets = {split: Path(out) / f"{data_set.stem}_{split}_{backend}" for split in ("train", "test")}
    for path in targets.values():
        check_free(path, force)
    if source is None:
        source = Path(out) / f"{data_set.stem}_files"
        for file, checksum in data_set.files.items():
            report = (lambda done, total, file=file: progress(file, done, total)) if progress else None
            fetch((url or data_set.url).rstrip("/") + "/" + file, source / file, checksum, report)
    elif not Path(source).is_dir():
        raise FileError("no such directory; --from needs the one that holds the original files", file=str(source))
    read, digits = (read_cifar, 5) if name == "cifar10" else (read_mnist, 8)
    made = []
    for split, path in targets.items():
        images, labels = read(Path(source), split)
        made.append((path, write_arrays(path, images[:limit], labels[:limit], digits, backend, force, progress)))
        (path / "labels.txt").write_text("".join(f"{name}\n" for name in data_set.classes))
    return made


def make_idx_set(images, labels, path, *, pairs=False, seed=None, backend="lmdb", force=False, progress=None):
    """Make the database `path` of two IDX files, of pictures and labels, and return its number of records.

    With `pairs` a record has two random pictures as channels, and label 1 if they have the same label (siamese nets).
    """
    pictures, classes = read_idx_pair(Path(images), Path(labels))
    if pairs:
        numbers = random.Random(seed)
        chosen = np.array([(numbers.randrange(len(pictures)), numbers.randrange(len(pictures))) for _ in pictures])
        pictures, classes = pictures[chosen, 0], classes[chosen[:, 0]] == classes[chosen[:, 1]]
    return write_arrays(path, pictures, classes, 8, backend, force, progress)


def write_arrays(path, images, labels, digits, backend, force=False, progress=None):
    """Write a database of uint8 pictures (N, C, H, W), whose keys are their numbers with `digits` digits; return N."""
    with new_database(path, backend, force=force) as db:
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            db.put(b"%0*d" % (digits, i), raw_datum(image, int(label)))
            if progress and (i + 1) % 1000 == 0:
                progress(Path(path).name, i + 1, len(images))
    return len(images)


def raw_datum(image, label):
    """Return the serialized Datum of a uint8 array (C, H, W); `label` is an int, or a sequence of real numbers."""
    channels, height, width = image.shape
    return caffe_pb2.Datum(channels=channels, height=height, width=width, data=image.tobytes(),
                           **label_fields(label)).SerializeToString()


def read_mnist(directory, split):
    """Read pictures, uint8 (N, 1, H, W), and labels, uint8 (N,), of an MNIST-like set from its two IDX files."""
    stem = "train" if split == "train" else "t10k"
    files = [_find(directory, f"{stem}-{kind}-ubyte.gz", f"{stem}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
    images, labels = read_idx_pair(*files)
    _check_labels(labels, files[1])
    return images, labels


def read_idx_pair(images_file, labels_file):
    """Read pictures, uint8 (N, 1, H, W), and labels, uint8 (N,), of two IDX files."""
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(images) != len(labels):
        raise DataError(f"holds {len(labels)} labels, but {images_file.name} holds {len(images)} pictures", file=str(labels_file))
    return images[:, np.newaxis], labels


def read_idx(path, axes):
    """Read an IDX file of unsigned bytes, gzipped or not.

    The format: two zero bytes, type 8 (unsigned byte), number of axes, each size as 32 bits big-endian, the bytes.
    """
    with _reading(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        head = file.read(4 + 4 * axes)
        if len(head) < 4 + 4 * axes or head[:4] != bytes((0, 0, 8, axes)):
            raise DataError(f"is no IDX file of bytes with {axes} axes: it starts with {head[:4].hex(' ')}", file=str(path))
        shape = struct.unpack(f">{axes}I", head[4:])
        count = math.prod(shape)
        if not 0 < count <= IDX_MAX:
            raise DataError(f"declares {' x '.join(map(str, shape))} bytes; from 1 to {IDX_MAX} are allowed", file=str(path))
        content = file.read(count + 1)  # one more, to check that it ends there; the read is bounded by IDX_MAX
        if len(content) != count:
            more = "more" if len(content) > count else f"only {len(content)}"
            raise DataError(f"declares {' x '.join(map(str, shape))} bytes and has {more}", file=str(path))
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_cifar(directory, split):
    """Read pictures, uint8 (N, 3, 32, 32), and labels, uint8 (N,), of CIFAR-10's binary version."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    records = np.concatenate([_cifar_records(directory, name) for name in names])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _cifar_records(directory, name):
    """Return the records of a file of CIFAR-10, uint8 (N, CIFAR_RECORD); it may be in a folder or in the archive."""
    member = f"cifar-10-batches-bin/{name}"
    path = _find(directory, member, name, "cifar-10-binary.tar.gz")
    place, limit = str(path), 10_000 * CIFAR_RECORD + 1     # of the largest file of the set
    with _reading(path):
        if path.name == name:
            with open(path, "rb") as file:
                content = file.read(limit)
        else:
            with tarfile.open(path, "r:gz") as archive:
                try:
                    file = archive.extractfile(member)
                except KeyError:        # it is missing, or a link to a missing member
                    file = None
                if file is None:
                    raise DataError(f"holds no {member}; it must be CIFAR-10's binary version", file=place)
                content, place = file.read(limit), f"{path}: {member}"
    count, rest = divmod(len(content), CIFAR_RECORD)
    if rest or not 1 <= count <= 10_000:
        raise DataError(f"must hold 1 to 10000 records of {CIFAR_RECORD} bytes, has {len(content)} bytes; copy it again",
                        file=place)
    records = np.frombuffer(content, np.uint8).reshape(count, CIFAR_RECORD)
    _check_labels(records[:, 0], place)
    return records


def _check_labels(labels, path):
    """Raise DataError for a label that is none of the ten classes: the file is damaged, or of another set."""
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise DataError(f"label {labels[wrong[0]]} of record {wrong[0]} is not from 0 to {CLASSES - 1}", file=str(path))


def _find(directory, *names):
    """Return the path of the first of `names` that is a file of the folder with the original files; raise FileError for none."""
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise FileError(f"holds no {' or '.join(names)}; without --from it is downloaded", file=str(directory))


@contextlib.contextmanager
def _reading(path):
    """Raise errors of unpacking and reading the original file `path` as errors that name it and say what to do."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"is damaged or not packed as its name says: {error}; copy or download it again",
                        file=str(path)) from error
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}", file=str(path)) from error
