"""The pictures that a test got wrong, as PNG files in a folder, and a table of them, ``wrong.csv``.

A picture is what the net sees: its lowest value is black, its highest white.
"""

import csv
import os
import re

import numpy as np

from minicaffe.cli.inputs import csv_bytes
from minicaffe.cli.pictures import to_rgb, write_png
from minicaffe.data.db import replacing_folder
from minicaffe.errors import ConfigError, FileError
from minicaffe.proto.atomic import check_free, check_writable, write_bytes
from minicaffe.proto.files import read_bytes

TABLE = "wrong.csv"
NAME_LENGTH = 40    # characters of a class's name in the name of a file


def check_folder(path, force):
    """Raise FileError unless the folder `path` can be made, or `force` is true and it holds only what an earlier test wrote."""
    check_free(path, force)
    if not os.path.isdir(path):
        check_writable(path)
        return
    table = os.path.join(path, TABLE)
    known = {TABLE}
    if os.path.isfile(table):
        known.update(row[0] for row in csv.reader(read_bytes(table).decode(errors="surrogateescape").splitlines()) if row)
    others = sorted(set(os.listdir(path)) - known)
    if others:
        raise FileError(f"is a folder that holds more than the wrong pictures of a test ({others[0]}), so --force does not replace "
                        "it; choose another name", file=path)


class WrongPictures:
    """Keeps the wrong answers with the highest scores, `limit` of them, with their pictures.

    Parameters
    ----------
    net : Net
    confusion : Confusion
    limit : int

    Attributes
    ----------
    blob : Blob
        The pictures of a batch.
    found : int
        How many answers were wrong.
    kept : list of (score, number, truth, answer, picture)
        The highest score first; `number` counts the records of the test from 0.

    Raises
    ------
    ConfigError
        If the net reads no pictures, or a record has several labels.
    """

    def __init__(self, net, confusion, limit):
        self.confusion, self.limit = confusion, limit
        self.found, self.kept = 0, []
        source = picture_source(net)
        if source is None:
            raise ConfigError("no data layer gives pictures, shape (N, channels, height, width), so --wrong has none to write",
                              file=net.file)
        if confusion.prediction.positions != 1:
            raise ConfigError(f"--wrong needs one label for each picture, and a picture has {confusion.prediction.positions}",
                              file=net.file, layer=confusion.prediction.node.name, layer_type=confusion.prediction.node.type)
        self.blob = source.tops[0]

    def add(self, first, truth, answer, scores, counted, pictures):
        """Take the wrong answers of a batch whose first record has number `first`."""
        wrong = np.flatnonzero(counted & (truth != answer))
        self.found += len(wrong)
        scores = np.nan_to_num(scores, nan=-np.inf)
        best = wrong[np.argsort(-scores[wrong], kind="stable")][:self.limit]
        new = [(float(scores[i]), first + int(i), int(truth[i]), int(answer[i]), pictures[i].copy()) for i in best]
        self.kept = sorted([*self.kept, *new], key=lambda item: (-item[0], item[1]))[:self.limit]

    def rows(self):
        """Return for each kept answer the name of its file, truth, answer, score and number."""
        name = self.confusion.name
        return [(f"{_safe(name(truth))}_{_safe(name(answer))}_{score:.4f}_{number}.png", name(truth), name(answer), score, number)
                for score, number, truth, answer, _ in self.kept]

    def write(self, path, force):
        """Write the folder, whole or not at all."""
        check_folder(os.path.abspath(path), force)
        rows = self.rows()
        with replacing_folder(path) as folder:
            folder.mkdir()
            for row, kept in zip(rows, self.kept, strict=True):
                write_png(folder / row[0], to_rgb(kept[4]))
            write_bytes(folder / TABLE, csv_bytes(["file", "truth", "answer", "score", "number"],
                                                  ([*row[:3], f"{row[3]:.6g}", row[4]] for row in rows)))

    def line(self, path):
        """Return what was written."""
        if len(self.kept) == self.found:
            return f"wrote {path}: {self.found} wrong picture{'s' * (self.found != 1)} and {TABLE}, the highest scores first"
        return (f"wrote {path}: {len(self.kept)} of {self.found} wrong pictures and {TABLE}, those with the highest scores; "
                "--wrong-limit sets how many")


def picture_source(net):
    """Return the first node of a net that gives pictures; None if none does."""
    return next((node for node in net.nodes if node.tops and not node.bottoms and node.type != "Parameter"
                 and node.tops[0].num_axes == 4), None)


def _safe(name):
    """Return a class's name with nothing that a file name must not have."""
    return re.sub(r"[^\w.-]+|_", "-", name)[:NAME_LENGTH].strip(".") or "-"
