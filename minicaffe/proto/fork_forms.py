"""Layer types and fields of forks that are formulas of other layers: `rewrite` puts those in their place when a net is read.

A formula is the text of layers. Its blobs x, m, n are the bottoms of the fork's layer, y its top; others get names of their own.
The first layer keeps the name, so that weights find it; a layer of the same type keeps the fields.
"""

from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, lines_of, pop_field
from minicaffe.proto.text import parse_fields, parse_text

AXPY = ('layer { type: "Reshape" bottom: "x" top: "a" reshape_param { shape { dim: 0 dim: 0 } } }'
        'layer { type: "Scale" bottom: "m" bottom: "a" top: "b" scale_param { axis: 0 } }'
        'layer { type: "Eltwise" bottom: "b" bottom: "n" top: "y" }')
PRODUCT = 'layer { type: "Eltwise" bottom: "x" bottom: "b" top: "y" eltwise_param { operation: PROD } }'
MISH = 'layer { type: "BNLL" bottom: "x" top: "a" } layer { type: "TanH" bottom: "a" top: "b" }' + PRODUCT
HSWISH = ('layer { type: "Power" bottom: "x" top: "a" power_param { scale: 0.16666667 shift: 0.5 } }'
          'layer { type: "Clip" bottom: "a" top: "b" clip_param { min: 0 max: 1 } }' + PRODUCT)
# The mean with padding by that of ones, which is the part of each window that lies in the image.
AVE_EXC_PAD = ('layer { type: "Pooling" bottom: "x" top: "c" pooling_param { pool: AVE } }'
               'layer { type: "Power" bottom: "x" top: "ones" power_param { scale: 0 shift: 1 } }'
               'layer { type: "Pooling" bottom: "ones" top: "part" pooling_param { pool: AVE } }'
               'layer { type: "Power" bottom: "part" top: "b" power_param { power: -1 } }' + PRODUCT.replace('"x"', '"c"'))


def _batch_norm(layer, own):
    """As in NVCaffe the phase alone chooses the statistics, eps is at least 1e-5, and the file sets no learning rate."""
    del layer.param[3:]
    for spec in layer.param:
        spec.lr_mult = spec.decay_mult = 0
    layer.batch_norm_param.ClearField("use_global_stats")
    layer.batch_norm_param.eps = max(layer.batch_norm_param.eps, 1e-5)
    fillers = " ".join(f"{name} {{ {' '.join(lines_of(filler))} }}" for theirs, name in
                       (("scale_filler", "filler"), ("bias_filler", "bias_filler")) for filler in own.all(theirs))
    return ('layer { type: "BatchNorm" bottom: "x" top: "y" }'
            f'layer {{ type: "Scale" bottom: "y" top: "y" scale_param {{ bias_term: true {fillers} }} }}')


def _dilated(layer, own):
    """DeepLab's first version calls dilation hole."""
    sizes = " ".join(f"dilation: {own.get(f'hole_{axis}', own.get('hole', 1))}" for axis in "hw")
    layer.convolution_param.ClearField("dilation")
    return f'layer {{ type: "Convolution" bottom: "x" top: "y" convolution_param {{ {sizes} }} }}'


def _relu(layer, own):
    slope, bound = layer.relu_param.negative_slope, min(6 if own.get("relu6") else 2**31, own.get("maximum") or 2**31)
    if bound != 6 and (slope or bound < 0):
        raise ConfigError("must be at least 0, and needs negative_slope 0 if it is less than 6", field="relu_param.maximum")
    kind, fields = ("6", f"negative_slope: {slope}") if bound == 6 else ("X", f"maximal_value: {bound}")
    return f'layer {{ type: "ReLU{kind}" bottom: "x" top: "y" relu{kind.lower()}_param {{ {fields} }} }}'


def _unpooling(layer, own):
    """The mask gives each pixel, so that kernel and stride, which DeconvNet's files have, are not needed."""
    size = [own.get(f"output_{axis}", own.get(f"unpool_{axis}", own.get("unpool_size"))) for axis in "hw"]
    if own.get("unpool", "MAX") != "MAX" or None in size and "scale" not in own:
        raise ConfigError("needs unpool: MAX, and unpool_size, output_h and output_w, or scale", field="unpooling_param")
    fields = f"scale: {own.scale}" if None in size else f"upsample_h: {size[0]} upsample_w: {size[1]}"
    return f'layer {{ type: "Upsample" bottom: "x" bottom: "m" top: "y" upsample_param {{ {fields} }} }}'


def renamed(kind, message, field, value):
    """Return the formula of a layer of another type with one field."""
    return f'layer {{ type: "{kind}" bottom: "x" top: "y" {message} {{ {field}: {value} }} }}'


# Type: the message of the fork, its fields that are rewritten, whether there is one with these, and the formula or what returns it.
FORMS = {
    "Axpy": ("", "", lambda own: True, AXPY),
    "BReLU": ("brelu_param", "minval maxval", lambda own: True, lambda layer, own: (
        f'layer {{ type: "Clip" bottom: "x" top: "y" clip_param {{ min: {own.minval} max: {own.maxval} }} }}')),
    "BatchNorm": ("batch_norm_param", "scale_bias scale_filler bias_filler",
                  lambda own: own.get("scale_bias") or "scale_filler" in own or "bias_filler" in own, _batch_norm),
    "Convolution": ("convolution_param", "hole hole_h hole_w", lambda own: any("hole" in name for name in own), _dilated),
    "HSwish": ("", "", lambda own: True, HSWISH),
    "Mish": ("mish_param", "engine", lambda own: True, MISH),
    "Pooling": ("pooling_param", "pool", lambda own: own.get("pool") == "AVE_EXC_PAD", AVE_EXC_PAD),
    "ReLU": ("relu_param", "relu6 maximum", lambda own: own.get("relu6") or own.get("maximum"), _relu),
    "ReverseAxis": ("reverse_axis_param", "axis", lambda own: True,
                    lambda layer, own: renamed("Reverse", "reverse_param", "axis", own.get("axis", 0))),
    "Transpose": ("transpose_param", "dim", lambda own: True,
                    lambda layer, own: renamed("Permute", "permute_param", "order", own.all("dim"))),
    "UpsampleDarknet": ("upsample_darknet_param", "stride", lambda own: True,
                    lambda layer, own: renamed("Upsample", "upsample_param", "scale", own.get("stride", 1))),
    "Unpooling": ("unpooling_param", "unpool unpool_size unpool_h unpool_w output_h output_w scale kernel_size kernel_h kernel_w "
                  "stride stride_h stride_w pad", lambda own: True, _unpooling),
}


def own_fields(layer):
    """Return the fields of the fork's message of a type in FORMS."""
    own = parse_fields(layer.fork_fields).get(FORMS[layer.type][0]) if layer.fork_fields else None
    return own if isinstance(own, Fields) else Fields()


def is_form(layer):
    """Return whether `rewrite` changes a layer."""
    return bool(layer.type in FORMS and layer.bottom and layer.top and FORMS[layer.type][2](own_fields(layer)))


def rewrite(layers, index):
    """Put the layers of a formula in the place of a layer for which `is_form` is true; return how many they are.

    If the layer works in place, and the formula reads its bottom twice, the bottom gets another name in the layers before it.
    Raises ConfigError for a field that the formula has no place for.
    """
    layer = layers[index]
    message, names, _, formula = FORMS[layer.type]
    fields, own = parse_fields(layer.fork_fields), own_fields(layer)
    text = formula if isinstance(formula, str) else formula(layer, own)
    try:
        parts = parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0].layer
    except ConfigError as error:
        raise ConfigError(error.message, field=message) from None
    bottoms = 1 + ('"m"' in text) + ('"n"' in text)
    if len(layer.bottom) != bottoms or len(layer.top) > 1:
        raise ConfigError(f"must be {bottoms}, and one top, got {len(layer.bottom)} and {len(layer.top)}", field="bottom")
    left = [name for name in own if name not in names.split()]
    if left and parts[0].type != layer.type:
        raise ConfigError(f"is not supported here; known are {', '.join(names.split()) or 'none'}", field=f"{message}.{left[0]}")
    pop_field(fields, message)
    for name in left:
        fields.inside(f"{message}.{name}").extend(name, own.all(name))
    blobs = {"y": layer.top[0], **dict(zip("xmn", layer.bottom))}
    if PRODUCT in text and blobs["x"] == blobs["y"]:
        blobs["x"] = f"{layer.name}_x"
        for given in (given for before in layers[:index] for given in (before.bottom, before.top)):
            given[:] = [blobs["x"] if name == blobs["y"] else name for name in given]
    for i, part in enumerate(parts):
        made = caffe_pb2.LayerParameter(include=layer.include, exclude=layer.exclude)
        if part.type == layer.type:
            made.CopyFrom(layer)
            for name in ("bottom", "top", "fork_fields"):
                made.ClearField(name)
        made.MergeFrom(part)
        made.name = f"{layer.name}_{i}" if i else layer.name
        made.fork_fields = "\n".join((part.fork_fields, *(lines_of(fields) if i == 0 else ()))).strip()
        for given in (made.bottom, made.top):
            given[:] = [blobs.get(name, f"{layer.name}_{name}") for name in given]
        part.CopyFrom(made)
    del layers[index]
    for i, part in enumerate(parts):
        layers.insert(index + i, part)
    return len(parts)
