"""Turn the first form of Caffe's nets (V0, 2013) into the second (V1), which `minicaffe.proto.upgrade` upgrades further.

A V0 layer was a message inside an entry of ``layers``, with the parameters of all types in it, and padding was a separate
layer before a convolution. Facts: Caffe upgrade_proto.cpp, UpgradeV0Net.
"""

import logging

from minicaffe.errors import close_matches
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import set_field

TYPES = {
    "accuracy": "ACCURACY", "bnll": "BNLL", "concat": "CONCAT", "conv": "CONVOLUTION", "data": "DATA", "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS", "flatten": "FLATTEN", "hdf5_data": "HDF5_DATA", "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL", "images": "IMAGE_DATA", "infogain_loss": "INFOGAIN_LOSS", "innerproduct": "INNER_PRODUCT", "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS", "pool": "POOLING", "relu": "RELU", "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX", "softmax_loss": "SOFTMAX_LOSS", "split": "SPLIT", "tanh": "TANH", "window_data": "WINDOW_DATA",
}

_WEIGHTS, _WINDOWS, _SOURCES = ("conv", "innerproduct"), ("conv", "pool"), ("data", "hdf5_data", "images", "window_data")
# V0 field: its name in V1, and the V0 types in whose message it is there; None: all have it in transform_param.
FIELDS = {
    "num_output": ("num_output", _WEIGHTS), "biasterm": ("bias_term", _WEIGHTS), "weight_filler": ("weight_filler", _WEIGHTS),
    "bias_filler": ("bias_filler", _WEIGHTS), "pad": ("pad", _WINDOWS), "kernelsize": ("kernel_size", _WINDOWS),
    "stride": ("stride", _WINDOWS), "group": ("group", ["conv"]), "pool": ("pool", ["pool"]),
    "dropout_ratio": ("dropout_ratio", ["dropout"]), "local_size": ("local_size", ["lrn"]), "alpha": ("alpha", ["lrn"]),
    "beta": ("beta", ["lrn"]), "k": ("k", ["lrn"]), "source": ("source", [*_SOURCES, "infogain_loss"]),
    "batchsize": ("batch_size", _SOURCES), "scale": ("scale", None), "meanfile": ("mean_file", None), "mirror": ("mirror", None),
    "cropsize": ("crop_size", None), "rand_skip": ("rand_skip", ["data", "images"]), "shuffle_images": ("shuffle", ["images"]),
    "new_height": ("new_height", ["images"]), "new_width": ("new_width", ["images"]), "concat_dim": ("concat_dim", ["concat"]),
    "det_fg_threshold": ("fg_threshold", ["window_data"]), "det_bg_threshold": ("bg_threshold", ["window_data"]),
    "det_fg_fraction": ("fg_fraction", ["window_data"]), "det_context_pad": ("context_pad", ["window_data"]),
    "det_crop_mode": ("crop_mode", ["window_data"]),
}
COPIED_FIELDS = ("name", "blobs", "blobs_lr", "weight_decay")  # in V1LayerParameter itself
IGNORED = ("new_num", "new_channels")


def upgrade_v0(net, note, error):
    """Return a net of V0 as one of V1, and for each of its layers the index in ``net.layers``: padding layers are gone.

    `net` is changed: padding layers are folded first. ``note(level, text)`` is called for parts without a counterpart in V1;
    ``error(message, index)`` returns the error to raise for entry `index` of ``net.layers``.
    """
    kept = _fold_padding(net, error)
    upgraded = caffe_pb2.NetParameter()
    for field, value in net.ListFields():
        if field.name in ("name", "force_backward", "input", "input_dim"):
            set_field(upgraded, field.name, value)
        elif field.name != "layers":
            note(logging.ERROR, f"Ignored {field.name}, which nets of version 0 did not have")
    for index in kept:
        _upgrade_layer(net.layers[index], upgraded.layers.add(), note, lambda message, i=index: error(message, i))
    return upgraded, kept


def _fold_padding(net, error):
    """Give each padding layer's pad and bottom to its consumer; return the indices of all other layers."""
    producer = dict.fromkeys(net.input, None)
    for index, entry in enumerate(net.layers):
        for slot, bottom in enumerate(entry.bottom):
            if bottom not in producer:
                raise error(f"unknown bottom blob '{bottom}'{close_matches(bottom, producer)}", index)
            source = producer[bottom]
            if source is None or not _is_padding(net.layers[source]):
                continue
            padding, layer = net.layers[source], entry.layer
            if layer.type not in ("conv", "pool") or len(entry.bottom) != 1:
                raise error(f"padding layer '{padding.layer.name}' must feed a conv or pool layer of one bottom", index)
            if len(padding.bottom) != 1 or len(padding.top) != 1:
                raise error("a padding layer must have one bottom and one top", source)
            layer.pad = padding.layer.pad
            entry.bottom[slot] = padding.bottom[0]
        producer.update(dict.fromkeys(entry.top, index))
    return [index for index, entry in enumerate(net.layers) if not _is_padding(entry)]


def _is_padding(entry):
    """Return whether an entry of ``layers`` is a padding layer of V0."""
    return entry.layer.type == "padding"


def _upgrade_layer(entry, new, note, error):
    """Fill the V1 layer `new` from an entry of V0, or copy one of V1; ``error(message)`` returns the error of this entry."""
    if not entry.HasField("layer"):
        new.CopyFrom(entry)
        return
    new.bottom.extend(entry.bottom)
    new.top.extend(entry.top)
    old = entry.layer
    if old.HasField("type") and old.type not in TYPES:
        raise error(f"unknown type '{old.type}' of layer '{old.name}'{close_matches(old.type, TYPES)}")
    for field, value in old.ListFields():
        name = field.name
        if name == "type":
            new.type = caffe_pb2.V1LayerParameter.LayerType.Value(TYPES[value])
        elif name in COPIED_FIELDS or name == "hdf5_output_param" and old.type == "hdf5_output":
            set_field(new, name, value)
        elif name not in IGNORED and not _move(new, name, value, old.type):
            note(logging.ERROR, f"Ignored {name} of layer '{old.name}': a {old.type} layer has no such parameter")


def _move(new, name, value, kind):
    """Set the V1 counterpart of field `name` of a V0 layer of type `kind` in `new`; return whether there is one (`FIELDS`)."""
    target, kinds = FIELDS.get(name, (None, ()))
    if kinds is not None and kind not in kinds:
        return False
    holder = "transform_param" if kinds is None else f"{TYPES[kind].lower()}_param"
    repeated = holder == "convolution_param" and target in ("pad", "kernel_size", "stride")
    set_field(getattr(new, holder), target, [value] if repeated else value)
    return True
