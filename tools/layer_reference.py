"""What a layer type is and takes, for the pages docs/layers/*.md, which tools/layers_table.py writes and `minicaffe layers` shows.

Nothing is written here twice: what a type computes is in the docstrings of its module and class, how many blobs it takes in the
class, the fields in the messages, and what they mean in the comments of proto/caffe.proto, which tools/gen_proto.py copies to
proto/comments.tsv. Types of forks declare their message in the class.
"""

import functools
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from minicaffe.addons.forks import table as forks
from minicaffe.cli.layers import count_blobs
from minicaffe.layer import layer_class, layer_types
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, is_repeated

COMMENTS = Path(__file__).resolve().parent.parent / "proto" / "comments.tsv"
# Fields of LayerParameter that a type reads, where its name does not say them.
PARAMS = {
    "AnnotatedData": ("annotated_data_param", "data_param", "transform_param"),
    "ConvolutionDepthwise": ("convolution_param",),
    "Data": ("data_param", "transform_param"),
    "Deconvolution": ("convolution_param",),
    "DepthwiseConvolution": ("convolution_param",),
    "DetectionOutput": ("detection_output_param", "transform_param"),
    "Im2col": ("convolution_param",),
    "ImageData": ("image_data_param", "transform_param"),
    "InfogainLoss": ("infogain_loss_param", "loss_param"),
    "LSTM": ("recurrent_param",),
    "MultiBoxLoss": ("multibox_loss_param", "loss_param"),
    "Normalize": ("norm_param",),
    "RNN": ("recurrent_param",),
    "SigmoidCrossEntropyLoss": ("loss_param",),
    "SoftmaxWithLoss": ("softmax_param", "loss_param"),
    "VideoData": ("video_data_param", "data_param", "transform_param"),
    "WindowData": ("window_data_param", "transform_param"),
}


@dataclass
class FieldEntry:
    """A field of a message.

    Attributes
    ----------
    type : str
        As a .proto file has it, ``enum`` for all enums.
    default : str
        As a prototxt has it; "" if there is none.
    comment : str
    values : dict of str to str
        Of an enum: each value and its comment.
    """

    name: str
    type: str
    default: str
    comment: str
    values: dict = field(default_factory=dict)

    def lines(self):
        """Return the comment and the values of an enum as lines."""
        known = [f"{name}: {comment}" for name, comment in self.values.items() if comment]
        if len(known) < len(self.values):
            known = ["one of " + ", ".join(f"{name} ({comment})" if comment else name for name, comment in self.values.items())]
        return [*self.comment.splitlines(), *known]


@dataclass
class MessageEntry:
    """A message: its comment and its fields."""

    name: str
    comment: str
    fields: list


@dataclass
class LayerEntry:
    """A layer type.

    Attributes
    ----------
    summary : str
        One line.
    text : list of str
        Paragraphs: what it computes.
    blobs : dict of str to str
        What a bottom, top, parameter or field is, such as ``bottom[0]``, where the class says it.
    bottoms, tops : str
        How many: ``1``, ``2 to 3``, ``at least 1``.
    origin : str
        ``BVLC``, ``SSD``, or the fork that has the type; of a type that a program registered, its module.
    rules : list of str
    params : dict of str to str
        Fields of LayerParameter that the type reads, and the message of each; a fork's message has the name of the field.
    messages : list of MessageEntry
        Those messages, then all that their fields have.
    """

    name: str
    summary: str
    text: list
    blobs: dict
    bottoms: str
    tops: str
    origin: str
    rules: list
    params: dict
    messages: list


def entries():
    """Return the LayerEntry of every registered layer type, sorted by name whatever the case."""
    return [describe(name) for name in sorted(layer_types(), key=str.lower)]


def describe(name):
    """Return the LayerEntry of a layer type. Raises ConfigError, with near names, if there is none."""
    cls = layer_class(name)
    text, sections = _parts_of(_text(cls.__doc__))
    own = cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons."))
    of_fork = cls.__module__.startswith("minicaffe.addons.forks.")
    head = _text(sys.modules[cls.__module__].__doc__).split("\n\n")[0] if own and not of_fork else ""
    # "AbsVal: y = |x| (Caffe absval_layer.cpp)." and "Dropout (Caffe dropout_layer.cpp; ...)."
    head = re.sub(r"\s*\([^()]*\b\w+_layer\.cpp[^()]*\)", "", " ".join(head.split()))
    head = re.sub(rf"^{re.escape(name)}\b[:.]?\s*", "", head)
    text = text or ([head] if head else [])
    summary = head if ". " in head or len(head) > 20 else " ".join(text[:1])
    params = {param: _layer_fields()[param].message_type.name for param in _params_of(name)}
    messages = _messages_of(params.values())
    if getattr(cls, "message", ""):     # of a fork
        messages.insert(0, _fork_message(cls))
        params = {cls.message: cls.message, **params}
    bottoms, tops = (count_blobs(cls, name, which) for which in ("bottom", "top"))
    return LayerEntry(name, _first_sentence(summary), text, sections, bottoms, tops, _origin(name, cls), _rules(cls), params,
                      messages)


def describe_message(name):
    """Return the MessageEntry of a message of proto/caffe.proto."""
    descriptor = caffe_pb2.DESCRIPTOR.message_types_by_name[name]
    return MessageEntry(name, comment_of(name), [_field_entry(name, each) for each in descriptor.fields])


def comment_of(name):
    """Return the comment of a message, ``Message.field`` or ``Message.Enum.VALUE``; "" if there is none."""
    return _comments().get(name, "")


@functools.cache
def _comments():
    rows = COMMENTS.read_text(encoding="utf-8").splitlines()[1:]
    return {name: comment.replace("\\n", "\n") for name, comment in (row.split("\t") for row in rows)}


@functools.cache
def _layer_fields():
    return caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name


def _params_of(name):
    """Return the fields of LayerParameter that the type reads: `PARAMS`, or the field that is called as the type is."""
    wanted = name.lower() + "param"
    return PARAMS.get(name) or tuple(each for each in _layer_fields() if each.replace("_", "") == wanted)


def _text(doc):
    """Return a docstring without its indentation, and with one backquote around names and formulas."""
    first, _, rest = (doc or "").strip().partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".replace("``", "`").strip()


def _parts_of(doc):
    """Return the paragraphs of a docstring before its NumPy sections, and the entries of the section Parameters."""
    first, *sections = re.split(r"^(\w+)\n-{3,}\n", doc, flags=re.M)
    entries = {}
    for title, body in zip(sections[::2], sections[1::2]):
        if title == "Parameters":
            for what, lines in re.findall(r"^(\S.*)\n?((?:^[ \t]+\S.*\n?|^\n(?=[ \t]))*)", body, re.M):
                names, _, kind = what.partition(" : ")
                if not kind and not lines:
                    continue    # a paragraph after the section
                entries[names] = " ".join(f"{kind}. {' '.join(lines.split())}".split()).rstrip(". ") if lines else kind
    return [" ".join(part.split()) for part in first.split("\n\n") if part.strip()], entries


def _first_sentence(text):
    return re.split(r"(?<=[^.])\.(?= [A-Z`]|$)", text.strip())[0].strip()


def _origin(name, cls):
    if not cls.__module__.startswith(("minicaffe.layers.", "minicaffe.addons.")):
        return cls.__module__
    known = forks.find_layer(name)
    return "BVLC" if known is None else "SSD" if "ssd" in known.forks else f"fork {known.forks[0]}"


def _rules(cls):
    """Return what the class says of its bottoms and tops, as sentences."""
    rules = []
    if cls.equal_num_bottom_top_blobs:
        rules.append("It has as many tops as bottoms.")
    if cls.auto_top_blobs:
        rules.append("A top that is not named is made by the net.")
    if cls.refuses_in_place:
        rules.append("It does not work in place: no top may be a bottom.")
    if cls.default_loss_weight:
        rules.append(f"The first top is part of the net's loss; loss_weight is {cls.default_loss_weight:g} if unset.")
    if isinstance(cls.no_gradient, dict):
        rules += [f"bottom[{i}], {what}, gets no gradient." for i, what in cls.no_gradient.items()]
    elif isinstance(getattr(cls, "gradients", None), int):      # of a loss
        known = "bottom[0] gets" if cls.gradients == 1 else f"The first {cls.gradients} bottoms get"
        rules.append(f"{known} a gradient, and no other bottom.")
    else:
        rules.append("The last bottom gets no gradient.")
    if any(not isinstance(getattr(cls, f"{kind}_{which}_blobs"), int) for kind in ("min", "max", "exact_num")
           for which in ("bottom", "top")):
        rules.append("The numbers of bottoms and tops depend on its fields; here they are those of the defaults.")
    return rules


def _messages_of(names):
    """Return the MessageEntry of these messages and, behind them, of those that their fields have."""
    todo, done = list(names), {}
    while todo:
        name = todo.pop(0)
        if name in done:
            continue
        done[name] = describe_message(name)
        todo += [each.message_type.name for each in caffe_pb2.DESCRIPTOR.message_types_by_name[name].fields
                 if each.message_type is not None]
    return list(done.values())


def _fork_message(cls):
    """Return the MessageEntry of the message that a `ForkLayer` declares."""
    types = {int: "int32", float: "float", bool: "bool", str: "string", Fields: "FillerParameter"}
    fields = []
    for each in cls.fields_of_message:
        repeated = isinstance(each.default, list)
        required, none = isinstance(each.default, type), repeated or each.type is Fields
        default = "" if none else "required" if required else _literal(each.default)
        fields.append(FieldEntry(each.name, f"{'repeated ' * repeated}{types[each.type]}", default, each.comment))
    return MessageEntry(cls.message, "", fields)


def _field_entry(message, each):
    values, comment = {}, comment_of(f"{message}.{each.name}")
    if each.message_type is not None:
        kind = each.message_type.name
    elif each.enum_type is not None:
        kind, owner = "enum", each.enum_type.full_name.split(".", 1)[1]
        values = {value.name: comment_of(f"{owner}.{value.name}") for value in each.enum_type.values}
        comment = f"{comment_of(owner)} {comment}".strip()
    else:
        kind = {each.TYPE_INT32: "int32", each.TYPE_INT64: "int64", each.TYPE_UINT32: "uint32", each.TYPE_FLOAT: "float",
                each.TYPE_DOUBLE: "double", each.TYPE_BOOL: "bool", each.TYPE_STRING: "string", each.TYPE_BYTES: "bytes"}[each.type]
    kind = f"repeated {kind}" if is_repeated(each) else kind
    return FieldEntry(each.name, kind, _default(each), comment, values)


def _default(each):
    value = each.default_value
    if not each.has_default_value:
        # protobuf will remove FieldDescriptor.label, and its older releases lack is_required.
        required = each.is_required if hasattr(each, "is_required") else each.label == each.LABEL_REQUIRED
        return "required" if required else ""
    if each.enum_type is not None:
        return each.enum_type.values_by_number[value].name
    return _literal(value)


def _literal(value):
    """Return a value as a prototxt has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(np.float32(value)).removesuffix(".0")
    return f'"{value}"' if isinstance(value, str) else str(value)
