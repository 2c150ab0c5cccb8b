"""``minicaffe finetune``: train a pretrained net for the classes of other pictures; in Caffe the user edits the prototxt by hand.

The net is reduced to what its prediction needs, as by ``minicaffe deploy``, which removes auxiliary losses. Its last layer with
parameters gets another name and number of outputs, so it starts from its filler; all others start from the weights. The training
is that of ``minicaffe train`` with the same options.
"""

import os
import warnings

import click
import numpy as np

from minicaffe.addons.workflows.class_weights import count_database_labels
from minicaffe.cli import options, solver_options, train
from minicaffe.cli.picture_nets import IMAGENET_CLASSES, PictureSource, find_mean, read_deploy_net
from minicaffe.cli.training_file import trial
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ConfigWarning, DataError, FileError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.proto.fields import copy_of, unused_name
from minicaffe.proto.files import read_lines
from minicaffe.proto.text import write_text

EPOCHS, MIN_ITER, MAX_ITER = 40, 300, 3000      # the default of --max-iter: so many epochs, within these limits
TEST_COUNT = 20                                 # by default, in a training
TRAIN_BATCH, TEST_BATCH = 16, 50                # pictures
DEFAULT_WEIGHT_STD = 0.01                       # of the new layer if NET has no filler for it, as in Caffe's fine-tuning example
# Options of `minicaffe train` that this command sets, or that have no effect here.
NOT_PASSED = {"file", "solver", "state", "resume", "batch_size", "test_batch_size", "keep_best", "level", "stage",
              *train.RANK_OPTIONS, *(f"field_{name}" for name in (
                  "net net_param train_net train_net_param test_net test_net_param train_state test_state weights test_iter "
                  "snapshot_prefix solver_type eval_type ap_version show_per_class_result").split())}


@click.command(cls=options.CaffeCommand)
@click.argument("file", metavar="NET")
@click.argument("weights")
@click.argument("db")
@click.option("-o", "--out", "out", metavar="NAME", help=(
    "NAME.prototxt, NAME_deploy.prototxt and NAME_best.caffemodel are written; by default NAME is that of DB."))
@click.option("--classes", type=click.IntRange(2, options.INT_MAX), metavar="N", help="By default as many as DB has.")
@click.option("--lr-mult-others", "lr_mult", type=options.Real(0), default=0.1, show_default=True, metavar="X", help=(
    "Factor of the learning rate of all other layers; 0 freezes them, and no gradients are computed below the new layer."))
@click.option("--mirror/--no-mirror", default=True, show_default=True, help="Mirror every other picture in training, at random.")
@click.option("--like", metavar="FILE", help=(
    "The net that WEIGHTS were trained with, which has mean and scale; by default NET, or one beside it with the same layers."))
@click.option("--mean", metavar="FILE|A,B,C", help="What to subtract, in place of the training net's mean; '' for nothing.")
@click.option("--scale", type=options.Real(), help="Factor after the mean, in place of the training net's.")
@click.option("--batch-size", type=options.batch_size, default=TRAIN_BATCH, show_default=True, help="Pictures in a batch.")
@click.pass_context
def finetune(ctx, file, weights, db, out, classes, lr_mult, mirror, like, mean, scale, batch_size, force, **passed):
    """Train the net of NET, a training or deploy prototxt with WEIGHTS, on the pictures of DB.

    DB is made by minicaffe data images --from-folders. The last layer is replaced by one with an output for each class. The weights
    of the best test are kept. Options of minicaffe train are options of this command, too.
    """
    out = out or os.path.basename(os.path.abspath(db))
    train_file, deploy_file, best_file = f"{out}.prototxt", f"{out}_deploy.prototxt", f"{out}_best.caffemodel"
    for path in filter(None, (file, weights, like)):
        if os.path.realpath(path) in map(os.path.realpath, (train_file, deploy_file, best_file)):
            raise ConfigError("is read, and would be written; give another NAME", file=path, field="--out")
    options.check_outputs(train_file, deploy_file, best_file, force=force)
    net_options = options.net_options()
    with caffe.trusting(net_options["trusted"]):
        pictures = Pictures(db, batch_size)
        count = classes or len(pictures.classes)
        if count < len(pictures.classes):
            raise ConfigError(f"must be at least {len(pictures.classes)}, the number of classes in {db}, got {count}",
                              field="--classes")
        net, positions, training, why = read_deploy_net(file, {"like": like, "mean": mean, "scale": scale})
        score_layer = last_layer(net, file)
        transform, input_text = preprocessing(net, score_layer, training, why, pictures, mean, scale, file)
    old, outputs = replace_last_layer(net, score_layer, count, os.path.basename(out))
    deployed = with_softmax(net)
    others = scale_learning_rates(net, score_layer, weights, lr_mult, file=file, positions=positions, **net_options)
    about_deploy = f"# The deploy net of {train_file}.\n# A record is {input_text}.\n"
    write_bytes(deploy_file, (about_deploy + write_text(deployed)).encode(errors="backslashreplace"))
    about_train = f"# {file} with another last layer, for the pictures of {db}.\n"
    text = about_train + write_text(training_net(net, pictures, transform, mirror))
    write_bytes(train_file, text.encode(errors="backslashreplace"))
    rates = f"lr_mult of {others} other layers times {lr_mult:g}" if lr_mult else f"{others} other layers frozen"
    click.echo(f"wrote {train_file} and {deploy_file}: layer '{score_layer.name}' with {count} outputs in place of '{old}' with "
               f"{outputs}; {rates}")
    options.notify(f"{pictures.train} pictures for training, {pictures.test} for tests; a record is {input_text}")
    words = [train_file, f"--weights={weights}", "--keep-best", *default_solver_arguments(pictures.train, batch_size, passed),
             *train_arguments(ctx)]
    with train.train.make_context("train", words, parent=ctx) as inner:
        status = train.train.invoke(inner)
    if os.path.isfile(best_file):
        click.echo(f"classify pictures with: minicaffe classify PICTURE --model {deploy_file} --weights {best_file}")
    return status


OWN_OPTION_COUNT = len(finetune.params)
train.train.import_modules()
finetune.params.extend(param for param in train.train.params if param.name not in NOT_PASSED)


class Pictures:
    """The training and test databases in `db`, a folder that ``minicaffe data images --from-folders`` writes.

    All records are read for their labels. By phase `sources` has the DataParameter of the Data layer, whose batches are not larger
    than the database, and in training not than `batch_size`; `train` and `test` are the numbers of records. `classes` are the names
    in labels.txt, or without this file the numbers from 0 to the largest label; `shape` is (channels, height, width) of the first
    record, before a crop. Raises FileError without one of the databases, DataError for a label that is negative or has no name.
    """

    def __init__(self, db, batch_size):
        backend = next((kind for kind in ("lmdb", "leveldb") if os.path.isdir(os.path.join(db, f"train_{kind}"))), None)
        if backend is None or not os.path.isdir(os.path.join(db, f"test_{backend}")):
            wrong = (f"has no test_{backend}, as with --test-share 0; make it with --test-share 0.2 or --test-from" if backend else
                     "must be a folder with train_lmdb and test_lmdb; make it with")
            raise FileError(f"{wrong}: minicaffe data images --from-folders PICTURES {db}", file=db)
        self.sources, counts = {}, []
        for phase, name, size in ((caffe_pb2.TRAIN, "train", batch_size), (caffe_pb2.TEST, "test", TEST_BATCH)):
            param = caffe_pb2.DataParameter(source=os.path.join(db, f"{name}_{backend}"), backend=backend.upper(), batch_size=size)
            counts.append(count_database_labels(param))
            self.sources[phase] = param
            param.batch_size = min(size, counts[-1].total())
        self.train, self.test = (count.total() for count in counts)
        labels = set().union(*counts)
        if min(labels) < 0:
            raise DataError(f"its databases have labels from {min(labels)} to {max(labels)}, but classes are counted from 0; make "
                            "them again with minicaffe data images --from-folders", file=db)
        file = os.path.join(db, "labels.txt")
        self.classes = range(max(labels) + 1)
        if os.path.isfile(file):
            self.classes = [line.strip() for line in read_lines(file) if line.strip()]
        if max(labels) >= len(self.classes):
            raise DataError(f"holds {len(self.classes)} names, and the databases beside it have labels from {min(labels)} to "
                            f"{max(labels)}; make them again with minicaffe data images --from-folders", file=file)
        layer = caffe_pb2.LayerParameter(name="data", type="Data", data_param=self.sources[caffe_pb2.TRAIN])
        self.shape = PictureSource(db, layer).uncropped_shape()


def last_layer(net, file):
    """Return the InnerProduct or Convolution that computes the scores of `net`; remove a Softmax or Sigmoid after it from `net`."""
    if net.layer[-1].type in ("Softmax", "Sigmoid"):
        blob = net.layer[-1].bottom[0]
        del net.layer[-1]
    else:
        blob = net.layer[-1].top[0]
    for layer in reversed(net.layer):
        if blob not in layer.top:
            continue
        if layer.type in ("InnerProduct", "Convolution"):
            return layer
        if len(layer.bottom) != 1:
            break
        blob = layer.bottom[0]
    raise ConfigError(f"no InnerProduct or Convolution alone makes the scores '{net.layer[-1].top[0]}', so no layer can be "
                      "replaced; give the deploy net of a classifier", file=file)


def preprocessing(net, score_layer, training, why, pictures, mean, scale, file):
    """Return the TransformationParameter of the pictures, with the mean of each channel; and a text with shape, mean and scale.

    Raises ConfigError if the pictures do not have the channels of the net's input, or are smaller.
    """
    channels, height, width = net.layer[0].input_param.shape[0].dim[1:]
    if pictures.shape[0] != channels:
        how = "with" if channels == 1 else "without"
        raise ConfigError(f"the net takes {channels} channels, and the pictures have {pictures.shape[0]}; make the database {how} "
                          "--gray", file=file)
    if pictures.shape[1] < height or pictures.shape[2] < width or height != width and pictures.shape[1:] != (height, width):
        size = (width + width // 8, height + height // 8) if height == width else (width, height)
        why = ", from which the net's input is cut out" if height == width else ", as only squares are cut out"
        raise ConfigError(f"the net takes {height} x {width}, and the pictures are {pictures.shape[1]} x {pictures.shape[2]}; make "
                          f"the database with --resize-width {size[0]} --resize-height {size[1]}{why}", file=file)
    param = caffe_pb2.TransformationParameter()
    if pictures.shape[1:] != (height, width):
        param.crop_size = height
    imagenet = channels == 3 and param_with_outputs(score_layer).num_output == IMAGENET_CLASSES
    values, of_mean = find_mean(mean, training, channels, imagenet)
    if values is not None:
        param.mean_value.extend(np.asarray(values, np.float64).reshape(channels, -1).mean(axis=1))
    scale = scale if scale is not None else training.scale if training is not None else None
    if scale is not None:
        param.scale = scale
    if training is None and (mean is None or scale is None):
        options.notify(why)
    if channels == 3 and training is not None and training.is_rgb():
        options.notify(f"{training.file} has channels in the order RGB, and the pictures of the database are BGR")
    return param, (f"{channels} x {height} x {width}" + (f", minus {of_mean}" if values is not None else "")
                   + (f", times {scale:g}" if scale is not None else ""))


def param_with_outputs(layer):
    """Return the InnerProductParameter or ConvolutionParameter of a layer."""
    return layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param


def replace_last_layer(net, score_layer, count, suffix):
    """Give the layer `score_layer` of `net` a name with `suffix` and `count` outputs; return its old name and number of outputs."""
    param, old = param_with_outputs(score_layer), score_layer.name
    outputs, param.num_output = param.num_output, count
    score_layer.name = unused_name(f"{old}_{suffix}", {layer.name for layer in net.layer})
    if not param.HasField("weight_filler"):
        param.weight_filler.type, param.weight_filler.std = "gaussian", DEFAULT_WEIGHT_STD
    rates = [spec.lr_mult for spec in score_layer.param] or [1, 2]
    del score_layer.param[:]       # also the names of its parameters: the new layer shares none with another layer
    for rate, decay in list(zip(rates, (1, 0)))[:1 + param.bias_term]:
        score_layer.param.add(lr_mult=rate or 1, decay_mult=decay)
    return old, outputs


def scale_learning_rates(net, score_layer, weights, factor, **options):
    """Multiply the learning rates of all layers but `score_layer` by `factor`; return the number of these layers.

    With factor 0 BatchNorm uses the mean and variance in the file of weights. `options` are for building `net`. Raises an Error if
    `weights` do not fit it.
    """
    built = copy_of(net)
    built.state.phase = caffe_pb2.TEST
    with trial(), warnings.catch_warnings(action="error", category=ConfigWarning):
        made = Net(built, **options)
        made.copy_from(weights)
    others = 0
    for layer in net.layer:
        blobs = next(len(node.blobs) for node in made.nodes if (node.name, node.type) == (layer.name, layer.type))
        if layer == score_layer or not blobs:
            continue
        others += 1
        if layer.type == "BatchNorm":       # its rates are 0
            if not factor:
                layer.batch_norm_param.use_global_stats = True
            continue
        while len(layer.param) < blobs:
            layer.param.add()
        for spec in layer.param:
            spec.lr_mult *= factor
    return others


def with_softmax(net):
    """Return a copy of the net with a Softmax after its last layer."""
    made = copy_of(net)
    made.ClearField("state")
    names = {layer.name for layer in net.layer} | {top for layer in net.layer for top in layer.top}
    name = unused_name("prob", names)
    made.layer.add(name=name, type="Softmax", bottom=net.layer[-1].top[:1], top=[name])
    return made


def training_net(net, pictures, transform, mirror):
    """Return a copy of `net` with a loss, an Accuracy, and Data layers of `pictures` in place of the Input, its first layer."""
    names = {layer.name for layer in net.layer} | {top for layer in net.layer for top in layer.top}
    label, accuracy, loss = (unused_name(name, names) for name in ("label", "accuracy", "loss"))
    source, scores = net.layer[0], net.layer[-1].top[0]
    made = caffe_pb2.NetParameter(name=net.name)
    for phase, param in pictures.sources.items():
        layer = made.layer.add(name=source.name, type="Data", top=[source.top[0], label], transform_param=transform,
                               data_param=param)
        layer.include.add(phase=phase)
        if phase == caffe_pb2.TRAIN and mirror:
            layer.transform_param.mirror = True
    made.layer.extend(list(net.layer)[1:])
    made.layer.add(name=accuracy, type="Accuracy", bottom=[scores, label], top=[accuracy]).include.add(phase=caffe_pb2.TEST)
    made.layer.add(name=loss, type="SoftmaxWithLoss", bottom=[scores, label], top=[loss])
    return made


def default_solver_arguments(records, batch_size, passed):
    """Return command-line arguments for what the user did not set: max_iter, test_interval, display and lr_policy."""
    given, _ = solver_options.given_fields(passed)
    max_iter = given.get("max_iter") or min(MAX_ITER, max(MIN_ITER, EPOCHS * records // batch_size))
    interval = max(1, max_iter // TEST_COUNT)
    if "max_iter" not in given:
        max_iter -= max_iter % interval
    defaults = {"max_iter": max_iter, "test_interval": interval, "display": interval}
    if "lr_policy" not in given:
        defaults |= {"lr_policy": "poly", "power": 1}
    return [f"--{name.replace('_', '-')}={value}" for name, value in defaults.items() if name not in given]


def train_arguments(ctx):
    """Return the arguments of the command line that are options of ``minicaffe train``, not of this command."""
    own_names = {name for param in finetune.params[:OWN_OPTION_COUNT] for name in (*param.opts, *param.secondary_opts)}
    words = ctx.meta["arguments"]
    words = words[:words.index("--")] if "--" in words else words
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in own_names]
