"""``minicaffe train --class-weights``: losses in which records of rare classes count more.

SoftmaxWithLoss of the train net becomes InfogainLoss with the diagonal matrix H = diag(w), Caffe's own layers and formulas: the
term of a record of class c is w[c] times that of SoftmaxWithLoss, and what the sum is divided by stays the same. Test nets keep
their losses. H is written beside the snapshots, so that a net for BVLC Caffe can name it as `infogain_loss_param.source`.
"""

import os
from collections import Counter

import numpy as np

from minicaffe.cli import bars, earlier_files, ranks, training_file
from minicaffe.cli.options import notify
from minicaffe.common import caffe
from minicaffe.data.datum import read_datum
from minicaffe.data.db import open_db
from minicaffe.data.image_list import ImageList
from minicaffe.data.mean_file import write_mean
from minicaffe.device.threads import dry_run
from minicaffe.errors import ConfigError, DataError, Error, located
from minicaffe.inspection import replace_sources
from minicaffe.layers.data.data import check_database
from minicaffe.net import deploy
from minicaffe.net.definitions import filter_layers
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary import read_blob
from minicaffe.proto.files import read_lines

AUTO = "auto"
OPTION = "--class-weights"
WEIGHTS_SHOWN = 20
STEP = 10_000   # records between two steps of the progress bar


def weigh_classes(solver, net_param, file=None, positions=None, *, wanted, keep):
    """Replace the losses in `net_param`, the train net of `solver`, by `wanted`: "auto", or a file with a weight for each class.

    With `keep` an earlier file of another training at the place of the matrix is kept under a numbered name. All ranks that train
    together must call this; rank 0 reads the weights. Raises ConfigError if that cannot be done in this net, DataError if the
    weights do not fit its classes.
    """
    layers = filter_layers(net_param.layer, net_param.state, file, positions)
    losses = [layer for layer in layers if layer.param.type == "SoftmaxWithLoss"]
    if not losses:
        others = [layer.param.type for layer in layers if layer.param.type.endswith("Loss")]
        raise ConfigError(f"weighs the classes of SoftmaxWithLoss, and the train net has none; its losses are "
                          f"{', '.join(others) or 'none'}", field=OPTION, file=file)
    first = losses[0]
    place = {"file": file, "line": first.line, "layer": first.param.name, "layer_type": first.param.type}
    labels = {layer.param.bottom[1]: layer for layer in losses if len(layer.param.bottom) > 1}
    if len(labels) > 1:
        raise ConfigError(f"{OPTION} needs losses of one kind of label, and the net has losses of {' and '.join(labels)}", **place)
    if not solver.param.snapshot_prefix:
        raise ConfigError(f"is not set, and {OPTION} writes its matrix beside the snapshots", field="snapshot_prefix")
    path = f"{solver.param.snapshot_prefix}_class_weights.binaryproto"
    try:
        caffe.check_path(path, OPTION)      # as the layer does
    except ConfigError:
        raise ConfigError(f"the net is not trusted, and reads its matrix {path} in the working directory alone; give a "
                          "--snapshot-prefix there", field=OPTION, file=file) from None
    classes = _class_counts(net_param, [layer.param.name for layer in losses], file, positions)
    if len(set(classes)) > 1:
        raise ConfigError(f"{OPTION} needs losses of the same number of classes, got {' and '.join(map(str, classes))}", **place)
    label, ignored = first.param.bottom[1], deploy.ignored(first.param.loss_param)
    with located(field=OPTION):
        weights, text = ranks.group.run_on_root(_weights, wanted, layers, label, classes[0], ignored)
    ranks.group.run_on_root(_write, path, weights, keep)
    if ranks.group.rank != 0:
        _write(path, weights, keep)     # on a machine that does not share the folder
    for layer in losses:
        _replace(layer.param, path)
    shown = ", ".join(f"{i}: {weight:.4g}" for i, weight in enumerate(weights[:WEIGHTS_SHOWN]))
    more = f" and {len(weights) - WEIGHTS_SHOWN} more" if len(weights) > WEIGHTS_SHOWN else ""
    names = ", ".join(f"'{layer.param.name}'" for layer in losses)
    notify(f"class weights ({text}): {shown}{more}; InfogainLoss in place of SoftmaxWithLoss in {names}, with the matrix {path}")


def _class_counts(net_param, names, file, positions):
    """Return how many classes each of the losses has."""
    with training_file.trial(), dry_run():
        made, _ = replace_sources.replace_sources(net_param, file, positions=positions)
        net = Net(made, file=file, positions=positions)
        nodes = {node.name: node for node in net.nodes}
        return [nodes[name].bottoms[0].shape[nodes[name].param.softmax_param.axis] for name in names]


def _weights(wanted, layers, label, classes, ignored):
    """Return the weight of each class, float64, and where they come from."""
    if wanted != AUTO:
        return read_weights(wanted, classes), f"from {wanted}"
    source = next((layer for layer in layers if label in layer.param.top and not layer.param.bottom), None)
    counted = count_labels(source, label)
    counted.pop(ignored, None)
    wrong = [number for number in counted if not 0 <= number < classes]
    if wrong:
        raise DataError(f"{counted[wrong[0]]} records have label {wrong[0]}, and the loss has {classes} classes, from 0 to "
                        f"{classes - 1}; correct num_output of its scores or the labels", layer=source.param.name,
                        layer_type=source.param.type)
    counts = np.array([counted[number] for number in range(classes)])
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        listed = ", ".join(map(str, missing[:WEIGHTS_SHOWN])) + ", ..." * (missing.size > WEIGHTS_SHOWN)
        notify(f"{OPTION}: no record of class {listed}; weight 0")
    return inverse_frequencies(counts), f"inverse frequency of {counts.sum()} labels, with mean 1 over them"


def _write(path, weights, keep):
    matrix = np.diag(weights).astype(np.float32)
    if os.path.isfile(path):
        try:
            if np.array_equal(read_blob(path).data, matrix.reshape(-1)):
                return
        except Error:
            pass    # another file, which is replaced
        if keep and ranks.group.rank == 0:
            earlier_files.keep_earlier_file(path)
    write_mean(path, matrix[None])


def _replace(layer, path):
    """Make a SoftmaxWithLoss the InfogainLoss with the matrix `path`."""
    layer.type = "InfogainLoss"
    layer.infogain_loss_param.source = path
    layer.infogain_loss_param.axis = layer.softmax_param.axis
    loss = layer.loss_param
    if loss.HasField("normalize"):      # the old field, which InfogainLoss does not take
        if not loss.HasField("normalization"):
            loss.normalization = caffe_pb2.LossParameter.VALID if loss.normalize else caffe_pb2.LossParameter.BATCH_SIZE
        loss.ClearField("normalize")


def inverse_frequencies(counts):
    """Return N / (K n_c) for each class, of N records in K classes that have any, and 0 for a class without.

    The mean over the records is 1.
    """
    used = counts > 0
    return np.where(used, counts.sum() / (used.sum() * np.maximum(counts, 1)), 0.0)


def read_weights(path, classes):
    """Return the weights of a file, one a line from class 0 on.

    Raises DataError unless there is one for each class, each finite and at least 0, and not all 0.
    """
    weights = []
    for number, line in enumerate(read_lines(path, "a list of weights"), 1):
        if not line.strip():
            continue
        try:
            weights.append(float(line))
        except ValueError:
            raise DataError(f"a line must be a weight, a number, got '{line.strip()[:40]}'", file=path, line=number) from None
        if not 0 <= weights[-1] <= np.finfo(np.float32).max:
            raise DataError(f"a weight must be a finite number of at least 0, got {line.strip()[:40]}", file=path, line=number)
    if len(weights) != classes:
        raise DataError(f"holds {len(weights)} weights, the loss has {classes} classes; give one line for each", file=path)
    if not any(weights):
        raise DataError("all weights are 0, so nothing would be learned", file=path)
    return np.array(weights)


def count_labels(source, label):
    """Return how often each label occurs in the data of a layer, as a Counter; `source` is its LayerDef, None if there is none.

    Raises ConfigError if its labels cannot be counted.
    """
    kind, param = (source.param.type, source.param) if source is not None else (None, None)
    fields = {"Data": "data_param", "ImageData": "image_data_param"}
    sized = kind in fields and getattr(param, fields[kind]).HasField("label_size")
    if kind not in fields or sized:
        maker = "no data layer" if source is None else f"{kind} with label_size" if sized else kind
        raise ConfigError(f"{AUTO} counts the labels of Data or ImageData, and {maker} makes '{label}'; give a file with a weight "
                          "for each class, one a line")
    with located(layer=param.name, layer_type=kind):
        if kind == "ImageData":
            return Counter(number for _, number in ImageList(param.image_data_param.source).entries)
        return count_database_labels(param.data_param)


def count_database_labels(param):
    """Return how often each label occurs in the database of a DataParameter, as a Counter."""
    check_database(param)
    labels = Counter()
    with open_db(param.source, param.backend) as db, bars.progress() as report:
        count = len(db)
        for number, (key, record) in enumerate(db.records()):
            try:
                labels[read_datum(record).label] += 1
            except Error as error:
                raise db.locate(error, number, key) from None
            if number % STEP == STEP - 1:
                report("labels", number + 1, count)
    return labels
