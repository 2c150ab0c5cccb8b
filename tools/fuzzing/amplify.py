"""Files in which one field comes very often: a few bytes of them make a message or object of many times their size.

A case is a description, a line of JSON, since the file itself may have megabytes: which file, the path of a field in its message,
which message on that path is repeated, and how often.
"""

import json

from google.protobuf.descriptor import FieldDescriptor

from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary_writer import varint
from minicaffe.proto.fields import is_repeated

FILES = {"net.prototxt": caffe_pb2.NetParameter, "solver.prototxt": caffe_pb2.SolverParameter,
         "case.caffemodel": caffe_pb2.NetParameter, "case.solverstate": caffe_pb2.SolverState,
         "case.binaryproto": caffe_pb2.BlobProto, "list.txt": None}
LARGEST = 8 << 20  # bytes of a file
WIRES = {FieldDescriptor.CPPTYPE_FLOAT: (5, bytes(4)), FieldDescriptor.CPPTYPE_DOUBLE: (1, bytes(8)),
         FieldDescriptor.CPPTYPE_STRING: (2, b"\1a")}
VALUES = {FieldDescriptor.CPPTYPE_STRING: '"a"', FieldDescriptor.CPPTYPE_BOOL: "true"}


def description(rng):
    """Return a new case."""
    name = rng.choice(list(FILES))
    path, message = [], FILES[name] and FILES[name].DESCRIPTOR
    while message is not None and (not path or (len(path) < 5 and rng.random() < 0.7)):
        field = rng.choice(message.fields if rng.random() < 0.3 else [*filter(repeats, message.fields)] or message.fields)
        path.append(field.name)
        message = field.message_type
    return json.dumps({"file": name, "path": path, "repeated": rng.randrange(len(path) or 1),
                       "count": int(10 ** rng.uniform(2, 6.5)), "end": rng.choice("\n\r\v")}).encode()


def repeats(field):
    """Return whether a field, or one below it, may come more than once."""
    return field.message_type is not None or is_repeated(field)


def expand(case):
    """Return the name and the bytes of the file that a case describes."""
    made = json.loads(case)
    name, message = made["file"], FILES[made["file"]]
    if message is None:
        unit = f"a 1{made['end']}".encode()
        return name, unit * min(made["count"], LARGEST // len(unit))
    fields, descriptor = [], message.DESCRIPTOR
    for part in made["path"]:
        fields.append(descriptor.fields_by_name[part])
        descriptor = fields[-1].message_type
    write = _text if name.endswith("txt") else _wire
    content = None  # of the message inside; none at the end of the path
    for depth, field in reversed(list(enumerate(fields))):
        content = write(field, content)
        if depth == made["repeated"]:
            content *= max(1, min(made["count"], LARGEST // len(content)))
    return name, content


def _text(field, content):
    """Return a field as text; `content` is that of its message."""
    if field.message_type is not None:
        return b"%s{%s}" % (field.name.encode(), content or b"")
    value = field.enum_type.values[0].name if field.enum_type is not None else VALUES.get(field.cpp_type, "1")
    return f"{field.name}:{value} ".encode()


def _wire(field, content):
    """Return a field in protobuf's wire format."""
    if field.message_type is not None:
        return varint(field.number << 3 | 2) + varint(len(content or b"")) + (content or b"")
    wire, value = WIRES.get(field.cpp_type, (0, b"\1"))
    return varint(field.number << 3 | wire) + value
