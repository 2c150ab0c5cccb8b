"""Mutations of prototxt that know its grammar: a text becomes a tree of fields, is changed there, and is written again.

So most cases still parse, and reach what is behind the parser: layers, fillers, shapes.
"""

import re

from google.protobuf.descriptor import FieldDescriptor

from minicaffe.proto import caffe_pb2

TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*([A-Za-z_][\w]*|"(?:[^"\\]|\\.)*"|[-+.\w]+|[{}:<>\[\],;])')
WHOLE = [0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 100, 255, 1000, 4097, 65535, 65536, 1 << 20, 1 << 24, 10**9, (1 << 31) - 1,
         1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**30]
WHOLE += [-n for n in WHOLE]
REAL = ["nan", "inf", "-inf", "1e38", "-1e38", "1e-45", "-0.0", "0.5", "-0.5", "1e308", "1e-320", "0.9999999", "1.5", "1e6", "0"]
STRINGS = ["", " ", "x", "y", "data", "label", "layer", "loss", "a/b", "a,b", "%s%n", "\\000", "a\\000b", "\\377\\376", "ö", "\\n",
           "(automatic)", "lmdb", "h5.txt", "list.txt", "windows.txt", "mean.binaryproto", "mean8.binaryproto", "h.binaryproto",
           "data.h5", "images", "images/0.png", "model.caffemodel", "nowhere", "L" * 300, "constant", "gaussian", "bilinear",
           "uniform", "xavier", "msra", "positive_unitball", "warp", "square", "L1", "L2"]
NUMBERS = {FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1), FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
           FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1), FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1)}
MOST = 100_000  # characters of a case
MESSAGES = list(caffe_pb2.DESCRIPTOR.message_types_by_name.values())


def parse(text):
    """Return the fields of a message as lists [name, value]; a value is a str, or a list of fields."""
    tokens = TOKEN.findall(text)
    fields, _ = _fields(tokens, 0)
    return fields


def _fields(tokens, at):
    fields = []
    while at < len(tokens) and tokens[at] != "}":
        name = tokens[at]
        at += 2 if tokens[at + 1] == ":" else 1
        if tokens[at] == "{":
            value, at = _fields(tokens, at + 1)
        else:
            value = tokens[at]
        fields.append([name, value])
        at += 1
    return fields, at


def write(fields, indent=""):
    """Return fields as text."""
    lines = []
    for name, value in fields:
        if isinstance(value, str):
            lines.append(f"{indent}{name}: {value}")
        else:
            lines += [f"{indent}{name} {{", write(value, indent + " "), indent + "}"]
    return "\n".join(lines)


class TextMutator:
    """Makes cases of the seeds of one message type.

    Parameters
    ----------
    seeds : list of str
    descriptor : Descriptor
        Of the message that the seeds hold.
    types : list of str
        What a field called ``type`` of a layer may say.
    """

    def __init__(self, seeds, descriptor, types):
        self.seeds = [parse(seed) for seed in seeds]
        self.descriptor = descriptor
        self.types = [f'"{name}"' for name in types]
        self.steps = [self.number] * 20 + [self.add] * 14 + [self.string] * 4 + [self.retype] * 6 + [self.delete] * 3 + [
            self.repeat, self.repeat, self.move, self.splice, self.splice, self.rename, self.wrong_kind]

    def case(self, rng):
        """Return the bytes of a case."""
        fields = _copy(rng.choice(self.seeds))
        if rng.random() < 0.3:
            _with_inputs(fields)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
            rng.choice(self.steps)(fields, rng)
        text = write(fields)
        if rng.random() < 0.06:
            text = self.scramble(text, rng)
        data = text[:MOST].encode("utf-8", "surrogateescape")
        return harmless(data)

    # ---- places in the tree

    def places(self, fields, descriptor):
        """Return all (list of fields, index, descriptor of the message that the list is)."""
        found = []
        for index, (name, value) in enumerate(fields):
            found.append((fields, index, descriptor))
            if not isinstance(value, str):
                known = descriptor.fields_by_name.get(name) if descriptor else None
                found += self.places(value, known.message_type if known else None)
        return found

    def place(self, fields, rng, fits=lambda name, value: True):
        found = [p for p in self.places(fields, self.descriptor) if fits(*p[0][p[1]])]
        return rng.choice(found) if found else None

    # ---- mutations

    def number(self, fields, rng):
        """Replace a number."""
        place = self.place(fields, rng, lambda name, value: isinstance(value, str) and value[0] in "-.0123456789")
        if place:
            siblings, index, descriptor = place
            known = descriptor.fields_by_name.get(siblings[index][0]) if descriptor else None
            siblings[index][1] = value_of(known, rng) if known and rng.random() < 0.8 else str(rng.choice(WHOLE + REAL))

    def string(self, fields, rng):
        """Replace a string by a hostile one, or by another of the case."""
        place = self.place(fields, rng, lambda name, value: value[:1] == '"')
        if place:
            other = self.place(fields, rng, lambda name, value: value[:1] == '"')
            place[0][place[1]][1] = f'"{rng.choice(STRINGS)}"' if rng.random() < 0.5 else other[0][other[1]][1]

    def add(self, fields, rng):
        """Add a field that the message knows."""
        messages = [(fields, self.descriptor)]
        for siblings, index, descriptor in self.places(fields, self.descriptor):
            name, value = siblings[index]
            known = descriptor.fields_by_name.get(name) if descriptor else None
            if known is not None and known.message_type and not isinstance(value, str):
                messages += [(value, known.message_type)] * (4 if name.endswith("_param") and name != "dummy_data_param" else 1)
        target, descriptor = rng.choice(messages)
        wanted = [f for f in descriptor.fields if not f.message_type or rng.random() < 0.3]
        # Of a layer's hundred parameter messages only those of its own type do anything.
        types = [value.strip('"') for name, value in target if name == "type" and isinstance(value, str)]
        wanted = [f for f in wanted if not f.name.endswith("_param") or not types or rng.random() < 0.1
                  or f.name.removesuffix("_param").replace("_", "") in types[0].lower().replace("_", "")]
        for _ in range(rng.choice((1, 1, 1, 2, 4, 40) if rng.random() < 0.3 else (1,))):
            if wanted:
                field = rng.choice(wanted)
                if not is_repeated(field) and rng.random() < 0.95:
                    target[:] = [entry for entry in target if entry[0] != field.name]
                target.insert(rng.randrange(len(target) + 1), [field.name, self.value(field, rng, 0)])

    def value(self, field, rng, depth):
        if field.message_type is None:
            return value_of(field, rng)
        if depth > 4:
            return []
        inner = list(field.message_type.fields)
        return [[f.name, self.value(f, rng, depth + 1)] for f in rng.sample(inner, min(len(inner), rng.randrange(4)))
                if f.message_type is None or rng.random() < 0.3]

    def delete(self, fields, rng):
        place = self.place(fields, rng)
        if place:
            del place[0][place[1]]

    def repeat(self, fields, rng):
        """Repeat a field, most often one that may be."""
        repeatable = {field.name for message in MESSAGES for field in message.fields if is_repeated(field)}
        place = self.place(fields, rng, lambda name, value: name in repeatable or rng.random() < 0.05)
        if place:
            siblings, index, _ = place
            count = rng.choice((1, 1, 2, 3, 8, 64))
            size = len(write([siblings[index]]))
            for _ in range(min(count, MOST // (size + 1))):
                siblings.insert(index, _copy([siblings[index]])[0])

    def move(self, fields, rng):
        """Move a field elsewhere, in the same message or another."""
        source, target = self.place(fields, rng), self.place(fields, rng)
        if source and target:
            moved = _copy([source[0].pop(source[1])])[0]
            target[0].insert(min(target[1], len(target[0])), moved)

    def splice(self, fields, rng):
        """Take a field of another seed."""
        other = _copy(rng.choice(self.seeds))
        if rng.random() < 0.5:
            fields.insert(rng.randrange(len(fields) + 1), rng.choice(other))
        else:
            source, target = self.place(other, rng), self.place(fields, rng)
            if source and target:
                target[0][target[1]] = source[0][source[1]]

    def rename(self, fields, rng):
        """Give a field the name of another that its message knows."""
        place = self.place(fields, rng)
        if place and place[2]:
            place[0][place[1]][0] = rng.choice(list(place[2].fields)).name

    def retype(self, fields, rng):
        """Make a layer one of another type."""
        place = self.place(fields, rng, lambda name, value: name == "type" and value in self.types)
        if place:
            place[0][place[1]][1] = rng.choice(self.types)

    def wrong_kind(self, fields, rng):
        """Put a value of a kind that the field does not have."""
        place = self.place(fields, rng)
        if place:
            place[0][place[1]][1] = rng.choice(["{", '"text"', "WORD", "true", "-", "[1, 2]", "0x10", "1.5f", [["dim", "1"]], []])

    def scramble(self, text, rng):
        """Change characters, without regard to the grammar."""
        kind = rng.randrange(6)
        at = rng.randrange(len(text) + 1)
        if kind == 0:
            return text[:at]
        if kind == 1:
            return text[:at] + rng.choice([*"\0\x1c\u2028\xa0'\"{}\udcff\\#\r["]) + text[at:]
        if kind == 2:
            return "layer {" * rng.choice((3, 101, 10_000)) + text
        if kind == 3:
            return text[:at] + "9" * rng.choice((20, 5000)) + text[at:]
        if kind == 4:
            return text.replace(rng.choice("{}:\n \""), rng.choice(["", "{", "\n", "<"]), rng.randrange(1, 5))
        end = min(len(text), at + rng.randrange(1, 200))
        return text[:at] + text[end:]


def value_of(field, rng):
    """Return a value that a scalar field can have, as text."""
    kind = field.cpp_type
    if kind in NUMBERS:
        low, high = NUMBERS[kind]
        if rng.random() < 0.4:
            return str(rng.randrange(8))  # what may fit
        return str(rng.choice([n for n in WHOLE if low <= n <= high and (n >= 0 or rng.random() < 0.3)]))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice([*REAL, str(rng.choice(WHOLE))])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.choice(("true", "false"))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).name
    return f'"{rng.choice(STRINGS)}"'


def _with_inputs(fields):
    """Make layers of type DummyData into Inputs, whose blobs may be empty."""
    for _, layer in fields:
        if isinstance(layer, list) and ["type", '"DummyData"'] in layer:
            for field in layer:
                if field == ["type", '"DummyData"']:
                    field[1] = '"Input"'
                elif field[0] == "dummy_data_param":
                    field[:] = ["input_param", [entry for entry in field[1] if entry[0] == "shape"]]


def is_repeated(field):
    """Return whether a field holds any number of values."""
    return field.default_value == []


def harmless(data):
    """Let no string of a case be an absolute path or one above the folder: HDF5Output and snapshots write where files say."""
    return re.sub(rb"(\"|')\s*[/\\]+(?:057)?", rb"\1", data).replace(b"../", b"./")


def _copy(fields):
    return [[name, value if isinstance(value, str) else _copy(value)] for name, value in fields]
