"""Write the binary files of Caffe: weights (.caffemodel) and solver states; and single blobs as messages.

Numbers are not copied: a file is a list of parts, and those of a blob are views of its memory. Sizes are checked before anything
is written.
"""

import numpy as np

from minicaffe.errors import DataError, located
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import copy_of
from minicaffe.proto.stored import HALF, NUMBERS, SHAPE, shown
from minicaffe.proto.wire import LENGTH_DELIMITED

MAX_FILE = 2**31 - 1  # bytes: protobuf's readers count them in an int
LARGEST_HALF = 65504

# Field numbers of proto/caffe.proto.
NET_LAYER, LAYER_BLOBS, STATE_HISTORY = 100, 7, 3


def write_net(file, net, layers):
    """Write a .caffemodel to a buffered binary file: the NetParameter `net` without blobs in it, and those of `layers`.

    `layers` has the LayerBlobs of each entry of ``net.layer``, in the same order: `shape`, `data` and `diff` are written, without a
    copy. Raises DataError, before anything is written, if an array is neither float32 nor float64, does not fill its shape, or if
    the file would exceed the 2 GiB - 1 bytes that protobuf can read.
    """
    head = copy_of(net)
    head.ClearField("layer")
    parts = [head.SerializeToString()]
    for layer, stored in zip(net.layer, layers, strict=True):
        entry = copy_of(layer)
        entry.ClearField("blobs")
        content = [entry.SerializeToString()]
        for index, blob in enumerate(stored.blobs):
            with located(layer=layer.name, layer_type=layer.type, field=f"blobs[{index}]"):
                content += length_delimited(LAYER_BLOBS, blob_parts(blob))
        parts += length_delimited(NET_LAYER, content)
    _write(file, parts)


def write_solver_state(file, state, history):
    """Write a .solverstate to a binary file: a SolverState message, and its history as StoredBlobs; errors as of `write_net`."""
    parts = [state.SerializeToString()]
    for index, blob in enumerate(history):
        with located(field=f"history[{index}]"):
            parts += length_delimited(STATE_HISTORY, blob_parts(blob))
    _write(file, parts)


def _write(file, parts):
    """Write the parts of a message to `file`; raise DataError before that if protobuf could not read them."""
    size = sum(map(len, parts))
    if size > MAX_FILE:
        raise DataError(f"would have {size} bytes, protobuf reads {MAX_FILE} at most; save as HDF5, or without diffs",
                        file=getattr(file, "name", None))
    for part in parts:
        file.write(part)


def blob_parts(blob):
    """Return a StoredBlob as a serialized BlobProto, a list of bytes and arrays of bytes; the numbers are not copied.

    float16 is stored as NVIDIA's fork and OpenCV store it, as raw_data or raw_diff.
    """
    shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
    parts = [*length_delimited(SHAPE, [shape])]
    for name, single, double, raw, kind in NUMBERS:
        values = getattr(blob, name)
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


def bytes_of(blob):
    """Return a StoredBlob as a serialized BlobProto; raise DataError as `blob_parts`, or if protobuf could not read it."""
    parts = blob_parts(blob)
    size = sum(map(len, parts))
    if size > MAX_FILE:
        raise DataError(f"would have {size} bytes as a BlobProto, protobuf reads {MAX_FILE} at most; divide it")
    return b"".join(parts)


def to_half(values):
    """Return an array rounded to float16, for ``Net.save(half=True)``; DataError for a finite number beyond its range."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(values)
    if beyond.any():
        raise DataError(f"holds {values[beyond][0]:g}, half precision ends at {LARGEST_HALF}; save it in single precision")
    return half


def length_delimited(number, parts):
    """Return `parts`, a list of bytes or of arrays of bytes that are field `number`, with its tag and length in front."""
    return [varint(number << 3 | LENGTH_DELIMITED) + varint(sum(map(len, parts))), *parts]


def varint(value):
    """Return a number from 0 to 2**64 - 1 in protobuf's variable length."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
