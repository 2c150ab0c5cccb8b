"""Pictures to a database and a database to its mean (Caffe convert_imageset.cpp, compute_image_mean.cpp)."""

import contextlib
import itertools
import logging
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np

from minicaffe.data.datasets import raw_datum
from minicaffe.data.datum import opencv
from minicaffe.data.db import new_database
from minicaffe.data.image_list import ImageList, decode_picture, read_content
from minicaffe.data.numbers import label_fields
from minicaffe.data.transform import Transformer
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.memory.sizes import check_bytes
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)
BATCH = 256  # records summed together


def convert_images(root, list_file, path, *, shuffle=False, label_size=None, **options):
    """Make a database from the pictures of a list; `options` are those of `write_pictures`, which this returns.

    The list is shuffled with `shuffle`, unseeded. With `label_size` each line has this many labels that are real numbers; they are
    stored in float_data, and no `label` is.
    """
    entries = ImageList(list_file, label_size).entries
    if shuffle:
        random.shuffle(entries)
    return write_pictures(root, entries, path, str(list_file), **options)


def write_pictures(root, entries, path, source, *, backend="lmdb", gray=False, resize_width=0, resize_height=0, check_size=False,
                   encoded=False, encode_type="", force=False, progress=None):
    """Make a database from the `entries` (path, label) of a list or of class folders, the `source` that errors name.

    `root` is put before each path unchanged, so it ends with a slash. Pictures are BGR, with `gray` of one channel, and resized
    (bilinear) to `resize_width` x `resize_height` unless both are 0. With `encoded` the records hold picture files instead of
    pixels, the file itself if it needs no change; `encode_type`, such as ``"png"``, implies that, and is by default each file's own
    suffix. ``progress(text, done, total)`` is called during the work. Returns the numbers of records written, and of pictures that
    could not be read.

    Different from Caffe: `check_size` compares height and width of the pictures, also of encoded ones (Caffe compares bytes,
    and fails on the second encoded picture). A list without a valid picture is an error. Pictures of several sizes are
    reported, since a net reads them only with a crop. `encoded` and `gray` together make grey picture files (Caffe keeps the
    colours).
    """
    size, sizes = resize_size(resize_width, resize_height), Counter()

    def datum_of(entry, file, image):       # record_of of `write_records`
        if size:
            image = opencv().resize(image, size)
        sizes[image.shape[:2]] += 1
        if check_size and len(sizes) > 1:
            raise DataError(f"is {_sizes(image.shape[:2])}, the first picture is {_sizes(next(iter(sizes)))}; --resize-width "
                            "and --resize-height make all of one size", file=file)
        return picture_datum(image, entry[1], file, encoded, encode_type, keep=size is None and not gray)

    counts = write_records(root, entries, path, source, datum_of, backend, gray, force, progress)
    if len(sizes) > 1:
        few = ", ".join(f"{_sizes(shape)} ({count})" for shape, count in sizes.most_common(3)) + ", ..." * (len(sizes) > 3)
        log.warning("%s: its pictures have %d sizes: %s; all pictures of a batch must have one size: resize them with "
                    "--resize-width and --resize-height, or let the net's crop_size cut one out", path, len(sizes), few)
    return counts


def check_picture(size, what):
    """Raise ShapeError if a picture of `size` (width, height) exceeds the memory budget, or a side exceeds OpenCV's 2^31 - 1.

    `what` begins the message.
    """
    width, height = size
    if max(size) >= 1 << 31:
        raise ShapeError(f"{what}: a side must be below 2^31, got {width} x {height}")
    check_bytes(3 * width * height, f"{what}: a picture of {width} x {height}")


def resize_size(width, height):
    """Return the size of --resize-width and --resize-height, (width, height); None if both are 0: pictures keep their size.

    Raises ConfigError if only one is 0 or one is below 0, ShapeError if the size is too large.
    """
    if min(width, height) < 0 or (width > 0) != (height > 0):
        raise ConfigError(f"give both above 0, or neither, got {width} and {height}", field="resize_width and resize_height")
    check_picture((width, height), "resize_width and resize_height")
    return (width, height) if width else None


def write_records(root, entries, path, source, record_of, backend, gray, force, progress):
    """Write ``record_of(entry, file, picture)`` of the entries whose picture can be read; a warning names each of the others.

    All converters of pictures use it, and give the form of their records by `record_of`: pictures with labels, or with boxes (SSD).
    The file is `root` + the path of an entry, its first item; `source` is the list, for the error. Returns the numbers of records
    written and of pictures that could not be read. Raises FileError if the first picture exists only with a slash after `root`, or
    without `root`; DataError if no picture can be read.
    """
    first = root + entries[0][0]
    if not os.path.exists(first) and os.path.exists(os.path.join(root, entries[0][0])):
        remedy = "they are absolute, so give / as ROOT" if os.path.isabs(entries[0][0]) else f"end it with a slash: '{root}/'"
        raise FileError(f"no such picture: ROOT ('{root}') is put before the paths of {source} unchanged; {remedy}", file=first)
    written = 0
    with new_database(path, backend, force=force) as db:
        for number, entry in enumerate(entries):
            file = root + entry[0]
            try:
                with quiet_opencv():
                    image = decode_picture(read_content(file), file, not gray)
            except (FileError, DataError) as error:
                log.warning("%s; skipped", error)
                continue
            db.put(b"%08d_" % number + entry[0].encode(errors="surrogateescape"), record_of(entry, file, image))
            written += 1
            if progress:
                progress("pictures", number + 1, len(entries))
        if not written:
            labels = entries[0][1]
            count = f", and is {len(labels)} the number of labels in a line" if isinstance(labels, tuple) else ""
            raise DataError(f"none of its {len(entries)} pictures can be read, the first would be '{first}'; "
                            f"is ROOT ('{root}') right{count}?", file=source)
    return written, len(entries) - written


@contextlib.contextmanager
def quiet_opencv():
    """Disable OpenCV's messages about files that are no pictures: the caller reports them with their place in the list."""
    logging_of = opencv().utils.logging
    level = logging_of.getLogLevel()
    logging_of.setLogLevel(0)
    try:
        yield
    finally:
        logging_of.setLogLevel(level)


def picture_datum(image, label, file, encoded, encode_type, keep):
    """Return the serialized Datum of a picture: its pixels, or a picture file, as --encoded and --encode-type say.

    `image` is uint8, (H, W, 3) in BGR or (H, W); an empty `encode_type` means the suffix of `file`. With `keep` it is the picture
    of `file` unchanged, so the bytes of `file` may be stored: encoding again would change pixels.
    """
    if not encoded and not encode_type:
        return raw_datum(image[np.newaxis] if image.ndim == 2 else image.transpose(2, 0, 1), label)
    cv2, suffix = opencv(), file.rpartition(".")[2].lower()
    kind = encode_type or suffix
    same_kind = {suffix, kind.lower()} in ({kind.lower()}, {"jpg", "jpeg"})
    if keep and same_kind:
        content = Path(file).read_bytes()
    else:
        try:
            content = cv2.imencode("." + kind, image)[1].tobytes()
        except cv2.error as error:
            raise ConfigError(f"OpenCV cannot write '{kind}' pictures ({file})", field="encode_type") from error
    return caffe_pb2.Datum(data=content, encoded=True, **label_fields(label)).SerializeToString()


def compute_mean(db, progress=None):
    """Return the mean of all pictures of an open database as float32 of (C, H, W). Sums are float64 (Caffe's: float32).

    ``progress(text, done, total)`` is called during the work. Raises DataError, naming the record, for a record that is no Datum or
    differs in size.
    """
    transformer = Transformer(caffe_pb2.TransformationParameter(), caffe_pb2.TEST)
    all_records, total = db.records(), None
    for start in range(0, len(db), BATCH):
        records = list(itertools.islice(all_records, BATCH))
        try:
            batch = transformer.load([value for _, value in records])
            if total is None:
                total = np.zeros(batch.shape[1:])
            if batch.shape[1:] != total.shape:
                raise DataError(f"is {_sizes(batch.shape[1:])}, record 0 is {_sizes(total.shape)}; all must agree", record=0)
        except (DataError, ShapeError) as error:
            raise db.locate(error, start + error.record, records[error.record][0]) from None
        pixels = np.empty(batch.shape)
        batch.write(pixels)
        total += pixels.sum(axis=0)
        if progress:
            progress("records", start + len(records), len(db))
    return (total / len(db)).astype(np.float32)


def _sizes(shape):
    """Return a shape as text for messages: ``3 x 32 x 32``."""
    return " x ".join(map(str, shape))
