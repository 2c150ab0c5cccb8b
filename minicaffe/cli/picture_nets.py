"""The nets of ``classify`` and ``detect``, and how pictures are preprocessed: as in training, if the training net is known.

Caffe's tools resize every picture to 256 x 256, cut crops and subtract the mean of ImageNet. That is right for nets of ImageNet
only. So it is the default only for those (three channels in, 1000 scores out). Size and channels are the input's.
Crop, mean and scale are those of the training net, if it is known, also for ImageNet.
"""

import os
import re
from collections import namedtuple
from pathlib import Path

import click
import numpy as np

from minicaffe import pretrained
from minicaffe.cli import options, ranks
from minicaffe.cli.training_file import trial
from minicaffe.common import caffe
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.data.mean_file import read_mean
from minicaffe.data.transform import Transformer
from minicaffe.engines.engine import check_precision
from minicaffe.errors import ConfigError, DataError, Error, FileError, MissingNameError, located
from minicaffe.layer import layer_class
from minicaffe.layers.data.data import check_database, first_record
from minicaffe.net.deploy import deploy_net, source_layer
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import copy_of
from minicaffe.proto.upgrade import load, load_net
from minicaffe.pycaffe.classifier import Classifier, picture_transformer
from minicaffe.pycaffe.io import read_npy

IMAGENET_MEAN = (104.00698793, 116.66876762, 122.67891434)  # BGR means of Caffe's ilsvrc_2012_mean.npy
IMAGENET_SIZE = (256, 256)
IMAGENET_CLASSES = 1000     # of ILSVRC's classification
MAX_PROTOTXT_BYTES = 8 << 20  # bytes; larger files beside the net are not read
WEIGHTED_TYPES = ("Convolution", "InnerProduct", "Deconvolution", "Scale", "BatchNorm", "Embed", "LSTM", "RNN")


class IntegerList(click.ParamType):
    """A list of integers with commas: `count` of them if given, each at least `least`; '' is an empty list."""

    name = "A,B"

    def __init__(self, count=None, least=None):
        self.count, self.least = count, least

    def convert(self, value, param, ctx):       # click calls it with an option's text, or its default
        try:
            numbers = value if isinstance(value, tuple) else tuple(int(part) for part in value.split(",")) if value else ()
        except ValueError:
            self.fail(f"must be whole numbers with commas, got '{value}'", param, ctx)
        if self.count is not None and len(numbers) not in (0, self.count):
            self.fail(f"must be {self.count} whole numbers with a comma, got '{value}'", param, ctx)
        if self.least is not None and numbers and min(numbers) < self.least:
            self.fail(f"each must be at least {self.least}, got '{value}'", param, ctx)
        return numbers


picture_net_options = options.combine_options(     # all options of `open_net`
    click.option("--model", metavar="FILE",
                 help=f"A deploy net, a training net, or a name of a trained net of the package: {', '.join(pretrained.names())}. "
                 f"By default classify takes {pretrained.DEFAULT}."),
    click.option("--weights", metavar="FILE", help="A .caffemodel, or HDF5; by default that of the package's net."),
    click.option("--like", metavar="FILE", help="The training net, which has mean, scale and size of pictures; by default one "
                 "beside the model with the same layers."),
    click.option("--mean", metavar="FILE|A,B,C", help="What to subtract: a number for "
                 "each channel in the order of the net's input, or one for all; a .npy or mean file; '' for nothing. By "
                 "default the training net's mean, and for nets of ImageNet without one the means of its channels."),
    click.option("--scale", type=options.Real(),
                 help="Factor after the mean; by default the training net's."),
    click.option("--raw-scale", type=options.Real(), default=255.0, show_default=True,
                 help="Factor before the mean."),
    click.option("--channel-swap", type=IntegerList(), help="Order of channels; pictures are read as RGB. By "
                 "default 2,1,0 where the net takes three (Caffe's BGR), else none; '' for none."))


def select_pretrained(given, default=None):
    """Put the files of a trained net of the package in place of its name in `given`, the values of `picture_net_options` by name.

    Without --model and --weights that is the net `default`. One line says which net it is. Return its Pretrained; None where
    --model is a path, or is not given and no `default` is used. Raises ConfigError if --model is a single word, and no file and no
    net of the package has this name.
    """
    name, why = given["model"], ""
    if name is None and given["weights"] is None:
        name, why = default, "no --model: "
    if name is None or not re.fullmatch(r"\w+", name) or os.path.isfile(name):
        return None
    try:
        found = pretrained.find(name)
    except MissingNameError as error:
        raise ConfigError(f"no file has the name '{name}', and {error.message}", field="--model") from None
    weights = f"with the weights {given['weights']}" if given["weights"] else f"trained on {pretrained.PICTURES}"
    options.notify(f"{why}{name} of the package, {weights}")
    given.update(model=found.model, weights=given["weights"] or found.weights)
    return found


def open_net(given, images_dim=None):
    """Return the Classifier of the options of `picture_net_options`, with its preprocessing; and its PictureSource, or None.

    `given` has the values of those options, and optionally `level` and `stage`. `images_dim`, (height, width), overrides the size
    that pictures are resized to. One line on standard error describes the preprocessing.
    """
    model, weights = given["model"], given["weights"]
    if model is None:
        raise click.UsageError(f"give --model FILE, the deploy or training net{f' of {weights}' if weights else ''}")
    if weights is None:
        raise click.UsageError(f"give --weights FILE, the trained parameters of {model}")
    check_precision()
    about = options.net_options()
    with caffe.trusting(about["trusted"]):
        param, positions, training, why = read_deploy_net(model, given)
    net = Classifier(param, weights, file=model, positions=positions, **about)
    with caffe.trusting(about["trusted"]):
        set_preprocessing(net, training, why, given, images_dim)
    if ranks.group.size > 1:
        options.print_ranks()
    return net, training


def read_deploy_net(file, given):
    """Return the deploy net of `file`, its Positions, its PictureSource or None, and the reason if it is None.

    A training net is reduced to its prediction; the Input of the result has the size that the net was trained with. `given` is as
    for `open_net`. Raises ConfigError if the input of the net is not known, or is not of pictures.
    """
    param, positions = read_net(file, caffe_pb2.TEST, given.get("level", 0), given.get("stage", ()),
                                skip_unknown_fields=options.net_options()["skip_unknown_fields"])
    own = PictureSource.of(param, file, positions)
    if own is None:
        source = source_layer(param, file, positions)
        if source is None:
            raise ConfigError("has no data layer and no Input, so its input is unknown; give a training or a deploy net", file=file)
        if source.type != "Input":
            raise ConfigError(f"'{source.type}' reads no pictures, so the size of the input is not known; give the deploy net",
                              file=file, layer=source.name, layer_type=source.type)
        return param, positions, *find_training(param, file, given)
    loss = next((layer for layer in param.layer if layer.type == "MultiBoxLoss"), None)
    if loss is not None and not any(layer.type == "DetectionOutput" for layer in param.layer):
        raise ConfigError("the net is trained on boxes, and no DetectionOutput layer outputs them; give its deploy net",
                          file=file, layer=loss.name, layer_type=loss.type)
    training, why = (own, "") if given["like"] is None else find_training(param, file, given)
    try:
        shape = training.input_shape()
    except Error as error:
        error.message += "; the size of the net's input is that of its training data; to go without them, give the deploy net"
        raise
    return deploy_net(param, (1, *shape), file, positions), positions, training, why


def open_data_net(file, weights, state, why, **about):
    """Return the net of `file` in phase TEST with its weights; it reads its own data. `state` is its level and stages.

    `about` replaces values of `minicaffe.cli.options.net_options`. Raises ConfigError, which ends in `why`, if the net has inputs.
    """
    about = {**options.net_options(), **about}
    with options.suggests_data_command():
        net = Net(read_net(file, caffe_pb2.TEST, *state, about["skip_unknown_fields"]), **about)
    net.copy_from(weights)
    if net.input_blobs:
        raise ConfigError(f"nothing fills its input '{net.input_blobs[0].name}', {why}", file=file)
    return net


def set_preprocessing(net, training, why, given, images_dim):
    """Set the preprocessing of `net`, a Classifier, and print it in one line: that of the options, by default that of its training.

    `training` is its PictureSource, or None for the reason `why`; `given` and `images_dim` are those of `open_net`.
    """
    channels, height, width = net.transformer.inputs[net.inputs[0]][1:]
    scores = int(np.prod(net.blobs[net.outputs[0]].shape[1:]))
    imagenet = channels == 3 and scores == IMAGENET_CLASSES
    size = images_dim or (height, width)
    if images_dim is None:
        whole = IMAGENET_SIZE if imagenet and max(height, width) <= min(IMAGENET_SIZE) else None
        size = training.size(size, whole) if training else whole or size
    mean, of_mean = find_mean(given["mean"], training, channels, imagenet)
    net.ten_crops = imagenet or images_dim is not None  # as Caffe's tool has it, which resizes the mean
    if mean is not None and mean.shape[1:] == tuple(size) and not net.ten_crops:  # what the centre crop sees, as in training
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        mean = mean[:, top:top + height, left:left + width]
    scale = given["scale"] if given["scale"] is not None else training.scale if training else None
    swap = given["channel_swap"]
    if swap is None:
        swap = () if channels != 3 or training and training.is_rgb() else (2, 1, 0)
    net.transformer = picture_transformer(net, mean, scale, given["raw_scale"], swap or None)
    net.image_dims = np.array(size)
    order = {(2, 1, 0): " (BGR)", (): "" if channels == 1 else " (RGB)"}.get(tuple(swap), "")
    crop = "" if tuple(size) == (height, width) else f", resized to {size[0]} x {size[1]}"
    about = (f"pictures: {channels} channel{'s' * (channels != 1)}{order}, {height} x {width}{crop}, "
             f"{'minus ' + of_mean if mean is not None else 'no mean'}, {f'times {scale:g}' if scale is not None else 'no scale'}")
    options.notify(f"{about}; {f'as in {training.file}' if training else why}")


def find_mean(given, training, channels, imagenet):
    """Return the mean to subtract, (C,) or (C, H, W), or None; and what it is, for the user.

    `given` is the value of --mean, by default None: the mean of `training`, a PictureSource or None. With `imagenet` (a net of
    ImageNet) it is ImageNet's means if the training net is unknown or its mean file is missing.
    """
    if given == "":
        return None, ""
    if given is not None:
        values = _numbers(given)
        if values is None:
            return read_npy(given) if given.lower().endswith(".npy") else read_mean(given), f"mean of {given}"
        if len(values) not in (1, channels):
            raise ConfigError(f"must be one number, or one for each of the {channels} channels of the net's input, got {given}",
                              field="--mean")
        return np.resize(values, channels), f"mean {given}"
    try:
        if training:
            return training.mean(channels)
    except (FileError, DataError) as error:
        if not imagenet or isinstance(error, DataError):
            error.message += f"; {training.file} names it; give another by --mean, or --mean '' for none"
            raise
        options.notify(str(error))
    return (np.array(IMAGENET_MEAN), "the channel means of ImageNet") if imagenet else (None, "")


class PictureSource(namedtuple("PictureSource", "file layer")):
    """The layer of a training net that reads its pictures (LayerParameter), and the net's file: how a trained net gets pictures."""

    @classmethod
    def of(cls, param, file, positions=None):
        """Return the PictureSource of a NetParameter in phase TEST, else TRAIN; None if no layer reads pictures."""
        for phase in (caffe_pb2.TEST, caffe_pb2.TRAIN):
            layer = source_layer(load_net(param, phase).param, file, positions)
            if layer is not None and layer.type in ("Data", "AnnotatedData", "ImageData", "MemoryData"):
                return cls(file, layer)
        return None

    @property
    def scale(self):
        """float or None: the factor after the mean, None for 1."""
        return self.layer.transform_param.scale if self.layer.transform_param.scale != 1 else None

    def crop(self):
        """Return (height, width) of the crop, which is the input's size; None without one."""
        param = self.layer.transform_param
        sides = (param.crop_size or param.crop_h, param.crop_size or param.crop_w)
        return sides if min(sides) else None

    def is_rgb(self):
        """Return whether the channels are red, green, blue, as in databases made of CIFAR-10's files; OpenCV gives blue first."""
        return re.search(r"cifar10_(train|test)_(lmdb|leveldb)/*$", self.layer.data_param.source) is not None

    def uncropped_shape(self):
        """Return (channels, height, width) of the pictures before the crop, from the layer or a first record; None: not known."""
        if self.layer.type == "MemoryData":
            param = self.layer.memory_data_param
            return param.channels, param.height, param.width
        if self.layer.type == "ImageData":
            param = self.layer.image_data_param
            return 3 if param.is_color else 1, param.new_height or None, param.new_width or None
        resize = self.layer.transform_param.resize_param
        if self.layer.type == "AnnotatedData" and resize.height and resize.width:
            return 1 if self.layer.transform_param.force_gray else 3, resize.height, resize.width
        check_database(self.layer.data_param)
        param = self.layer.transform_param
        uncropped = caffe_pb2.TransformationParameter(force_color=param.force_color, force_gray=param.force_gray)
        with first_record(self.layer.data_param) as record:
            datum = layer_class(self.layer.type).datum_of(bytes(record))
            return Transformer(uncropped, caffe_pb2.TEST).load([datum]).shape[1:]

    def input_shape(self):
        """Return (channels, height, width) of the input of the deploy net. Raises ConfigError or FileError if it is not known."""
        with located(file=self.file, layer=self.layer.name, layer_type=self.layer.type):
            channels, *size = self.uncropped_shape()
        size = self.crop() or size
        if None in size:
            raise ConfigError("new_height and new_width are not set, so the input's size is open; set them, or give a deploy net",
                              file=self.file, layer=self.layer.name, layer_type=self.layer.type, field="image_data_param")
        return channels, *size

    def size(self, input_size, likely=None):
        """Return (height, width) to which pictures are resized before the crop; if not known, `likely`, else `input_size`."""
        if self.crop() is None:
            return input_size
        for known in (lambda: self.uncropped_shape()[1:], lambda: read_mean(self._mean_file()).shape[1:]):
            try:
                size = known()
            except ConfigError:
                raise
            except Error:
                continue
            if None not in size:
                return size
        if likely is None:
            options.notify(f"{self.file} cuts {input_size[0]} x {input_size[1]} out of pictures whose size is not known here, so "
                         "they are resized to just that; the training database or its mean file would give it")
        return likely or input_size

    def mean(self, channels):
        """Return the mean, (C,) or (C, H, W), and its name for the user; (None, "") if there is none."""
        param = self.layer.transform_param
        if param.mean_file:
            return read_mean(self._mean_file()), f"mean of {param.mean_file}"
        if param.mean_value:
            values = np.array(param.mean_value, np.float64)
            return np.resize(values, channels) if len(values) == 1 else values, "mean " + ", ".join(f"{v:g}" for v in values)
        return None, ""

    def _mean_file(self):
        """Return the path of the mean file; of an untrusted net raise ConfigError if it lies outside the working directory."""
        caffe.check_path(self.layer.transform_param.mean_file, "transform_param.mean_file")
        return self.layer.transform_param.mean_file

    def folders(self):
        """Return where labels.txt of a training database may be: in the database and in the folder around it."""
        source = self.layer.data_param.source.rstrip("/")
        return [source, os.path.dirname(source)] if self.layer.type in ("Data", "AnnotatedData") else []


def _numbers(text):
    """Return the numbers of --mean with commas as an array; None for any other text, such as a path."""
    try:
        values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def find_training(param, model, given):
    """Return the `PictureSource` of --like, or of the nets beside `model` that have its layers; and why there is none.

    Raises ConfigError if nets beside `model` make pictures differently, unless the options `given` say mean and scale.
    """
    like = given["like"]
    if like is not None:
        param = load(like).param
        if not isinstance(param, caffe_pb2.NetParameter):
            raise ConfigError("is a solver; give the net that it trains", file=like, field="--like")
        found = PictureSource.of(param, like)
        if found is None:
            raise ConfigError("has no layer that reads pictures (Data, AnnotatedData, ImageData, MemoryData), so it cannot give "
                              "their preprocessing",
                              file=like, field="--like")
        return found, ""
    layers = {(layer.name, layer.type) for layer in param.layer if layer.type in WEIGHTED_TYPES}
    found = {}
    for path in sorted(Path(model).absolute().parent.glob("*.prototxt")):
        path = os.path.join(os.path.dirname(model), path.name)
        try:
            if os.path.samefile(path, model) or os.path.getsize(path) > MAX_PROTOTXT_BYTES:
                continue
            with trial():       # its log is of no interest
                other = load(path).param
                training = PictureSource.of(other, path) if isinstance(other, caffe_pb2.NetParameter) else None
        except (Error, OSError):
            continue  # the file is no net
        if training is not None and layers <= {(layer.name, layer.type) for layer in other.layer}:
            same = copy_of(training.layer.transform_param)
            same.ClearField("mirror")
            found.setdefault((same.SerializeToString(), training.layer.image_data_param.new_height), []).append(training)
    if len(found) == 1:  # prefer a net whose database exists: it gives the size
        return max(*found.values(), key=lambda training: os.path.exists(training.layer.data_param.source)), ""
    if not found:
        return None, (f"no training net is beside {model}: name it by --like FILE, or give --mean and --scale, where "
                      "the net was trained otherwise")
    files = " and ".join(same[0].file for same in found.values())
    if given["mean"] is None or given["scale"] is None:
        raise ConfigError(f"{files} have its layers and make pictures differently; name the training net by --like FILE, or give "
                          "--mean (such as --mean 104,117,123, or --mean '') and --scale (--scale 1 for none)", file=model)
    return None, f"{files} make pictures differently, so mean and scale are those of the options"


def load_picture(path, net):
    """Return a picture in [0, 1], RGB or grey, in the size that `net` needs, read and resized as by `minicaffe data images`."""
    channels = net.transformer.inputs[net.inputs[0]][1]
    image = decode_picture(read_content(path), path, channels != 1, tuple(net.image_dims.tolist()))
    image = image[:, :, np.newaxis] if image.ndim == 2 else image[:, :, ::-1]
    return image.astype(np.float32) / 255
