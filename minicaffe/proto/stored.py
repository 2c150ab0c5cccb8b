"""A blob as files and messages hold it: `StoredBlob`, and its conversion from and to a serialized BlobProto.

The numbers are not copied: a `StoredBlob` holds NumPy views of the buffer, usually a memory-mapped file. Shape and
number of values are checked in 64 bits before any memory is taken; Caffe checks after protobuf has taken it.
"""

import dataclasses
import math

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.wire import gather, scan

MAX_COUNT = 2**31 - 1  # elements of a blob: Caffe counts them in an int
MAX_AXES = 32  # Caffe's kMaxBlobAxes
MAX_FILE = 2**31 - 1  # bytes: protobuf's readers count them in an int

# Field numbers of BlobProto in proto/caffe.proto.
LEGACY, LEGACY_NAMES = (1, 2, 3, 4), ("num", "channels", "height", "width")
DATA, DIFF, SHAPE, DOUBLE_DATA, DOUBLE_DIFF = 5, 6, 7, 8, 9
REPEATED = {DATA: ("data", 4), DIFF: ("diff", 4), DOUBLE_DATA: ("double_data", 8), DOUBLE_DIFF: ("double_diff", 8)}
# NVIDIA's fork of Caffe and OpenCV's shrinkCaffeModel write numbers as bytes, after the number of their type.
RAW_DATA_TYPE, RAW_DIFF_TYPE, RAW_DATA, RAW_DIFF = 10, 11, 12, 13
RAW_TYPES = {0: "<f8", 1: "<f4", 2: "<f2"}  # the fork's enum Type; INT, UINT and BOOL (3 to 5) hold no weights
HALF = 2
LARGEST_HALF = 65504


@dataclasses.dataclass(slots=True, eq=False, repr=False)
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

    def __post_init__(self):
        self.shape = tuple(self.shape)

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


def equal_but_unit_axes(one, other):
    """Whether two shapes are equal but for axes of size 1."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def shown(shape):
    """Write a shape as errors do: ``20x1x5x5``, or ``()`` for a scalar."""
    return "x".join(map(str, shape)) or "()"


def parse_blob(data, start=0, end=None):
    """Return the `StoredBlob` of a serialized BlobProto, bytes `start` to `end` of the buffer `data`.

    Raises DataError if the shape is impossible, or the number of values is not its product. `blob_of` reads a BlobProto message.
    """
    end = len(data) if end is None else end
    numbers = range(1, 14)
    contents, varints, rest = scan(data, start, end, numbers)
    places = {number: [] for number in numbers}
    for number, first, last in contents:
        places[number].append(memoryview(data)[first:last])
    legacy = not varints.keys().isdisjoint(LEGACY)
    shape = tuple(int32(varints.get(number, 0)) for number in LEGACY) if legacy else read_dims(places[SHAPE])
    needed = _count(shape)
    for number, (name, width) in REPEATED.items():
        if rest or len(places[number]) > 1:  # a tag before each number, or several pieces
            if odd := [piece for piece in places[number] if len(piece) % width]:
                places[number] = odd[:1]  # raises below
                continue
            size = gather(data, start, end, number, width)
            _check_total(size // width, shape, needed, name)
            places[number] = [np.empty(size, np.uint8)]
            gather(data, start, end, number, width, places[number][0])
            places[number][0].flags.writeable = False
    found = []
    for single, double, raw, kind, name in ((DATA, DOUBLE_DATA, RAW_DATA, RAW_DATA_TYPE, "data"),
                                            (DIFF, DOUBLE_DIFF, RAW_DIFF, RAW_DIFF_TYPE, "diff")):
        values = _numbers(places[double], "<f8", shape, needed, f"double_{name}")
        if values is None and places[raw]:
            kind = varints.get(kind, 0)
            if kind not in RAW_TYPES:
                raise DataError(f"has raw_{name} of type {kind}; double (0), float (1) and half precision (2) can be read; save it "
                                "as one of them")
            values = _numbers(places[raw], RAW_TYPES[kind], shape, needed, f"raw_{name}")
            values = values.astype(np.float32) if values is not None and kind == HALF else values
        found.append(_numbers(places[single], "<f4", shape, needed, name) if values is None else values)
    if found[0] is None:
        if needed:
            raise DataError(f"holds no numbers, its shape {shown(shape)} needs {needed}; save it again")
        found[0] = np.empty(0, np.float32)
    return StoredBlob(shape, *found, legacy, bool(places[SHAPE]))


def blob_of(message, need_data=True):
    """Return the `StoredBlob` of a BlobProto message; as `parse_blob`, but the numbers are copied.

    With newer versions of protobuf, NumPy copies them in a tenth of the time of serializing. Unless `need_data`, `data`
    may be None.
    """
    legacy = any(map(message.HasField, LEGACY_NAMES))
    shape = tuple(getattr(message, name) for name in LEGACY_NAMES) if legacy else read_dims([message.shape.SerializeToString()])
    needed = _count(shape)
    found = []
    for name in ("data", "diff"):
        double = len(getattr(message, f"double_{name}")) > 0
        values = getattr(message, f"double_{name}" if double else name)
        _check_total(len(values), shape, needed, f"double_{name}" if double else name)
        found.append(np.array(values, np.float64 if double else np.float32) if len(values) else None)
    if found[0] is None and need_data:  # raw numbers, or none, which is an error
        return parse_blob(message.SerializeToString())
    return StoredBlob(shape, *found, legacy, message.HasField("shape"))


def read_dims(pieces):
    """Return the sizes in a serialized BlobShape, a list of its pieces; raise DataError beyond 32 axes."""
    # A size has at most 12 bytes. A longer shape is not parsed: its sizes would take a multiple of the file's memory.
    too_long = sum(map(len, pieces)) > 12 * MAX_AXES
    try:
        shape = None if too_long else caffe_pb2.BlobShape.FromString(b"".join(pieces))
    except DecodeError as cause:
        raise DataError(f"has a shape that is damaged ({cause}); fetch the file again") from cause
    if shape is None or len(shape.dim) > MAX_AXES:
        raise DataError(f"has a shape of more than {MAX_AXES} axes, the most that Caffe stores")
    dims = tuple(shape.dim)
    if shape.ByteSize() != caffe_pb2.BlobShape(dim=dims).ByteSize():
        raise DataError("has a shape that holds something other than dims; fetch the file again")
    return dims


def int32(value):
    """Return the lower half of a 64-bit varint, as protobuf does for an int32 field."""
    return (value + 2**31) % 2**32 - 2**31


def _count(dims):
    """Return the product of `dims`, or raise DataError if no blob can have this shape."""
    for dim in dims:
        if dim < 0:
            raise DataError(f"has the shape {shown(dims)}: {dim} is negative; save it again")
    count = math.prod(dims)
    if count > MAX_COUNT or max(dims, default=0) > MAX_COUNT:
        raise DataError(f"has the shape {shown(dims)}, {count} numbers; a blob holds at most {MAX_COUNT}")
    return count


def _numbers(places, dtype, shape, needed, name):
    """Return the numbers of a field of bytes as a view, or None; of several fields the last counts, as in protobuf."""
    content = places[-1] if places else b""
    total, odd = divmod(len(content), int(dtype[2]))
    if odd:
        raise DataError(f"{name} has {len(content)} bytes, no multiple of {dtype[2]}; the file is damaged, fetch it again")
    _check_total(total, shape, needed, name)
    return np.frombuffer(content, dtype) if total else None


def _check_total(total, shape, needed, name):
    """Raise DataError unless a field holds as many numbers as its blob needs, or none."""
    if total not in (0, needed):
        what = f"{total} number" + "s" * (total > 1)
        raise DataError(f"holds {what} in {name}, its shape {shown(shape)} needs {needed}; save it again")


def bytes_of(blob):
    """Return a serialized BlobProto as bytes; raise DataError as `blob_parts`, or if protobuf could not read it."""
    parts = blob_parts(blob)
    size = sum(map(len, parts))
    if size > MAX_FILE:
        raise DataError(f"would have {size} bytes as a BlobProto, protobuf reads {MAX_FILE} at most; divide it")
    return b"".join(parts)


def blob_parts(blob):
    """Return a serialized BlobProto as a list of bytes and arrays of bytes; the numbers are not copied.

    float16 is stored as NVIDIA's fork and OpenCV store it, as raw_data or raw_diff.
    """
    shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
    parts = [*length_delimited(SHAPE, [shape])]
    for values, single, double, raw, kind in ((blob.data, DATA, DOUBLE_DATA, RAW_DATA, RAW_DATA_TYPE),
                                              (blob.diff, DIFF, DOUBLE_DIFF, RAW_DIFF, RAW_DIFF_TYPE)):
        if values is None:
            continue
        if values.dtype not in (np.float16, np.float32, np.float64):
            raise DataError(f"holds {values.dtype}, float16, float32 and float64 can be stored; convert it with astype")
        if values.size != np.prod(blob.shape, dtype=np.int64):
            raise DataError(f"holds {values.size} numbers, its shape {shown(blob.shape)} needs another count")
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        number = {2: raw, 4: single, 8: double}[values.dtype.itemsize]
        if number == raw:
            parts.append(varint(kind << 3) + varint(HALF))
        parts += length_delimited(number, [little.reshape(-1).view(np.uint8)])
    return parts


def to_half(values):
    """Return an array rounded to float16; raise DataError for a finite number that float16 has no room for."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(values)
    if beyond.any():
        raise DataError(f"holds {values[beyond][0]:g}, half precision ends at {LARGEST_HALF}; save it in single precision")
    return half


def length_delimited(number, parts):
    """Return `parts`, a list of bytes or of arrays of bytes that are field `number`, with its tag and length in front."""
    return [varint(number << 3 | 2) + varint(sum(map(len, parts))), *parts]


def varint(value):
    """Return a number from 0 to 2**64 - 1 in protobuf's variable length."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
