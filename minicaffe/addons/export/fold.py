"""Fold the layers that only scale and shift channels into the convolution or inner product before them, for inference.

BatchNorm with stored statistics, Scale and Bias compute ``s y + t`` of each channel. Behind a layer ``y = W x + b`` that gives the
weights ``s W`` and the bias ``s b + t``. Dropout does nothing in phase TEST and is removed.
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
from minicaffe.proto.fields import copy_of

log = logging.getLogger(__name__)
PRODUCTS = ("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise", "Deconvolution", "InnerProduct")
AFFINE = ("BatchNorm", "Scale", "Bias")


class Folded(NamedTuple):
    """Result of `fold`.

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
    """A layer: its LayerParameter, its node in the net that is folded, its arrays, and the entry that it is folded into."""

    def __init__(self, param, node):
        self.param, self.node, self.owner = copy_of(param), node, None
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
    users, by_node, makers, removed, kept = {}, {entry.node: entry for entry in entries}, _makers(net), {}, {}
    for entry in entries:
        for blob in entry.node.layer.blobs:
            users.setdefault(id(blob.data_memory), []).append(entry)
    shared = {name for group in users.values() if len(group) > 1 for name in (entry.param.name for entry in group)}
    for entry in entries:
        if entry.param.type != "Dropout" and entry.param.type not in AFFINE:
            continue
        maker, alone = makers.get(entry.node, (None, False))
        target = by_node.get(maker)
        target = target.owner or target if target else None
        reason = _fold(entry, target, alone, shared)
        if reason:
            kept[entry.param.name] = reason
            continue
        target.param.top[0] = entry.param.top[0]
        entry.owner = target
        removed[entry.param.name] = "" if entry.param.type == "Dropout" else target.param.name
    entries = [entry for entry in entries if entry.owner is None]
    made = caffe_pb2.NetParameter(name=param.name, state=param.state)
    made.layer.extend(entry.param for entry in entries)
    folded = Net(made, net.dtype, file=net.file)
    for entry in entries:
        for blob, array in zip(folded.layer_dict[entry.param.name].blobs, entry.arrays, strict=True):
            blob.data[...] = array.reshape(blob.shape)
    return Folded(folded, made, removed, kept)


def _makers(net):
    """Return node -> (the node that made its first bottom, whether that has one top, which nothing else reads)."""
    latest, makers = {}, {}
    for node in net.nodes:
        if node.bottoms:
            makers[node] = latest[node.bottoms[0].name]
        made = (makers[node][0], False) if node.type == "Split" else (node, len(node.tops) == 1)
        latest.update((blob.name, made) for blob in node.tops)
    return makers


def _fold(entry, target, alone, shared):
    """Fold a layer into `target`, which computes its bottom; return the reason why not, or None.

    `alone`: whether no other layer reads that; `shared`: the names of layers that share parameters.
    """
    if entry.param.type == "Dropout":
        return None if alone and target.param.bottom else "its bottom is an input, or has other readers"
    factors = _factors(entry, shared)
    if isinstance(factors, str):
        return factors
    if target is None or target.param.type not in PRODUCTS:
        return "it follows no convolution or inner product"
    param, product = target.param, target.param.type == "InnerProduct"
    p = param.inner_product_param if product else param.convolution_param
    if not alone:
        return f"'{param.name}' has other readers"
    if param.name in shared:
        return f"the parameters of '{param.name}' are shared"
    if len(param.bottom) > 1:
        return f"'{param.name}' has several bottoms"
    if axis_of(p.axis, target.node.bottoms[0].shape) != 1:
        return f"'{param.name}' does not begin at axis 1"
    (scale, shift), (weight, *bias) = factors, target.arrays
    if param.type == "Deconvolution":       # (inputs, outputs / group, ...)
        weight = weight.reshape(p.group, -1, *weight.shape[1:]).swapaxes(1, 2)
    elif product and p.transpose:
        weight = weight.T
    leading = 2 if param.type == "Deconvolution" else 1
    weight *= scale.reshape(*weight.shape[:leading], *[1] * (weight.ndim - leading))      # a view of the array
    target.arrays[1:] = [(bias[0] * scale if bias else 0) + shift]
    p.bias_term = True
    return None


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
