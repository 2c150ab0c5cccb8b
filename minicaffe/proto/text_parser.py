"""A parser of protobuf's text format (prototxt), of messages and of `Fields`.

protobuf's reader does not keep the positions of fields, so an error found later, in a layer's setup, could not name the line.
This parser returns a `Positions` beside the message, names the layer in its errors, and is several times faster. It accepts
what protobuf's C++ reader accepts, except extensions and ``Any``, which Caffe files do not use.
"""

import functools
import itertools
import logging
import re
from array import array
from collections import namedtuple

from google.protobuf.descriptor import FieldDescriptor

from minicaffe.errors import ConfigError
from minicaffe.proto import unknown
from minicaffe.proto.fields import Fields, Word, is_repeated, lines_of
from minicaffe.proto.files import MAX_LAYERS
from minicaffe.proto.positions import Positions

logger = logging.getLogger(__name__)

# Messages without unknown fields: a rule with a field left out would select wrong layers; upgrading reads all fields of a V0 layer.
COMPLETE = "NetStateRule", "V0LayerParameter"
LAYERS = "LayerParameter", "V1LayerParameter"
MAX_DEPTH = 100  # protobuf's own limit on messages inside messages
# Words, numbers and marks of a text. Each takes up to 100 bytes while the text is read; three become up to 300 bytes of message.
MAX_TOKENS = 2_000_000

WORD, NUMBER, STRING, MARK, END, OTHER = range(1, 7)
TOKEN = re.compile(
    r"""(?:[ \t\r\n\f\v]+|\#[^\n]*)*+(?:
        ([A-Za-z_][A-Za-z0-9_]*)
      | ((?:0[xX][0-9a-fA-F]++|(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+[fF]?+)(?![A-Za-z0-9_.]))
      | ("(?:[^"\\\n]|\\[^\n])*+"|'(?:[^'\\\n]|\\[^\n])*+')
      | ([{}<>:,;\[\]-])
      | (\Z)
      | ([0-9.][A-Za-z0-9_.]*+|["'][^\n]*+|.)
    )""",  # possessive: no repetition is tried twice, so the time is linear in the text
    re.VERBOSE | re.DOTALL,
)
ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
SIMPLE_ESCAPES = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))
CLOSING = {"{": "}", "<": ">"}
INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


# A field of a message: its descriptor, whether it is repeated, and the `Reader` method that reads a scalar value of it.
Field = namedtuple("Field", "descriptor repeated read")


@functools.cache
def fields_of(descriptor):
    """Return the `Field` of each field of a message type by name, except `fork_fields`, which no file may set."""
    readers = {
        FieldDescriptor.CPPTYPE_MESSAGE: None,
        FieldDescriptor.CPPTYPE_STRING: Reader.string,
        FieldDescriptor.CPPTYPE_ENUM: Reader.enum,
        FieldDescriptor.CPPTYPE_BOOL: Reader.bool,
        FieldDescriptor.CPPTYPE_FLOAT: Reader.float,
        FieldDescriptor.CPPTYPE_DOUBLE: Reader.float,
    }
    return {field.name: Field(field, is_repeated(field), readers.get(field.cpp_type, Reader.integer))
            for field in descriptor.fields if field.name != "fork_fields"}


class Reader:
    """A recursive-descent reader over the list of tokens; `at` is the next one.

    `keep` and `skip` are keep_layer_fields and skip_unknown_fields of `read_text`. In all methods `path` is that of the field, for
    errors and positions; `depth` is the number of messages around it; `field` is its `Field`, None if its message lacks it.
    """

    def __init__(self, text, filename, keep=False, skip=False):
        self.text = text
        self.keep, self.skip = keep, skip
        self.kept = {}      # by the path of a layer: its message and those Fields of it that the messages lack
        self.starts = {}    # by path: the offset of a field or of an element of a repeated one
        self.positions = Positions(filename, text, self.starts)
        self.kinds, self.words, self.offsets = bytearray(), [], array("Q")      # of the tokens: WORD to OTHER, text, place
        for match in itertools.islice(TOKEN.finditer(text), MAX_TOKENS + 2):
            kind = match.lastindex
            self.kinds.append(kind)
            self.words.append(match[kind])
            self.offsets.append(match.start(kind))
        self.at = 0
        if len(self.kinds) > MAX_TOKENS + 1:    # the last one is the end of the text
            raise self.error(f"the text has more than {MAX_TOKENS} words, numbers and marks; store so many numbers in "
                             "a binary file, which --weights or weights= names", None, MAX_TOKENS)

    def read(self, message):
        """Fill a message with the whole text and return it. An error inside of a layer has the layer's name and type."""
        self.outermost = message
        try:
            self.message(message, "", 0, "", 0)
        except ConfigError as error:
            for each, path in _enclosing(message, error.field or ""):
                if each.DESCRIPTOR.name in LAYERS:
                    _name_layer(error, each, path)
            raise
        for layer, fields in self.kept.values():
            layer.fork_fields = "\n".join(lines_of(fields))
        return message

    def message(self, message, path, depth, close, opened):
        """Read the fields of `message` up to the mark `close` ("" for the file), whose opening is token `opened`."""
        kinds, words, starts, offsets = self.kinds, self.words, self.starts, self.offsets
        fields = fields_of(message.DESCRIPTOR)
        prefix = path + "." if path else ""
        while kinds[self.at] == WORD:
            start = self.at
            name = words[start]
            field, here = fields.get(name), prefix + name
            if field is None:
                self.unknown(message.DESCRIPTOR, name, here, depth)
                continue
            self.at += 1
            if words[self.at] == ":":
                self.at += 1
            elif field.read is not None:
                raise self.error(f"expected ':' and a value, got {self.shown()}", here)
            if field.repeated:
                values = getattr(message, name)
                if words[self.at] == "[":
                    self.list(here, functools.partial(self.element, values, field, here, depth))
                else:
                    self.element(values, field, here, depth, start)
            elif message.HasField(name):
                raise self.error("is given twice, but holds one value; remove one of them", here, start)
            else:
                starts[here] = offsets[start]
                if field.read is None:
                    self.submessage(field, here, depth, getattr(message, name))
                elif field.read is Reader.enum and kinds[self.at] == WORD and \
                        words[self.at] not in field.descriptor.enum_type.values_by_name:
                    self.at = start
                    self.unknown(message.DESCRIPTOR, name, here, depth)
                    continue
                else:
                    setattr(message, name, field.read(self, field, here))
            if words[self.at] == "," or words[self.at] == ";":
                self.at += 1
        if words[self.at] != close:
            raise self._no_field(message.DESCRIPTOR.name, path, close, opened)
        self.at += 1
        if not message.IsInitialized():
            name = message.FindInitializationErrors()[0]
            raise self.error(f"required field '{name}' of {message.DESCRIPTOR.name} is missing; add it", path, opened)

    def unknown(self, descriptor, name, path, depth):
        """Keep, skip or refuse a field that a message lacks, or one whose enum lacks its value; it is the next token."""
        start = self.at
        self.starts.setdefault(path, self.offsets[start])
        read = Fields()
        self.one(read, path, depth)
        enclosing = {each.DESCRIPTOR.name: (each, place) for each, place in _enclosing(self.outermost, path)} if self.keep else {}
        layer, place = enclosing.get("LayerParameter") or enclosing.get("V1LayerParameter") or (None, "")
        if layer is not None and enclosing.keys().isdisjoint(COMPLETE):
            _, fields = self.kept.setdefault(place, (layer, Fields()))
            fields.inside(path[len(place):]).extend(name, read.all(name))
            return
        values = read.all(name) or [None]
        found = [unknown.find_unknown(descriptor, name, each) for each in values]
        worst = next((each for each in found if not each.may_skip()), found[0])
        known = name in fields_of(descriptor)
        error = self.error(worst.text, path, start + 2 * known)     # before a wrong value are the name and a colon
        if not worst.may_skip(asked=self.skip):
            raise error
        logger.warning("%s; skipped", error)

    def fields_of_any_name(self, into, path, depth, close, opened):
        """Read fields of any name into the Fields `into`, up to the mark `close` as in `message`; return `into`."""
        while self.kinds[self.at] == WORD:
            self.one(into, f"{path}.{self.words[self.at]}" if path else self.words[self.at], depth)
        if self.words[self.at] != close:
            raise self._no_field("a message", path, close, opened)
        self.at += 1
        return into

    def one(self, into, path, depth):
        """Read one field of any name, with all values of its list, into `into`."""
        name = self.words[self.at]
        self.at += 1
        colon = self.skip_mark(":")
        if self.words[self.at] == "[":
            self.list(path, lambda: into.extend(name, [self.value_of_any_type(path, depth, True)]))
        else:
            into.extend(name, [self.value_of_any_type(path, depth, colon)])
        if not self.skip_mark(","):
            self.skip_mark(";")

    def value_of_any_type(self, path, depth, colon):
        """Read a message, string, number or word of any type; `colon`: whether a colon precedes it, as all but messages need."""
        close = CLOSING.get(self.words[self.at])
        if close is not None:
            if depth >= MAX_DEPTH:
                raise self.error(f"messages are nested more than {MAX_DEPTH} deep; flatten them", path)
            opened = self.at
            self.at += 1
            return self.fields_of_any_name(Fields(path), path, depth + 1, close, opened)
        if not colon:
            raise self.error(f"expected ':' and a value, got {self.shown()}", path)
        kind, word = self.kinds[self.at], self.words[self.at]
        if kind == STRING:
            return self.string(None, path)
        if kind == WORD:
            if word.lower() in ("inf", "infinity", "nan"):
                return self.float(None, path)
            self.at += 1
            return {"true": True, "True": True, "false": False, "False": False}.get(word, Word(word))
        number = self.words[self.at + 1] if word == "-" else word
        if number.isdecimal() or number[:2] in ("0x", "0X"):
            return self.integer(None, path, (-(2**63), 2**64 - 1))
        return self.float(None, path)

    def list(self, path, read_value):
        """Read a list in brackets, which may be empty; ``read_value()`` reads and stores one value."""
        self.at += 1
        closed = self.skip_mark("]")
        while not closed:
            read_value()
            closed = self.skip_mark("]")
            if not closed and not self.skip_mark(","):
                raise self.error(f"expected ',' or ']' in the list, got {self.shown()}", path)

    def element(self, values, field, path, depth, start=None):
        """Append one value to `values`; token `start`, by default the next one, is where it begins for `Positions`."""
        start = self.at if start is None else start
        path = f"{path}[{len(values)}]"
        self.starts[path] = self.offsets[start]
        if field.read is None:
            if len(values) >= MAX_LAYERS and field.descriptor.name in ("layer", "layers"):
                raise self.error(f"a net has at most {MAX_LAYERS} layers", path, start)
            self.submessage(field, path, depth, values.add())
        else:
            values.append(field.read(self, field, path))

    def submessage(self, field, path, depth, message):
        """Read ``{...}`` or ``<...>`` into `message`."""
        opening = self.at
        close = CLOSING.get(self.words[opening])
        if close is None:
            raise self.error(f"expected '{{' to open {field.descriptor.message_type.name}, got {self.shown()}", path)
        if depth >= MAX_DEPTH:
            raise self.error(f"messages are nested more than {MAX_DEPTH} deep; flatten them", path)
        self.at += 1
        message.SetInParent()  # an empty {} is present too
        self.message(message, path, depth + 1, close, opening)

    def skip_mark(self, mark):
        """Skip the next token if it is `mark`; return whether it was. Only a token of kind MARK can equal a mark."""
        found = self.words[self.at] == mark
        self.at += found
        return found

    def integer(self, field, path, limits=None, rule="must be a whole number"):
        """Read a decimal, octal (0...) or hexadecimal (0x...) number within `limits`, by default those of the field's type."""
        low, high = limits or INTEGER_RANGES[field.descriptor.cpp_type]
        start = self.at
        negative = self.words[start] == "-"
        self.at += negative
        word = self.words[self.at]
        if self.kinds[self.at] != NUMBER or not (word.isdecimal() or word[:2] in ("0x", "0X")):
            raise self.error(f"{rule}, got {self.shown(start)}", path, start)
        if len(word.lstrip("0xX")) > 22:  # outside of every range; Python cannot print thousands of digits
            raise self.error(f"must be from {low} to {high}, got a number of {len(word)} digits", path, start)
        if word.isdecimal() and word[0] == "0" and word.strip("01234567"):
            raise self.error(f"{word} starts with 0 and so is octal, but has a digit above 7; drop the 0", path, start)
        value = int(word, 16 if not word.isdecimal() else 8 if word[0] == "0" else 10)
        value = -value if negative else value
        if not low <= value <= high:
            raise self.error(f"must be from {low} to {high}, got {value}", path, start)
        self.at += 1
        return value

    def float(self, field, path):
        """Read a decimal number, ``inf`` or ``nan``; a value past float's range becomes inf, as in Caffe."""
        start = self.at
        negative = self.words[start] == "-"
        self.at += negative
        word = self.words[self.at].lower()
        kind = self.kinds[self.at]
        if kind == NUMBER:
            if word[0] == "0" and len(word) > 1 and (word[1] == "x" or word.isdecimal()):
                raise self.error(f"must be a decimal number, got {word}; write it without the leading 0", path, start)
            value = float(word.rstrip("f"))
        elif kind == WORD and word in ("inf", "inff", "infinity", "infinityf", "nan", "nanf"):
            value = float(word[:3])
        else:
            raise self.error(f"must be a number, got {self.shown(start)}", path, start)
        self.at += 1
        return -value if negative else value

    def bool(self, field, path):
        """Read true, True, t, 1 or false, False, f, 0."""
        word = self.words[self.at]
        if self.kinds[self.at] == WORD:
            if word in ("true", "True", "t", "false", "False", "f"):
                self.at += 1
                return word[0] in "tT"
            raise self.error(f"must be true or false, got {word}", path)
        return bool(self.integer(field, path, (0, 1), "must be true or false"))

    def enum(self, field, path):
        """Read the name or the number of one of the enum's values."""
        enum, start = field.descriptor.enum_type, self.at
        if self.kinds[start] == WORD:
            value = enum.values_by_name.get(self.words[start])
        else:
            value = enum.values_by_number.get(self.integer(field, path, (-(2**31), 2**31 - 1), unknown.one_of(enum)))
            self.at -= 1    # back to the last token of the number
        if value is None:
            raise self.error(unknown.find_value(enum, self.shown(start)).text, path, start)
        self.at += 1
        return value.number

    def string(self, field, path):
        """Read one quoted string or several that follow each other and are joined."""
        start = self.at
        value = b""
        while self.kinds[self.at] == STRING:
            raw = self.words[self.at][1:-1].encode("utf-8", "surrogateescape")
            value += ESCAPE.sub(functools.partial(self.unescaped, path), raw) if b"\\" in raw else raw
            self.at += 1
        if self.at == start:
            raise self.error(f"must be a quoted string, got {self.shown()}", path)
        if field is not None and field.descriptor.type == FieldDescriptor.TYPE_BYTES:
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("is not valid UTF-8; save the file as UTF-8", path, start) from None

    def unescaped(self, path, match):
        """Return the bytes of an escape sequence, a match of ESCAPE."""
        octal, hexadecimal, short, long, other = match.groups()
        if octal or hexadecimal:
            value = int(octal, 8) if octal else int(hexadecimal, 16)
            if value < 256:
                return bytes([value])
        elif other is None:
            value = int(short or long, 16)
            if value < 0x110000 and not 0xD800 <= value < 0xE000:
                return chr(value).encode()
        elif other[0] in SIMPLE_ESCAPES:
            return bytes([SIMPLE_ESCAPES[other[0]]])
        shown = match[0].decode("utf-8", "replace")
        raise self.error(f"{shown} is no escape; a backslash itself is written \\\\", path)

    def shown(self, at=None):
        """Return the tokens from `at` to the next one, as in ``-x``, as text for an error; by default the next one alone."""
        at = self.at if at is None else at
        if self.kinds[self.at] == END:
            return "the end of the file"
        rest = re.split(r"[ \t\r\n\f\v]", self.text[self.offsets[at] : self.offsets[at] + 40])[0]
        if self.kinds[self.at] in (OTHER, NUMBER) and rest[0] not in "\"'":
            word = re.match(r"[-\w.+]+", rest)
            return word[0] if word else repr(rest[0])
        return {STRING: "the string ", MARK: ""}.get(self.kinds[self.at], "") + self.words[self.at]

    def _no_field(self, name, path, close, opened):
        """Return the error for a token where a field's name or the closing mark should be."""
        if self.kinds[self.at] == END:
            line = self.positions.place(self.offsets[opened])[0]
            return self.error(f"the file ends inside {name}, opened on line {line}; close it with '{close}'", path)
        word = self.words[self.at]
        if word == "[":
            return self.error("extensions and Any messages are not used by Caffe; remove it", path)
        wanted = f"a field or '{close}'" if close else "a field"
        return self.error(f"expected {wanted} of {name}, got {self.shown()}", path)

    def error(self, message, path, at=None):
        """Return a ConfigError at token `at`, by default the next one; an open string or wrong comment there is named instead."""
        at = self.at if at is None else at
        if self.kinds[at] == OTHER and self.words[at][0] in "'\"":
            message = "a string is not closed on its line; add the quote"
        elif self.text[self.offsets[at] : self.offsets[at] + 2] in ("//", "/*"):
            message = "a comment in a prototxt begins with # and ends with its line; write # in place of // or /*"
        line, column = self.positions.place(self.offsets[at])
        return ConfigError(message, field=path or None, file=self.positions.filename, line=line, column=column)


def _enclosing(message, path):
    """Yield (message, path) of `message`, and of each message inside of it that the field at `path` is in."""
    yield message, ""
    at = ""
    for part in path.split("."):
        name, _, index = part.partition("[")
        if name not in message.DESCRIPTOR.fields_by_name:
            return
        message = getattr(message, name)
        message = message[int(index[:-1])] if index and int(index[:-1]) < len(message) else message
        if not hasattr(message, "DESCRIPTOR"):
            return
        at = f"{at}.{part}".lstrip(".")
        yield message, at


def _name_layer(error, layer, path):
    """Add the layer's name and type to an error found inside it, as far as they were read, and shorten its field."""
    old = layer.layer if layer.DESCRIPTOR.name == "V1LayerParameter" else layer
    name = layer.name or old.name
    if not name:
        return
    kind = old.type
    if old is not layer and not kind and layer.HasField("type"):
        kind = layer.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[layer.type].name
    error.field = (error.field or "")[len(path):].lstrip(".") or None
    error.at(layer=name, layer_type=kind or None)
