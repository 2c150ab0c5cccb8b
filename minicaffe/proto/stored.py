"""A blob as files hold it: `StoredBlob`, and how it is found in a serialized BlobProto.

The numbers are not copied: a `StoredBlob` holds NumPy views of the buffer, usually a memory-mapped file. Shape and
number of values are checked in 64 bits before any memory is taken; Caffe checks after protobuf has taken it.
"""

import dataclasses
import math

import numpy as np

from minicaffe.errors import DataError
from minicaffe.proto.wire import COUNTED, EIGHT_BYTES, FOUR_BYTES, read_dims, scan

MAX_COUNT = 2**31 - 1  # elements of a blob: Caffe counts them in an int

# Field numbers of BlobProto in proto/caffe.proto.
LEGACY = (1, 2, 3, 4)  # num, channels, height, width
DATA, DIFF, SHAPE, DOUBLE_DATA, DOUBLE_DIFF = 5, 6, 7, 8, 9
# NVIDIA's fork of Caffe and OpenCV's shrinkCaffeModel write the numbers as bytes, with a number for their type before them.
RAW_DATA_TYPE, RAW_DIFF_TYPE, RAW_DATA, RAW_DIFF = 10, 11, 12, 13
RAW_TYPES = {0: "<f8", 1: "<f4", 2: "<f2"}  # the fork's enum Type; INT, UINT and BOOL (3 to 5) hold no weights


class StoredBlob:
    """A blob as a file holds it.

    Attributes
    ----------
    shape : tuple of int
    data : ndarray of float32 or float64
        When read: one axis, row-major, read-only, float64 if the file holds doubles; a view of the file that may be
        unaligned, so copy it to where it shall stay. Half-precision numbers are float32, in memory of their own. To be
        written: of any shape with the product of `shape`.
    diff : ndarray or None
        Like `data`; None where the file has none.
    legacy : bool
        True where the file gives num, channels, height and width: `shape` is these four, and equals every shape that
        equals it after 1s are put in front (Caffe: Blob::ShapeEquals).
    has_shape : bool
        True where the file gives a `shape`. Without it and without the legacy numbers the blob is a scalar.
    """

    __slots__ = ("data", "diff", "has_shape", "legacy", "shape")

    def __init__(self, shape, data, diff=None, legacy=False, has_shape=True):
        self.shape = tuple(shape)
        self.data = data
        self.diff = diff
        self.legacy = legacy
        self.has_shape = has_shape

    def __repr__(self):
        legacy = ", legacy" if self.legacy else ""
        diff = ", with diff" if self.diff is not None else ""
        return f"StoredBlob({shown(self.shape)} {self.data.dtype}{legacy}{diff})"


@dataclasses.dataclass
class LayerBlobs:
    """The stored blobs of one layer: its name, its type as the file writes it, and a list of `StoredBlob`."""

    name: str
    type: str
    blobs: list


@dataclasses.dataclass
class StoredState:
    """A solver state: see SolverState in proto/caffe.proto. `history` is a list of `StoredBlob`; None means unset."""

    iter: int
    learned_net: str | None
    current_step: int
    resume_state: str | None
    history: list
    minimum_loss: float
    iter_last_event: int


def shown(shape):
    """Write a shape as errors do: ``20x1x5x5``, or ``()`` for a scalar."""
    return "x".join(map(str, shape)) or "()"


def parse_blob(data, start=0, end=None):
    """Return the `StoredBlob` of a serialized BlobProto, bytes `start` to `end` of the buffer `data`.

    A BlobProto inside a message that is already parsed is read by ``parse_blob(blob_proto.SerializeToString())``. Raises DataError
    if the shape is impossible, or the number of values is not its product.
    """
    fields, varints, _ = scan(data, start, len(data) if end is None else end, range(1, 14))
    runs = {number: [] for number in (DATA, DIFF, DOUBLE_DATA, DOUBLE_DIFF, RAW_DATA, RAW_DIFF)}
    dims, has_shape = [], False
    for number, wire, first, stride, count in fields:
        if number == SHAPE and wire == COUNTED:
            has_shape = True
            read_dims(data, first, first + count, dims)
        elif number in runs:
            runs[number].append((wire, first, stride, count))
    legacy = not varints.keys().isdisjoint(LEGACY)
    if legacy:
        dims = [int32(varints.get(number, 0)) for number in LEGACY]
    needed = _count(dims)
    shape = tuple(dims)
    values = _gather(data, runs[DOUBLE_DATA], "<f8", shape, needed, "double_data")
    if values is None:
        values = _gather_raw(data, runs[RAW_DATA], varints.get(RAW_DATA_TYPE, 0), shape, needed, "raw_data")
    if values is None:
        values = _gather(data, runs[DATA], "<f4", shape, needed, "data")
    if values is None:
        if needed:
            raise DataError(f"holds no numbers, its shape {shown(shape)} needs {needed}; save the weights again")
        values = np.empty(0, np.float32)
    diff = _gather(data, runs[DOUBLE_DIFF], "<f8", shape, needed, "double_diff")
    if diff is None:
        diff = _gather_raw(data, runs[RAW_DIFF], varints.get(RAW_DIFF_TYPE, 0), shape, needed, "raw_diff")
    if diff is None:
        diff = _gather(data, runs[DIFF], "<f4", shape, needed, "diff")
    return StoredBlob(shape, values, diff, legacy, has_shape)


def int32(value):
    """Return what protobuf makes of a 64-bit varint in an int32 field: its lower half."""
    return (value + 2**31) % 2**32 - 2**31


def _count(dims):
    """Return the product of `dims`, or raise DataError if no blob can have this shape."""
    for dim in dims:
        if dim < 0:
            raise DataError(f"has the shape {shown(dims)}: {dim} is negative; save the weights again")
    count = math.prod(dims)
    if count > MAX_COUNT or max(dims, default=0) > MAX_COUNT:
        raise DataError(f"has the shape {shown(dims)}, {count} numbers; a blob holds at most {MAX_COUNT}")
    return count


def _gather_raw(data, runs, kind, shape, needed, name):
    """Return the numbers of the bytes field `name`, whose type is number `kind`; None if there are none."""
    runs = [run for run in runs if run[0] == COUNTED][-1:]  # a bytes field that comes twice counts once, the last time
    if not runs:
        return None
    if kind not in RAW_TYPES:
        raise DataError(f"has {name} of type {kind}; double (0), float (1) and half precision (2) can be read; save the weights "
                        "as one of them")
    values = _gather(data, runs, RAW_TYPES[kind], shape, needed, name)
    return values if values is None or kind != 2 else values.astype(np.float32)


def _gather(data, runs, dtype, shape, needed, name):
    """Return the numbers of one repeated field as an array of one axis; None if there are none.

    A field in one piece becomes a view of `data`; one in several pieces, or with a tag before each number, a copy.
    """
    width = int(dtype[2])
    pieces = []  # offset, stride, numbers
    for wire, first, stride, count in runs:
        if wire == COUNTED:
            if count % width:
                raise DataError(f"{name} has {count} bytes, no multiple of {width}; the file is damaged, fetch it again")
            pieces.append((first, width, count // width))
        elif wire == (FOUR_BYTES if width == 4 else EIGHT_BYTES):  # protobuf skips the other as unknown
            pieces.append((first, stride, count))
    total = sum(count for _, _, count in pieces)
    if total == 0:
        return None
    if total != needed:
        what = f"{total} number" + "s" * (total > 1)
        raise DataError(f"holds {what} in {name}, its shape {shown(shape)} needs {needed}; save the weights again")
    views = [np.ndarray(count, dtype, data, first, (stride,)) for first, stride, count in pieces]
    if len(views) == 1 and pieces[0][1] == width:
        return views[0]
    values = np.concatenate(views)
    values.flags.writeable = False
    return values
