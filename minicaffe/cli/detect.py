"""``minicaffe detect``: scores of windows of pictures by a Detector (Caffe python/detect.py).

Different from Caffe: neither pandas nor PyTables is needed; an .h5 file holds plain arrays.
"""

import csv
import io
import time

import click
import numpy as np

from minicaffe.cli import bars, options, ranks
from minicaffe.cli.as_trained import open_net, picture_net
from minicaffe.errors import ConfigError, DataError
from minicaffe.proto.atomic import hdf5_in_memory, replacing
from minicaffe.proto.files import file_error
from minicaffe.pycaffe import Detector

COORDINATES = ("ymin", "xmin", "ymax", "xmax")


@click.command(cls=options.CaffeCommand)
@click.argument("input_file", metavar="INPUT")
@click.argument("output_file", metavar="OUTPUT")
@picture_net
@click.option("--crop_mode", "--crop-mode", type=click.Choice(["list", "selective_search"]), default="selective_search",
              show_default=True, help="Windows of INPUT, or those that selective search proposes (needs MATLAB).")
@click.option("--context_pad", "--context-pad", type=click.IntRange(min=0), default=16, show_default=True,
              help="Pixels of context around a window, in the net's input.")
@options.precision
@options.threads
@options.model_file
@options.common
def detect(input_file, output_file, crop_mode, context_pad, **given):
    """Score windows of pictures; write them to OUTPUT, .csv or .h5.

    INPUT is a .csv with the header filename,xmin,ymin,xmax,ymax (with --crop_mode list), or a .txt with a picture a line. Processes
    that mpiexec started divide the pictures of a .csv.
    """
    if not output_file.lower().endswith((".csv", ".h5")):
        raise ConfigError(f"must end in .csv or .h5, got {output_file}", field="OUTPUT")
    windows = read_windows(input_file, crop_mode)
    net, _ = open_net(Detector, given, windows=True)
    net.configure_crop(context_pad)
    begin = time.perf_counter()
    if crop_mode == "selective_search":
        found = net.detect_selective_search(windows) if ranks.first() else []
    else:
        items, found = list(windows.items()), []
        with bars.progress() as report:
            for number, one in enumerate(ranks.divided(len(items), lambda i: net.detect_windows([items[i]])), 1):
                found += one
                report("pictures", number, len(windows))
    if not ranks.first():
        return
    click.echo(f"Processed {len(found)} windows in {time.perf_counter() - begin:.3f} s.")
    with replacing(output_file) as file:
        (write_csv if output_file.lower().endswith(".csv") else write_hdf5)(file, found)
    click.echo(f"Saved to {output_file}")


def read_windows(path, crop_mode):
    """Return the pictures of a .txt as a list, or the windows of each picture of a .csv as a dict."""
    try:
        with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
            if path.lower().endswith(".txt") and crop_mode == "selective_search":
                return [line.strip() for line in file if line.strip()]
            if not path.lower().endswith(".csv"):
                raise ConfigError(f"{path}: must be a .csv of windows with --crop_mode list, or a .txt of pictures with "
                                  "--crop_mode selective_search", field="INPUT")
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise file_error(path, error) from error
    except csv.Error as error:
        raise DataError(f"is no table of windows: {error}", file=path) from None
    windows = {}
    for number, row in enumerate(rows, 2):
        try:
            windows.setdefault(row["filename"], []).append(tuple(float(row[name]) for name in COORDINATES))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("must have filename,xmin,ymin,xmax,ymax with numbers, under a header of these names", file=path,
                            line=number) from error
    if not windows:
        raise DataError("holds no windows", file=path)
    return windows if crop_mode == "list" else list(windows)


def write_csv(file, found):
    """Write a line for each window: filename, the coordinates, and a column for each class."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    classes = len(found[0]["prediction"]) if found else 0
    writer.writerow(["filename", *COORDINATES, *(f"class{i}" for i in range(classes))])
    for entry in found:
        writer.writerow([entry["filename"], *(f"{v:g}" for v in entry["window"]), *(f"{v:.8g}" for v in entry["prediction"])])
    file.write(text.getvalue().encode())


def write_hdf5(target, found):
    """Write the arrays filename (N,), prediction (N, classes), ymin, xmin, ymax, xmax (N,)."""
    with hdf5_in_memory(target) as file:
        file["filename"] = [entry["filename"] for entry in found]
        file["prediction"] = np.array([entry["prediction"] for entry in found], np.float32)
        for i, name in enumerate(COORDINATES):
            file[name] = np.array([entry["window"][i] for entry in found], np.float64)
