"""Fields and values of forks of Caffe that the core does not read: the functions of minicaffe.proto.unknown for them."""

import logging

from minicaffe.addons.forks.crop_offset import crop_offset, makers_of
from minicaffe.addons.forks.formulas import is_form, rewrite
from minicaffe.addons.forks.table import about_layer, find_field, find_value, fork_of, name_of
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2, unknown
from minicaffe.proto.fields import Fields, pop_field
from minicaffe.proto.text import parse_fields
from minicaffe.proto.upgrade import set_fork_fields

__all__ = ["about_layer", "find_field", "find_value", "fork_of", "is_old", "name_of", "upgrade"]


def is_old(layer):
    """Return whether `upgrade` changes a layer: ceil_mode of Pooling, or a formula of other layers."""
    return _ceil_mode(layer) is not None or layer.type not in unknown.types_of_program and is_form(layer)


def upgrade(state, words):
    """Give layers that were CROP in V1 files their offsets, write ceil_mode as round_mode, and formulas as the layers they are."""
    _set_crop_offsets(state, [index for index, word in words.items() if word == "CROP"])
    _write_round_modes(state)
    _write_formulas(state)


def _set_crop_offsets(state, indices):
    layers, makers = state.net.layer, makers_of(state.net.layer) if indices else []
    for index in indices:
        try:
            offset = crop_offset(layers, makers, index)
        except ConfigError as error:
            raise state.located(error.at(layer=layers[index].name, layer_type="Crop"), state.paths[index])
        layers[index].crop_param.axis = 2
        layers[index].crop_param.offset[:] = offset
        state.note(logging.INFO, f"The layers between the bottoms of Crop layer '{layers[index].name}' give it offset {offset}")


def _write_round_modes(state):
    """Turn ceil_mode, a field of Pooling in some forks, into round_mode; if both are given, round_mode is used."""
    for layer in state.net.layer:
        ceil = _ceil_mode(layer)
        if ceil is None:
            continue
        fields, param = parse_fields(layer.fork_fields), layer.pooling_param
        pop_field(fields.pooling_param, "ceil_mode")
        if not len(fields.pooling_param):
            pop_field(fields, "pooling_param")
        set_fork_fields(layer, fields)
        mode = caffe_pb2.PoolingParameter.CEIL if ceil else caffe_pb2.PoolingParameter.FLOOR
        if not param.HasField("round_mode"):
            param.round_mode = mode
        elif param.round_mode != mode:
            state.note(logging.WARNING, f"Ignored ceil_mode of layer '{layer.name}', whose round_mode says otherwise")


def _ceil_mode(layer):
    """Return the ``ceil_mode`` of a Pooling layer as a bool; None if it is not given or not a bool."""
    if layer.type != "Pooling" or "ceil_mode" not in layer.fork_fields:
        return None
    for param in parse_fields(layer.fork_fields).all("pooling_param"):
        for value in param.all("ceil_mode") if isinstance(param, Fields) else ():
            return bool(value) if value in (0, 1) else None
    return None


def _write_formulas(state):
    layers = state.net.layer
    taken = {name for layer in layers for name in (layer.name, *layer.bottom, *layer.top)}
    for index in reversed([index for index, layer in enumerate(layers) if is_old(layer)]):
        name, kind = layers[index].name, layers[index].type
        try:
            count = rewrite(layers, index, taken)
        except ConfigError as error:
            raise state.located(error.at(layer=name, layer_type=kind), state.paths[index])
        state.paths[index:index + 1] = state.paths[index:index + 1] * count
        made = ", ".join(f"{part.name} ({part.type})" for part in layers[index:index + count])
        state.note(logging.INFO, f"Wrote {kind} layer '{name}' of a fork as {made}")
