"""Pictures to a database and a database to its mean (Caffe convert_imageset.cpp, compute_image_mean.cpp)."""

import logging
import random
from pathlib import Path

import numpy as np

from minicaffe.data.datasets import raw_datum
from minicaffe.data.datum import opencv
from minicaffe.data.db import new_database
from minicaffe.data.image_list import read_list
from minicaffe.data.transform import Transformer
from minicaffe.errors import ConfigError, DataError
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)
BATCH = 256  # records summed together


def convert_images(
    root,
    list_file,
    path,
    *,
    backend="lmdb",
    gray=False,
    shuffle=False,
    resize_width=0,
    resize_height=0,
    check_size=False,
    encoded=False,
    encode_type="",
    force=False,
    progress=None,
):
    """Make a database from the pictures of a list.

    Differs from Caffe: `check_size` compares height and width of the pictures, encoded ones too (Caffe compares bytes,
    and fails on the second encoded picture); a list without one readable picture is an error.

    Parameters
    ----------
    root : str
        Put before each path of the list as it stands (so end it with a slash).
    list_file, path : str or Path
    backend : {"lmdb", "leveldb"}
    gray : bool
        One channel instead of three (BGR).
    shuffle : bool
        Shuffle the list; unseeded.
    resize_width, resize_height : int
        Resize (bilinear) if both are above 0.
    check_size : bool
        All pictures must have the size of the first.
    encoded : bool
        Store picture files instead of pixels: the file itself if it needs no change.
    encode_type : str
        Such as ``"png"``; implies `encoded`. Empty: each file's own suffix.
    force : bool
        Replace an existing database.
    progress : callable, optional
        ``progress(text, done, total)``.

    Returns
    -------
    (int, int)
        Records written, pictures that could not be read.
    """
    cv2 = opencv()
    entries = read_list(list_file)
    if shuffle:
        random.shuffle(entries)
    width, height = max(0, resize_width), max(0, resize_height)
    first_size, written = None, 0
    with new_database(path, backend, force=force) as db:
        for i, (name, label) in enumerate(entries):
            file = root + name
            image = cv2.imread(file, cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR)
            if image is None:
                log.warning("%s: cannot be read as a picture; skipped", file)
                continue
            if width and height:
                image = cv2.resize(image, (width, height))
            first_size = first_size or image.shape[:2]
            if check_size and image.shape[:2] != first_size:
                raise DataError(f"is {_size(image.shape)}, the first picture is {_size(first_size)} (--check_size)", file=file)
            if encoded or encode_type:
                keep = not width and not height
                value = encoded_datum(cv2, file, image, label, encode_type or suffix(file), keep)
            else:
                planes = image[np.newaxis] if image.ndim == 2 else image.transpose(2, 0, 1)
                value = raw_datum(planes, label)
            db.put(b"%08d_" % i + name.encode(errors="surrogateescape"), value)
            written += 1
            if progress:
                progress("pictures", i + 1, len(entries))
        if not written:
            raise DataError(f"none of its {len(entries)} pictures can be read; is ROOT ('{root}') right?", file=str(list_file))
    return written, len(entries) - written


def encoded_datum(cv2, file, image, label, kind, keep):
    same_kind = {suffix(file), kind.lower()} in ({kind.lower()}, {"jpg", "jpeg"})
    if keep and same_kind:
        content = Path(file).read_bytes()
    else:
        try:
            content = cv2.imencode("." + kind, image)[1].tobytes()
        except cv2.error as error:
            raise ConfigError(f"OpenCV cannot write '{kind}' pictures ({file})", field="encode_type") from error
    return caffe_pb2.Datum(data=content, label=label, encoded=True).SerializeToString()


def suffix(file):
    return file.rpartition(".")[2].lower()


def _size(shape):
    return f"{shape[0]} x {shape[1]}"


def compute_mean(db, progress=None):
    """Average all pictures of a database, in double precision (Caffe: single).

    Parameters
    ----------
    db : Database
        Open for reading; all pictures of one size.
    progress : callable, optional
        ``progress(text, done, total)``.

    Returns
    -------
    ndarray, float32, shape (C, H, W)

    Raises
    ------
    DataError
        A record is no Datum, or pictures differ in size; names the record.
    """
    transformer = Transformer(caffe_pb2.TransformationParameter(), caffe_pb2.TEST)
    cursor, total = db.cursor(), None
    for start in range(0, len(db), BATCH):
        records = cursor.take(min(BATCH, len(db) - start))
        try:
            batch = transformer.load([value for _, value in records])
            if total is None:
                total = np.zeros(batch.shape[1:])
            if batch.shape[1:] != total.shape:
                error = DataError(f"is {_sizes(batch.shape[1:])}, record 0 is {_sizes(total.shape)}; all must agree")
                error.record = 0
                raise error
        except DataError as error:
            raise db.locate(error, start + error.record, records[error.record][0]) from None
        pixels = np.empty(batch.shape)
        batch.write(pixels)
        total += pixels.sum(axis=0)
        if progress:
            progress("records", start + len(records), len(db))
    return (total / len(db)).astype(np.float32)


def _sizes(shape):
    return " x ".join(map(str, shape))
