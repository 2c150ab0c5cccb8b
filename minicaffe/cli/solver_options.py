"""An option of ``minicaffe train`` for every field of SolverParameter, made from the message itself.

A field ``base_lr`` is the option ``--base-lr``. Repeated fields are repeatable options that replace the file's list, enums
go by name, nets and states are given as prototxt text. Only ``snapshot`` has another name, --snapshot-interval: Caffe's
tool calls the state to resume --snapshot.
"""

import click
from google.protobuf.descriptor import FieldDescriptor

from minicaffe.cli import options
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2, text
from minicaffe.proto.fields import is_repeated

FIELDS = caffe_pb2.SolverParameter.DESCRIPTOR.fields
OTHER_NAMES = {"snapshot": ("--snapshot-interval",), "random_seed": ("--random-seed", "--seed")}
HELP = {
    "train_net": "Prototxt of the train net alone.",
    "test_net": "Prototxt of a test net; repeatable.",
    "test_iter": "Batches in a test; one for each test net.",
    "test_interval": "Test every N iterations.",
    "base_lr": "Learning rate at the start.",
    "display": "Report every N iterations; 0: never.",
    "max_iter": "Iterations in all.",
    "lr_policy": "fixed, step, exp, inv, multistep, plateau, poly or sigmoid.",
    "gamma": "Constant of the policy.",
    "power": "Exponent of the policies inv and poly.",
    "momentum": "Momentum; beta1 of Adam.",
    "weight_decay": "Strength of the regularization.",
    "stepsize": "Iterations between steps; middle of sigmoid.",
    "snapshot": "Snapshot every N iterations; 0: never.",
    "snapshot_prefix": "Begin of the names of snapshots; a folder: inside it.",
    "snapshot_diff": "Keep gradients in snapshots.",
    "solver_mode": "CPU or GPU; --device and --gpu take precedence.",
    "device_id": "GPU to use.",
    "test_compute_loss": "Report the loss of the whole net in tests.",
    "random_seed": "Seed of all random numbers; -1: a new one each time.",
    "train_net_param": "Text of the train net.",
    "test_net_param": "Text of a test net; repeatable.",
    "debug_info": "Log means of all blobs at each display.",
    "net": "Prototxt of the net to train and test.",
    "net_param": "Text of the net to train and test.",
    "train_state": "Text of the train net's state.",
    "test_state": "Text of a test net's state; repeatable.",
    "snapshot_after_train": "Snapshot at the end.",
    "regularization_type": "L2 or L1.",
    "solver_type": "Old form of --type.",
    "delta": "Stabiliser of AdaGrad, RMSProp, AdaDelta and Adam.",
    "test_initialization": "Test before the first iteration.",
    "average_loss": "Iterations over which the shown loss is averaged.",
    "stepvalue": "Iteration of a step of multistep; repeatable.",
    "clip_gradients": "Largest L2 norm of the gradient; negative: no limit.",
    "iter_size": "Batches for one update.",
    "snapshot_format": "BINARYPROTO or HDF5.",
    "rms_decay": "Decay of RMSProp.",
    "momentum2": "beta2 of Adam.",
    "type": "SGD, Nesterov, AdaGrad, RMSProp, AdaDelta or Adam.",
    "layer_wise_reduce": "Caffe's, without effect here; see --overlap.",
    "eval_type": "Of the SSD fork: detection, for tests that report mean average precision.",
    "ap_version": "Of the SSD fork: Integral, MaxIntegral or 11point.",
    "show_per_class_result": "Of the SSD fork: with detection, the precision of each class too.",
    "plateau_winsize": "Of the SSD fork: iterations without a lower loss after which policy plateau lowers the rate; repeatable.",
    "weights": "Weights to start from, several with commas; repeatable.",
}
METAVARS = {
    FieldDescriptor.CPPTYPE_STRING: "TEXT",
    FieldDescriptor.CPPTYPE_BOOL: "true|false",
    FieldDescriptor.CPPTYPE_FLOAT: "NUMBER",
    FieldDescriptor.CPPTYPE_MESSAGE: "PROTOTXT",
}


class FieldType(options.Text):
    """Turns an option's text into a value of the option's field by the rules of a prototxt."""

    def convert(self, value, param, ctx):
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
        super().__init__([*names, f"field_{field.name}"], type=kind, metavar=kind.name, multiple=is_repeated(field),
                         help=HELP.get(field.name))


def given_fields(params):
    """Return the values of solver fields that the command line of ``train`` has, by field name; and its other parameters."""
    fields = {name.removeprefix("field_"): value for name, value in params.items()
              if name.startswith("field_") and value not in (None, ())}
    return fields, {name: value for name, value in params.items() if not name.startswith("field_")}


def set_fields(param, values):
    """Set the given fields of the SolverParameter of a file; a list replaces that of the file."""
    for name, value in values.items():
        if name == "solver_type":
            param.ClearField("type")
        param.ClearField(name)
        if isinstance(value, tuple):
            getattr(param, name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(param, name).CopyFrom(value)
        else:
            setattr(param, name, value)
