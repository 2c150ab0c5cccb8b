"""Fields, values of enums and layer types of other Caffes, which the messages lack. Add-ons know some (group minicaffe.fields).

An object of that group, such as a module, may have these functions:

- ``find_field(message, name, value)``, ``find_value(enum, value)``: a `Found` for a field of the message of that name, or for a
  value of that enum; None if it is not known. `value` is that of the file, as in `minicaffe.proto.fields.Fields`.
- ``about_layer(type)``: a hint for the error about an unknown layer type; "" if it is not known.
- ``fork_of(type)``: the fork that has a layer type, for the list of types; "" if it is not known.
- ``name_of(word)``: today's name of a layer type that V1 files write as `word`; None if it is not known.
- ``is_old(layer)``: whether `upgrade` would change a LayerParameter.
- ``augmenter(param, seed)``: for a TransformationParameter with one of `AUGMENTATIONS` an object with `param` and
  ``picture(image, number)``, which returns the changed picture, (height, width, channels), of record `number`.
- ``upgrade(state, words)``: bring a net into the form that the core reads; `state` is that of `minicaffe.proto.upgrade`, `words`
  has by index what V1 files wrote as the type of a layer, where the enum lacks it. It returns None, so that all add-ons do it.
"""

from collections import namedtuple

from minicaffe import entry_points
from minicaffe.errors import ConfigError, close_matches
from minicaffe.proto import caffe_pb2

REGISTER_REMEDY = ("write it in Python and call minicaffe.register_layer('{}', Class) before the net is made, in a module that "
                   "commands import by --import MODULE (docs/forks.md)")
# Remedy for a field of the other kind of file.
OTHER_FILE = {
    "SolverParameter": (caffe_pb2.NetParameter, "; nets have it: if this file is a net, give a solver's file whose field net "
                        "names it, or let minicaffe train make one"),
    "NetParameter": (caffe_pb2.SolverParameter, "; solvers have it: if this file is a solver's, give the net of its "
                     "field net"),
}
AUGMENTATIONS = "resize_param", "noise_param", "distort_param", "expand_param"  # of transform_param; SSD's
core_types = set()          # the layer types of the core, in lower case (minicaffe.layer.find_types_in)
types_of_program = set()    # names of layer types that the program registered: they are as the program defines them


def never(training=True, asked=True):
    """Return False: whether a net computes the same without an unknown field is not known."""
    return False


Found = namedtuple("Found", "text may_skip", defaults=(never,))
Found.__doc__ = """A field or value that a message lacks: the text of the error, of which an add-on gives the end.

``may_skip(training, asked)`` returns whether a net computes the same without it; with `training`, whether training does, too;
`asked`: by skip_unknown_fields. It is `never` of a field that no add-on knows.
"""


def ask(function, *args):
    """Call the add-ons' functions of this name until one returns a true result, and return it; None if there is none."""
    for _, _, reader in entry_points.objects("fields"):
        if hasattr(reader, function) and (answer := getattr(reader, function)(*args)):
            return answer
    return None


def find_unknown(descriptor, name, value):
    """Return the `Found` of a field that a message lacks, or of a value that its enum lacks; its text is the whole message."""
    field = descriptor.fields_by_name.get(name)
    if field is not None and field.enum_type is not None:
        return find_value(field.enum_type, value)
    message = descriptor.name
    found, text = None, f"unknown field in {message}"
    other, remedy = OTHER_FILE.get(message, (None, ""))
    if other is not None and name in other.DESCRIPTOR.fields_by_name:
        return Found(text + remedy)
    if (found := ask("find_field", message, name, value)) is not None:
        return Found(text + found.text, found.may_skip)
    known = [field for field in descriptor.fields_by_name if field != "fork_fields"]
    return Found(text + (close_matches(name, known) or (f"; it has {', '.join(known)}" if len(known) <= 20 else "")))


def find_value(enum, value):
    """Return the `Found` of a value that an enum lacks; it may also be a number or a message."""
    text = f"{one_of(enum)}, got {value}"
    found = ask("find_value", enum.full_name.partition(".")[2], value)
    if found is None:
        return Found(text + close_matches(str(value), enum.values_by_name))
    return Found(text + found.text, found.may_skip)


def one_of(enum):
    """Return the beginning of an error about a value of an enum: its names, or of more than 20, as V1's layer types, the enum's."""
    names = enum.values_by_name
    return f"must be one of {', '.join(names)}" if len(names) <= 20 else f"must be a name of {enum.name}"


def name_of(word):
    """Return today's name of a layer type that V1 files write as `word`: LOCAL is Local."""
    today = "".join(map(str.capitalize, word.split("_"))) if word.isupper() else word
    return today if today.lower() in core_types else ask("name_of", word) or today


def augmenter(param, seed):
    """Return an add-on's object, as above, for those of `AUGMENTATIONS` that a TransformationParameter has."""
    made = ask("augmenter", param, seed)
    if made is None:
        first = next(filter(param.HasField, AUGMENTATIONS))
        raise ConfigError("unknown field in TransformationParameter: the core lacks it, and so do the installed add-ons "
                          f"({entry_points.installed('fields')})", field=f"transform_param.{first}")
    return made


def about_layer(name, types):
    """Return the end of the error about a layer type `name` that is not in `types`, the registered ones: a hint and a remedy."""
    if not name:
        return "; every layer needs a type, such as 'Convolution'"
    near, about, remedy = close_matches(name, types), ask("about_layer", name), REGISTER_REMEDY.format(name)
    if about:
        return f"{about}; {remedy}"
    if near:
        return f"{near} If it is a type of its own, {remedy}"
    return f": the core lacks it, and so do the installed add-ons ({entry_points.installed('layers')}); {remedy}"
