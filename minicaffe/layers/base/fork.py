"""Base of the layer types that only forks of Caffe have: a class declares the fields of its message, as proto/caffe.proto lacks it.

Forks use one message name for different fields and field numbers, so no .proto file can define all of them. A net as text has no
field numbers: its fields are kept in ``LayerParameter.fork_fields`` and read here. These types compute in NumPy on the host, also
in GPU mode unless they define `forward_gpu`.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minicaffe.errors import ConfigError, ShapeError, close_matches, shown
from minicaffe.layers.python import Layer
from minicaffe.proto import caffe_pb2, forks
from minicaffe.proto.fields import Fields, lines_of, unknown_of
from minicaffe.proto.text import parse_fields, parse_text


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
    """

    name: str
    default: Any
    comment: str = ""
    least: Any = None

    @property
    def type(self):
        """type: the type of a value."""
        default = self.default[0] if isinstance(self.default, list) else self.default
        return default if isinstance(default, type) else type(default)


class ForkLayer(Layer):
    """A layer type of a fork; ``self.values[name]`` has the values of the `fields` of its `message`, checked.

    Fields in `ignored` are accepted and have no effect here, such as the choice of an engine.
    """

    message = ""
    fields_of_message = ()
    ignored = ()
    always_reshape = False
    overwrites_outputs = True

    def layer_setup(self, bottom, top):
        check_known(self.param)
        self.values = self.read_message(self.message, self.fields_of_message)
        super().layer_setup(bottom, top)

    def read_message(self, message, fields_of_message):
        """Return the checked values of a message's fields by name; called again by types that read a second message."""
        values, given = checked_message(self.fields, message, fields_of_message, self.ignored)
        if message == self.message:
            self.given = given
        return values

    def forward_cpu(self, bottom, top):
        with np.errstate(all="ignore"):     # no warnings for infinities and NaN, as in compiled layers
            super().forward_cpu(bottom, top)

    def backward_cpu(self, top, propagate_down, bottom):
        """Compute the gradients; those of bottoms in `no_gradient` are zeros, unless `backward` raises."""
        for i in self.no_gradient:
            if i < len(bottom) and propagate_down[i]:
                bottom[i].fill_diff(0)
        with np.errstate(all="ignore"):
            super().backward_cpu(top, propagate_down, bottom)

    def value_error(self, name, rule):
        """Return a ConfigError for the value of a field of the message, which must follow a rule such as "must divide 6"."""
        return ConfigError(f"{rule}, got {self.values[name]}", field=f"{self.message}.{name}")

    def add_filled(self, shape, name):
        """Append a parameter that the filler `name` of the message fills, and return it."""
        path = f"{self.message}.{name}"
        try:
            filler, _ = parse_text("\n".join(lines_of(self.values[name])), caffe_pb2.FillerParameter)
        except ConfigError as error:
            raise ConfigError(error.message, field=f"{path}.{error.field}" if error.field else path) from None
        return self.add_param(shape, filler, path)


def check_known(param, reads=None):
    """Raise ConfigError for the first field of a LayerParameter that neither minicaffe nor a fork has: a misspelled message.

    With `reads`, the paths of the fields of forks that the layer reads, also for a field that is not one of these.
    """
    for message, path, name, value in unknown_of(param.DESCRIPTOR, parse_fields(param.fork_fields)):
        found, text = forks.find_unknown(message, name, value)
        if path not in reads if reads else name not in message.fields_by_name and found is None:
            raise ConfigError(text, field=path)


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
    values = given.all(field.name)
    repeated = isinstance(field.default, list)
    if not values:
        if isinstance(field.default, type):
            raise ConfigError("must be given", field=path)
        return [] if repeated else field.default
    if len(values) > 1 and not repeated:
        raise ConfigError(f"must be given once, got {len(values)} values", field=path)
    values = [_checked(field, value, path) for value in values]
    return values if repeated else values[0]


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
    return value


def as_planes(array):
    """Return an array (N, C, ...) with the axes (N, C, all others)."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


def check_planes(blob, field="bottom[0]"):
    """Raise ShapeError unless a blob has the axes (num, channels, height, width), none of them empty."""
    if len(blob.shape) != 4 or 0 in blob.shape[1:]:
        raise ShapeError(f"must have 4 axes (num, channels, height, width), none of them empty, got {list(blob.shape)}",
                         field=field)
