"""Read and write messages in protobuf's text format (prototxt), and the fields that a layer has besides its messages'."""

import re

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from minicaffe.errors import ConfigError, check_type
from minicaffe.proto import kinds
from minicaffe.proto.fields import Fields, Word, is_repeated, lines_of
from minicaffe.proto.files import MAX_TEXT, read_bytes
from minicaffe.proto.text_parser import CLOSING, WORD, Reader


def read_text(path, message_class, *, keep_layer_fields=False, skip_unknown_fields=False, content=None):
    """Read a prototxt.

    Parameters
    ----------
    path : str or path-like
    message_class : type, or tuple of types
        Class of the message that the file holds, such as ``caffe_pb2.NetParameter``; of several the one that has the most of
        the outermost fields is used, even if the file is broken.
    keep_layer_fields : bool
        Whether to keep fields of a layer that the messages lack, and an unknown type of a V1 layer, in the layer's `fork_fields`,
        instead of an error. net/definitions.py checks them later.
    skip_unknown_fields : bool
        Whether to leave out, with a warning, other unknown fields without which a net computes the same (docs/forks.md). Any
        further unknown field is an error.
    content : bytes, optional
        The content of the file, if it was read already.

    Returns
    -------
    message, positions : Message, Positions

    Raises
    ------
    FileError
        If the file cannot be read.
    ConfigError
        With file, line, column and the rule that is broken. Bytes that are not UTF-8 are accepted in comments only.
    """
    content = read_bytes(path, MAX_TEXT) if content is None else content
    text = content.decode("utf-8-sig", errors="surrogateescape")
    return parse_text(text, message_class, str(path), keep_layer_fields=keep_layer_fields,
                      skip_unknown_fields=skip_unknown_fields)


def parse_text(text, message_class, filename="<text>", *, keep_layer_fields=False, skip_unknown_fields=False):
    """Parse the text of a message; as `read_text`, but from a str. An empty text is an empty message."""
    check_type(text, str, "text", "the text of a message")
    try:
        if "\0" in text:
            raise ConfigError("holds binary data, a prototxt is text", file=filename)
        text = re.sub("\r(?!\n)", "\n", text)   # line ends of old Macs also end comments
        reader = Reader(text, filename, keep_layer_fields, skip_unknown_fields)
        if isinstance(message_class, tuple):
            message_class = _class_of(reader, message_class)
        return reader.read(message_class()), reader.positions
    except ConfigError as error:
        raise kinds.with_kind(error, text, "a prototxt", ("prototxt", "text")).at(line=1)


def _class_of(reader, classes):
    """Return the one of `classes` that has most of the outermost fields of a text; braces of a broken text may not match."""
    names, depth = [], 0
    for kind, word, following in zip(reader.kinds, reader.words, reader.words[1:]):
        if kind == WORD and depth == 0 and following in (":", *CLOSING):
            names.append(word)
        depth += (word in CLOSING) - (word in CLOSING.values())
    known = {kind: sum(name in kind.DESCRIPTOR.fields_by_name for name in names) for kind in classes}
    if not any(known.values()):
        wanted = " nor a ".join(kind.DESCRIPTOR.name.removesuffix("Parameter").lower() for kind in classes)
        raise ConfigError(f"is neither a {wanted}: it has no field of one; give a prototxt", file=reader.positions.filename)
    return max(classes, key=known.get)


def parse_fields(text):
    """Return the `Fields` of a text, whatever their names; as ``LayerParameter.fork_fields`` holds it."""
    return Reader(text, "<fields>").fields_of_any_name(Fields(), "", 0, "", 0)


def write_text(message):
    """Return a message as text that `parse_text` and Caffe read back to the same message.

    Fields of layers that the messages lack are written as they were read; only ``keep_layer_fields=True`` reads them back.
    """
    check_type(message, Message, "message", "a message")
    text = text_format.MessageToString(message, as_utf8=True)
    if re.search("^ *fork_fields: ", text, re.MULTILINE):
        text = "".join(f"{line}\n" for line in lines_of(_merged(message)))
    return text


def layer_fields(param):
    """Return the `Fields` of a layer: all that its LayerParameter sets but the weights, and all that its messages lack.

    Layer types of forks, and those that a user's program defines, read their fields by it.
    """
    return _merged(param, without=("blobs",))


def _merged(message, extra=None, path="", without=()):
    """Return as Fields at `path` the set fields of a message but `without`, and `extra` ones it lacks, of a layer `fork_fields`."""
    if message.DESCRIPTOR.name == "LayerParameter":
        extra = parse_fields(message.fork_fields)
        without = (*without, "fork_fields")
    extra = extra or Fields()
    result = Fields(path)
    for field, value in message.ListFields():
        name = field.name
        if name in without:
            continue
        inner = f"{path}.{name}" if path else name
        if is_repeated(field):
            result._lists.add(name)
        for index, item in enumerate(value if is_repeated(field) else [value]):
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                more = extra.all(name)[index:index + 1]
                item = _merged(item, more[0] if more else None, inner)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
                known = field.enum_type.values_by_number.get(item)
                item = Word(known.name) if known is not None else item
            elif field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
                item = float(str(np.float32(item)))  # 0.1 as the file has it, not 0.10000000149
            result.extend(name, [item])
    for name in extra:
        if name not in result:
            result.extend(name, extra.all(name))
    return result
