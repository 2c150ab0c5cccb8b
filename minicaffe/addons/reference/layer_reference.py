"""A layer type in words: what it computes, its bottoms and tops, its fields; ``minicaffe layers`` prints them.

Nothing is written here twice. What a type computes is in the docstrings of its module and class, how many blobs it takes in the
class, the fields in the messages, and what they mean in the comments of proto/caffe.proto (proto/comments.py). A type whose
message no .proto file has declares it: `message` and `fields_of_message`, as forks' types do.
"""

import re
import sys
import textwrap
from collections import namedtuple

import numpy as np
from google.protobuf import descriptor_pb2

from minicaffe import entry_points
from minicaffe.layer import layer_class
from minicaffe.proto import caffe_pb2, unknown
from minicaffe.proto.comments import comments
from minicaffe.proto.fields import Fields, is_repeated

OWN = ("minicaffe.layers.", "minicaffe.addons.")
LAYER_FIELDS = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
# Fields of LayerParameter that a type reads; others read the field that is called as the type is.
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
    "PriorBoxClustered": ("prior_box_param",),
    "RNN": ("recurrent_param",),
    "SigmoidCrossEntropyLoss": ("loss_param",),
    "SoftmaxWithLoss": ("softmax_param", "loss_param"),
    "VideoData": ("video_data_param", "data_param", "transform_param"),
    "WindowData": ("window_data_param", "transform_param"),
}


# A field of a message: its type as in a .proto file (``enum`` for all enums), its default as in a prototxt ("": none).
FieldEntry = namedtuple("FieldEntry", "name type default comment")
# A message: its comment, and a `FieldEntry` for each field.
MessageEntry = namedtuple("MessageEntry", "name comment fields")
LayerEntry = namedtuple("LayerEntry", "name summary text blobs bottoms tops origin rules params messages")
LayerEntry.__doc__ = """A layer type: a summary of one line, paragraphs of its docstring, and its blobs such as ``bottom[0]``.

`bottoms` and `tops` are numbers in words (``2 to 3``); `origin` is BVLC, the fork that has the type, or its package or module;
`rules` are sentences; `params` has the fields of LayerParameter that it reads, and the message of each; `messages` has those
messages, then all that their fields have.
"""


def describe(name):
    """Return the LayerEntry of a layer type. Raises ConfigError, with near names, if there is none."""
    cls = layer_class(name)
    text, sections = _parts_of(_text(cls.__doc__))
    declared = getattr(cls, "message", "")     # such types share a module, whose docstring is about all of them
    head = _text(sys.modules[cls.__module__].__doc__).split("\n\n")[0] if cls.__module__.startswith(OWN) and not declared else ""
    # "AbsVal: y = |x| (Caffe absval_layer.cpp)." and "Dropout (Caffe dropout_layer.cpp; ...)."
    head = re.sub(r"\s*\([^()]*\b\w+_layer\.cpp[^()]*\)", "", " ".join(head.split()))
    head = re.sub(rf"^{re.escape(name)}\b[:.]?\s*", "", head)
    text = text or [head or "No docstring."]
    summary = head if ". " in head or len(head) > 20 else " ".join(text[:1])
    summary = re.split(r"(?<=[^.])\.(?= [A-Z`]|$)", summary.strip())[0].strip()      # the first sentence
    wanted = PARAMS.get(name) or [each for each in LAYER_FIELDS if each.replace("_", "") == name.lower() + "param"]
    params = {param: LAYER_FIELDS[param].message_type.name for param in wanted}
    messages = _messages_of(params.values())
    if declared:
        messages.insert(0, _declared_message(cls))
        params = {cls.message: cls.message, **params}
    bottoms, tops = (_count_blobs(cls, name, which) for which in ("bottom", "top"))
    return LayerEntry(name, summary, text, sections, bottoms, tops, _origin(name, cls), _rules(cls), params, messages)


def _text(doc):
    """Return a docstring without its indentation, and with one backquote around names and formulas."""
    first, _, rest = (doc or "").strip().partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".replace("``", "`").strip()


def _parts_of(doc):
    """Return the paragraphs and lists of a docstring before its NumPy sections, and the entries of the section Parameters."""
    first, *sections = re.split(r"^(\w+)\n-{3,}\n", doc, flags=re.M)
    entries = {}
    for title, body in zip(sections[::2], sections[1::2]):
        if title == "Parameters":
            for what, lines in re.findall(r"^(\S.*)\n?((?:^[ \t]+\S.*\n?|^\n(?=[ \t]))*)", body, re.M):
                names, _, kind = what.partition(" : ")
                if not kind and not lines:
                    continue    # a paragraph after the section
                entries[names] = " ".join(f"{kind}. {' '.join(lines.split())}".split()).rstrip(". ") if lines else kind
    return [re.sub(r"\s*\n(?!- )\s*", " ", part.strip()) for part in first.split("\n\n") if part.strip()], entries


def _origin(name, cls):
    added = entry_points.additions("layers").get(name)
    if cls.__module__.startswith(OWN):
        return unknown.ask("fork_of", name) or ("BVLC" if cls.__module__.startswith(OWN[0]) else "a fork")
    return f"{added[0].package}, {cls.__module__}" if added else cls.__module__


def _count_blobs(cls, name, which):
    """Return how many bottoms or tops a class takes, as text; if its fields say so, those of a layer whose fields have defaults."""
    values = [getattr(cls, f"{kind}_{which}_blobs") for kind in ("exact_num", "min", "max")]
    if not all(isinstance(value, int) for value in values):
        layer = cls(caffe_pb2.LayerParameter(name=name, type=name))
        values = [getattr(layer, f"{kind}_{which}_blobs") for kind in ("exact_num", "min", "max")]
    exact, low, high = values
    if exact >= 0:
        return str(exact)
    if low < 0 and high < 0:
        return "any number"
    return f"at least {low}" if high < 0 else f"at most {high}" if low < 0 else f"{low} to {high}"


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
        fields = caffe_pb2.DESCRIPTOR.message_types_by_name[name].fields
        done[name] = MessageEntry(name, comments().get(name, ""), [_field_entry(name, each) for each in fields])
        todo += [each.message_type.name for each in fields if each.message_type is not None]
    return list(done.values())


def _declared_message(cls):
    """Return the MessageEntry of the message that a class declares."""
    types = {int: "int32", float: "float", bool: "bool", str: "string", Fields: "FillerParameter"}
    fields = []
    for each in cls.fields_of_message:
        repeated = isinstance(each.default, list)
        required, none = isinstance(each.default, type), repeated or each.type is Fields
        default = "" if none else "required" if required else _literal(each.default)
        fields.append(FieldEntry(each.name, f"{'repeated ' * repeated}{types[each.type]}", default, each.comment))
    return MessageEntry(cls.message, "", fields)


def _field_entry(message, each):
    kind = descriptor_pb2.FieldDescriptorProto.Type.Name(each.type).removeprefix("TYPE_").lower()
    comment = comments().get(f"{message}.{each.name}", "")
    if each.message_type is not None:
        kind = each.message_type.name
    elif each.enum_type is not None:
        owner = each.enum_type.full_name.split(".", 1)[1]
        values = {value.name: comments().get(f"{owner}.{value.name}", "") for value in each.enum_type.values}
        known = [f"{name}: {about}" for name, about in values.items()]
        if not all(values.values()):
            known = ["one of " + ", ".join(f"{name} ({about})" if about else name for name, about in values.items())]
        comment = "\n".join([f"{comments().get(owner, '')} {comment}".strip(), *known]).strip()
    return FieldEntry(each.name, f"{'repeated ' * is_repeated(each)}{kind}", _default(each), comment)


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
