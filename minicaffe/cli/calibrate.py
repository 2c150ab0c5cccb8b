"""``minicaffe calibrate``: ranges of activations and weights as the tables that int8 toolchains read."""

import contextlib
import os

import click

from minicaffe.cli import bars, options
from minicaffe.cli.inputs import ext_option, picture_paths
from minicaffe.cli.picture_nets import IMAGE_OPTIONS, NO_PICTURES, load_batch, open_data_net, open_net, preprocessing
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.net import weights as weights_files
from minicaffe.net.activation_range import METHODS
from minicaffe.net.calibration import PERCENTILE
from minicaffe.net.calibration import calibrate as measure
from minicaffe.net.int8_tables import TENSORRT_VERSION, ncnn_table, tensorrt_cache, to_json
from minicaffe.proto.atomic import delayed_interrupts, replacing
from minicaffe.proto.files import read_bytes, read_lines
from minicaffe.pycaffe import Classifier

OWN_BATCHES = 10    # of a net that reads its own data
HEAD = 1024         # bytes in which a picture has a zero byte and a list has none


@click.command(cls=options.CaffeCommand)
@click.argument("net_file", metavar="NET")
@click.argument("weights")
@click.option("-o", "--out", "out", required=True, metavar="NAME",
              help="NAME.table (ncnn), NAME.cache (TensorRT) and NAME.json are written.")
@click.option("--images", metavar="LIST|FOLDER", help="Fill the input of a deploy net with the pictures of a list, a path on each "
              "line, or of a folder. They are made as by minicaffe classify.")
@ext_option("a folder of --images")
@click.option("--iterations", type=click.IntRange(min=1), help="Batches to run; by default all pictures, and "
              f"{OWN_BATCHES} of a net that reads its own data.")
@click.option("--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True,
              help="Range of activations in the tables: of the smallest divergence, a percentile, or the greatest value.")
@click.option("--percentile", type=options.Real(min=0, min_open=True, max=100), default=PERCENTILE, show_default=True,
              help="Of the absolute values.")
@click.option("--tensorrt-version", type=click.IntRange(1000, 999999), default=TENSORRT_VERSION, show_default=True,
              help="Of the TensorRT that reads NAME.cache: 8601 is 8.6.1, 100300 is 10.3.0.")
@preprocessing
@options.force
@options.net_state
@options.run_options
def calibrate(net_file, weights, out, images, ext, iterations, method, percentile, tensorrt_version, force, **given):
    """Measure the activations of NET with WEIGHTS on pictures or on its own data, and write the tables for int8.

    Each convolution, deconvolution and inner product has a line: the least and greatest value of its input, the percentile, the
    range of the smallest divergence (KL), the share of values beyond that, and the signal-to-noise ratio in dB that is expected of
    int8 in the three ranges. The data are run twice.
    """
    if not images:
        options.refuse_unused(IMAGE_OPTIONS, "the pictures of --images, which is not given")
    files = [f"{out}.{ending}" for ending in ("table", "cache", "json")]
    options.check_outputs(*files, force=force)
    options.log_device()
    if images:
        net, batches = open_pictures(net_file, weights, images, ext, iterations, given)
    else:
        net = open_data_net(net_file, weights, (given["level"], given["stage"]),
                            f"so its ranges would be meaningless; {NO_PICTURES}")
        batches = iterations or OWN_BATCHES
    check_weights(net, weights)
    with bars.progress() as report:
        made = measure(net, batches, percentile, lambda name, done, total: report(f"{name} of batches", done, total))
    table, cache = ncnn_table(made, method), tensorrt_cache(made, method, tensorrt_version)
    for line in (*made.notes, *table[1], *cache[1]):
        options.notify(line)
    print_table(made)
    with delayed_interrupts(), contextlib.ExitStack() as stack:     # all files or none
        for path, content in zip(files, (table[0].encode(), cache[0].encode(), to_json(made)), strict=True):
            stack.enter_context(replacing(path)).write(content)
    click.echo(f"wrote {', '.join(files[:2])} and {files[2]}: {len(made.layers)} layers, {made.batches} batches, ranges by "
               f"{method}")


def open_pictures(net_file, weights, images, ext, iterations, given):
    """Return the net of a deploy or training net's file, and its batches of pictures."""
    paths = listed_pictures(images, ext)
    net, _ = open_net(Classifier, {**given, "model": net_file, "weights": weights})
    if len(net.inputs) > 1:
        raise ConfigError(f"has the inputs {', '.join(net.inputs)}, and --images fills one; use minicaffe.calibrate of Python",
                          file=net_file)
    size = net.blobs[net.inputs[0]].shape[0]
    if iterations is not None and iterations * size < len(paths):
        options.notify(f"{iterations} batches of {size} are {iterations * size} of {len(paths)} pictures; the others are left out")
        paths = paths[:iterations * size]
    return net, PictureBatches(net, paths, size)


def check_weights(net, weights):
    """Raise DataError if the file of weights lacks a layer's: the ranges of an untrained layer mean nothing."""
    missing = weights_files.load(net, weights).missing()
    if missing:
        raise DataError(f"has no weights for {', '.join(missing)}, whose ranges would be those of random numbers; give the weights "
                        "of this net", file=weights)


def listed_pictures(images, ext):
    """Return the paths of the pictures of a folder, or of a list whose lines may end in a label.

    Raises FileError for a list or a picture that is not there, DataError for a file that is no list.
    """
    if os.path.isdir(images):
        return picture_paths([images], ext)
    if b"\0" in read_bytes(images)[:HEAD]:
        raise DataError("is no list; give a text file with the path of a picture on each line, or a folder", file=images)
    paths, labels = [], 0
    for number, line in enumerate(read_lines(images), 1):
        path = line.strip()
        if not path:
            continue
        name, _, label = path.rpartition(" ")
        if name and not os.path.exists(path) and label.lstrip("-").isdecimal():
            path, labels = name.rstrip(), labels + 1
        if not os.path.isfile(path):
            raise FileError(f"no such picture: {path}; paths are relative to the working directory", file=images, line=number)
        paths.append(path)
    if not paths:
        raise FileError("names no picture; give a path on each line", file=images)
    if labels:
        options.notify(f"{images}: the labels of {labels} lines are ignored")
    return paths


class PictureBatches:
    """Batches of pictures for the input of a net, which are read again in each pass."""

    def __init__(self, net, paths, size):
        self.net, self.paths, self.size = net, paths, size

    def __len__(self):
        return -(-len(self.paths) // self.size)

    def __iter__(self):
        for first in range(0, len(self.paths), self.size):
            yield {self.net.inputs[0]: load_batch(self.net, self.paths[first:first + self.size])}


def print_table(made):
    """Print a line for each quantized layer."""
    from rich.table import Table
    percentile = f"{made.percentile:g}%"
    names = ("layer", "input", "min", "max", percentile, "KL", "beyond KL", "dB max", f"dB {percentile}", "dB KL")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", justify="left" if name in ("layer", "input") else "right")
    for layer in made.layers:
        value = layer.input
        if not value.thresholds:
            table.add_row(layer.name, value.name, "not finite")
            continue
        table.add_row(layer.name, value.name, *(f"{one:.4g}" for one in (value.min, value.max, value.thresholds["percentile"],
                                                                          value.thresholds["kl"])),
                      f"{value.beyond('kl'):.3%}", *(f"{value.snr(one):.1f}" for one in ("max", "percentile", "kl")))
    bars.table_console().print(table)
