"""Fold the layers that only scale and shift channels into the convolution or inner product beside them, for inference.

BatchNorm with stored statistics, Scale and Bias compute ``s x + t`` of each channel. Behind a layer ``y = W x + b`` that gives the
weights ``s W`` and the bias ``s b + t``. Before it, it gives ``W s`` and ``b + W t``. The latter is exact only without padding,
where each output reads as many values. Dropout does nothing in phase TEST and is removed.
"""

import logging
from typing import NamedTuple

import numpy as np

from minicaffe.addons.export.exporting import unique_names
from minicaffe.addons.export.operators import axis_of, batch_statistics
from minicaffe.common import TEST
from minicaffe.errors import ConfigError
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2

log = logging.getLogger(__name__)
CONVOLUTIONS = ("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution")
PRODUCTS = (*CONVOLUTIONS, "InnerProduct")
AFFINE = ("BatchNorm", "Scale", "Bias")


class Folded(NamedTuple):
    """What `fold` returns.

    Attributes
    ----------
    net : Net
        In phase TEST, with the new parameters.
    param : caffe_pb2.NetParameter
        Its definition.
    layers : dict of str to str
        Removed layer -> the layer that computes it now; "" for Dropout.
    kept : dict of str to str
        BatchNorm, Scale, Bias or Dropout that is left -> the reason.
    """

    net: Net
    param: caffe_pb2.NetParameter
    layers: dict
    kept: dict


class Entry:
    """A layer: its LayerParameter, its arrays, and its node in the net that is folded."""

    def __init__(self, param, node):
        self.param, self.node = caffe_pb2.LayerParameter(), node
        self.param.CopyFrom(param)
        self.arrays = [np.array(blob.data, np.float64) for blob in node.layer.blobs]


def fold(net, param):
    """Return a net that computes the same as `net` with fewer layers.

    Parameters
    ----------
    net : Net
        In phase TEST.
    param : caffe_pb2.NetParameter
        That it was built from, in today's form.

    Returns
    -------
    Folded

    Raises
    ------
    ConfigError
        For a net in phase TRAIN.
    """
    if net.phase != TEST:
        raise ConfigError("the net is in phase TRAIN; build it for TEST", file=net.file)
    nodes = iter(net.nodes)     # the net has Split layers, too
    entries = [Entry(layer.param, next(node for node in nodes if node.name == layer.param.name))
               for layer in filter_layers(param.layer, param.state, net.file)]
    for entry, name in zip(entries, unique_names([entry.param.name for entry in entries])):
        if name != entry.param.name:
            log.warning("the net has several layers '%s'; the folded net has '%s' for one of them", entry.param.name, name)
        entry.param.name = name
    users = {}
    for entry in entries:
        for blob in entry.node.layer.blobs:
            users.setdefault(id(blob.data_memory), []).append(entry)
    shared = {name for group in users.values() if len(group) > 1 for name in (entry.param.name for entry in group)}
    removed, kept = {}, {}
    while _fold_one(entries, shared, removed, kept):
        kept.clear()
    made = caffe_pb2.NetParameter(name=param.name, state=param.state)
    made.layer.extend(entry.param for entry in entries)
    folded = Net(made, net.dtype, file=net.file)
    for entry in entries:
        for blob, array in zip(folded.layer_dict[entry.param.name].blobs, entry.arrays, strict=True):
            blob.data[...] = array.reshape(blob.shape)
    return Folded(folded, made, removed, kept)


def _fold_one(entries, shared, removed, kept):
    """Fold or remove one layer; return whether there was one. `kept` gets the reasons of those that stay."""
    readers, makers = _edges(entries)
    for i, entry in enumerate(entries):
        kind, name = entry.param.type, entry.param.name
        if kind != "Dropout" and kind not in AFFINE:
            continue
        before = makers.get((i, 0))
        alone = before is not None and readers[before] == [i]
        if kind == "Dropout":
            if alone and entries[before].param.bottom:
                _bypass(entries, before, i)
                removed[name] = ""
                return True
            kept[name] = "its bottom is an input, or has other readers"
            continue
        factors = _factors(entry, shared)
        if isinstance(factors, str):
            kept[name] = factors
            continue
        why = "it follows no convolution or inner product"
        if before is not None and entries[before].param.type in PRODUCTS:
            target = entries[before]
            why = f"'{target.param.name}' has other readers" if not alone else _refused(target, shared) or _behind(target, factors)
            if why is None:
                _bypass(entries, before, i)
                removed[name] = entries[before if before < i else before - 1].param.name
                return True
        after = readers[i]
        if len(after) == 1 and entries[after[0]].param.type in PRODUCTS and makers.get((after[0], 0)) == i:
            reason = _refused(entries[after[0]], shared) or _before(entries[after[0]], factors)
            if reason is None:
                target = entries[after[0]]
                target.param.bottom[0] = entry.param.bottom[0]
                removed[name] = target.param.name
                del entries[i]
                return True
            why += f", and {reason}" if before is None or entries[before].param.type not in PRODUCTS else ""
        elif before is None or entries[before].param.type not in PRODUCTS:
            why += ", and none is its only reader"
        kept[name] = why
    return False


def _edges(entries):
    """Return for each layer the layers that read its first top, and for (layer, bottom index) the layer that made it.

    A net's output, and a layer with several tops, have the reader -1.
    """
    latest, readers, makers = {}, {i: [] for i in range(len(entries))}, {}
    for i, entry in enumerate(entries):
        for j, name in enumerate(entry.param.bottom):
            if name in latest:
                made, top = latest[name]
                makers[i, j] = made
                readers[made].append(i if top == 0 else -1)
        for j, name in enumerate(entry.param.top):
            latest[name] = i, j
    for made, _ in latest.values():
        if not readers[made] or len(entries[made].param.top) > 1:
            readers[made].append(-1)
    return readers, makers


def _bypass(entries, before, i):
    """Remove layer `i`; the layer before it writes its top."""
    entries[before].param.top[0] = entries[i].param.top[0]
    del entries[i]


def _factors(entry, shared):
    """Return factor and shift of each channel of a layer, or the reason why there are none."""
    param, node = entry.param, entry.node
    if param.name in shared:
        return "its parameters are shared"
    if len(param.bottom) > 1:
        return "its second bottom is not constant"
    if param.type == "BatchNorm":
        p = param.batch_norm_param
        if p.HasField("use_global_stats") and not p.use_global_stats:
            return "it computes the statistics of the batch"
        mean, variance = batch_statistics(*entry.arrays)
        scale = 1 / np.sqrt(variance + p.eps)
        return scale, -mean * scale
    p = param.scale_param if param.type == "Scale" else param.bias_param
    if axis_of(p.axis, node.bottoms[0].shape) != 1 or entry.arrays[0].ndim != 1:
        return "it has other than one number for each channel"
    if param.type == "Bias":
        return np.ones_like(entry.arrays[0]), entry.arrays[0]
    return entry.arrays[0], entry.arrays[1] if p.bias_term else np.zeros_like(entry.arrays[0])


def _refused(target, shared):
    """Return why the weights of a layer cannot be changed, or None."""
    param = target.param
    if param.name in shared:
        return f"the parameters of '{param.name}' are shared"
    if len(param.bottom) > 1:
        return f"'{param.name}' has several bottoms"
    axis = param.inner_product_param.axis if param.type == "InnerProduct" else param.convolution_param.axis
    return None if axis_of(axis, target.node.bottoms[0].shape) == 1 else f"'{param.name}' does not begin at axis 1"


def _set_bias(target, bias):
    """Give a layer a bias."""
    param = target.param
    (param.inner_product_param if param.type == "InnerProduct" else param.convolution_param).bias_term = True
    target.arrays[1:] = [bias]


def _bias(target, outputs):
    return target.arrays[1] if len(target.arrays) > 1 else np.zeros(outputs)


def _behind(target, factors):
    """Put ``scale y + shift`` into the layer that computes y; return the reason why not, or None."""
    scale, shift = factors
    weight, param = target.arrays[0], target.param
    if param.type == "Deconvolution":       # (inputs, outputs / group, ...)
        group = param.convolution_param.group
        parts = weight.reshape(group, -1, *weight.shape[1:])
        weight = (parts * scale.reshape(group, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
    elif param.type == "InnerProduct" and param.inner_product_param.transpose:
        weight = weight * scale
    else:
        weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    bias = _bias(target, len(scale)) * scale + shift
    target.arrays[0] = weight
    _set_bias(target, bias)
    return None


def _before(target, factors):
    """Put ``scale x + shift`` into the layer that reads it; return the reason why not, or None."""
    scale, shift = factors
    weight, param = target.arrays[0], target.param
    p = param.convolution_param
    moved = bool(np.any(shift))
    if moved and (param.type == "Deconvolution" or param.type in CONVOLUTIONS and any(target.node.layer.pad)):
        return f"a shift before the borders of '{param.name}' is no bias"
    if param.type == "InnerProduct":
        columns = weight if not param.inner_product_param.transpose else weight.T     # (outputs, channels x positions)
        repeat = columns.shape[1] // len(scale)
        added = columns @ np.repeat(shift, repeat)
        columns = columns * np.repeat(scale, repeat)
        weight = columns if not param.inner_product_param.transpose else columns.T
    elif param.type == "Deconvolution":
        added = np.zeros(p.num_output)
        weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    else:                                   # (outputs, channels / group, ...)
        group = len(scale) // weight.shape[1]
        parts = weight.reshape(group, -1, *weight.shape[1:])
        ones = [1] * (weight.ndim - 2)
        added = (parts * shift.reshape(group, 1, -1, *ones)).reshape(len(weight), -1).sum(1)
        weight = (parts * scale.reshape(group, 1, -1, *ones)).reshape(weight.shape)
    target.arrays[0] = weight
    if moved or len(target.arrays) > 1:
        _set_bias(target, _bias(target, len(added)) + added)
    return None
