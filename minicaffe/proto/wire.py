"""Serialized messages: read whole by protobuf (`parse_message`), or walked in place (`walk`); the bytes of their fields.

protobuf's Python classes copy every array three times: a .caffemodel of 96 MB takes 330 ms, of which a walk over the memory map
saves 310. So only the few fields around the arrays of a file are walked here, in Python. protobuf reads everything else.

Format: https://protobuf.dev/programming-guides/encoding/
"""

import logging

from google.protobuf.message import DecodeError

from minicaffe.errors import DataError

logger = logging.getLogger(__name__)

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5  # wire type: the lowest three bits of a tag
WIDTHS = {FIXED32: 4, FIXED64: 8}  # bytes
MAX_PARTS = 500_000  # fields that are walked for one file


def walk(data, count=None):
    """Yield (number, wire type, value, field) of the fields of a serialized message, a memoryview.

    `field` is a memoryview of all bytes of the field, tag included. `value` is the number of a VARINT (not yet signed), else a
    memoryview of the content. `count` is an iterator of numbers from 0 on, by which the fields of several messages are counted
    together. Raises DataError if the bytes are no message, end too early, have a group, which Caffe's messages lack, or more than
    `MAX_PARTS` fields.
    """
    at, end = 0, len(data)
    count = iter(range(MAX_PARTS + 1)) if count is None else count
    while at < end:
        start = at
        if next(count) >= MAX_PARTS:
            raise DataError(f"has more than {MAX_PARTS} parts; fetch the file again")
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
        else:
            if wire == LENGTH_DELIMITED:
                size, at = _varint(data, at)
            elif wire in WIDTHS:
                size = WIDTHS[wire]
            else:
                raise DataError("is damaged: its bytes are no fields of a message; fetch the file again")
            if size > end - at:
                raise DataError(f"is cut off or damaged: field {number} has {size} bytes, but {end - at} are left; "
                                "fetch the file again")
            value = data[at:at + size]
            at += size
        yield number, wire, value, data[start:at]


def _varint(data, at):
    """Return the number of 1 to 10 bytes at `at`, of 7 bits each, the lowest first, and the place behind it."""
    value, end = 0, len(data)
    for shift in range(0, 70, 7):
        if at == end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise DataError("is cut off or damaged: a number in it has no end; fetch the file again")


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
