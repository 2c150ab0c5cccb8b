"""``minicaffe classify``: scores of pictures by a Classifier (Caffe python/classify.py).

Different from Caffe: any number of pictures are inputs, the best classes are printed, the file of scores is named by --out alone,
and `set_preprocessing` (picture_nets.py) defines the preprocessing.
"""

import functools
import os
import time

import click
import numpy as np

from minicaffe import pretrained
from minicaffe.cli import bars, options, ranks
from minicaffe.cli.inputs import SkippedInputs, check_ending, csv_bytes, ext_option, json_bytes, picture_paths, read_each
from minicaffe.cli.picture_nets import IntegerList, load_picture, open_net, picture_net_options, select_pretrained
from minicaffe.common import caffe
from minicaffe.data.convert import check_picture
from minicaffe.errors import ConfigError, DataError
from minicaffe.net.deploy import PREDICTION_TYPES
from minicaffe.proto.atomic import replacing, write_bytes
from minicaffe.proto.files import read_lines
from minicaffe.pycaffe import io

CHUNK = 64  # pictures between two steps of the progress bar
CLASSES_SHOWN = 5  # of each picture
KEEP_ORDER = ("Log", "Power", "Flatten", "Reshape", "Split", "Dropout")     # layers that may follow a Softmax or Sigmoid


@click.command(cls=options.CaffeCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", "out", metavar="FILE", help="Write all scores: .npy (N x classes), .csv or .json.")
@options.force
@picture_net_options
@click.option("--labels", metavar="FILE", help="Names of the classes, one a line; by default labels.txt beside the model, in "
              "the training database or beside it.")
@click.option("--center-only", is_flag=True, help="The centre crop alone, where --images-dim asks for ten.")
@click.option("--images-dim", type=IntegerList(2, least=1), help="Height and width that pictures get before ten "
              "crops are averaged, as in Caffe's tool; by default pictures are made as in training.")
@click.option("--list", "listed", is_flag=True, help="INPUT is a text file with the path of a picture on each line.")
@ext_option("an INPUT that is a folder")
@options.plan
@options.run_options
def classify(inputs, out, force, labels, center_only, images_dim, listed, ext, **given):
    """Classify each INPUT, a picture, a folder of pictures, a pattern such as 'photos/*.jpg', a list or a .npy array of pictures:
    print the best classes, and with --out write all scores.

    Processes that mpiexec started divide the pictures.
    """
    if out is not None:
        check_ending(out)
        options.check_outputs(out, force=force)
    paths = picture_paths(inputs, ext, listed)
    if images_dim:
        check_picture(images_dim[::-1], "--images-dim")
    packaged = select_pretrained(given, pretrained.DEFAULT)
    net, training = open_net(given, images_dim)
    if center_only and not net.ten_crops:
        options.notify("--center-only: without --images-dim this net gets one crop of each picture anyway")
    numbers, files, errors = read_each(enumerate(paths), lambda path: io.read_npy(path) if path.lower().endswith(".npy") else None)
    names, pictures = [], []    # a picture is a path, or an array
    channels = net.transformer.inputs[net.inputs[0]][1]
    for path, rows in zip([paths[i] for i in numbers], files, strict=True):
        if rows is not None and (rows.dtype.kind not in "biuf" or rows.shape[3:] != (channels,) or 0 in rows.shape[1:]):
            errors.append(f"{path}: must hold numbers (N, height, width, {channels}), got {rows.dtype} of shape {rows.shape}")
            rows = []
        pictures += [path] if rows is None else list(rows)
        names += [path] if rows is None else [f"{path}[{i}]" for i in range(len(rows))]
    skipped = SkippedInputs(len(pictures) + len(errors))
    skipped.report(errors if ranks.group.rank == 0 else [])
    if not pictures:
        raise DataError("holds no picture", file=inputs[0])
    boxes = next((node for node in net.nodes if node.type == "DetectionOutput"), None)
    if boxes is not None:
        raise ConfigError("gives boxes, and classify takes scores of whole pictures; use minicaffe detect", file=net.file,
                          layer=boxes.name, layer_type=boxes.type)
    shape = net.blobs[net.outputs[0]].shape[1:]
    # `ranked`: the scores are one number for each class, not a map of them.
    ranked = int(np.prod(shape)) == (shape[0] if shape else 1)
    if out is not None and not ranked and not out.lower().endswith(".npy"):
        raise ConfigError(f"must end in .npy, as each picture has {' x '.join(map(str, shape))} scores, got {out}", field="--out")
    labels = labels or packaged and packaged.labels
    classes = read_labels(labels, given["model"], training, int(np.prod(shape))) if ranked and ranks.group.rank == 0 else None
    load = functools.partial(io.load_image, color=channels != 1) if net.ten_crops else functools.partial(load_picture, net=net)
    if out is not None:
        click.echo(f"Classifying {len(pictures)} inputs.")

    def predict(chunk):     # numbers of the pictures of a chunk that can be read, [their scores], and errors of the others
        first = chunk * CHUNK
        numbers, some, errors = read_each(enumerate(pictures[first:first + CHUNK], first),
                                          lambda one: load(one) if isinstance(one, str) else one)
        return numbers, [net.predict(some, net.ten_crops and not center_only)] if some else [], errors

    begin, scores, read = time.perf_counter(), [], []
    with bars.progress() as report:
        for numbers, part, errors in ranks.map_over_ranks(-(-len(pictures) // CHUNK), predict):
            skipped.report(errors)
            read += numbers
            scores += part
            report("pictures", len(read) + skipped.count, skipped.total)
    if ranks.group.rank != 0:
        return
    names, scores = [names[i] for i in read], np.concatenate(scores)
    rows = scores.reshape(len(names), -1)
    count = len(rows[0])
    best_first = classes is not None or are_scores(net)
    if not best_first:
        classes = [f"{net.outputs[0]}[{i}]" for i in range(count)] if count > 1 else [net.outputs[0]]
        if ranked and count > CLASSES_SHOWN:
            options.notify(f"the first {CLASSES_SHOWN} of {count} numbers in their order: no Softmax or Sigmoid computes them; "
                           f"--labels FILE ranks them{'' if out else ', --out FILE writes all'}")
    if out is not None:
        click.echo(f"Done in {time.perf_counter() - begin:.2f} s.")
        write_scores(out, names, scores, classes)
        click.echo(f"Saving results into {out}")
    if not ranked:
        options.notify(f"each picture has {' x '.join(map(str, scores.shape[1:]))} scores, so no best class is shown")
    for name, row in zip(names, rows, strict=True) if ranked else ():
        click.echo(f"{name}:")
        for i in (np.argsort(-row, kind="stable") if best_first else range(count))[:CLASSES_SHOWN]:
            click.echo(f"{row[i]:12.4f}  {classes[i] if classes else f'class {i}'}")


def are_scores(net):
    """Return whether a Softmax or Sigmoid, or layers of KEEP_ORDER after one, compute the output: else no class is the best."""
    blob = net.blobs[net.outputs[0]]
    for node in reversed(net.nodes):
        if blob in node.tops:
            if node.type not in KEEP_ORDER:
                return node.type in PREDICTION_TYPES.values()
            blob = node.bottoms[0]


def write_scores(path, names, scores, classes):
    """Write scores (N, ...) of the pictures `names` in the format of the ending of `path`; `classes`: column names, or None."""
    if path.lower().endswith(".npy"):
        with replacing(path) as file:
            np.save(file, scores)
        return
    rows = scores.reshape(len(names), -1)
    classes = classes or [f"class{i}" for i in range(rows.shape[1])]
    if path.lower().endswith(".csv"):
        write_bytes(path, csv_bytes(["filename", *classes], ([name, *(f"{v:.8g}" for v in row)]
                                                             for name, row in zip(names, rows, strict=True))))
    else:
        write_bytes(path, json_bytes({"classes": classes, "pictures": [
            {"filename": name, "scores": [float(f"{v:.8g}") for v in row]} for name, row in zip(names, rows, strict=True)]}))


def read_labels(path, model, training, count):
    """Return the names of `count` classes, of --labels (`path`) or the labels.txt beside `model` or in `training.folders`; or None.

    `training` is a PictureSource or None. Raises DataError if `path` holds another number of names; such a labels.txt is not used.
    """
    folders = [os.path.dirname(model or ""), *(training.folders() if training else [])]
    for file in [path] if path else filter(os.path.isfile, (os.path.join(folder, "labels.txt") for folder in folders)):
        if not path:
            with caffe.trusting(options.net_options()["trusted"]):
                caffe.check_path(file, "data_param.source")
        names = [line.strip() for line in read_lines(file, "a list of names") if line.strip()]
        if len(names) == count:
            if not path:
                options.notify(f"names of the classes: {file}")
            return names
        wrong = f"holds {len(names)} names, the net gives {count} scores"
        if path:
            raise DataError(f"{wrong}; one line for each", file=file)
        options.notify(f"{file}: {wrong}; not used")
    return None
