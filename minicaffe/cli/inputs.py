"""The input pictures of a command (files, folders, patterns and lists), and the table that it writes."""

import csv
import glob
import io
import json
import os
from pathlib import Path

from minicaffe.errors import ConfigError, FileError
from minicaffe.proto.files import read_lines

OUTPUT_ENDINGS = (".npy", ".csv", ".json", ".h5")  # endings of output files: a missing INPUT with one of them was meant as --out


def picture_paths(inputs, ext="jpg", listed=False):
    """Return the paths of the pictures that `inputs` name, a list of str, in their order.

    Inputs are files; folders, of which pictures ``*.ext`` are taken; patterns with ``*``, ``?`` or ``[``. If they are `listed`,
    they are text files with the path of a picture on each line. Raises FileError for an input that is not there, or that holds no
    picture.
    """
    paths = []
    for path in inputs:
        if listed:
            found, why = [line.strip() for line in read_lines(path) if line.strip()], "names no picture; give a path on each line"
        elif os.path.isdir(path):
            found, why = sorted(map(str, Path(path).glob(f"*.{ext}"))), f"holds no *.{ext}; --ext names another extension"
        elif os.path.exists(path):
            found, why = [path], ""
        else:
            found = sorted(glob.glob(path, recursive=True))
            why = "no such picture or folder, and no pattern that fits one"
            if path.lower().endswith(OUTPUT_ENDINGS):
                why += f"; results are written to a file by --out {path}"
        if not found:
            raise FileError(why, file=path)
        paths += found
    return paths


def check_ending(path, endings):
    """Raise ConfigError unless `path` ends in one of `endings`."""
    if not path.lower().endswith(endings):
        raise ConfigError(f"must end in {', '.join(endings[:-1])} or {endings[-1]}, which says the format, got {path}",
                          field="--out")


def csv_bytes(header, rows, delimiter=","):
    """Return a table as the bytes of a .csv file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode(errors="surrogateescape")


def json_bytes(value):
    """Return a value as the bytes of a .json file."""
    return (json.dumps(value, indent=1) + "\n").encode()
