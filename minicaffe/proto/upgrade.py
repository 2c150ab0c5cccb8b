"""Read nets, solvers and weights of every age of Caffe (Caffe upgrade_proto.cpp).

Caffe had three ways to write a layer: V0 (2013, ``layers { layer { type: "conv" } }``), V1 (2014, ``layers { type:
CONVOLUTION }``) and today's ``layer { type: "Convolution" }``. All are converted to today's form, and so are
old forms of inputs, BatchNorm and solver types. Where Caffe ends the process, `ConfigError` is raised, with the line if a
`Positions` is given. Unlike Caffe, nets inside a solver file are upgraded too, and an input without a shape is an error.
"""

import logging
import os
from collections import namedtuple
from numbers import Integral

from minicaffe.errors import ConfigError, check_type, names_of, shown
from minicaffe.proto import caffe_pb2, unknown
from minicaffe.proto.binary import read_net
from minicaffe.proto.fields import copy_of, lines_of, pop_field, set_field
from minicaffe.proto.text import parse_fields, read_text

logger = logging.getLogger(__name__)

# V1 types whose name today is not the word with capitals.
V1_TYPES = {name.upper(): name for name in ("AbsVal", "ArgMax", "BNLL", "LRN", "MVN", "ReLU", "TanH")}
V1_TYPES |= {"NONE": "", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "SOFTMAX_LOSS": "SoftmaxWithLoss"}
V1_DATA = {getattr(caffe_pb2.V1LayerParameter, name): f"{name.lower()}_param" for name in ("DATA", "IMAGE_DATA", "WINDOW_DATA")}
TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")
# V1's repeated fields of one value for each parameter, and today's field of ParamSpec.
V1_PARAM = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}
SOLVER_TYPES = {name.upper(): name for name in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")}


class Definition(namedtuple("Definition", "param positions")):
    """A NetParameter or SolverParameter in today's form, and its Positions, None if it was not read from text."""

    __slots__ = ()

    @property
    def file(self):
        """The path for errors; None if it was not read from text."""
        return self.positions and self.positions.filename


def load(path, skip_unknown_fields=False, content=None, kinds=(caffe_pb2.NetParameter, caffe_pb2.SolverParameter)):
    """Read the prototxt of a net or a solver, of any age; return its Definition.

    Fields of layers that the messages lack are kept in ``LayerParameter.fork_fields``; `Net` accepts or refuses them. Parameters
    are those of `minicaffe.proto.text.read_text`; errors are those of it, of `upgrade_net` and `upgrade_solver`. In a solver
    `solver_type` becomes `type`, nets inside are upgraded, and `snapshot_prefix` is completed by `complete_prefix`.
    """
    param, positions = read_text(path, kinds, keep_layer_fields=True, skip_unknown_fields=skip_unknown_fields, content=content)
    if isinstance(param, caffe_pb2.NetParameter):
        return Definition(upgrade_net(param, positions)[0], positions)
    param = upgrade_solver(param, positions)
    complete_prefix(param, path)
    return Definition(param, positions)


def read_net_file(path, skip_unknown_fields=False, content=None):
    """Read a net's prototxt, of any age, and return its Definition, as `load`."""
    return load(path, skip_unknown_fields, content, caffe_pb2.NetParameter)


def read_solver_file(path, skip_unknown_fields=False):
    """Read a solver's prototxt, of any age, and return its Definition, as `load`."""
    return load(path, skip_unknown_fields, kinds=caffe_pb2.SolverParameter)


def load_net(net, phase, level=None, stages=(), skip_unknown_fields=False, content=None):
    """Return the Definition of a net, the path of a prototxt of any age or a NetParameter, which is copied, for a state.

    `level` None is the message's own, and 0 for a file; `stages` are appended to those of the net. `skip_unknown_fields` is for
    fields of the net itself; `Net` checks those of its layers. With `content`, the bytes of the file, `net` is its name in errors.
    Raises errors as `load`, and for an invalid phase, level or stages.
    """
    if not isinstance(phase, Integral) or isinstance(phase, bool) or phase not in (caffe_pb2.TRAIN, caffe_pb2.TEST):
        raise ConfigError(f"must be TRAIN (0) or TEST (1), got {shown(phase)}", field="phase")
    stages = names_of(stages, "stages", field="stages")
    if isinstance(net, caffe_pb2.NetParameter):
        param = copy_of(net)
        definition = Definition(upgrade_net(param)[0], None)
    else:
        check_type(net, (str, os.PathLike), "a net", "made from a NetParameter, a prototxt or a path to one")
        level = 0 if level is None else level
        definition = read_net_file(net, skip_unknown_fields, content)
    state = definition.param.state
    state.phase = phase
    if level is not None:
        if not -1 << 31 <= check_type(level, Integral, "level", "a whole number") < 1 << 31:
            raise ConfigError(f"must be from -2^31 to 2^31 - 1, got {shown(level)}", field="level")
        state.level = level
    state.stage.extend(stages)
    return definition


def complete_prefix(solver, path):
    """Set `snapshot_prefix` of a solver read from `path` as Caffe does: without one the path less its extension, in a folder the
    folder and that file's name."""
    stem = os.path.splitext(os.fspath(path))[0]
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = stem
    elif os.path.isdir(solver.snapshot_prefix):
        solver.snapshot_prefix = os.path.join(solver.snapshot_prefix, os.path.basename(stem))


def read_weights(path):
    """Read a .caffemodel of any age and return its list of `LayerBlobs`, with today's names for the types.

    Raises FileError or DataError as `minicaffe.proto.binary.read_net`.
    """
    net, layers = read_net(path)
    for blobs, layer in zip(layers[len(net.layer):], net.layers, strict=True):
        if layer.HasField("layer"):
            from minicaffe.proto.v0 import TYPES
            blobs.type = TYPES.get(blobs.type, "NONE")
        blobs.type = _type_today(blobs.type)
    return layers


def foreign_layers(net):
    """Return the layers of today's form in a net that the core alone does not read: add-ons may upgrade them."""
    return [layer for layer in net.layer if layer.fork_fields or layer.type.lower() not in unknown.core_types]


def upgrade_net(net, positions=None, prefix=""):
    """Bring a net into today's form; `net` is not changed, and is itself returned if nothing in it is old, as in every result.

    Return the net, and (level, text) for each change and each part of the old net without a counterpart; all are logged.
    `positions` are those of the file of `net`; afterwards they accept paths of the upgraded net. `prefix` is the path of the net in
    that file, with a dot at its end: ``net_param.`` inside a solver. Raises ConfigError if old and new layers are mixed, a type is
    unknown, or an old net cannot be understood.
    """
    check_type(net, caffe_pb2.NetParameter, "net", "a NetParameter")
    if not (net.layers or net.input or net.input_dim or net.input_shape
            or any(layer.type == "BatchNorm" and _learns_statistics(layer) for layer in net.layer)
            or any(unknown.ask("is_old", layer) for layer in foreign_layers(net))):
        return net, []
    upgrade = _Upgrade(net, positions, prefix)
    upgrade.run()
    if changes := [text for level, text in upgrade.notes if level == logging.INFO]:     # one line, as several files may be read
        name = positions.filename if positions is not None else net.name
        logger.info("%s%s", f"{name}: " if name else "", "; ".join(changes))
    return upgrade.net, upgrade.notes


def upgrade_solver(solver, positions=None):
    """Return a copy of a solver with `type` in place of `solver_type`, and with the nets inside it upgraded.

    Raises ConfigError if `type` and `solver_type` are both given, or as `upgrade_net`.
    """
    check_type(solver, caffe_pb2.SolverParameter, "solver", "a SolverParameter")
    upgraded = copy_of(solver)
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            error = ConfigError("is given together with type; remove solver_type", field="solver_type")
            raise error if positions is None else error.at(file=positions.filename, line=positions.line("solver_type"))
        upgraded.type = SOLVER_TYPES[caffe_pb2.SolverParameter.SolverType.Name(solver.solver_type)]
        upgraded.ClearField("solver_type")
        logger.info("Upgraded solver_type to type: %s", upgraded.type)
    for field in ("net_param", "train_net_param"):
        if upgraded.HasField(field):
            net = getattr(upgraded, field)
            net.CopyFrom(upgrade_net(net, positions, f"{field}.")[0])
    for index, net in enumerate(upgraded.test_net_param):
        net.CopyFrom(upgrade_net(net, positions, f"test_net_param[{index}].")[0])
    return upgraded


class _Upgrade:
    """One upgrade: the net in its present state, and in `paths` the path of each of its layers in the file.

    Add-ons get it as `state` (proto/unknown.py): they change `net.layer` and `paths` alike, and use `note` and `located`.
    """

    def __init__(self, net, positions, prefix):
        self.net = copy_of(net)
        self.positions = positions
        self.prefix = prefix
        field = "layers" if net.layers else "layer"
        self.paths = [f"{prefix}{field}[{index}]" for index in range(len(getattr(net, field)))]
        self.notes = []     # (level, text)

    def run(self):
        """Apply the steps in Caffe's order; a step without an old part does nothing."""
        net = self.net
        if net.layers and net.layer:
            old = net.layers[0]
            kind = _fork_type(old) or caffe_pb2.V1LayerParameter.LayerType.Name(old.type)
            raise self.error(f"layers (the form of 2014, here '{old.name}') and layer (today's, here '{net.layer[0].name}') are "
                             "both given, and Caffe reads one of them in a file; write each layers { ... } as layer { ... }, the "
                             f"type in quotes by today's name: {kind} is \"{_type_today(kind)}\"; or "
                             "put them in a file of their own, which 'minicaffe upgrade net_text IN OUT' rewrites",
                             "layers", self.paths[0])
        if any(entry.HasField("layer") for entry in net.layers):      # of version 0
            from minicaffe.proto.v0 import upgrade_v0
            self.net, kept = upgrade_v0(net, self.note, lambda message, index: self.error(message, None, self.paths[index]))
            self.paths = [self.paths[index] for index in kept]
            self.note(logging.INFO, "Upgraded a net of version 0")
        self.data_to_transform()
        words = {}
        if self.net.layers:
            words = {index: word for index, layer in enumerate(self.net.layers) if (word := _fork_type(layer))}
            self.layers_from_v1()
        if words or foreign_layers(self.net):
            unknown.ask("upgrade", self, words)
        if self.net.input or self.net.input_dim or self.net.input_shape:
            self.input_layer()
        for layer in self.net.layer:
            if layer.type == "BatchNorm" and _learns_statistics(layer):
                for param in layer.param:
                    param.lr_mult = param.decay_mult = 0
                self.note(logging.INFO, f"Set lr_mult and decay_mult of BatchNorm layer '{layer.name}' to 0")
        if self.positions is not None:
            for index, path in enumerate(self.paths):
                self.positions.moved[f"{self.prefix}layer[{index}]"] = path

    def note(self, level, text):
        """Keep a note, and log it, except for a change that loses nothing (level INFO): `upgrade_net` logs these."""
        self.notes.append((level, text))
        if level > logging.INFO:
            logger.log(level, "%s", text)

    def error(self, message, field, path):
        """Return a ConfigError for what is at `path` in the file."""
        return self.located(ConfigError(message, field=field), path)

    def located(self, error, path):
        """Return `error` with the file and line of what is at `path` in the file; unchanged if the net was not read from text."""
        return error if self.positions is None else error.at(file=self.positions.filename, line=self.positions.line(path))

    def data_to_transform(self):
        """Move scale, mean_file, crop_size and mirror of V1's data layers to transform_param."""
        moved = []
        for layer in self.net.layers:
            source = getattr(layer, V1_DATA[layer.type]) if layer.type in V1_DATA else None
            for field in TRANSFORM_FIELDS:
                if source is not None and source.HasField(field):
                    setattr(layer.transform_param, field, getattr(source, field))
                    source.ClearField(field)
                    moved.append(field)
        if moved:
            self.note(logging.INFO, f"Moved {', '.join(sorted(set(moved)))} of data layers to transform_param")

    def layers_from_v1(self):
        """Turn each V1 entry of `layers` into one of `layer`, in the same order, which `self.paths` needs.

        A type that the enum of V1 lacks is in `fork_fields`.
        """
        for old in self.net.layers:
            layer = self.net.layer.add()
            for field, value in old.ListFields():
                if field.name == "type":
                    layer.type = _type_today(caffe_pb2.V1LayerParameter.LayerType.Name(value))
                elif field.name == "fork_fields":
                    fields = parse_fields(value)
                    for word in pop_field(fields, "type"):
                        layer.type = _type_today(word)
                    set_fork_fields(layer, fields)
                elif field.name in V1_PARAM:
                    for index, item in enumerate(value):
                        while len(layer.param) <= index:
                            layer.param.add()
                        setattr(layer.param[index], V1_PARAM[field.name], item)
                elif field.name == "layer":
                    self.note(logging.ERROR, f"Ignored a layer of version 0 inside layer '{old.name}'")
                else:
                    set_field(layer, field.name, value)
        self.net.ClearField("layers")
        self.note(logging.INFO, "Upgraded a net of version 1")

    def input_layer(self):
        """Turn the net's own input fields into an Input layer before all others."""
        net = self.net
        if net.input and (net.input_shape or net.input_dim):
            if net.input_shape:
                field, each, remedy, shapes = "input_shape", 1, "give each its own", net.input_shape
            else:
                field, each, remedy = "input_dim", 4, "give 4 for each"
                dims = net.input_dim[:4 * len(net.input)]
                shapes = [caffe_pb2.BlobShape(dim=dims[at:at + 4]) for at in range(0, len(dims) - 3, 4)]
            used, count = each * len(net.input), f"{len(getattr(net, field))} {field} for {len(net.input)} inputs"
            if len(getattr(net, field)) > used:
                self.note(logging.WARNING, f"{count}: those from {field}[{used}] on are not used")
            if len(shapes) < len(net.input):
                path = f"{self.prefix}input[{len(shapes)}]"
                raise self.error(f"input '{net.input[len(shapes)]}' has no shape: {count}; {remedy}", path, path)
            layer = caffe_pb2.LayerParameter(name="input", type="Input", top=net.input)
            layer.input_param.shape.extend(shapes[:len(net.input)])
            net.layer.insert(0, layer)
            self.paths.insert(0, f"{self.prefix}input[0]")
            self.note(logging.INFO, "Turned input fields into an Input layer")
        for field in ("input", "input_dim", "input_shape"):
            net.ClearField(field)


def _learns_statistics(layer):
    """Return whether a BatchNorm layer has the three `param` entries of old files, one with lr_mult or decay_mult other than 0."""
    return len(layer.param) == 3 and any(param.lr_mult != 0 or param.decay_mult != 0 for param in layer.param)


def _fork_type(layer):
    """Return the type of a V1 layer as written in the file if the enum lacks it; else None."""
    return parse_fields(layer.fork_fields).get("type") if "type" in layer.fork_fields else None


def set_fork_fields(layer, fields):
    """Store `fields` as those that the messages of a layer lack."""
    layer.ClearField("fork_fields")
    if fields:
        layer.fork_fields = "\n".join(lines_of(fields))


def _type_today(word):
    """Return today's name of a layer type that V1 files, also those of forks, write as `word`."""
    return V1_TYPES[word] if word in V1_TYPES else unknown.name_of(word)
