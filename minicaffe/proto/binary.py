"""Read and write the binary files of Caffe: weights (.caffemodel), solver states, mean files.

Numbers are not copied: a `StoredBlob` holds NumPy views of the memory-mapped file, so a 240 MB model is loaded with one copy,
into the net, and it is written from the memory of the net. Where Caffe ends the process, an error names file,
layer and blob.
"""

import contextlib
import logging

from google.protobuf.message import DecodeError

from minicaffe.errors import DataError, Error, located
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.fields import copy_of
from minicaffe.proto.files import MAX_LAYERS, is_hdf5, map_bytes
from minicaffe.proto.stored import (
    MAX_FILE,
    LayerBlobs,
    StoredBlob,
    StoredState,
    blob_parts,
    int32,
    length_delimited,
    parse_blob,
    shown,
)
from minicaffe.proto.wire import MAX_PARTS, scan

__all__ = [
    "LayerBlobs", "StoredBlob", "StoredState", "check_net", "is_hdf5", "parse_blob", "read_blob", "read_net", "read_solver_state",
    "write_net", "write_solver_state",
]

logger = logging.getLogger(__name__)

MAX_DEFINITION = 32 << 20  # bytes of a net without its blobs; a submessage of 2 bytes takes 60 bytes of memory when parsed

# Field numbers of proto/caffe.proto.
NET_LAYERS, NET_LAYER = 2, 100
LAYER_BLOBS = 7  # of LayerParameter
# Blobs in the two kinds of layers: their field, and fields whose messages hold more blobs (V0 inside V1).
BLOBS_IN = {NET_LAYER: (7, {}), NET_LAYERS: (6, {1: (50, {})})}
STATE_ITER, STATE_HISTORY, STATE_CURRENT_STEP = 1, 3, 4


def read_net(path):
    """Read a .caffemodel of any age.

    Return the NetParameter as stored, not upgraded and without any blobs; and a LayerBlobs for each entry of ``net.layer``, then
    for each of ``net.layers``. Layer types are as in the file: a name; for V1 the name in the enum; for V0 a
    word in lower case (`minicaffe.proto.upgrade.read_weights` translates them). Raises FileError if the file cannot be read;
    DataError, naming file, layer and blob, if it is no caffemodel, is truncated, or has an invalid blob.
    """
    data = map_bytes(path)
    with _naming_kind(data, path, "a .caffemodel, the weights of a net,", "caffemodel"):
        parts, places = _split_net(data)
        net = parse_message(caffe_pb2.NetParameter, b"".join(parts))
        if not places[NET_LAYER] and not places[NET_LAYERS]:
            raise DataError("holds no layer, so it is no caffemodel")
    layers = []
    for layer, blobs in zip([*net.layer, *net.layers], places[NET_LAYER] + places[NET_LAYERS], strict=True):
        layers.append(_layer_blobs(layer))
        for index, (start, end) in enumerate(blobs):
            with located(file=path, layer=layers[-1].name, layer_type=layers[-1].type, field=f"blobs[{index}]"):
                layers[-1].blobs.append(parse_blob(data, start, end))
    return net, layers


def check_net(data):
    """Raise DataError unless bytes are a serialized NetParameter within the bounds of `read_net`, whatever its blobs."""
    _split_net(data)


def _layer_blobs(layer):
    """Return an empty `LayerBlobs` with the name and type of a LayerParameter or V1LayerParameter."""
    if isinstance(layer, caffe_pb2.LayerParameter):
        return LayerBlobs(layer.name, layer.type, [])
    if layer.HasField("layer"):
        return LayerBlobs(layer.layer.name, layer.layer.type, [])
    return LayerBlobs(layer.name, caffe_pb2.V1LayerParameter.LayerType.Name(layer.type), [])


def _split_net(data):
    """Separate a serialized NetParameter from its blobs.

    Return the parts of the message without blobs, to be joined; and by NET_LAYER and NET_LAYERS a list of the (start, end) of the
    blobs of each layer.
    """
    places = {NET_LAYER: [], NET_LAYERS: []}
    fields, _, rest = scan(data, 0, len(data), places)
    if len(fields) > MAX_LAYERS:
        raise DataError(f"has {len(fields)} layers, a net has at most {MAX_LAYERS}; fetch the file again")
    found = _SizeLimits()
    parts = found.copy(data, fields, rest)
    for number, first, last in fields:
        blobs = []
        with located(field=f"layer[{len(places[number])}]"):
            parts += length_delimited(number, _without_blobs(data, first, last, *BLOBS_IN[number], blobs, found))
        places[number].append(blobs)
    return parts, places


def _without_blobs(data, start, end, blob_field, nested, blobs, found):
    """Return a serialized layer, in parts, without its blobs; append their places to `blobs`."""
    fields, _, rest = scan(data, start, end, (blob_field, *nested))
    parts = found.copy(data, fields, rest)
    for number, first, last in fields:
        if number in nested:
            parts += length_delimited(number, _without_blobs(data, first, last, *nested[number], blobs, found))
        else:
            blobs.append((first, last))
    return parts


class _SizeLimits:
    """Limits parts and bytes of all messages of a file together: many messages within the limits may exceed them in sum."""

    def __init__(self):
        self.parts = self.bytes = 0

    def copy(self, data, fields, rest):
        """Return the bytes of `rest`, as of `scan`; raise DataError if the file is too large for a net."""
        self.parts += len(fields) + len(rest)
        self.bytes += sum(end - start for start, end in rest)
        if self.parts > MAX_PARTS:
            raise DataError(f"the net has more than {MAX_PARTS} parts; fetch the file again")
        if self.bytes > MAX_DEFINITION:
            raise DataError(f"the net would have more than {MAX_DEFINITION} bytes without its numbers; fetch the file again")
        return [data[start:end] for start, end in rest]


def read_blob(path):
    """Read a file that holds one BlobProto (mean image, infogain matrix) and return its `StoredBlob`."""
    data = map_bytes(path)
    with _naming_kind(data, path, "a single blob (binaryproto)", "mean"):
        if not len(data):
            raise DataError("is empty")
        blob = parse_blob(data)
        if not blob.data.size:
            raise DataError(f"holds a blob of shape {shown(blob.shape)} without numbers; fetch the file again")
        return blob


def read_solver_state(path):
    """Read a .solverstate and return its `StoredState`."""
    data = map_bytes(path)
    with _naming_kind(data, path, "the state of a solver (.solverstate)", "solverstate"):
        fields, varints, rest = scan(data, 0, len(data), (STATE_ITER, STATE_HISTORY, STATE_CURRENT_STEP))
        others = parse_message(caffe_pb2.SolverState, b"".join(data[start:end] for start, end in rest))
        if STATE_ITER not in varints:
            raise DataError("holds no iteration count, so it is no solver state; was a .caffemodel given instead?")
    history = []
    for number, first, last in fields:
        if number == STATE_HISTORY:
            with located(file=path, field=f"history[{len(history)}]"):
                history.append(parse_blob(data, first, last))
    return StoredState(
        iter=int32(varints[STATE_ITER]),
        learned_net=others.learned_net if others.HasField("learned_net") else None,
        current_step=int32(varints.get(STATE_CURRENT_STEP, 0)),
        resume_state=others.resume_state if others.HasField("resume_state") else None,
        history=history,
        minimum_loss=others.minimum_loss,
        iter_last_event=others.iter_last_event,
    )


def write_net(file, net, layers):
    """Write a .caffemodel to a buffered binary file.

    Parameters
    ----------
    file : binary file object
    net : NetParameter
        The definition; blobs in it are not written.
    layers : sequence of LayerBlobs
        The blobs of each entry of ``net.layer``, in the same order: `shape`, `data` and `diff` are written, without a copy.

    Raises
    ------
    DataError
        Before anything is written: if an array is neither float32 nor float64, does not fill its shape, or if the file would
        exceed the 2 GiB - 1 bytes that protobuf can read.
    ValueError
        If `layers` has another length than ``net.layer``.
    """
    if len(net.layer) != len(layers):
        raise ValueError(f"blobs of {len(layers)} layers for the {len(net.layer)} layers of the net")
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


def write_solver_state(file, iter, learned_net, current_step, history, resume_state=None, **plateau):
    """Write a .solverstate to a binary file object; parameters as in `StoredState`, errors as of `write_net`.

    `plateau` has `minimum_loss` and `iter_last_event`, which only the policy plateau has.
    """
    # protobuf leaves a field unset that is None.
    state = caffe_pb2.SolverState(iter=iter, current_step=current_step, learned_net=learned_net, resume_state=resume_state,
                                  **plateau)
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


def parse_message(message_class, serialized):
    """Return the message in serialized bytes, with all strings as str; raise DataError if they are no such message."""
    try:
        message = message_class.FromString(serialized)
    except (DecodeError, UnicodeDecodeError) as cause:  # only the pure Python version of protobuf checks UTF-8 here
        name = message_class.DESCRIPTOR.name
        raise DataError(f"is no {name} or is damaged ({cause}); fetch the file again") from cause
    _escape_invalid_utf8(message)
    return message


def _escape_invalid_utf8(message):
    r"""Rewrite strings that are not UTF-8, such as Windows paths in old models, as ``\xNN``.

    protobuf returns them as bytes, an error in later code that expects a str.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                _escape_invalid_utf8(part)
        elif field.type == field.TYPE_STRING:
            if isinstance(value, bytes):
                logger.warning("%s %r is not UTF-8", field.full_name, value)
                setattr(message, field.name, value.decode("utf-8", "backslashreplace"))
            elif not isinstance(value, str):
                for index, text in enumerate(value):
                    if isinstance(text, bytes):
                        logger.warning("%s %r is not UTF-8", field.full_name, text)
                        value[index] = text.decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def _naming_kind(data, path, wanted, own):
    """Add the file to errors, and its kind if it is not `own` (proto/kinds.py)."""
    try:
        yield
    except Error as error:
        raise kinds.with_kind(error.at(file=path), data, wanted, (own,))
