"""Read the binary files of Caffe: weights (.caffemodel), solver states, mean files.

Numbers stay where they are: a `StoredBlob` holds NumPy views of the memory-mapped file, so a 240 MB model is loaded by
the one pass that copies it into the net. Caffe's parsers limit themselves by ending the process; here every length and
shape is checked, in 64 bits, before memory is taken for it, and a fault names file, layer and blob.
"""

import dataclasses
import logging
import math
import os

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.files import HDF5_SIGNATURE, is_hdf5, map_bytes
from minicaffe.proto.wire import read_dims, scan

__all__ = [
    "LayerBlobs",
    "StoredBlob",
    "StoredState",
    "is_hdf5",
    "parse_blob",
    "read_blob",
    "read_net",
    "read_solver_state",
]

logger = logging.getLogger(__name__)

MAX_COUNT = 2**31 - 1  # elements of a blob: Caffe counts them in an int

# Field numbers of proto/caffe.proto.
BLOB_LEGACY = (1, 2, 3, 4)  # num, channels, height, width
BLOB_DATA, BLOB_DIFF, BLOB_SHAPE, BLOB_DOUBLE_DATA, BLOB_DOUBLE_DIFF = 5, 6, 7, 8, 9
BLOB_FIELDS = (*BLOB_LEGACY, BLOB_DATA, BLOB_DIFF, BLOB_SHAPE, BLOB_DOUBLE_DATA, BLOB_DOUBLE_DIFF)
NET_LAYERS, NET_LAYER = 2, 100
LAYER_BLOBS = 7
V1_NESTED, V1_BLOBS = 1, 6
V0_BLOBS = 50
STATE_ITER, STATE_HISTORY, STATE_CURRENT_STEP = 1, 3, 4


class StoredBlob:
    """A blob as a file holds it.

    Parameters
    ----------
    data : ndarray
        float32 or float64.
    diff : ndarray, optional
        Of the same shape.
    shape : tuple of int, optional
        By default the shape of `data`.
    legacy, has_shape : bool
        See the attributes.

    Attributes
    ----------
    shape : tuple of int
    legacy : bool
        True where the file gives num, channels, height and width: `shape` is these four, and stands for any shape that
        equals it after 1s are put in front (layers.md calls this right-aligned).
    has_shape : bool
        True where the file gives a `shape`. Without it and without the legacy numbers the blob is a scalar.
    data, diff : ndarray of `shape`
        float32, or float64 if the file holds doubles; `diff` is None where the file has none. When read, they are
        read-only views of the file that may be unaligned: copy them to where they shall stay.
    """

    __slots__ = ("data", "diff", "has_shape", "legacy", "shape")

    def __init__(self, data, diff=None, *, shape=None, legacy=False, has_shape=True):
        self.data = data
        self.diff = diff
        self.shape = tuple(data.shape) if shape is None else shape
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


def shown(shape):
    """Write a shape as errors do: ``20x1x5x5``, or ``()`` for a scalar."""
    return "x".join(map(str, shape)) or "()"


def parse_blob(data, start=0, end=None):
    """Return the `StoredBlob` of a serialized BlobProto, bytes `start` to `end` of the buffer `data`.

    A BlobProto inside a message that is already parsed is read by ``parse_blob(blob_proto.SerializeToString())``.

    Raises
    ------
    DataError
        If the shape is impossible, or the number of values is not its product.
    """
    fields, varints, _ = scan(data, start, len(data) if end is None else end, BLOB_FIELDS)
    runs = {number: [] for number in (BLOB_DATA, BLOB_DIFF, BLOB_DOUBLE_DATA, BLOB_DOUBLE_DIFF)}
    dims, has_shape = [], False
    for number, first, stride, count in fields:
        if number == BLOB_SHAPE and stride == 0:
            has_shape = True
            read_dims(data, first, first + count, dims)
        elif number in runs:
            runs[number].append((first, stride, count))
    legacy = not varints.keys().isdisjoint(BLOB_LEGACY)
    if legacy:
        dims = [_int32(varints.get(number, 0)) for number in BLOB_LEGACY]
    needed = _count(dims)
    shape = tuple(dims)
    values = _gather(data, runs[BLOB_DOUBLE_DATA], "<f8", shape, needed, "double_data")
    if values is None:
        values = _gather(data, runs[BLOB_DATA], "<f4", shape, needed, "data")
    if values is None:
        if needed:
            raise DataError(f"holds no numbers, its shape {shown(shape)} needs {needed}; save the weights again")
        values = np.empty(shape, np.float32)
    diff = _gather(data, runs[BLOB_DOUBLE_DIFF], "<f8", shape, needed, "double_diff")
    if diff is None:
        diff = _gather(data, runs[BLOB_DIFF], "<f4", shape, needed, "diff")
    return StoredBlob(values, diff, shape=shape, legacy=legacy, has_shape=has_shape)


def _int32(value):
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


def _gather(data, runs, dtype, shape, needed, name):
    """Return the numbers of one repeated field as an array of `shape`; None if there are none.

    A field in one piece becomes a view of `data`; one in several pieces, or with a tag before each number, a copy.
    """
    width = int(dtype[2])
    pieces = []  # offset, stride, numbers
    for first, stride, count in runs:
        if stride == 0 and count % width:
            raise DataError(f"{name} has {count} bytes, no multiple of {width}; the file is damaged, fetch it again")
        if stride == 0:
            pieces.append((first, width, count // width))
        elif stride - width in range(1, 11):  # else it is of another width, which protobuf skips as unknown
            pieces.append((first, stride, count))
    total = sum(count for _, _, count in pieces)
    if total == 0:
        return None
    if total != needed:
        what = f"{total} number" + "s" * (total > 1)
        raise DataError(f"holds {what} in {name}, its shape {shown(shape)} needs {needed}; save the weights again")
    views = [np.ndarray(count, dtype, data, first, (stride,)) for first, stride, count in pieces]
    if len(views) == 1 and pieces[0][1] == width:
        return views[0].reshape(shape)
    values = np.concatenate(views)
    values.flags.writeable = False
    return values.reshape(shape)


def read_net(path):
    """Read a .caffemodel of any age.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    net : caffe_pb2.NetParameter
        As stored, not upgraded, and without any blobs.
    layers : list of LayerBlobs
        One for each entry of ``net.layer``, then one for each of ``net.layers``. Types are those of the file: a name, of
        V1 the enum's name, of V0 the small word (`minicaffe.proto.upgrade.read_weights` translates them).

    Raises
    ------
    FileError
        If the file cannot be read.
    DataError
        If it is no caffemodel, is cut off, or a blob in it cannot be: names file, layer and blob.
    """
    data = map_bytes(path)
    try:
        parts, places = _split_net(data)
        net = _parse(caffe_pb2.NetParameter, b"".join(parts))
    except DataError as error:
        error.message += _what_else(data)
        raise error.at(file=path)
    if not places[NET_LAYER] and not places[NET_LAYERS]:
        raise DataError("holds no layer, so it is no caffemodel" + _what_else(data), file=path)
    layers = []
    for layer, blobs in zip([*net.layer, *net.layers], places[NET_LAYER] + places[NET_LAYERS], strict=True):
        layers.append(_layer_blobs(layer))
        for index, (start, end) in enumerate(blobs):
            try:
                layers[-1].blobs.append(parse_blob(data, start, end))
            except DataError as error:
                name, kind = layers[-1].name, layers[-1].type
                raise error.at(file=path, layer=name, layer_type=kind, field=f"blobs[{index}]")
    return net, layers


def _layer_blobs(layer):
    """Return an empty `LayerBlobs` with the name and type of a LayerParameter or V1LayerParameter."""
    if isinstance(layer, caffe_pb2.LayerParameter):
        return LayerBlobs(layer.name, layer.type, [])
    if layer.HasField("layer"):
        return LayerBlobs(layer.layer.name, layer.layer.type, [])
    return LayerBlobs(layer.name, caffe_pb2.V1LayerParameter.LayerType.Name(layer.type), [])


def _split_net(data):
    """Part a serialized NetParameter from its blobs.

    Returns
    -------
    parts : list of bytes
        Joined, they are the message without blobs.
    places : dict
        Under NET_LAYER and NET_LAYERS a list with, for each layer, the (start, end) of its blobs.
    """
    places = {NET_LAYER: [], NET_LAYERS: []}
    fields, _, rest = scan(data, 0, len(data), places)
    parts = [data[start:end] for start, end in rest]
    for number, first, stride, count in fields:
        if stride == 0:
            blobs = []
            path = ((LAYER_BLOBS,), {}) if number == NET_LAYER else ((V1_BLOBS,), {V1_NESTED: ((V0_BLOBS,), {})})
            parts.append(_counted(number, _without_blobs(data, first, first + count, *path, blobs)))
            places[number].append(blobs)
    return parts, places


def _without_blobs(data, start, end, blob_fields, nested, blobs):
    """Return a serialized layer without its blobs, whose places are appended to `blobs`."""
    fields, _, rest = scan(data, start, end, (*blob_fields, *nested))
    parts = [data[first:last] for first, last in rest]
    for number, first, stride, count in fields:
        if stride == 0 and number in nested:
            parts.append(_counted(number, _without_blobs(data, first, first + count, *nested[number], blobs)))
        elif stride == 0:
            blobs.append((first, first + count))
    return b"".join(parts)


def _counted(number, content):
    """Return `content` as the counted field `number`: tag, length, bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value):
    """Return a number from 0 to 2**64 - 1 in protobuf's variable length."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_blob(path):
    """Read a file that holds one BlobProto (mean image, infogain matrix) and return its `StoredBlob`."""
    data = map_bytes(path)
    try:
        if not len(data):
            raise DataError("is empty; fetch it again")
        return parse_blob(data)
    except DataError as error:
        error.message += _what_else(data)
        raise error.at(file=path)


def read_solver_state(path):
    """Read a .solverstate and return its `StoredState`."""
    data = map_bytes(path)
    try:
        fields, varints, rest = scan(data, 0, len(data), (STATE_ITER, STATE_HISTORY, STATE_CURRENT_STEP))
        others = _parse(caffe_pb2.SolverState, b"".join(data[start:end] for start, end in rest))
        if STATE_ITER not in varints:
            raise DataError("holds no iteration count, so it is no solver state; was a .caffemodel given instead?")
    except DataError as error:
        error.message += _what_else(data)
        raise error.at(file=path)
    history = []
    for number, first, stride, count in fields:
        if number == STATE_HISTORY and stride == 0:
            try:
                history.append(parse_blob(data, first, first + count))
            except DataError as error:
                raise error.at(file=path, field=f"history[{len(history)}]")
    return StoredState(
        iter=_int32(varints[STATE_ITER]),
        learned_net=others.learned_net if others.HasField("learned_net") else None,
        current_step=_int32(varints.get(STATE_CURRENT_STEP, 0)),
        resume_state=others.resume_state if others.HasField("resume_state") else None,
        history=history,
    )


def _parse(message_class, serialized):
    """Parse the small part of a file by protobuf."""
    try:
        message = message_class.FromString(serialized)
    except (DecodeError, UnicodeDecodeError) as cause:  # only protobuf's pure Python form checks UTF-8 here
        name = message_class.DESCRIPTOR.name
        raise DataError(f"is no {name} or is damaged ({cause}); fetch the file again") from cause
    _mend_strings(message)
    return message


def _mend_strings(message):
    r"""Rewrite strings that are not UTF-8, such as Windows paths in old models, as ``\xNN``.

    protobuf hands them out as bytes, which the code that expects a str would meet far from here.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                _mend_strings(part)
        elif field.type == field.TYPE_STRING:
            if isinstance(value, bytes):
                logger.warning("%s %r is not UTF-8", field.full_name, value)
                setattr(message, field.name, value.decode("utf-8", "backslashreplace"))
            elif not isinstance(value, str):
                for index, text in enumerate(value):
                    if isinstance(text, bytes):
                        logger.warning("%s %r is not UTF-8", field.full_name, text)
                        value[index] = text.decode("utf-8", "backslashreplace")


def _what_else(data):
    """Tell what a file that was read in vain looks like; the empty string if it looks like nothing known."""
    head = bytes(data[:512])
    if not head:
        return " (the file is empty)"
    if head.startswith(HDF5_SIGNATURE):
        return " (it is an HDF5 file: give it a name ending in .h5)"
    if head.startswith(b"version https://git-lfs"):
        return " (it is a Git LFS pointer: run 'git lfs pull')"
    if head.lstrip().startswith(b"<"):
        return " (it is a web page: the download went wrong)"
    if head.isascii() and b"\0" not in head:
        return " (it is text: a prototxt defines a net, it holds no weights)"
    return ""
