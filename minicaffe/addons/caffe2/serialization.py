"""Objects of slots, as bytes and back: the messages SlotProto and WorkspaceProto (Caffe2 ``core/blob_serialization.h``).

None, bool, int of any size, float, str, bytes, lists and tuples of them, NumPy's arrays and scalars of numbers, blobs, and types
that were registered come back exactly as they were: type, byte order, every bit of a NaN. Other types are refused by name. Arrays
come back in row-major order, and an object that is in two places comes back as two.

The bytes are not trusted: sizes are compared with what is there and with the budget before memory is taken, nesting and the number
of parts are bounded, and nothing of theirs is imported or run: an object of a registered type is made by the program's function.
"""

import math
import struct
from collections import namedtuple

import numpy as np

from minicaffe.blob import NUMPY_TYPES, Blob, Dtype
from minicaffe.errors import ConfigError, DataError, Error, MissingNameError, ShapeError, WrongTypeError, close_matches, shown
from minicaffe.memory.sizes import check_bytes
from minicaffe.memory.states import SyncedHead
from minicaffe.proto import caffe_pb2, kinds
from minicaffe.proto.atomic import replacing
from minicaffe.proto.binary_writer import length_delimited, varint
from minicaffe.proto.files import map_bytes
from minicaffe.proto.stored import MAX_AXES, read_dims
from minicaffe.proto.wire import LENGTH_DELIMITED, MAX_PARTS, VARINT, walk

MAX_DEPTH = 32  # of lists in lists
VERSION = 1

# Field numbers of proto/caffe.proto.
NAME, TYPE, CONTENT, ITEM, ARRAY = 1, 2, 3, 4, 5  # SlotProto
DTYPE, SHAPE, DATA = 1, 2, 3  # ArrayProto
WORKSPACE_VERSION, SLOT = 1, 2  # WorkspaceProto

# The element types of arrays by the names that are stored; longdouble has another width on other machines.
DTYPES = {dtype.str: dtype for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
          for dtype in (np.dtype("<" + name), np.dtype(">" + name))}

# Objects that are one piece of bytes: how these are made, and how they are read.
PLAIN = {
    type(None): (lambda value: b"", lambda content: None),
    bool: (lambda value: bytes([value]), lambda content: bool((b"\0", b"\1").index(content))),
    int: (lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
          lambda content: int.from_bytes(content, "little", signed=True)),
    float: (struct.Struct("<d").pack, lambda content: struct.unpack("<d", content)[0]),
    str: (lambda value: value.encode("utf-8", "surrogatepass"), lambda content: content.decode("utf-8", "surrogatepass")),
    bytes: (bytes, bytes),
}
LISTS = {list, tuple}
BUILT_IN = {kind.__name__: kind for kind in (*PLAIN, *LISTS)}
OTHERS = ("ndarray", "scalar", "Blob")

Registered = namedtuple("Registered", "kind name to from_")
_by_type, _by_name = {}, {}


def register_serializer(kind, to, from_, name=None):
    """Say how objects of a type are stored in slots' bytes.

    Parameters
    ----------
    kind : type
        Exactly this one; a type derived from it is registered by itself.
    to : function
        Gives for an object one that can be stored: a number, a str, bytes, an array, or a list of such.
    from_ : function
        Makes the object of what `to` gave. It is called with what a file says, so it has to check that.
    name : str, optional
        In the bytes; by default module and name of the type. Registering a name again replaces it.

    Raises
    ------
    ConfigError, WrongTypeError
        If `kind` is not a type, `name` not a str that UTF-8 can hold, or the type is stored by minicaffe itself.
    """
    if not isinstance(kind, type):
        raise WrongTypeError(f"register_serializer takes a type, got {shown(kind)}")
    name = f"{kind.__module__}.{kind.__qualname__}" if name is None else name
    _encoded(name, "a registered type")
    if (kind in PLAIN or kind in LISTS or kind in (np.ndarray, Blob) or issubclass(kind, np.generic)
            or name in BUILT_IN or name in OTHERS):
        raise ConfigError(f"{name} is stored by minicaffe itself; register a type of your own, under another name")
    if name in _by_name:
        _by_type.pop(_by_name[name].kind, None)
    if kind in _by_type:
        _by_name.pop(_by_type[kind].name, None)
    _by_type[kind] = _by_name[name] = Registered(kind, name, to, from_)


# ---- to bytes

def serialize(value, name=""):
    """Return the bytes of a SlotProto that holds `value` under `name`.

    Raises WrongTypeError for a type that cannot be stored, which names slot, type, and what to do; DataError for lists that are
    nested too deep, or have too many items.
    """
    return b"".join(_slot_parts(value, name, _PartCounter()))


def write_file(path, values):
    """Write a WorkspaceProto with a dict of objects by name; a file at `path` is replaced when the new one is whole."""
    count = _PartCounter()
    try:
        parts = [varint(WORKSPACE_VERSION << 3) + varint(VERSION)]
        for name, value in values.items():
            parts += length_delimited(SLOT, _slot_parts(value, name, count))
    except Error as error:
        raise error.at(file=str(path))
    with replacing(path) as file:
        for part in parts:
            file.write(part)


class _PartCounter:
    """Counts the fields of all messages of one file, which makes what is written readable."""

    def __init__(self):
        self.count = 0

    def add(self, count):
        self.count += count
        if self.count > MAX_PARTS:
            raise DataError(f"has more than {MAX_PARTS} parts, of which an item of a list is three; keep numbers in an array")


def _encoded(name, what):
    try:
        return name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise WrongTypeError(f"the name of {what} must be a str that UTF-8 can hold, got {shown(name)}") from None


def _slot_parts(value, name, count):
    encoded = _encoded(name, "a slot that is stored")
    try:
        count.add(2)
        return [*length_delimited(NAME, [encoded]), *_object_parts(value, count, 0)]
    except Error as error:
        error.field = f"{name}{error.field or ''}" or None
        raise


def _object_parts(value, count, depth):
    """Return the parts of a serialized SlotProto without its name."""
    kind = type(value)
    if depth > MAX_DEPTH:
        raise DataError(f"is nested more than {MAX_DEPTH} deep; keep it flat")
    count.add(2)
    if kind in PLAIN:
        return [*length_delimited(TYPE, [kind.__name__.encode()]), *length_delimited(CONTENT, [PLAIN[kind][0](value)])]
    if kind in LISTS:
        parts = length_delimited(TYPE, [kind.__name__.encode()])
        for i, item in enumerate(value):
            try:
                count.add(1)
                parts += length_delimited(ITEM, _object_parts(item, count, depth + 1))
            except Error as error:
                error.field = f"[{i}]{error.field or ''}"
                raise
        return parts
    if kind is Blob:
        return [*length_delimited(TYPE, [b"Blob"]), *_blob_parts(value, count)]
    if kind is np.ndarray or isinstance(value, np.generic):
        name = b"ndarray" if kind is np.ndarray else b"scalar"
        return [*length_delimited(TYPE, [name]), *length_delimited(ARRAY, _array_parts(np.asarray(value), count))]
    if kind in _by_type:
        registered = _by_type[kind]
        count.add(1)
        item = _object_parts(_call_user_function(registered.to, value, registered, "to"), count, depth + 1)
        return [*length_delimited(TYPE, [registered.name.encode()]), *length_delimited(ITEM, item)]
    raise WrongTypeError(f"an object of type {kind.__module__}.{kind.__qualname__} cannot be stored; say how with "
                         f"minicaffe.addons.caffe2.serialization.register_serializer({kind.__name__}, to, from_)")


def _blob_parts(blob, count):
    parts = []
    for memory, values in ((blob.data_memory, "cpu_data"), (blob.diff_memory, "cpu_diff")):
        touched = memory.head != SyncedHead.UNINITIALIZED
        if touched:
            parts += length_delimited(ARRAY, _array_parts(getattr(blob, values), count))
        elif not parts:  # no diff says as much as an untouched one
            count.add(2)
            shape = caffe_pb2.BlobShape(dim=blob.shape).SerializeToString()
            shape = length_delimited(SHAPE, [shape]) if blob.num_axes or blob.count else []
            parts += length_delimited(ARRAY, [*length_delimited(DTYPE, [NUMPY_TYPES[blob.dtype].str.encode()]), *shape])
    return parts


def _array_parts(array, count):
    if array.dtype.str not in DTYPES:
        raise WrongTypeError(f"an array of {array.dtype} cannot be stored; convert it with astype to one of "
                             f"{', '.join(sorted({dtype.name for dtype in DTYPES.values()}))}")
    if array.ndim > MAX_AXES:
        raise ShapeError(f"an array of {array.ndim} axes cannot be stored, at most {MAX_AXES} can; reshape it")
    count.add(3)
    shape = caffe_pb2.BlobShape(dim=array.shape).SerializeToString()
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [*length_delimited(DTYPE, [array.dtype.str.encode()]), *length_delimited(SHAPE, [shape]),
            *length_delimited(DATA, [content])]


# ---- from bytes

def deserialize(data):
    """Return name and object of a serialized SlotProto.

    Raises DataError or ShapeError, which name slot and item, if they are damaged, a type is not registered, or an object exceeds
    the budget.
    """
    try:
        data = memoryview(data).cast("B")
    except TypeError as cause:
        raise WrongTypeError(f"a slot is read from bytes, got {type(data).__name__}: {cause}") from None
    return _read_slot(data, _PartCounter())


def read_file(path, names=None):
    """Return what `write_file` wrote as a dict; of `names`, if given.

    Raises FileError, DataError, ShapeError or MissingNameError, which name file and slot.
    """
    data = map_bytes(path)
    try:
        fields = [field[:3] for field in walk(memoryview(data))]
        if fields[:1] != [(WORKSPACE_VERSION, VARINT, VERSION)] or any(
                field[:2] != (SLOT, LENGTH_DELIMITED) for field in fields[1:]):
            raise DataError(f"is not a workspace of version {VERSION}, which Workspace.save writes; was another file given?")
        count, values = _PartCounter(), {}
        for *_, content in fields[1:]:
            name, value = _read_slot(content, count, names)
            if name in values:
                raise DataError("comes twice; the file is damaged", field=name)
            values[name] = value
    except Error as error:
        raise kinds.with_kind(error.at(file=str(path)), data, "a file of Workspace.save", ("workspace",))
    if names is None:
        return values
    for name in names:
        if name not in values:
            raise MissingNameError(f"holds no slot '{name}'{close_matches(name, values)}", file=str(path))
    return {name: values[name] for name in names}


def _read_slot(data, count, names=None):
    """Return name and object; where there are `names` and this is not one of them, None in place of the object."""
    fields = _fields(data, (NAME, TYPE, CONTENT, ITEM, ARRAY), count)
    try:
        name = _last(fields, NAME).decode()
    except UnicodeDecodeError:
        raise DataError("holds a name that is not UTF-8; the bytes are damaged") from None
    try:
        return name, _read_object(fields, count, 0, name) if names is None or name in names else None
    except Error as error:
        error.field = f"{name}{error.field or ''}" or None
        raise


def _fields(data, known, count):
    """Return a dict of lists of the contents of the fields of a message, all of which must be known."""
    found = {number: [] for number in known}
    for number, wire, content, _ in walk(data):
        if number not in found or wire != LENGTH_DELIMITED:
            raise DataError(f"has fields that version {VERSION} does not have; the bytes are damaged, or of a newer minicaffe")
        found[number].append(content)
        count.add(1)
    return found


def _last(fields, number):
    """Return the bytes of a field, none if it is not there; of several the last, as protobuf does."""
    content = fields[number][-1] if fields[number] else b""
    check_bytes(len(content), "it")
    return bytes(content)


def _read_object(fields, count, depth, name=""):
    """Return the object of the fields of a SlotProto; a blob is called `name`."""
    if depth > MAX_DEPTH:
        raise DataError(f"is nested more than {MAX_DEPTH} deep; the bytes are damaged")
    kind = _last(fields, TYPE).decode(errors="backslashreplace")
    if BUILT_IN.get(kind) in PLAIN:
        content = _last(fields, CONTENT)
        try:
            return PLAIN[BUILT_IN[kind]][1](content)
        except (ValueError, struct.error) as cause:
            raise DataError(f"is not a {kind}: {cause}; the bytes are damaged") from None
    items = []
    for i, content in enumerate(fields[ITEM]):
        try:
            items.append(_read_object(_fields(content, (TYPE, CONTENT, ITEM, ARRAY), count), count, depth + 1))
        except Error as error:
            error.field = f"[{i}]{error.field or ''}"
            raise
    if kind in BUILT_IN:
        return BUILT_IN[kind](items)
    arrays = [_fields(content, (DTYPE, SHAPE, DATA), count) for content in fields[ARRAY][:3]]
    if kind in ("ndarray", "scalar"):
        array = _read_array(*_exactly_one(arrays, "array"))
        if kind == "scalar" and array.ndim:
            raise DataError(f"is a number with the shape {list(array.shape)}; the bytes are damaged")
        return array if kind == "ndarray" else array[()]
    if kind == "Blob":
        return _read_blob(arrays, name)
    if kind not in _by_name:
        near = close_matches(kind, [*BUILT_IN, *OTHERS, *_by_name])
        raise DataError(f"holds an object of type '{kind}', which is not registered; call "
                        f"minicaffe.addons.caffe2.serialization.register_serializer for it before{near}")
    registered = _by_name[kind]
    value = _call_user_function(registered.from_, *_exactly_one(items, "object"), registered, "from_")
    if type(value) is not registered.kind:
        raise WrongTypeError(f"from_ of {kind} made an object of type {type(value).__name__}; correct from_")
    return value


def _exactly_one(found, what):
    if len(found) != 1:
        raise DataError(f"holds {len(found)} {what}s in the place of one; the bytes are damaged")
    return found


def _call_user_function(function, value, registered, which):
    try:
        return function(value)
    except Error:
        raise
    except Exception as cause:
        raise DataError(f"{which} of {registered.name} failed: {type(cause).__name__}: {cause}") from cause


def _read_head(fields):
    """Return dtype and shape of an ArrayProto, the shape None if it has none."""
    name = _last(fields, DTYPE).decode(errors="backslashreplace")
    if name not in DTYPES:
        raise DataError(f"has elements of type '{name}', known are {', '.join(DTYPES)}")
    if not fields[SHAPE]:
        return DTYPES[name], None
    dims = read_dims(fields[SHAPE][-1])
    if min(dims, default=0) < 0:
        raise DataError(f"has the shape {list(dims)}, of which a size is negative; the bytes are damaged")
    return DTYPES[name], dims


def _read_array(fields):
    dtype, shape = _read_head(fields)
    if shape is None:
        raise DataError("is an array without a shape; the bytes are damaged")
    stored = fields[DATA][-1] if fields[DATA] else b""
    size = math.prod(shape) * dtype.itemsize
    if len(stored) != size:
        raise DataError(f"has {len(stored)} bytes, its shape {list(shape)} of {dtype} needs {size}; it is damaged")
    check_bytes(size, "it")
    try:
        array = np.empty(shape, dtype)
    except (ValueError, OverflowError) as cause:  # without elements, but with sizes that NumPy cannot multiply
        raise DataError(f"has the shape {list(shape)}: {cause}; the bytes are damaged") from None
    content = array.reshape(-1).view(np.uint8)
    content[...] = np.frombuffer(stored, np.uint8) if size else 0
    if dtype.kind == "b" and size and content.max() > 1:
        raise DataError(f"holds {content.max()} where a bool must be 0 or 1; the bytes are damaged")
    return array


def _read_blob(arrays, name):
    if len(arrays) not in (1, 2):
        raise DataError(f"is a blob of {len(arrays)} arrays in the place of data and diff; the bytes are damaged")
    dtype, shape = head = _read_head(arrays[0])
    if dtype not in NUMPY_TYPES or _read_head(arrays[-1]) != head:
        raise DataError(f"is a blob of {dtype}, or its diff has another type or shape; the bytes are damaged")
    blob = Blob(None, Dtype(NUMPY_TYPES.index(dtype)), name)
    values = [_read_array(fields) if fields[DATA] else None for fields in arrays]
    if shape is not None:
        blob.reshape_to(shape)
        for view, array in zip(("data", "diff"), values):
            if array is not None:
                getattr(blob, view)[...] = array
    return blob
