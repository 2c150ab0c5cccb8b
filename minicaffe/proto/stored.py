"""A blob as files and messages hold it: `StoredBlob`, and how it is read from a serialized BlobProto.

The numbers are not copied: a `StoredBlob` holds NumPy views of the buffer, usually a memory-mapped file. Shape and
number of values are checked in 64 bits before any memory is taken; Caffe checks after protobuf has taken it.
"""

import dataclasses
import math
from collections import namedtuple

import numpy as np

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.wire import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, parse_message, walk

MAX_COUNT = 2**31 - 1  # elements of a blob: Caffe counts them in an int
MAX_AXES = 32  # Caffe's kMaxBlobAxes

# Field numbers of BlobProto in proto/caffe.proto.
LEGACY = (1, 2, 3, 4)  # num, channels, height, width
DATA, DIFF, SHAPE, DOUBLE_DATA, DOUBLE_DIFF = 5, 6, 7, 8, 9
UNPACKED = {DATA: FIXED32, DIFF: FIXED32, DOUBLE_DATA: FIXED64, DOUBLE_DIFF: FIXED64}  # wire types of numbers with a tag each
# NVIDIA's fork of Caffe and OpenCV's shrinkCaffeModel write numbers as bytes, after the number of their type.
RAW_DATA_TYPE, RAW_DIFF_TYPE, RAW_DATA, RAW_DIFF = 10, 11, 12, 13
RAW_TYPES = {0: "<f8", 1: "<f4", 2: "<f2"}  # the fork's enum Type; INT, UINT and BOOL (3 to 5) hold no weights
VARINTS = (*LEGACY, RAW_DATA_TYPE, RAW_DIFF_TYPE)
HALF = 2
# A member of StoredBlob, and the fields that can hold its numbers: floats, doubles, and bytes with their type.
NUMBERS = ("data", DATA, DOUBLE_DATA, RAW_DATA, RAW_DATA_TYPE), ("diff", DIFF, DOUBLE_DIFF, RAW_DIFF, RAW_DIFF_TYPE)


@dataclasses.dataclass(slots=True, eq=False)
class StoredBlob:
    """A blob as a file holds it.

    Attributes
    ----------
    shape : tuple of int
    data : ndarray of float32 or float64; to be written also float16
        When read: one axis, row-major, read-only, float64 if the file holds doubles; a view of the file that may be
        unaligned; copy it to keep it. Half-precision numbers are copied to float32. To be written: of any shape with the
        product of `shape`.
    diff : ndarray or None
        Like `data`; None where the file has none.
    legacy : bool
        True where the file gives num, channels, height and width: `shape` is these four, and equals every shape that
        equals it after 1s are put in front (Caffe: Blob::ShapeEquals).
    has_shape : bool
        True where the file gives a `shape`. Without it and without the legacy numbers the blob is a scalar.
    """

    shape: tuple
    data: np.ndarray
    diff: np.ndarray | None = None
    legacy: bool = False
    has_shape: bool = True


@dataclasses.dataclass
class LayerBlobs:
    """The stored blobs of one layer: its name, its type as the file writes it, and a list of `StoredBlob`."""

    name: str
    type: str
    blobs: list


# A solver state: see SolverState in proto/caffe.proto. `history` is a list of `StoredBlob`; a text that is unset is empty.
StoredState = namedtuple("StoredState", "iter learned_net current_step resume_state history minimum_loss iter_last_event")


def equal_but_unit_axes(one, other):
    """Return whether two shapes are equal but for axes of size 1, as is enough for the weights of some layer types."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def shown(shape):
    """Write a shape as errors do: ``20x1x5x5``, or ``()`` for a scalar."""
    return "x".join(map(str, shape)) or "()"


def parse_blob(data, need_data=True):
    """Return the `StoredBlob` of a serialized BlobProto, a bytes-like object. Unless `need_data`, its `data` may be None.

    Raises DataError if the shape is impossible, or the number of values is not its product.
    """
    content = {}
    for number, wire, value, _ in walk(memoryview(data)):
        known = wire == (VARINT if number in VARINTS else LENGTH_DELIMITED)
        if wire == UNPACKED.get(number) or known and number in content and DATA <= number <= DOUBLE_DIFF:
            # Numbers with a tag before each, or in several pieces: protobuf puts them together.
            return parse_blob(parse_message(caffe_pb2.BlobProto, bytes(data)).SerializeToString(), need_data)
        if known:
            content[number] = value
    legacy = not content.keys().isdisjoint(LEGACY)
    if legacy:      # of int32, each the lower half of its varint
        shape = tuple((content.get(number, 0) + 2**31) % 2**32 - 2**31 for number in LEGACY)
    else:
        shape = read_dims(content.get(SHAPE, b""))
    needed = _count(shape)
    found = []
    for name, single, double, raw, kind in NUMBERS:
        values = _numbers(content.get(double, b""), "<f8", shape, needed, f"double_{name}")
        if values is None and raw in content:
            kind = content.get(kind, 0)
            if kind not in RAW_TYPES:
                raise DataError(f"has raw_{name} of type {kind}; double (0), float (1) and half precision (2) can be read; save it "
                                "as one of them")
            values = _numbers(content[raw], RAW_TYPES[kind], shape, needed, f"raw_{name}")
            values = values.astype(np.float32) if values is not None and kind == HALF else values
        found.append(_numbers(content.get(single, b""), "<f4", shape, needed, name) if values is None else values)
    if found[0] is None and need_data:
        if needed:
            raise DataError(f"holds no numbers, its shape {shown(shape)} needs {needed}; save it again")
        found[0] = np.empty(0, np.float32)
    return StoredBlob(shape, *found, legacy, SHAPE in content)


def read_dims(content):
    """Return the sizes in a serialized BlobShape as a tuple; raise DataError beyond 32 axes."""
    # A size has at most 11 bytes. A longer shape is not parsed: its sizes would take a multiple of the file's memory.
    dims = () if len(content) > 11 * MAX_AXES else parse_message(caffe_pb2.BlobShape, bytes(content)).dim
    if len(content) > 11 * MAX_AXES or len(dims) > MAX_AXES:
        raise DataError(f"has a shape of more than {MAX_AXES} axes, the most that Caffe stores")
    return tuple(dims)


def _count(dims):
    """Return the product of `dims`, or raise DataError if no blob can have this shape."""
    for dim in dims:
        if dim < 0:
            raise DataError(f"has the shape {shown(dims)}: {dim} is negative; save it again")
    count = math.prod(dims)
    if count > MAX_COUNT or max(dims, default=0) > MAX_COUNT:
        raise DataError(f"has the shape {shown(dims)}, {count} numbers; a blob holds at most {MAX_COUNT}")
    return count


def _numbers(content, dtype, shape, needed, name):
    """Return the numbers of a field of bytes as a view, or None if there are none; raise DataError for too many or too few."""
    total, odd = divmod(len(content), int(dtype[2]))    # "<f4": 4 bytes each
    if odd:
        raise DataError(f"{name} has {len(content)} bytes, no multiple of {dtype[2]}; the file is damaged, fetch it again")
    if total not in (0, needed):
        what = f"{total} number" + "s" * (total > 1)
        raise DataError(f"holds {what} in {name}, its shape {shown(shape)} needs {needed}; save it again")
    return np.frombuffer(content, dtype) if total else None
