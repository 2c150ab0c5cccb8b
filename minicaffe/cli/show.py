"""``minicaffe show``: the parameters in a file of weights; the differences of two files.

Reads caffemodels of any age, HDF5 weights, and a single blob such as a mean file (.binaryproto).
"""

import math
import re
from collections import namedtuple

import click
import numpy as np
from rich.text import Text

from minicaffe.cli import bars, options
from minicaffe.errors import ConfigError, DataError, Error, close_matches
from minicaffe.inspection import watch
from minicaffe.proto import upgrade
from minicaffe.proto.binary import read_blob
from minicaffe.proto.files import is_hdf5
from minicaffe.proto.hdf5 import find, is_numbers, read_array, reading
from minicaffe.proto.stored import shown

Parameter = namedtuple("Parameter", "name layer array")     # an array of a file; its name is conv1[0]


@click.command(cls=options.CaffeCommand)
@click.argument("weights", metavar="WEIGHTS")
@click.argument("other", metavar="[WEIGHTS2]", required=False)
@click.option("--layer", "layers", multiple=True, metavar="NAME", help="Of this layer only; repeatable.")
@options.messages
def show(weights, other, layers):
    """List the parameters of WEIGHTS with their statistics; of two files, where they differ.

    WEIGHTS is a .caffemodel, an HDF5 file of weights, or a single blob such as a mean file.
    """
    console = bars.table_console()
    first = select_layers(read_parameters(weights), layers, weights)
    if other:
        return compare(console, weights, first, other, select_layers(read_parameters(other), layers, other))
    table = bars.grid("parameter", "shape", "min", "max", "mean", "std", "norm", "zeros")
    notes = []
    for name, _, array in first:
        s = statistics(array)
        table.add_row(name, shown(array.shape), *(f"{s[key]:.4g}" for key in ("min", "max", "mean", "std", "norm")),
                      f"{s['zeros']:.1%}")
        if s["wrong"]:
            notes.append(f"{name}: {s['wrong']} values are not finite, the first at {s['first']}; the other numbers leave them out")
    console.print(table)
    console.print(f"{len(first)} parameters, {sum(one.array.size for one in first):,} values")
    for note in notes:
        console.print(note, style="bold red")


def read_parameters(path):
    """Return the Parameters of a file, in its order. Raises FileError or DataError; DataError if it holds none."""
    if re.search(r"\.solverstate(\.h5)?$", str(path)):
        raise DataError("is the state of a solver; the weights are in the .caffemodel beside it", file=str(path))
    if is_hdf5(path):
        found = read_hdf5(path)
    elif str(path).endswith(".binaryproto"):
        found = [read_single_blob(path)]
    else:
        try:
            layers = [(layer, i, blob) for layer in upgrade.read_weights(path) for i, blob in enumerate(layer.blobs)]
            found = [Parameter(f"{layer.name}[{i}]", layer.name, np.array(blob.data).reshape(blob.shape))
                     for layer, i, blob in layers]
        except Error as error:
            try:
                found = [read_single_blob(path)]
            except Error:
                raise error from None
    if not found:
        raise DataError("holds no parameters; give a .caffemodel, an HDF5 file of weights, or a mean file", file=str(path))
    return found


def read_single_blob(path):
    """Return the single blob of a file. Raises DataError if it has no values: files of other kinds can parse as such a blob."""
    blob = read_blob(path)
    if not len(blob.data):
        raise DataError("holds no values; give a .caffemodel, an HDF5 file of weights, or a mean file", file=str(path))
    return Parameter("blob", "blob", np.array(blob.data).reshape(blob.shape))


def read_hdf5(path):
    """Return the Parameters of HDF5 weights, ``/data/<layer>/<index>``, in the order of the indices."""
    import h5py
    found = []
    with reading(path) as file:
        data = find(file, "data")
        for name in data if isinstance(data, h5py.Group) else ():
            group = find(data, name)
            for i in sorted(group if isinstance(group, h5py.Group) else (), key=lambda text: (len(text), text)):
                if is_numbers(dataset := find(group, i)):
                    found.append(Parameter(f"{name}[{i}]", name, read_array(dataset)))
    return found


def select_layers(parameters, layers, path):
    """Return the parameters of `layers` (--layer), or all. Raises ConfigError for a layer that is not there."""
    names = {one.layer for one in parameters}
    for layer in layers:
        if layer not in names:
            raise ConfigError(f"{path} has no parameters of a layer '{layer}'{close_matches(layer, names)}", field="--layer")
    return [one for one in parameters if not layers or one.layer in layers]


def statistics(array):
    """Return a row's min, max, mean, std (over N, not N - 1), L2 norm, share of zeros, of finite values; and `watch.extremes`."""
    finite, found = array[np.isfinite(array)], watch.extremes(array)
    if not finite.size:
        return {**found, **dict.fromkeys(("min", "max", "mean", "std", "norm", "zeros"), math.nan)}
    with np.errstate(over="ignore"):    # of float64 that is as large as it gets
        return {**found, "mean": finite.mean(dtype=np.float64), "std": finite.std(dtype=np.float64),
                "norm": watch.norm(finite.astype(np.float64)), "zeros": np.mean(finite == 0)}


def compare(console, path, first, other_path, second):
    """Print the parameters that both files or only one of them have, and the differences of the values."""
    mine, theirs = ({one.name: one.array for one in parameters} for parameters in (first, second))
    table = bars.grid("parameter", "shape", "difference", "at", "relative", "")
    same = differ = 0
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None:
            there = f"only in {other_path if a is None else path}"
            table.add_row(name, shown((b if a is None else a).shape), "", "", "", Text(there, "yellow"))
        elif a.shape != b.shape:
            table.add_row(name, f"{shown(a.shape)} and {shown(b.shape)}", "", "", "", Text("shapes differ", "yellow"))
        elif np.array_equal(a, b, equal_nan=True):
            same += 1
            table.add_row(name, shown(a.shape), "0", "", "", "same")
            continue
        else:
            with np.errstate(invalid="ignore"):     # infinity minus infinity
                gap = np.abs(a.astype(np.float64) - b)
            unlike = (np.isfinite(a) != np.isfinite(b)) | (np.isnan(a) != np.isnan(b))
            gap[np.isnan(gap)] = 0
            gap[unlike] = np.inf
            at = np.unravel_index(int(gap.argmax()), gap.shape)
            norm = math.sqrt(float(np.square(a[np.isfinite(a)], dtype=np.float64).sum()))
            ratio = math.sqrt(float(np.square(gap).sum())) / norm if norm else math.inf
            share = np.mean((a != b) & ~(np.isnan(a) & np.isnan(b)))
            table.add_row(name, shown(a.shape), f"{gap[at]:.4g}", f"{list(map(int, at))}: {a[at]:.6g} and {b[at]:.6g}",
                          f"{ratio:.2e}", Text(f"{share:.1%} of the values", "yellow"))
        differ += 1
    console.print(table)
    console.print(f"{same} parameters are the same, {differ} differ; difference: the largest of a value; relative: the norm of all "
                  "differences over that of the first file's values")
