"""Messages of forks' layers, which proto/caffe.proto lacks: their fields as `Field`, and the checked values of a layer."""

from typing import Any, NamedTuple

from minicaffe.errors import ConfigError, close_matches, shown
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, lines_of
from minicaffe.proto.text import parse_text


class Field(NamedTuple):
    """A field of a fork's message.

    Attributes
    ----------
    name : str
    default : bool, int, float, str, type or list
        The value if the file does not give the field. A type (int): the file must give it. A list with a type ([float]): the field
        is repeated. Fields(): it is a message.
    comment : str
    least : int or float, optional
        The least value that is allowed.
    choices : tuple, optional
        The values that are allowed.
    """

    name: str
    default: Any
    comment: str = ""
    least: Any = None
    choices: tuple = ()

    @property
    def type(self):
        """type: the type of a value."""
        default = self.default[0] if isinstance(self.default, list) else self.default
        return default if isinstance(default, type) else type(default)


def checked_message(fields, message, fields_of_message, ignored=()):
    """Return the checked values of a message of a layer's `fields`, as a dict, and the set of the names that are given.

    Raises ConfigError for a field that is neither in `fields_of_message` nor `ignored`, and for a wrong value.
    """
    given = fields.get(message, Fields()) if message else Fields()
    if not isinstance(given, Fields):
        raise ConfigError("must be given once, as a message in braces", field=message)
    known = {field.name: field for field in fields_of_message}
    for name in given:
        if name not in known and name not in ignored:
            raise ConfigError(f"unknown field{close_matches(name, known) or '; it has ' + (', '.join(known) or 'none')}",
                              field=f"{message}.{name}")
    return {name: _value(field, given, f"{message}.{name}") for name, field in known.items()}, set(given)


def _value(field, given, path):
    """Return the value of a field, of its type, or its default."""
    values = [_checked(field, value, path) for value in given.all(field.name)]
    if isinstance(field.default, list):
        return values
    if len(values) > 1:
        raise ConfigError(f"must be given once, got {len(values)} values", field=path)
    if not values and isinstance(field.default, type):
        raise ConfigError("must be given", field=path)
    return values[0] if values else field.default


def _checked(field, value, path):
    """Return a value of the file as the type of the field; raise ConfigError if it has another."""
    if field.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if field.type is bool and value in (0, 1) and not isinstance(value, float):
        value = bool(value)
    if not isinstance(value, field.type) or isinstance(value, bool) != (field.type is bool):
        kind = {int: "an integer", float: "a number", bool: "true or false", str: "a string",
                Fields: "a message in braces"}[field.type]
        raise ConfigError(f"must be {kind}, got {shown(value)}", field=path)
    if field.type is int and not -2**31 <= value < 2**31:
        raise ConfigError(f"must be from -2^31 to 2^31 - 1, got {shown(value)}", field=path)
    if field.least is not None and not value >= field.least:
        raise ConfigError(f"must be at least {field.least}, got {value}", field=path)
    if field.choices and value not in field.choices:
        raise ConfigError(f"must be {' or '.join(map(str, field.choices))}, got {value}", field=path)
    return value


def parse_filler(fields, path):
    """Return the FillerParameter of the `Fields` of a fork's filler; `path` is its field in errors."""
    try:
        return parse_text("\n".join(lines_of(fields)), caffe_pb2.FillerParameter)[0]
    except ConfigError as error:
        raise ConfigError(error.message, field=f"{path}.{error.field}" if error.field else path) from None
