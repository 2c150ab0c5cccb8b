"""Layer types and fields of forks that are formulas of other layers: `rewrite` puts those in their place when a net is read.

A formula is the text of layers. Its blobs x, m, n are the bottoms of the fork's layer, y its top; others get names of their own.
The first layer keeps the name, so that weights find it; a layer of the same type keeps the fields. A type that the user registers
leaves FORMS (minicaffe.register_layer). Types in RENAMED get another type's name if they have a message.
"""

from minicaffe.addons.forks.messages import Field, checked_message, parse_filler
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, copy_of, lines_of, pop_field, unused_name
from minicaffe.proto.text import parse_fields, parse_text


def layer(kind, bottoms, top, more=""):
    """Return the text of a layer; `bottoms` are names with spaces between them, `more` the text of further fields."""
    below = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f'layer {{ type: "{kind}" {below} top: "{top}" {more} }}'


PRODUCT, MEAN = "eltwise_param { operation: PROD }", "pooling_param { pool: AVE }"
AXPY = (layer("Reshape", "x", "a", "reshape_param { shape { dim: 0 dim: 0 } }")
        + layer("Scale", "m a", "b", "scale_param { axis: 0 }") + layer("Eltwise", "b n", "y"))
MISH = layer("BNLL", "x", "a") + layer("TanH", "a", "b") + layer("Eltwise", "x b", "y", PRODUCT)
HSWISH = (layer("Power", "x", "a", "power_param { scale: 0.16666667 shift: 0.5 }")
          + layer("Clip", "a", "b", "clip_param { min: 0 max: 1 }") + layer("Eltwise", "x b", "y", PRODUCT))
# The mean with padding by that of ones, which is the part of each window that lies in the image.
AVE_EXC_PAD = (layer("Pooling", "x", "c", MEAN) + layer("Power", "x", "ones", "power_param { scale: 0 shift: 1 }")
               + layer("Pooling", "ones", "part", MEAN) + layer("Power", "part", "b", "power_param { power: -1 }")
               + layer("Eltwise", "c b", "y", PRODUCT))


def difference(first, second, top):
    """Return the formula of the difference of two blobs."""
    return layer("Eltwise", f"{first} {second}", top, "eltwise_param { coeff: 1 coeff: -1 }")


def reduced(operation, axis, bottom, top):
    """Return the formula of a Reduction over the axes from `axis` on; of each value if there is one axis less."""
    return (layer("Reshape", bottom, f"{top}s", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }")
            + layer("Reduction", f"{top}s", top, f"reduction_param {{ operation: {operation} axis: {axis} }}"))


def mean_loss(bottom, coeff):
    """Return the formula of a loss: the mean over the records, times `coeff`."""
    return layer("Reduction", bottom, "y", f"loss_weight: 1 reduction_param {{ operation: MEAN coeff: {coeff} }}")


L1_LOSS = difference("x", "m", "a") + reduced("ASUM", 1, "a", "b") + mean_loss("b", 1)


def _triplet_loss(param, given):
    """The squared distances from the positive and from the negative, and the hinge of their difference."""
    return (difference("x", "m", "a") + reduced("SUMSQ", 1, "a", "b") + difference("x", "n", "c") + reduced("SUMSQ", 1, "c", "d")
            + difference("b", "d", "e") + layer("Power", "e", "e", f"power_param {{ shift: {given.get('margin', 1.0)} }}")
            + layer("ReLU", "e", "e") + mean_loss("e", 0.5))


def _spatial_dropout(param, given):
    """Dropout of ones, one for each plane, which are multiplied with the planes."""
    ratio = given.get("dropout_ratio", param.dropout_param.dropout_ratio)
    if "dropout_ratio" in given and not ratio <= 1:   # 1 is refused by Dropout in TRAIN
        raise ConfigError(f"must be at least 0 and less than 1, got {ratio:g}", field="spatial_dropout_param.dropout_ratio")
    return (reduced("SUM", 2, "x", "a") + layer("Power", "a", "b", "power_param { scale: 0 shift: 1 } propagate_down: false")
            + layer("Dropout", "b", "b", f"dropout_param {{ dropout_ratio: {ratio} }}")
            + layer("Scale", "x b", "y", "scale_param { axis: 0 }"))


def _batch_norm(param, given):
    """As in NVCaffe the phase alone chooses the statistics, eps is at least 1e-5, and the file sets no learning rate."""
    if given == {"scale_bias": False}:
        return layer("BatchNorm", "x", "y")
    del param.param[3:]
    for spec in param.param:
        spec.lr_mult = spec.decay_mult = 0
    param.batch_norm_param.ClearField("use_global_stats")
    param.batch_norm_param.eps = max(param.batch_norm_param.eps, 1e-5)
    fillers = " ".join(f"{name} {{ {parse_filler(given[theirs], f'batch_norm_param.{theirs}')} }}"
                       for theirs, name in (("scale_filler", "filler"), ("bias_filler", "bias_filler")) if theirs in given)
    return layer("BatchNorm", "x", "y") + layer("Scale", "y", "y", f"scale_param {{ bias_term: true {fillers} }}")


def _dilated(param, given):
    """DeepLab's first version calls dilation hole."""
    sizes = " ".join(f"dilation: {given.get(f'hole_{axis}', given.get('hole', 1))}" for axis in "hw")
    param.convolution_param.ClearField("dilation")
    return layer("Convolution", "x", "y", f"convolution_param {{ {sizes} }}")


def _negative_relu(slope):
    """Return the formula of min(x, 0) + slope max(x, 0): ReLU of -x, negated. ALISCIFP's MinReLU with cuDNN computes ReLU."""
    negate, fields = "power_param { scale: -1 }", f"relu_param {{ negative_slope: {slope} }}"
    return layer("Power", "x", "a", negate) + layer("ReLU", "a", "b", fields) + layer("Power", "b", "y", negate)


def _flip(param, given):
    axes = [2] * given.get("flip_height", False) + [3] * given.get("flip_width", True)
    return renamed("Reverse", "reverse_param", "axis", axes) if axes else layer("Power", "x", "y")


def _relu(param, given):
    slope, bound = param.relu_param.negative_slope, min(6 if given.get("relu6") else 2**31, given.get("maximum") or 2**31)
    if bound == 2**31:
        return layer("ReLU", "x", "y")
    if bound != 6 and (slope or not bound >= 0):
        raise ConfigError("must be at least 0, and needs negative_slope 0 if it is less than 6", field="relu_param.maximum")
    if bound == 6:
        return renamed("ReLU6", "relu6_param", "negative_slope", slope)
    return renamed("ReLUX", "relux_param", "maximal_value", bound)


def _transpose(param, given):
    dims = given.get("dim", [])
    if not dims or sorted(dims) != list(range(len(dims))):
        raise ConfigError(f"must name each axis of the bottom once, got {dims}", field="transpose_param.dim")
    # Permute takes fewer axes than the bottom has; this Reshape copies each size, and raises unless there are as many.
    return (layer("Reshape", "x", "a", f"reshape_param {{ shape {{ dim: {[0] * len(dims)} }} }}")
            + layer("Permute", "a", "y", f"permute_param {{ order: {dims} }}"))


def _unpooling(param, given):
    """The mask gives each pixel, so that kernel and stride, which DeconvNet's files have, are not needed."""
    size = [given.get(f"output_{axis}", given.get(f"unpool_{axis}", given.get("unpool_size"))) for axis in "hw"]
    if given.get("unpool", "MAX") != "MAX" or None in size and "scale" not in given:
        raise ConfigError("needs unpool: MAX, and unpool_size, output_h and output_w, or scale", field="unpooling_param")
    fields = f"scale: {given['scale']}" if None in size else f"upsample_h: {size[0]} upsample_w: {size[1]}"
    return layer("Upsample", "x m", "y", f"upsample_param {{ {fields} }}")


def renamed(kind, message, field, value):
    """Return the formula of a layer of another type with one field."""
    return layer(kind, "x", "y", f"{message} {{ {field}: {value} }}")


# Type: the message of the fork, its fields that are rewritten, and the formula or what returns it from those that are given.
FORMS = {
    "Axpy": ("", (), AXPY),
    "BReLU": ("brelu_param", (Field("minval", float), Field("maxval", float)), lambda param, given: layer(
        "Clip", "x", "y", f"clip_param {{ min: {given['minval']} max: {given['maxval']} }}")),
    "BatchNorm": ("batch_norm_param", (Field("scale_bias", False), Field("scale_filler", Fields()), Field("bias_filler", Fields())),
                  _batch_norm),
    "Convolution": ("convolution_param", [Field(f"hole{axis}", 1, "", 1) for axis in ("", "_h", "_w")], _dilated),
    "Flip": ("flip_param", (Field("flip_width", True), Field("flip_height", False)), _flip),
    "HSwish": ("", (), HSWISH),
    "L1Loss": ("l1_loss_param", (), L1_LOSS),
    "MinReLU": ("minrelu_param", (Field("positive_slope", 0.0), Field("engine", "")),
                lambda param, own: _negative_relu(own.get("positive_slope", 0.0))),
    "Mish": ("mish_param", (Field("engine", ""),), MISH),
    "NegReLU": ("", (), lambda param, own: _negative_relu(param.relu_param.negative_slope)),
    "Pooling": ("pooling_param", (Field("pool", ""),), AVE_EXC_PAD),
    "ReLU": ("relu_param", (Field("relu6", False), Field("maximum", 0.0)), _relu),
    "ReverseAxis": ("reverse_axis_param", (Field("axis", 0, "", 0),),
                    lambda param, given: renamed("Reverse", "reverse_param", "axis", given.get("axis", 0))),
    "SpatialDropout": ("spatial_dropout_param", (Field("dropout_ratio", 0.5, "", 0),), _spatial_dropout),
    "Transpose": ("transpose_param", (Field("dim", [int]),), _transpose),
    "TripletLoss": ("triplet_loss_param", (Field("margin", 1.0, "", 0),), _triplet_loss),
    "UpsampleDarknet": ("upsample_darknet_param", (Field("stride", 1, "", 1),),
                        lambda param, given: renamed("Upsample", "upsample_param", "scale", given.get("stride", 1))),
    "Unpooling": ("unpooling_param", (Field("unpool", ""), *(Field(name, 1, "", 1) for name in (
        *("unpool_size", "unpool_h", "unpool_w", "output_h", "output_w", "scale"),
        *("kernel_size", "kernel_h", "kernel_w", "stride", "stride_h", "stride_w"))), Field("pad", 0)), _unpooling),
}
RENAMED = {"Normalize": ("normalize_param", "ChannelNormalize")}    # type: the message of another fork, and the type for it here
OF_CAFFE = "BatchNorm", "Convolution", "Pooling", "ReLU"    # without a field of the fork they are as in Caffe
LOSSES = "L1Loss", "TripletLoss"    # their top may be left out
KEPT = "include", "exclude", "phase"    # in each layer of the formula; the first has param, too, and the last loss_weight


def own_fields(layer):
    """Return the fields of the fork's message of a type in FORMS."""
    message_fields = parse_fields(layer.fork_fields).get(FORMS[layer.type][0]) if layer.fork_fields else None
    return message_fields if isinstance(message_fields, Fields) else Fields()


def is_form(layer):
    """Return whether `rewrite` changes a layer."""
    if layer.type in RENAMED:
        return RENAMED[layer.type][0] in parse_fields(layer.fork_fields)
    if layer.type not in FORMS or not layer.bottom or not layer.top and layer.type not in LOSSES:
        return False
    message_fields = own_fields(layer)
    return layer.type not in OF_CAFFE or (message_fields.all("pool") == ["AVE_EXC_PAD"] if layer.type == "Pooling" else
                                          any(field.name in message_fields for field in FORMS[layer.type][1]))


def rewrite(layers, index, taken):
    """Put the layers of a formula in the place of a layer for which `is_form` is true; return how many they are.

    The layers get names that are not in the set `taken`, which holds those of the file's layers and blobs; so do the blobs, whose
    names are added to it. Raises ConfigError for a field that the formula has no place for, or a wrong value.
    """
    layer = layers[index]
    if layer.type in RENAMED:
        layer.type = RENAMED[layer.type][1]
        return 1
    message, known, formula = FORMS[layer.type]
    fields, message_fields = parse_fields(layer.fork_fields), own_fields(layer)
    values, given = checked_message(fields, message, known, ignored=message_fields)
    text = formula if isinstance(formula, str) else formula(layer, {name: values[name] for name in values if name in given})
    parts = parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0].layer
    bottoms = 1 + ('"m"' in text) + ('"n"' in text)
    if len(layer.bottom) != bottoms or len(layer.top) > 1:
        raise ConfigError(f"must be {bottoms}, and one top, got {len(layer.bottom)} and {len(layer.top)}", field="bottom")
    if len(layer.propagate_down) not in (0, bottoms):
        raise ConfigError(f"give none or one for each of the {bottoms} bottoms, got {len(layer.propagate_down)}",
                          field="propagate_down")
    left = [name for name in message_fields if name not in values]
    if left and parts[0].type != layer.type:
        raise ConfigError(f"is not supported here; known are {', '.join(values) or 'none'}", field=f"{message}.{left[0]}")
    pop_field(fields, message)
    for name in left:
        fields.inside(f"{message}.{name}").extend(name, message_fields.all(name))
    blobs = dict(zip("xmn", layer.bottom)) | dict(zip("y", layer.top))
    has_own_blobs = not {name for part in parts for name in part.bottom} <= {*"xmny"}
    between = has_own_blobs and blobs["x"] == blobs.get("y") and _out_of_place(layers, index, blobs, taken)
    needs = dict(zip("xmn", layer.propagate_down))
    for i, part in enumerate(parts):
        made = copy_of(layer)
        for field, _ in layer.ListFields():
            kept = field.name in (*KEPT, *["param"][i:], *["loss_weight"][len(parts) - 1 - i:]) or (
                part.type == layer.type and field.name not in ("bottom", "top", "fork_fields", "propagate_down", "loss_weight"))
            if not kept:
                made.ClearField(field.name)
        made.MergeFrom(part)
        if layer.loss_weight and i == len(parts) - 1:
            made.loss_weight[:] = layer.loss_weight     # not the formula's
        made.name = unused_name(f"{layer.name}_{i}", set(taken)) if i else layer.name
        made.ClearField("fork_fields")      # one that is set and empty is written to files
        if own_lines := [*part.fork_fields.splitlines(), *(lines_of(fields) if i == 0 else ())]:
            made.fork_fields = "\n".join(own_lines)
        if needs:
            made.propagate_down[:] = [needs[name] for name in part.bottom]
            needs[part.top[0]] = any(made.propagate_down)
        for names in (made.bottom, made.top):
            names[:] = [blobs.get(name) or blobs.setdefault(name, unused_name(f"{layer.name}_{name}", taken)) for name in names]
        part.CopyFrom(made)
    if between:
        between.name = unused_name(f"{layer.name}_{len(parts)}", set(taken))
        parts.append(between)
    del layers[index]
    for i, part in enumerate(parts):
        layers.insert(index + i, part)
    return len(parts)


def _out_of_place(layers, index, blobs, taken):
    """Give bottom and top of a layer in place, whose formula has blobs of its own, two names: `blobs` x and y.

    The blob gets another name in the layers before; if it is an input of the net in those behind. Return the layer that copies x to
    y where the rules of the layer leave it out; None if none is needed.
    """
    layer, old = layers[index], blobs["x"]
    makers = [before for before in layers[:index] if old in before.top and old not in before.bottom]
    is_input = not makers or any(before.type == "Input" for before in makers)
    x_or_y, others = ("y", layers[index + 1:]) if is_input else ("x", layers[:index])
    blobs[x_or_y] = unused_name(f"{layer.name}_{x_or_y}", taken)
    for names in (names for other in others for names in (other.bottom, other.top)):
        names[:] = [blobs[x_or_y] if name == old else name for name in names]
    rules = [(list(one.include), list(one.exclude)) for one in (layer, *makers)]
    if rules[0] == ([], []) or makers and all(rule == rules[0] for rule in rules):
        return None
    if makers and ([], []) not in rules:
        raise ConfigError(f"the blob '{old}', which this layer changes in place, is made under other include and exclude rules; "
                          "give the top a name of its own", field="top[0]")
    return caffe_pb2.LayerParameter(type="Power", bottom=[blobs["x"]], top=[blobs["y"]], include=layer.exclude,
                                    exclude=layer.include)
