"""The input pictures of a command (files, folders, patterns and lists), those that cannot be read, and the table that it writes."""

import csv
import glob
import io
import json
import logging
import os
import sys
from pathlib import Path

import click

from minicaffe.cli import options
from minicaffe.data.image_list import PICTURE_ENDINGS, describe_endings, ending
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.proto.files import read_lines

OUTPUT_ENDINGS = (".npy", ".csv", ".json")  # endings of output files: a missing INPUT with one of them was meant as --out

logger = logging.getLogger("minicaffe.cli")
MOST_NAMES = 5      # of files that are left out


def _split_endings(ctx, param, text):
    """Return the extensions of --ext as a tuple, in small letters without dots (the option's callback)."""
    endings = tuple(one.strip().lstrip(".").lower() for one in text.split(","))
    if not all(endings):
        raise click.BadParameter(f"must be extensions with commas, such as jpg,png, got '{text}'")
    return endings


def ext_option(where):
    """Return the option --ext, whose value is a tuple of extensions; `where` says of which files, for --help."""
    return click.option("--ext", default=",".join(PICTURE_ENDINGS), show_default=True, callback=_split_endings, metavar="A,B",
                        help=f"Extensions of the pictures in {where}, in small or capital letters.")


def left_out_text(paths):
    """Return a text that counts and names the files `paths`, which have none of the extensions of --ext, for a report."""
    few = ", ".join(paths[:MOST_NAMES]) + ", ..." * (len(paths) > MOST_NAMES)
    return f"{len(paths)} left out ({describe_endings(paths)}): {few}"


def picture_paths(inputs, ext=PICTURE_ENDINGS, listed=False):
    """Return the paths of the pictures that `inputs` name, a list of str, in their order.

    Inputs are files; folders, of which files with one of the extensions `ext` are taken, and a line names the others; patterns
    with ``*``, ``?`` or ``[``. If they are `listed`, they are text files with the path of a picture on each line. Raises
    FileError for an input that is not there, or that holds no picture.
    """
    paths = []
    for path in inputs:
        if listed:
            found, why = [line.strip() for line in read_lines(path) if line.strip()], "names no picture; give a path on each line"
        elif os.path.isdir(path):
            files = sorted(str(one) for one in Path(path).iterdir() if one.is_file() and not one.name.startswith("."))
            found, why = [file for file in files if ending(file) in ext], f"holds no picture ({', '.join(ext)}); --ext names others"
            others = [file for file in files if ending(file) not in ext]
            if found and others:
                options.notify(f"{path}: {left_out_text(others)}; --ext takes other kinds")
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


def read_each(items, read):
    """Return numbers and values of ``read(item)`` of the pairs (number, item) that can be read, and the errors of the others.

    One bad file among many inputs must not end a command; `SkippedInputs` reports it.
    """
    numbers, values, errors = [], [], []
    for number, item in items:
        try:
            values.append(read(item))
            numbers.append(number)
        except (FileError, DataError) as error:
            errors.append(str(error))
    return numbers, values, errors


class SkippedInputs:
    """Counts the inputs, of `total`, that cannot be read; at its end, the command fails if there are any (`_finish`)."""

    def __init__(self, total):
        self.total, self.count = total, 0
        click.get_current_context().call_on_close(self._finish)     # click calls it when the command has ended

    def report(self, errors):
        """Log the errors of `read_each`; raise DataError if no input can be read."""
        self.count += len(errors)
        if errors and self.total == 1:
            raise DataError(errors[0])
        for text in dict.fromkeys(errors):
            logger.warning("%s; skipped", text)
        if errors and self.count == self.total:
            raise DataError(f"none of the {self.total} inputs can be read")

    def _finish(self):
        if self.count and sys.exc_info()[0] is None:    # otherwise the command fails already
            raise DataError(f"{self.count} of {self.total} inputs cannot be read; the results are those of the others")


def check_ending(path, endings=OUTPUT_ENDINGS):
    """Raise ConfigError unless `path` ends in one of `endings`."""
    if not path.lower().endswith(endings):
        raise ConfigError(f"must end in {', '.join(endings[:-1])} or {endings[-1]}, which says the format, got {path}",
                          field="--out")


def csv_bytes(header, rows):
    """Return a table as the bytes of a .csv file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode(errors="surrogateescape")


def json_bytes(value):
    """Return a value as the bytes of a .json file."""
    return (json.dumps(value, indent=1) + "\n").encode()
