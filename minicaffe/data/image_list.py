"""Lists of picture files, and reading the pictures with OpenCV, the library whose pixels Caffe's nets were trained on."""

import csv
import logging
import os
import stat
from array import array
from collections import Counter

from minicaffe.data.datum import opencv, opencv_decode
from minicaffe.data.numbers import NUMBER, NUMBER_AFTER_SPACE, integer, real
from minicaffe.errors import DataError, Error, FileError, shown
from minicaffe.proto import kinds
from minicaffe.proto.files import check_below, parse_lines, read_lines, read_whole

log = logging.getLogger(__name__)
PICTURE_ENDINGS = ("jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm", "pgm")    # of files in folders


def ending(path):
    """Return the extension of a file in small letters, without the dot."""
    return os.path.splitext(path)[1][1:].lower()


def describe_endings(paths):
    """Return how many `paths` have which extension, such as ``.txt 2, .heic 1``, for reports of files that are left out."""
    counts = Counter(ending(path) for path in paths)
    return ", ".join(f"{f'.{kind}' if kind else 'no extension'} {count}" for kind, count in counts.most_common())


class ImageList:
    """The content of an image list: a line is a path, which may hold spaces, a space and an integer label.

    With `label_size` a line is a path and that many real numbers; a label is then a tuple of floats. In a .csv there are commas
    between them, unless most lines end in a space and a number. A first line in which no label is a number is logged as the header,
    unless its path is that of a picture.

    `entries` are its pairs of path and label. Blank lines are left out. Raises FileError or DataError naming file and line.

    Different from Caffe: a label that is no integer is an error. Caffe takes the digits at its beginning, or else 0.
    """

    def __init__(self, path, label_size=None):
        self.path, self.label_size = str(path), label_size
        lines = read_lines(path, "an image list")
        self._lines = array("I", (number for number, line in enumerate(lines, 1) if line.strip()))
        commas = ending(self.path) == "csv" and 2 * sum(map(bool, map(NUMBER_AFTER_SPACE.search, lines))) <= len(self._lines)
        first = _split(lines[self._lines[0] - 1], label_size, commas) if self._lines else []
        header = (commas and len(first) == 1 + (label_size or 1) and not any(map(NUMBER.fullmatch, first[1:]))
                  and ending(first[0]) not in PICTURE_ENDINGS)
        if header:
            log.warning("%s: the first line is the header: %s", path, ", ".join(first))
            lines[self._lines.pop(0) - 1] = ""
        self.entries = parse_lines(path, lines, lambda line: _entry(line, label_size, commas), "an image list")
        if not self.entries:
            raise DataError(f"the image list {'has no line below its header' if header else 'is empty'}", file=self.path)

    def locate(self, error, index):
        """Put the list, the line and the number of an entry into `error`, which keeps its field, and return it to be raised."""
        error.record = index
        return error.at(file=self.path, line=self._lines[index])


def _split(line, label_size, commas):
    """Return path and labels of a line as a list of str, whose length `_entry` checks; `commas`: of a .csv."""
    if commas:
        return [word.strip() for word in next(csv.reader([line[:csv.field_size_limit()]]))]
    return line.rsplit(" ", 1) if label_size is None else line.rsplit(None, label_size)


def _entry(line, label_size, commas):
    """Return path and label of a line, an entry of an `ImageList`."""
    name, *labels = _split(line, label_size, commas)
    if len(labels) != (label_size or 1):
        form = f"a path, a {'comma' if commas else 'space'} and {f'{label_size} labels' if label_size else 'a label'}"
        raise DataError(f"a line must be {form}, got {shown(line)}")
    if label_size is None:
        remedy = "label_size of ImageData, or --float-labels, takes labels that are real numbers"
        remedy = remedy if NUMBER.fullmatch(labels[0]) else "a line must end in the number of its class"
        return name, integer(labels[0], "label", remedy)
    return name, tuple(map(real, labels))


def read_content(path, within=None):
    """Return the bytes of a picture file.

    Raises FileError if it cannot be read, is no ordinary file (a pipe or device might be endless), or lies outside the folder
    `within` (`minicaffe.proto.files.check_below`).
    """
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(f"'{path}' is no ordinary file")
            check_below(file.fileno(), path, within)
            return read_whole(file, path)
    except Error:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise FileError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}; check the path") from None


def decode_picture(content, path, color=True, size=None):
    """Decode a picture file to uint8, (H, W, 3) in BGR, or (H, W) unless `color`; resize it to `size`, (height, width), if given.

    Raises DataError if OpenCV cannot decode it.
    """
    image, why = opencv_decode(content, opencv().IMREAD_COLOR if color else opencv().IMREAD_GRAYSCALE)
    if image is None:
        error = DataError(f"'{path}' is no picture: {why}; replace the file or drop it")
        kind = kinds.kind_of(content)
        if kind is not None and kind.name != "picture":
            error.message = f"'{path}' {kinds.describe(kind, 'a picture')}"
        raise error
    return image if size in (None, image.shape[:2]) else opencv().resize(image, size[::-1])
