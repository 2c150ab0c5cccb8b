"""The offset of a V1 layer of type CROP, which is not in the file: the forks with that type compute it from the net.

FCN's first fork of Caffe, and those of HED and CRF-RNN, crop the first bottom to the second so that both cover the same region
of their common ancestor. Each layer between, from bottom to top, maps a coordinate x to ``scale x + shift``. The composed maps of
both bottoms must differ by a whole number, the offset. Today's Crop has it as ``crop_param { offset }``.
"""

from fractions import Fraction

from minicaffe.errors import ConfigError
from minicaffe.proto.fields import window_sizes
from minicaffe.pycaffe.coord_map import PASS_THROUGH_LAYERS, window_map

REMEDY = "write the layer as type Crop of today, with crop_param { offset }"


def crop_offset(layers, makers, index):
    """Return the offset of the Crop layer ``layers[index]``, of a net in today's form, along height and width.

    `makers` is as `makers_of` returns it for these layers. Raises ConfigError if the net does not determine one.
    """
    if len(layers[index].bottom) != 2:
        raise ConfigError(f"Crop takes exactly 2, got {len(layers[index].bottom)}", field="bottom")
    return [_offset(layers, makers, index, axis) for axis in (0, 1)]


def makers_of(layers):
    """Return for each layer the index of the layer that made each of its bottoms; None for one that no layer made."""
    latest, makers = {}, []
    for index, layer in enumerate(layers):
        makers.append([latest.get(name) for name in layer.bottom])
        latest.update(dict.fromkeys(layer.top, index))
    return makers


def _offset(layers, makers, index, axis):
    """Return the offset along height (`axis` 0) or width (1)."""
    cropped, reference = layers[index].bottom
    maps = {place: step for place, *step in _ancestors(layers, makers, index, 1, axis)}
    way = list(_ancestors(layers, makers, index, 0, axis))
    common = next(((step, maps[place]) for place, *step in way if place in maps), None)
    if common is None:
        last = layers[way[-1][0][0]] if way[-1][0][0] is not None else None
        why = f", and coordinates do not pass through layer '{last.name}' ({last.type})" if last is not None and last.bottom else ""
        raise ConfigError(f"its offset is not known: '{cropped}' and '{reference}' have no common ancestor{why}; {REMEDY}",
                          field="crop_param")
    # The ancestor's x is `scale x + shift` of the cropped bottom and `to_scale x + to_shift` of the reference.
    (scale, shift), (to_scale, to_shift) = common
    ratio = to_scale / scale
    offset = ratio * shift - to_shift
    if ratio != 1 or offset < 0 or offset.denominator != 1:
        moved = f"{ratio} x {'+' if offset < 0 else '-'} {abs(offset)}"
        raise ConfigError(f"its offset is not known: coordinate x of '{cropped}' is {moved} of '{reference}', which is not x less "
                          f"a whole number; {REMEDY}", field="crop_param")
    return int(offset)


def _ancestors(layers, makers, index, bottom, axis):
    """Yield the blobs from a bottom of ``layers[index]`` upwards, as (layer index, name), with the map from there to the bottom."""
    scale, shift = Fraction(1), Fraction(0)
    while True:
        name, index, bottom = layers[index].bottom[bottom], makers[index][bottom], 0
        yield (index, name), scale, shift
        step = _layer_map(layers[index], axis) if index is not None and layers[index].bottom else None
        if step is None:
            return
        scale, shift = scale * step[0], scale * step[1] + shift


def _layer_map(layer, axis):
    """Return the scale and shift of a layer's coordinates, None where it has no such map."""
    if layer.type in PASS_THROUGH_LAYERS:
        return Fraction(1), Fraction(0)
    if layer.type == "Crop":
        offset = layer.crop_param.offset
        return Fraction(1), Fraction(-(offset[min(axis, len(offset) - 1)] if offset else 0))
    if layer.type == "Pooling" and not layer.pooling_param.global_pooling:
        param = layer.pooling_param
    elif layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
    else:
        return None
    kernel, stride, pad = (window_sizes(param, name) or [usual] for name, usual in (("kernel_size", 0), ("stride", 1), ("pad", 0)))
    dilation = list(getattr(param, "dilation", ())) or [1]
    kernel, stride, pad, dilation = (sizes[min(axis, len(sizes) - 1)] for sizes in (kernel, stride, pad, dilation))
    return window_map(layer.type, Fraction(stride), Fraction((kernel - 1) * dilation + 1), pad) if kernel and stride else None
