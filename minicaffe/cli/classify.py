"""``minicaffe classify``: scores of pictures by a Classifier (Caffe python/classify.py)."""

import time
from pathlib import Path

import click
import numpy as np

from minicaffe import io
from minicaffe.classifier import Classifier
from minicaffe.cli import bars, options
from minicaffe.data.mean_file import read_mean
from minicaffe.errors import DataError, FileError
from minicaffe.proto.atomic import replacing
from minicaffe.proto.files import file_error

CAFFENET = "models/bvlc_reference_caffenet"
IMAGENET_MEAN = (104.00698793, 116.66876762, 122.67891434)  # BGR means of Caffe's ilsvrc_2012_mean.npy
CHUNK = 64  # pictures between two steps of the progress bar


class Numbers(click.ParamType):
    """Whole numbers with commas."""

    name = "A,B"

    def convert(self, value, param, ctx):
        try:
            return value if isinstance(value, tuple) else tuple(int(part) for part in value.split(",")) if value else None
        except ValueError:
            self.fail(f"must be whole numbers with commas, got '{value}'", param, ctx)


def picture_net(command):
    """Give a command the options of `picture_options`: model, weights and preprocessing."""
    for option in (
        click.option("--channel_swap", "--channel-swap", type=Numbers(), default="2,1,0", show_default=True,
                     help="Order of channels; pictures are read as RGB, Caffe's nets want BGR."),
        click.option("--raw_scale", "--raw-scale", type=float, default=255.0, show_default=True, help="Factor before the mean."),
        click.option("--input_scale", "--input-scale", type=float, help="Factor after the mean."),
        click.option("--mean_file", "--mean-file", metavar="FILE", help="A .npy or mean file to subtract, '' for none; by default "
                     "the channel means of ImageNet."),
        click.option("--pretrained_model", "--pretrained-model", metavar="FILE", show_default=True,
                     default=f"{CAFFENET}/bvlc_reference_caffenet.caffemodel", help="Weights."),
        click.option("--model_def", "--model-def", metavar="FILE", default=f"{CAFFENET}/deploy.prototxt", show_default=True,
                     help="Net."),
    ):
        command = option(command)
    return command


def load_mean(path):
    """Return the mean that --mean_file names: an array, or None for ''."""
    if path is None:
        return np.array(IMAGENET_MEAN)
    if not path:
        return None
    if path.endswith(".npy"):
        return load_npy(path)
    return read_mean(path)


def load_npy(path):
    """Return the array of a .npy file."""
    try:
        # Mapped first: its size is then compared with its shape before memory is taken, and it may hold no objects.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except OSError as error:
        raise file_error(path, error) from error
    except ValueError as error:
        raise DataError(f"is no .npy file of numbers: {error}", file=path) from None


def save_npy(path, array):
    """Write a .npy file whole or not at all."""
    with replacing(path) as file:
        np.save(file, array)


@click.command(cls=options.CaffeCommand)
@click.argument("input_file", metavar="INPUT")
@click.argument("output_file", metavar="OUTPUT")
@picture_net
@click.option("--center_only", "--center-only", is_flag=True, help="The centre crop alone instead of the average of ten crops.")
@click.option("--images_dim", "--images-dim", type=Numbers(), default="256,256", show_default=True,
              help="Height and width that pictures are resized to.")
@click.option("--ext", default="jpg", show_default=True, help="Extension of the pictures, if INPUT is a folder.")
@options.threads
@options.model_file
@options.common
def classify(input_file, output_file, model_def, pretrained_model, mean_file, input_scale, raw_scale, channel_swap, center_only,
             images_dim, ext):
    """Classify INPUT, a picture, a folder of pictures or a .npy array of them; write the scores (N x classes) to OUTPUT, a .npy."""
    net = Classifier(model_def, pretrained_model, image_dims=images_dim, mean=load_mean(mean_file), input_scale=input_scale,
                     raw_scale=raw_scale, channel_swap=channel_swap, **options.net_options())
    if input_file.endswith(".npy"):
        pictures, load = list(load_npy(input_file)), np.asarray
    else:
        pictures = [input_file] if not Path(input_file).is_dir() else sorted(map(str, Path(input_file).glob(f"*.{ext}")))
        load = io.load_image
        if not pictures:
            raise FileError(f"holds no *.{ext}; --ext names another extension", file=input_file)
    click.echo(f"Classifying {len(pictures)} inputs.")
    begin, scores = time.perf_counter(), []
    with bars.progress() as report:
        for first in range(0, len(pictures), CHUNK):
            chunk = [load(picture) for picture in pictures[first:first + CHUNK]]
            scores.append(net.predict(chunk, not center_only))
            report("pictures", first + len(chunk), len(pictures))
    click.echo(f"Done in {time.perf_counter() - begin:.2f} s.")
    save_npy(output_file, np.concatenate(scores))
    click.echo(f"Saving results into {output_file}")
