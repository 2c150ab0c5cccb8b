"""From a NetParameter to the definitions of the layers that a net is made of: rules, fields of forks, splits.

Everything here works on messages and names, before any layer exists (Caffe net.cpp FilterNet, util/insert_splits.cpp).
"""

import logging
from collections import namedtuple

from minicaffe.errors import ConfigError, close_matches, located
from minicaffe.layer import layer_class
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import copy_of, unknown_of
from minicaffe.proto.text import parse_fields
from minicaffe.proto.unknown import find_unknown

log = logging.getLogger("minicaffe.net.build")

LayerDef = namedtuple("LayerDef", "param line path", defaults=(None, None))
LayerDef.__doc__ = "A LayerParameter, the line of the file where it is, None if there is none, and its path in the net's message."


def chosen_layers(param, positions=None, file=None, skip_unknown_fields=False):
    """Return the LayerDefs that a NetParameter's state includes; check that their layer types read all their fields.

    `positions` give the lines. With `skip_unknown_fields` fields of forks without which the net computes the same are left out with
    a warning. Raises ConfigError as `filter_layers`, for unknown layer types, all at once, and for a field, or a value of one, that
    neither the messages nor the layer's type have.
    """
    kept = filter_layers(param.layer, param.state, file, positions)
    unknown = {}    # type: the error about its first layer
    for layer in kept:
        try:
            with located(file=file, line=layer.line, layer=layer.param.name, layer_type=layer.param.type):
                _ = layer.param.type and layer_class(layer.param.type)      # without a type, a field of it may be misspelled
        except ConfigError as error:
            unknown.setdefault(error.layer_type, error)
    if unknown:
        first, *others = unknown.values()
        first.message += f"; also unknown: {', '.join(error.layer_type for error in others)}" if others else ""
        raise first
    for layer in kept:
        if layer.param.fork_fields:
            _check_fields(layer, param.state.phase, skip_unknown_fields, file, positions)
    return kept


def _check_fields(layer, phase, skip, file, positions):
    """Raise for the first field outside the messages (`fork_fields`) that a layer's type does not read and that is not skipped."""
    param = layer.param
    with located(file=file, line=layer.line, layer=param.name, layer_type=param.type):
        reads = param.type and layer_class(param.type).takes_unknown_fields     # paths of fields; True: all
    if reads is True:
        return
    training = (param.phase if param.HasField("phase") else phase) == caffe_pb2.TRAIN
    for message, path, name, value in unknown_of(param.DESCRIPTOR, parse_fields(param.fork_fields)):
        if reads and path in reads:
            continue
        unknown = find_unknown(message, name, value)
        line, column = positions.place_of(f"{layer.path}.{path}") if positions is not None else (None, None)
        error = ConfigError(unknown.text, field=path, file=file, line=line or layer.line, column=column, layer=param.name,
                            layer_type=param.type)
        if not unknown.may_skip(training, skip):
            raise error
        log.warning("%s; skipped", error)


def filter_layers(params, state, file=None, positions=None):
    """Return the LayerDefs of those LayerParameters whose include and exclude rules admit them under a NetState.

    Raises ConfigError if a layer has both include and exclude rules.
    """
    kept = []
    for i, param in enumerate(params):
        line = positions.line(f"layer[{i}]") if positions is not None else None
        if param.include and param.exclude:
            raise ConfigError("give include rules or exclude rules, not both", field="include", file=file, line=line,
                              layer=param.name, layer_type=param.type)
        if not left_out(param, state):
            kept.append(LayerDef(param, line, f"layer[{i}]"))
    return kept


def left_out(param, state):
    """Return why a layer is left out under a NetState: no include rule fits, or an exclude rule does; "" otherwise."""
    if param.include:
        reasons = [unmet_condition(state, rule, param.name) for rule in param.include]
        return " and ".join(reasons) if all(reasons) else ""
    rule = next((rule for rule in param.exclude if not unmet_condition(state, rule, param.name)), None)
    return "" if rule is None else f"its rule exclude {{ {' '.join(str(rule).split())} }} fits"


def unmet_condition(state, rule, layer_name):
    """Return the condition of a NetStateRule that a NetState does not meet, which is logged; "" if it meets all."""
    name = caffe_pb2.Phase.Name
    if rule.HasField("phase") and rule.phase != state.phase:
        why = f"phase {name(state.phase)} differs from {name(rule.phase)}"
    elif rule.HasField("min_level") and state.level < rule.min_level:
        why = f"level {state.level} is below min_level {rule.min_level}"
    elif rule.HasField("max_level") and state.level > rule.max_level:
        why = f"level {state.level} is above max_level {rule.max_level}"
    elif missing := [s for s in rule.stage if s not in state.stage]:
        why = f"stage {missing[0]} is not set"
    elif unwanted := [s for s in rule.not_stage if s in state.stage]:
        why = f"stage {unwanted[0]} is set"
    else:
        return ""
    log.info("The NetState does not meet a rule of layer %s: %s", layer_name, why)
    return why


def insert_splits(layers, file=None, net=None):
    """Give every top that several bottoms consume a Split layer right behind its producer.

    A non-zero explicit loss weight counts as one more consumer; it moves to the first output of the split. The LayerParameters
    given are not changed. Raises ConfigError for a bottom that no earlier layer produces; it names a layer of the NetParameter
    `net` that has it.
    """
    producer = {}   # blob name -> (layer index, top index) of its latest producer
    consumers = {}  # (layer index, top index) -> number of consumers
    source = {}     # (layer index, bottom index) -> the top it reads
    for i, (param, line, _) in enumerate(layers):
        for j, name in enumerate(param.bottom):
            if name not in producer:
                hint = _other_producer(name, param, net) or close_matches(name, producer)
                raise ConfigError(f"unknown bottom blob '{name}': no earlier layer has this top{hint}",
                                  field=f"bottom[{j}]", file=file, line=line, layer=param.name, layer_type=param.type)
            source[i, j] = producer[name]
            consumers[producer[name]] = consumers.get(producer[name], 0) + 1
        for j, name in enumerate(param.top):
            producer[name] = (i, j)
            if j < len(param.loss_weight) and param.loss_weight[j]:
                consumers[i, j] = consumers.get((i, j), 0) + 1

    splits = {}     # (layer index, top index) -> name of its split; the tops have _0, _1, ... behind it
    for (i, j), count in consumers.items():
        if count > 1:
            splits[i, j] = f"{layers[i].param.top[j]}_{layers[i].param.name}_{j}_split"
    result = []
    used = {}  # (layer index, top index) -> how many outputs of its split are taken
    for i, (given, line, _) in enumerate(layers):
        param = copy_of(given)
        for j in range(len(param.bottom)):
            top = source[i, j]
            if top in splits:
                param.bottom[j] = f"{splits[top]}_{used.get(top, 0)}"
                used[top] = used.get(top, 0) + 1
        result.append(LayerDef(param, line))
        for j, name in enumerate(given.top):
            if (i, j) not in splits:
                continue
            count = consumers[i, j]
            split = caffe_pb2.LayerParameter(name=splits[i, j], type="Split", bottom=[name])
            split.top.extend(f"{split.name}_{k}" for k in range(count))
            if j < len(given.loss_weight) and given.loss_weight[j]:
                split.loss_weight.extend([given.loss_weight[j]] + [0] * (count - 1))
                # Only this top's weight moves away; Caffe also loses those of the layer's other tops, and a loss layer
                # would add its default weight again, so that the total counted twice.
                param.loss_weight[j] = 0
                used[i, j] = 1
            result.append(LayerDef(split, line))
    return result


def _other_producer(name, reader, net):
    """Return why the layer of a NetParameter that has the top `name` does not make it for the layer `reader`; "" without one."""
    for layer in net.layer if net is not None else ():
        if name in layer.top and layer != reader:
            reason = left_out(layer, net.state)
            why = f"is left out: {reason}" if reason else "comes later; move it before this one"
            return f"; layer '{layer.name}' has it, but {why}"
    return ""


def with_batch_size(layer):
    """Return name and value of the fields of a layer that have a `batch_size`, such as `data_param`, for ``--batch-size``."""
    return [(field.name, value) for field, value in layer.ListFields()
            if field.name.endswith("_param") and hasattr(value, "DESCRIPTOR") and "batch_size" in value.DESCRIPTOR.fields_by_name]
