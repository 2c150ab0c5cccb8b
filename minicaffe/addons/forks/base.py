"""Base of the layer types that only forks of Caffe have: a class declares the fields of its message, as proto/caffe.proto lacks it.

Forks use one message name for different fields and field numbers, so no .proto file can define all of them. A net as text has no
field numbers: its fields are kept in ``LayerParameter.fork_fields`` and read here. These types compute in NumPy on the host, also
in GPU mode unless they define `forward_gpu`.
"""

import math

import numpy as np

from minicaffe.addons.forks.messages import checked_message, parse_filler
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.python import Layer
from minicaffe.proto.fields import unknown_of
from minicaffe.proto.text import parse_fields
from minicaffe.proto.unknown import find_unknown, never


class ForkLayer(Layer):
    """A layer type of a fork: `values` has the checked fields of its `message` by name, `given` the names that the file gives.

    Fields in `ignored` are accepted and have no effect here, such as the choice of an engine.
    """

    message = ""
    fields_of_message = ()
    ignored = ()
    always_reshape = False
    overwrites_outputs = True

    def layer_setup(self, bottom, top):
        check_known(self.param)
        self.values, self.given = checked_message(self.fields, self.message, self.fields_of_message, self.ignored)
        super().layer_setup(bottom, top)

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

    def backward(self, top, propagate_down, bottom):
        """Write zeros: types that pass no gradient do not override it."""
        for blob, wanted in zip(bottom, propagate_down):
            if wanted:
                blob.fill_diff(0)

    def value_error(self, name, rule):
        """Return a ConfigError for the value of a field of the message, which must follow a rule such as "must divide 6"."""
        return ConfigError(f"{rule}, got {self.values[name]}", field=f"{self.message}.{name}")

    def add_filled(self, shape, name):
        """Append a parameter that the filler `name` of the message fills, and return it."""
        path = f"{self.message}.{name}"
        return self.add_param(shape, parse_filler(self.values[name], path), path)


def check_known(param):
    """Raise ConfigError for the first field of a LayerParameter that neither minicaffe nor a fork has: a misspelled message."""
    for message, path, name, value in unknown_of(param.DESCRIPTOR, parse_fields(param.fork_fields)):
        unknown = find_unknown(message, name, value)
        if name not in message.fields_by_name and unknown.may_skip is never:
            raise ConfigError(unknown.text, field=path)


def as_planes(array):
    """Return an array (N, C, ...) with the axes (N, C, all others)."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


def check_planes(blob, field="bottom[0]"):
    """Raise ShapeError unless a blob has the axes (num, channels, height, width), none of them empty."""
    if len(blob.shape) != 4 or 0 in blob.shape[1:]:
        raise ShapeError(f"must have 4 axes (num, channels, height, width), none of them empty, got {list(blob.shape)}",
                         field=field)
