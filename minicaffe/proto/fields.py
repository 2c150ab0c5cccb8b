"""Fields of a layer that the messages lack: those of a fork, or of a layer type that a program defines.

`Fields` holds them as attributes, numbers as numbers, messages as further `Fields`. A LayerParameter stores them as text in its
field `fork_fields`, so copying, upgrading and saving a net keep them. `layer_fields` (text.py) returns them together with the
fields of the messages, so a layer reads both in the same way.
"""

from google.protobuf import text_encoding
from google.protobuf.descriptor import FieldDescriptor

from minicaffe.errors import ConfigError, MissingFieldError, close_matches, shown


class Word(str):
    """A value without quotes in the file: the name of an enum's value."""

    __slots__ = ()


class Fields:
    """Fields by name, as attributes.

    ``interp_param { height: 33 name: "x" inner { a: 1 a: 2 } }`` gives ``fields.interp_param.height == 33`` and
    ``fields.interp_param.inner.a == [1, 2]``. A field that is given once is its value. A field that is given several times,
    or is repeated in the message, is a list. Numbers are int or float, ``true`` and ``false`` bool, strings and enum values str.

    Iterating gives the names in the order of the file; ``name in fields`` is true if a field is given. Raises MissingFieldError
    for a field that is not given; it is an AttributeError. `get` gives a default instead.
    """

    __slots__ = ("_lists", "_path", "_values")

    def __init__(self, path=""):
        self._path = path
        self._values = {}    # name: list of values
        self._lists = set()  # names of repeated fields of messages, which are lists even with one value (text.py)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        values = self._values.get(name)
        if values is None:
            place = f"{self._path}.{name}" if self._path else name
            raise MissingFieldError(f"is not given{close_matches(name, self._values)}; add it, or use get('{name}', default)",
                                    field=place)
        return values[0] if len(values) == 1 and name not in self._lists else list(values)

    def get(self, name, default=None):
        """Return a field's value, `default` if it is not given; also for a field that has the name of a method."""
        return self.__getattr__(name) if name in self._values else default

    def all(self, name):
        """Return the values of a field as a list, however often it is given."""
        return list(self._values.get(name, ()))

    @classmethod
    def of(cls, values, path=""):
        """Return the Fields of a dict, in which a list is a repeated field and a dict a message."""
        made = cls(path)
        for name, value in values.items():
            inner = f"{path}.{name}".strip(".")
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, dict):
                    item = cls.of(item, inner)
                elif not isinstance(item, (bool, int, float, str)):
                    raise ConfigError(f"must be a number, a bool, a str, a dict or a list of them, got {shown(item)}", field=inner)
                made.extend(name, [item])
        return made

    def extend(self, name, values):
        """Append several values to a field, which need not exist."""
        self._values.setdefault(name, []).extend(values)

    def inside(self, path):
        """Return the Fields that hold the last field of a path such as ``.param[1].lr``; make missing messages on the path."""
        target = self
        for part in path.strip(".").split(".")[:-1]:
            name, _, index = part.partition("[")
            values = target._values.setdefault(name, [])
            while len(values) <= int(index.rstrip("]") or 0):
                values.append(Fields(f"{target._path}.{name}".strip(".")))
            target = values[int(index.rstrip("]") or 0)]
        return target

    def __iter__(self):
        return iter(self._values)

    def __contains__(self, name):
        return name in self._values

    def __len__(self):
        return len(self._values)

    def __eq__(self, other):
        return isinstance(other, Fields) and self._values == other._values

    __hash__ = None

    def __repr__(self):
        return " ".join(line.strip() for line in lines_of(self)) or "no fields"


def pop_field(fields, name):
    """Remove a field from `fields` and return its values as a list, empty if it is not given."""
    return fields._values.pop(name, [])


def lines_of(fields, indent=""):
    """Yield the lines of a prototxt that holds `fields`; joined, they are the text of ``LayerParameter.fork_fields``."""
    for name in fields:
        for value in fields.all(name):
            if isinstance(value, Fields):
                yield f"{indent}{name} {{"
                yield from lines_of(value, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_shown(value)}"


def _shown(value):
    """Return a value, not a message, as a prototxt writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, Word):
        return '"' + text_encoding.CEscape(value, True) + '"'
    return str(value)


def copy_of(message):
    """Return a copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def set_field(message, name, value):
    """Set a field of a message to the value of a field of the same kind: one value, a message, or a list, which is appended."""
    if hasattr(value, "CopyFrom"):
        getattr(message, name).CopyFrom(value)
    elif hasattr(value, "append"):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def unused_name(name, taken):
    """Return a name for a new layer or blob: `name` with underscores until it is not in the set `taken`, to which it is added."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def is_repeated(field):
    """Return whether a FieldDescriptor is of a repeated field."""
    # protobuf will remove FieldDescriptor.label, and its older releases lack is_repeated.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def unknown_of(descriptor, fields, path=""):
    """Yield (message descriptor, path, name, value) of each unknown field in `fields`, a layer's `fork_fields`.

    A message there that `descriptor` has is entered: only its fields, or values of their enums, are unknown.
    """
    for name in fields:
        field = descriptor.fields_by_name.get(name)
        for index, value in enumerate(fields.all(name)):
            if field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and isinstance(value, Fields):
                inner = f"{path}{name}[{index}]." if is_repeated(field) else f"{path}{name}."
                yield from unknown_of(field.message_type, value, inner)
            else:
                yield descriptor, path + name, name, value


def window_sizes(param, name):
    """Return `name`, such as kernel_size, of a convolution's or pooling's message as a list: one number, one per axis, or none."""
    sides = [f"{name.removesuffix('_size')}_{side}" for side in "hw"]
    if any(map(param.HasField, sides)):
        return [getattr(param, side) for side in sides]
    value = getattr(param, name)
    return [value] * param.HasField(name) if isinstance(value, int) else list(value)    # Pooling has one number
