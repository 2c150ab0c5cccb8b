"""Parts of nets in Python, as SSD has them in ``caffe.model_libs``: what ssd_pascal.py needs, VGG16 and SSD's data layer and head.

Each function adds layers to a `NetSpec` and returns it; names of layers and of arguments are those of SSD, so that its scripts and
weights fit. Different from SSD: wrong arguments raise ConfigError in place of an AssertionError, and lists in arguments are not
changed; ZFNet, ResNet and Inception are left out. ``from caffe.model_libs import *`` also imports `L`, `P` and `caffe_pb2`, as the
scripts expect.
"""

import functools
import os
from numbers import Integral

import numpy as np

from minicaffe.errors import ConfigError, MissingNameError, close_matches, names_of
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import layers as L
from minicaffe.pycaffe.net_spec import params as P

__all__ = [
    "ConvBNLayer", "CreateAnnotatedDataLayer", "CreateMultiBoxHead", "L", "P", "UnpackVariable", "VGGNetBody", "caffe_pb2",
    "check_if_exist", "make_if_not_exist",
]

FROZEN = {"lr_mult": 0, "decay_mult": 0}
check_if_exist = os.path.exists
make_if_not_exist = functools.partial(os.makedirs, exist_ok=True)


def UnpackVariable(var, num):
    """Return `var` as a list of `num` items: a list of that length as it is, anything else repeated.

    Raises ConfigError if it is a list of another length.
    """
    if isinstance(var, list):
        if len(var) not in (1, num):
            raise ConfigError(f"give one value or {num}, got {var}")
        return var * num if len(var) == 1 else list(var)
    return [var] * num


def _take(net, name, what="from_layer"):
    """Return the Top of `net` called `name`."""
    if name not in net.keys():
        raise MissingNameError(f"{what}: the net has no layer '{name}'{close_matches(name, net.keys())}")
    return net[name]


def _constant(value):
    return {"type": "constant", "value": value}


def _weights(lr_mult=1):
    """Return the fields of a layer with weight and bias."""
    return {"param": [{"lr_mult": lr_mult, "decay_mult": 1}, {"lr_mult": 2 * lr_mult, "decay_mult": 0}],
            "weight_filler": {"type": "xavier"}, "bias_filler": _constant(0)}


def _same(kernel_size, dilation):
    """Return the pad with which a convolution of stride 1 keeps the size."""
    return dilation * (kernel_size - 1) // 2


def ConvBNLayer(net, from_layer, out_layer, use_bn, use_relu, num_output, kernel_size, pad, stride, dilation=1, use_scale=True,
                lr_mult=1, conv_prefix="", conv_postfix="", bn_prefix="", bn_postfix="_bn", scale_prefix="", scale_postfix="_scale",
                bias_prefix="", bias_postfix="_bias", **bn_params):
    """Add a convolution, with `use_bn` a BatchNorm and a Scale (or a Bias) in place, and with `use_relu` a ReLU in place.

    Parameters
    ----------
    net : NetSpec
    from_layer, out_layer : str
        The layer that is read, and the name of the new one between prefix and postfix; the ReLU has ``_relu`` after it.
    kernel_size, pad, stride : int, or list of two
        One number, or height and width.
    use_scale : bool
        A Scale with a bias after the BatchNorm, otherwise a Bias.
    lr_mult : float
        Of the weights; the bias has twice as much.
    **bn_params
        ``eps`` (0.001), ``moving_average_fraction`` (0.999), and ``use_global_stats`` (False): True also freezes
        Scale or Bias.
    """
    bottom = _take(net, from_layer)
    fields = _weights(lr_mult)
    if use_bn:
        fields = {"param": [{"lr_mult": lr_mult, "decay_mult": 1}], "weight_filler": {"type": "gaussian", "std": 0.01},
                  "bias_term": False}
    for name, value in (("kernel", kernel_size), ("pad", pad), ("stride", stride)):
        height, width = UnpackVariable(value, 2)
        if UnpackVariable(kernel_size, 2)[0] == UnpackVariable(kernel_size, 2)[1] and height == width:
            fields["kernel_size" if name == "kernel" else name] = height
        else:
            fields.update({f"{name}_h": height, f"{name}_w": width})
    if dilation > 1:
        fields["dilation"] = dilation
    name = f"{conv_prefix}{out_layer}{conv_postfix}"
    net[name] = conv = L.Convolution(bottom, num_output=num_output, **fields)
    if use_bn:
        unknown = set(bn_params) - {"eps", "moving_average_fraction", "use_global_stats"}
        if unknown:
            raise ConfigError(f"bn_params are eps, moving_average_fraction and use_global_stats, got {sorted(unknown)}")
        fields = {"param": [FROZEN] * 3, "eps": bn_params.get("eps", 0.001)}
        if bn_params.get("use_global_stats", False):
            fields["use_global_stats"], lr_mult = True, 0
        else:
            fields["moving_average_fraction"] = bn_params.get("moving_average_fraction", 0.999)
        learn = {"lr_mult": lr_mult, "decay_mult": 0}
        net[f"{bn_prefix}{out_layer}{bn_postfix}"] = norm = L.BatchNorm(conv, in_place=True, **fields)
        if use_scale:
            net[f"{scale_prefix}{out_layer}{scale_postfix}"] = L.Scale(
                norm, in_place=True, bias_term=True, param=[learn] * 2, filler=_constant(1.0), bias_filler=_constant(0.0))
        else:
            net[f"{bias_prefix}{out_layer}{bias_postfix}"] = L.Bias(norm, in_place=True, param=[learn], filler=_constant(0.0))
    if use_relu:
        net[f"{name}_relu"] = L.ReLU(conv, in_place=True)
    return net


def VGGNetBody(net, from_layer, need_fc=True, fully_conv=False, reduced=False, dilated=False, nopool=False, dropout=True,
               freeze_layers=(), dilate_pool4=False):
    """Add the body of VGG16.

    Parameters
    ----------
    need_fc : bool
        Add pool5, fc6 and fc7 after conv5_3.
    fully_conv : bool
        These are convolutions.
    reduced : bool
        With 1024 outputs, and fc6 with a kernel of 3, in place of 4096 and 7.
    dilated : bool
        The last pooling keeps the size, and fc6 has a dilation for it.
    nopool : bool
        Convolutions with a stride in place of the poolings.
    dropout : bool
        Dropout after fc6 and fc7.
    freeze_layers : list of str
        Layers whose rates are set to 0.
    dilate_pool4 : bool
        The fourth pooling keeps the size, and later convolutions have a dilation for it.
    """
    below = _take(net, from_layer)
    dilation = 1
    for block, convolutions, outputs in ((1, 2, 64), (2, 2, 128), (3, 3, 256), (4, 3, 512), (5, 3, 512)):
        fields = {"pad": 1, "kernel_size": 3}
        if block == 5:
            fields = {"pad": _same(3, dilation), "kernel_size": 3, "dilation": dilation}
        for i in range(1, convolutions + 1):
            net[f"conv{block}_{i}"] = below = L.Convolution(below, num_output=outputs, **fields, **_weights())
            net[f"relu{block}_{i}"] = below = L.ReLU(below, in_place=True)
        if block == 5 and not need_fc:
            break
        keeps_size = dilated if block == 5 else dilate_pool4 and block == 4 and not nopool
        if nopool:
            name = f"conv{block}_{convolutions + 1}"
            net[name] = L.Convolution(below, num_output=outputs, pad=1, kernel_size=3, stride=1 if keeps_size else 2, **_weights())
        else:
            name = f"pool{block}"
            net[name] = L.Pooling(below, pool=P.Pooling.MAX, **({"kernel_size": 3, "stride": 1, "pad": 1} if keeps_size
                                                                else {"kernel_size": 2, "stride": 2}))
        below = net[name]
        if keeps_size and block == 4:
            dilation = 2
    dilation *= (6 if reduced else 2) if dilated else (3 if reduced else 1)
    kernel_size = 3 if reduced else 7
    fields6 = {"pad": _same(kernel_size, dilation), "kernel_size": kernel_size, "dilation": dilation}
    for index, fields in ((6, fields6), (7, {"kernel_size": 1})) if need_fc else ():
        if fully_conv:
            net[f"fc{index}"] = below = L.Convolution(below, num_output=1024 if reduced else 4096, **fields, **_weights())
        else:
            net[f"fc{index}"] = below = L.InnerProduct(below, num_output=4096)
        net[f"relu{index}"] = below = L.ReLU(below, in_place=True)
        if dropout or not fully_conv:
            net[f"drop{index}"] = L.Dropout(below, dropout_ratio=0.5, in_place=True)
    for name in freeze_layers:
        if name in net.keys():      # others are ignored, as in SSD
            net.update(name, {**_weights(), "param": [FROZEN] * 2})
    return net


def CreateAnnotatedDataLayer(source, batch_size=32, backend=P.Data.LMDB, output_label=True, train=True, label_map_file="",
                             anno_type=None, transform_param=None, batch_sampler=({},)):
    """Return the Tops data and label of an AnnotatedData layer, or data alone without `output_label`.

    Parameters
    ----------
    source : str
        Database of AnnotatedDatum.
    train : bool
        For phase TRAIN, otherwise TEST.
    label_map_file : str
    anno_type : int, optional
        An ``AnnotatedDatum.AnnotationType``, in place of the records' own.
    transform_param : dict
    batch_sampler : list of dict
    """
    annotated = {"label_map_file": label_map_file, "batch_sampler": [dict(sampler) for sampler in batch_sampler]}
    if anno_type is not None:
        annotated["anno_type"] = anno_type
    phase = caffe_pb2.TRAIN if train else caffe_pb2.TEST
    return L.AnnotatedData(name="data", ntop=2 if output_label else 1, include={"phase": phase},
                           transform_param=transform_param or {}, annotated_data_param=annotated,
                           data_param={"batch_size": batch_size, "backend": backend, "source": source})


def CreateMultiBoxHead(net, data_layer="data", num_classes=None, from_layers=(), use_objectness=False, normalizations=(),
                       use_batchnorm=True, lr_mult=1, use_scale=True, min_sizes=(), max_sizes=(), prior_variance=(0.1,),
                       aspect_ratios=(), steps=(), img_height=0, img_width=0, share_location=True, flip=True, clip=True, offset=0.5,
                       inter_layer_depth=(), kernel_size=1, pad=0, conf_postfix="", loc_postfix="", **bn_param):
    """Add SSD's predictions and prior boxes of several layers, and join them.

    Parameters
    ----------
    num_classes : int
        With the background.
    from_layers : list of str
        The layers whose places predict boxes. Of the lists that follow, one that is not empty has an item for each.
    normalizations : list of float
        The scale of a Normalize layer before the predictions, -1 for none.
    min_sizes, max_sizes : list of float, or of list
        Sides of the prior boxes in pixels.
    aspect_ratios : list of list
        Besides 1; with `flip` also their inverse.
    steps : list of float
        Pixels from one place to the next.
    inter_layer_depth : list of int
        Outputs of a 3x3 convolution before the predictions, 0 for none.
    use_batchnorm, use_scale, lr_mult, **bn_param
        Of `ConvBNLayer`.
    kernel_size, pad : int
        Of the convolutions that predict.

    Returns
    -------
    list of Top
        mbox_loc, mbox_conf, mbox_priorbox, and with `use_objectness` mbox_objectness.

    Raises
    ------
    ConfigError
        If `num_classes` is missing, or the lengths of lists differ.
    """
    if not isinstance(num_classes, Integral) or isinstance(num_classes, bool) or num_classes < 1:
        raise ConfigError(f"must be the number of classes with the background, at least 1, got {num_classes!r}",
                          field="num_classes")
    _take(net, data_layer, "data_layer")
    from_layers, min_sizes = names_of(from_layers, "from_layers"), _listed(min_sizes)
    lists = {"normalizations": _listed(normalizations), "max_sizes": _listed(max_sizes), "aspect_ratios": _listed(aspect_ratios),
             "steps": _listed(steps), "inter_layer_depth": _listed(inter_layer_depth)}
    for name, given in {"min_sizes": min_sizes, **{name: given for name, given in lists.items() if given}}.items():
        if len(given) != len(from_layers):
            raise ConfigError(f"must have one item for each of the {len(from_layers)} from_layers, got {len(given)}", field=name)
    picture = {}
    if img_height and img_width:
        picture = {"img_size": img_height} if img_height == img_width else {"img_h": img_height, "img_w": img_width}
    parts = {"loc": [], "conf": [], "priorbox": []} | ({"objectness": []} if use_objectness else {})
    for i, below in enumerate(from_layers):
        here = {name: given[i] if given else None for name, given in lists.items()}
        if here["normalizations"] not in (None, -1):
            norm = f"{below}_norm"
            net[norm] = L.Normalize(_take(net, below), scale_filler=_constant(here["normalizations"]), across_spatial=False,
                                    channel_shared=False)
            below = norm
        if here["inter_layer_depth"]:
            inter = f"{below}_inter"
            ConvBNLayer(net, below, inter, use_bn=use_batchnorm, use_relu=True, lr_mult=lr_mult, use_scale=use_scale,
                        num_output=here["inter_layer_depth"], kernel_size=3, pad=1, stride=1, **bn_param)
            below = inter
        least, most, ratios = _listed(min_sizes[i]), _listed(here["max_sizes"]), _listed(here["aspect_ratios"])
        if most and len(most) != len(least):
            raise ConfigError(f"must have as many items as min_sizes[{i}], {len(least)}, got {len(most)}", field=f"max_sizes[{i}]")
        boxes = len(least) * (1 + bool(most) + len(ratios) * (2 if flip else 1))
        outputs = {"loc": (f"loc{loc_postfix}", 4 * boxes * (1 if share_location else num_classes)),
                   "conf": (f"conf{conf_postfix}", boxes * num_classes), "objectness": ("objectness", 2 * boxes)}
        for kind in parts:
            if kind == "priorbox":
                name = f"{below}_mbox_priorbox"
                optional = {"max_size": most, "aspect_ratio": ratios, "step": here["steps"]}
                fields = {field: value for field, value in optional.items() if value} | ({"flip": flip} if ratios else {})
                net[name] = L.PriorBox(net[below], net[data_layer], min_size=least, **fields, **picture, clip=clip,
                                       variance=_listed(prior_variance), offset=offset)
            else:
                word, count = outputs[kind]
                convolution = f"{below}_mbox_{word}"
                ConvBNLayer(net, below, convolution, use_bn=use_batchnorm, use_relu=False, lr_mult=lr_mult, use_scale=use_scale,
                            num_output=count, kernel_size=kernel_size, pad=pad, stride=1, **bn_param)
                net[f"{convolution}_perm"] = L.Permute(net[convolution], order=[0, 2, 3, 1])
                name = f"{convolution}_flat"
                net[name] = L.Flatten(net[f"{convolution}_perm"], axis=1)
            parts[kind].append(net[name])
    for kind, tops in parts.items():
        net[f"mbox_{kind}"] = L.Concat(*tops, axis=2 if kind == "priorbox" else 1)
    return [net[f"mbox_{kind}"] for kind in parts]


def _listed(value):
    """Return a number, a list, an array or None as a list."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
