"""Read the binary files of Caffe: weights (.caffemodel), solver states, mean files.

Numbers are not copied: a `StoredBlob` holds NumPy views of the memory-mapped file, so a 240 MB model is loaded with one copy,
into the net. Where Caffe ends the process, an error names file, layer and blob.
"""

import contextlib

from minicaffe.errors import DataError, Error, located
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.binary_writer import LAYER_BLOBS, NET_LAYER, STATE_HISTORY, length_delimited
from minicaffe.proto.files import MAX_LAYERS, map_bytes
from minicaffe.proto.stored import LayerBlobs, StoredState, parse_blob, shown
from minicaffe.proto.wire import LENGTH_DELIMITED, MAX_PARTS, parse_message, walk

MAX_DEFINITION = 32 << 20  # bytes of a net without its blobs; a submessage of 2 bytes takes 60 bytes of memory when parsed

NET_LAYERS = 2  # the field of V1 layers
# Field numbers: None for a field of blobs, a dict for a message with such fields: a V1 layer has blobs in 6, its V0 layer in 50.
BLOBS_IN = {NET_LAYER: {LAYER_BLOBS: None}, NET_LAYERS: {6: None, 1: {50: None}}}


def read_net(path):
    """Read a .caffemodel of any age.

    Return the NetParameter as stored, not upgraded and without any blobs; and a LayerBlobs for each entry of ``net.layer``, then
    for each of ``net.layers``. Layer types are as in the file: a name; for V1 the name in the enum; for V0 a
    word in lower case (`minicaffe.proto.upgrade.read_weights` translates them). Raises FileError if the file cannot be read;
    DataError, naming file, layer and blob, if it is no caffemodel, is truncated, or has an invalid blob.
    """
    data = map_bytes(path)
    with _naming_kind(data, path, "a .caffemodel, the weights of a net,", "caffemodel"):
        definition, blobs = split_net(data)
        if not blobs:
            raise DataError("holds no layer, so it is no caffemodel")
        net = parse_message(caffe_pb2.NetParameter, definition)
    layers = []
    stored = [*net.layer, *(old.layer if old.HasField("layer") else old for old in net.layers)]
    for layer, contents in zip(stored, blobs, strict=True):
        kind = layer.type if isinstance(layer.type, str) else caffe_pb2.V1LayerParameter.LayerType.Name(layer.type)
        layers.append(LayerBlobs(layer.name, kind, []))
        for index, content in enumerate(contents):
            with located(file=path, layer=layer.name, layer_type=kind, field=f"blobs[{index}]"):
                layers[-1].blobs.append(parse_blob(content))
    return net, layers


def split_net(data):
    """Separate a serialized NetParameter from its blobs.

    Return the message without blobs, serialized; and a list of the serialized blobs of each entry of ``layer``, then of each
    of ``layers``, as views of `data`. Raises DataError for more layers, or a larger message without blobs, than any net has.
    """
    count = iter(range(MAX_PARTS + 1))
    blobs = {NET_LAYER: [], NET_LAYERS: []}
    parts = []
    for number, wire, value, field in walk(memoryview(data), count):
        if number in blobs and wire == LENGTH_DELIMITED:
            blobs[number].append([])
            with located(field=f"layer[{len(blobs[number]) - 1}]"):
                parts += length_delimited(number, _without_blobs(value, BLOBS_IN[number], blobs[number][-1], count))
        else:
            parts.append(field)
    blobs = blobs[NET_LAYER] + blobs[NET_LAYERS]
    if len(blobs) > MAX_LAYERS:
        raise DataError(f"has {len(blobs)} layers, a net has at most {MAX_LAYERS}; fetch the file again")
    if sum(map(len, parts)) > MAX_DEFINITION:
        raise DataError(f"the net would have more than {MAX_DEFINITION} bytes without its numbers; fetch the file again")
    return b"".join(parts), blobs


def _without_blobs(data, blobs_in, blobs, count):
    """Return a serialized layer, in parts, without its blobs, which are appended to `blobs`; `blobs_in` is of BLOBS_IN."""
    parts = []
    for number, wire, value, field in walk(data, count):
        if number not in blobs_in or wire != LENGTH_DELIMITED:
            parts.append(field)
        elif blobs_in[number] is None:
            blobs.append(value)
        else:
            parts += length_delimited(number, _without_blobs(value, blobs_in[number], blobs, count))
    return parts


def read_blob(path):
    """Read a file that holds one BlobProto (mean image, infogain matrix) and return its `StoredBlob`."""
    data = map_bytes(path)
    with _naming_kind(data, path, "a single blob (binaryproto)", "mean"):
        blob = parse_blob(data)
        if not blob.data.size:
            raise DataError(f"holds a blob of shape {shown(blob.shape)} without numbers; fetch the file again")
        return blob


def read_solver_state(path):
    """Read a .solverstate and return its `StoredState`."""
    data = map_bytes(path)
    history, others = [], []
    with _naming_kind(data, path, "the state of a solver (.solverstate)", "solverstate"):
        for number, wire, value, field in walk(memoryview(data)):
            if number == STATE_HISTORY and wire == LENGTH_DELIMITED:
                history.append(value)
            else:
                others.append(field)
        state = parse_message(caffe_pb2.SolverState, b"".join(others))
        if not state.HasField("iter"):
            raise DataError("holds no iteration count, so it is no solver state; was a .caffemodel given instead?")
    for index, content in enumerate(history):
        with located(file=path, field=f"history[{index}]"):
            history[index] = parse_blob(content)
    return StoredState(state.iter, state.learned_net, state.current_step, state.resume_state, history, state.minimum_loss,
                       state.iter_last_event)


@contextlib.contextmanager
def _naming_kind(data, path, wanted, own):
    """Add the file to errors; if it is of another kind than `own`, say so and that `wanted` is expected (`kinds.with_kind`)."""
    try:
        yield
    except Error as error:
        raise kinds.with_kind(error.at(file=path), data, wanted, (own,))
