"""An option of ``minicaffe train`` for every field of SolverParameter, made from the message and its comments.

A field ``base_lr`` is the option ``--base-lr``. Repeated fields are repeatable options that replace the file's list, enums
go by name, nets and states are given as prototxt text. Only ``snapshot`` has another name, --snapshot-interval: Caffe's
tool calls the state to resume --snapshot.
"""

import functools
import re

import click
from google.protobuf.descriptor import FieldDescriptor

from minicaffe.cli import options
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2, comments, text
from minicaffe.proto.fields import is_repeated, set_field

FIELDS = caffe_pb2.SolverParameter.DESCRIPTOR.fields
OTHER_NAMES = {"snapshot": ("--snapshot-interval",), "random_seed": ("--random-seed", "--seed")}
METAVARS = {
    FieldDescriptor.CPPTYPE_STRING: "TEXT",
    FieldDescriptor.CPPTYPE_BOOL: "true|false",
    FieldDescriptor.CPPTYPE_FLOAT: "NUMBER",
    FieldDescriptor.CPPTYPE_MESSAGE: "PROTOTXT",
}


class FieldType(options.Text):
    """The click type of a FieldOption: `convert` turns its text into a value of its field by the rules of a prototxt."""

    def convert(self, value, param, ctx):       # click calls it with an option's text
        field = param.field
        if not isinstance(value, str) or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return value
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if not value.strip() and not is_message:
            self.fail(f"must have a value, {self.name}, got '{value}'", param, ctx)
        entry = f"{field.name} {{ {value} }}" if is_message else f"{field.name}: {value}"
        try:
            message, _ = text.parse_text(entry, caffe_pb2.SolverParameter)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        if len(message.ListFields()) != 1:
            self.fail(f"must be one value, got {value}", param, ctx)
        result = getattr(message, field.name)
        return result[0] if is_repeated(field) else result


class FieldOption(click.Option):
    """The option of one field; its parameter is called ``field_<name>``."""

    def __init__(self, field):
        self.field, kind = field, FieldType()
        kind.name = METAVARS.get(field.cpp_type, "N")
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            kind.name = "|".join(field.enum_type.values_by_name)
        names = OTHER_NAMES.get(field.name, ("--" + field.name.replace("_", "-"),))
        super().__init__([*names, f"field_{field.name}"], type=kind, metavar=kind.name, multiple=is_repeated(field))
        del self.help       # of click's constructor

    @functools.cached_property
    def help(self):
        """str: the comment of the field, which is read for --help and completion alone; its `fields` are options here."""
        text = comments.one_line(comments.comments()[f"SolverParameter.{self.field.name}"])
        fields = self.field.containing_type.fields_by_name
        text = re.sub("`([a-z0-9_]+)`", lambda name: f"--{name[1].replace('_', '-')}" if name[1] in fields else name[0], text)
        return f"{text} Repeatable." if self.multiple else text


def given_fields(params):
    """Return the values of solver fields that the command line of ``train`` has, by field name; and its other `params` by name."""
    fields = {name.removeprefix("field_"): value for name, value in params.items()
              if name.startswith("field_") and value not in (None, ())}
    return fields, {name: value for name, value in params.items() if not name.startswith("field_")}


def set_fields(param, values):
    """Set the given fields of the SolverParameter of a file; a list replaces that of the file."""
    for name, value in values.items():
        if name == "solver_type":
            param.ClearField("type")
        param.ClearField(name)
        set_field(param, name, list(value) if isinstance(value, tuple) else value)
