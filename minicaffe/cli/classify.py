"""``minicaffe classify``: scores of pictures by a Classifier (Caffe python/classify.py).

Different from Caffe: the best classes are printed, the file of scores may be left out, and `as_trained` says how pictures are made.
"""

import functools
import os
import time
from pathlib import Path

import click
import numpy as np

from minicaffe.cli import bars, options, ranks
from minicaffe.cli.as_trained import Numbers, load_npy, load_picture, open_net, picture_net
from minicaffe.common import caffe
from minicaffe.errors import DataError, FileError
from minicaffe.proto.atomic import replacing
from minicaffe.proto.files import read_bytes, read_lines
from minicaffe.pycaffe import Classifier, io

CHUNK = 64  # pictures between two steps of the progress bar
BEST = 5  # classes shown for each picture


@click.command(cls=options.CaffeCommand)
@click.argument("input_file", metavar="INPUT")
@click.argument("output_file", metavar="[OUTPUT]", required=False)
@picture_net
@click.option("--labels", metavar="FILE", help="Names of the classes, one a line; by default labels.txt beside the model or beside "
              "the training database.")
@click.option("--center_only", "--center-only", is_flag=True, help="The centre crop alone, where --images_dim asks for ten.")
@click.option("--images_dim", "--images-dim", type=Numbers(2), help="Height and width that pictures get before ten crops are "
              "averaged, as in Caffe's tool; by default pictures are made as in training.")
@click.option("--list", "listed", is_flag=True, help="INPUT is a text file with the path of a picture on each line.")
@click.option("--ext", default="jpg", show_default=True, help="Extension of the pictures, if INPUT is a folder.")
@options.precision
@options.threads
@options.plan
@options.model_file
@options.common
def classify(input_file, output_file, labels, center_only, images_dim, listed, ext, **given):
    """Classify INPUT, a picture, a folder of pictures, a list or a .npy array of them: print the best classes, and with OUTPUT, a
    .npy, write all scores (N x classes).

    Processes that mpiexec started divide the pictures.
    """
    net, training = open_net(Classifier, given, images_dim)
    if input_file.endswith(".npy"):
        names, pictures, load = None, list(load_npy(input_file)), np.asarray
    else:
        if listed:
            pictures = [line.strip() for line in read_lines(input_file) if line.strip()]
        else:
            pictures = [input_file] if not Path(input_file).is_dir() else sorted(map(str, Path(input_file).glob(f"*.{ext}")))
        names = pictures
        load = io.load_image if net.ten_crops else functools.partial(load_picture, net=net)
        if not pictures:
            why = "names no picture; give a path on each line" if listed else f"holds no *.{ext}; --ext names another extension"
            raise FileError(why, file=input_file)
    if output_file:
        click.echo(f"Classifying {len(pictures)} inputs.")

    def predict(chunk):
        inputs = [load(picture) for picture in pictures[chunk * CHUNK:(chunk + 1) * CHUNK]]
        return net.predict(inputs, net.ten_crops and not center_only)

    begin, scores = time.perf_counter(), []
    with bars.progress() as report:
        for part in ranks.divided(-(-len(pictures) // CHUNK), predict):
            scores.append(part)
            report("pictures", sum(map(len, scores)), len(pictures))
    if not ranks.first():
        return
    scores = np.concatenate(scores)
    if output_file:
        click.echo(f"Done in {time.perf_counter() - begin:.2f} s.")
        with replacing(output_file) as file:
            np.save(file, scores)
        click.echo(f"Saving results into {output_file}")
    if scores[0].size != scores.shape[1]:
        options.tell(f"each picture has {' x '.join(map(str, scores.shape[1:]))} scores, so no best class is shown")
        return
    classes = read_labels(labels, given["model"], training, scores.shape[1])
    for number, row in enumerate(scores.reshape(len(pictures), -1)):
        click.echo(f"{names[number] if names else f'{input_file}[{number}]'}:")
        for best in np.argsort(-row, kind="stable")[:BEST]:
            click.echo(f"{row[best]:12.4f}  {classes[best] if classes else f'class {best}'}")


def read_labels(path, model, training, count):
    """Return the names of `count` classes, from `path` or where they are usually kept; None if there are none.

    Raises DataError if the file `path` holds another number of names.
    """
    folders = [os.path.dirname(model or "")] + ([training.folder()] if training and training.folder() is not None else [])
    for file in [path] if path else [os.path.join(folder, "labels.txt") for folder in folders]:
        if not path and not os.path.isfile(file):
            continue
        if not path:
            with caffe.trusting(options.net_options()["trusted"]):
                caffe.check_path(file, "data_param.source")
        names = [line.strip() for line in read_bytes(file).decode(errors="replace").splitlines() if line.strip()]
        if len(names) == count:
            if not path:
                options.tell(f"names of the classes: {file}")
            return names
        wrong = f"holds {len(names)} names, the net gives {count} scores"
        if path:
            raise DataError(f"{wrong}; one line for each", file=file)
        options.tell(f"{file}: {wrong}; not used")
    return None
