"""Batches of windows of pictures, for the prefetch thread (Caffe window_data_layer.cpp; Girshick et al. 2014, R-CNN).

Different from Caffe: draws are a function of the seed and the window's number since the start of training. A window outside its
picture is an error that names it, and does not end the process.
"""

import functools
import math
from itertools import islice

import numpy as np

from minicaffe.data.datum import opencv
from minicaffe.data.image_list import decode_picture, read_content
from minicaffe.data.numbers import integer
from minicaffe.data.transform import draw
from minicaffe.errors import DataError, located, shown
from minicaffe.proto.files import read_lines

MIRROR, WINDOW = 0, 1                            # `which` of `draw`
IMAGE, LABEL, X1, Y1, X2, Y2, LINE = range(7)    # columns of a table of windows; LINE is the line of the file, for errors


class WindowList:
    """The content of a window file.

    For each picture: ``# index``, path, channels, height, width, number of windows, a line each; then a line for each
    window, ``class overlap x1 y1 x2 y2``, in pixels that belong to the window.

    `root` is a prefix of each path in the file `path`. A window with overlap >= `fg_threshold` shows an object; one with less than
    `bg_threshold` is background; others are dropped. Errors (FileError, DataError) name file and line.

    `images` are the paths, `channels` is as declared for the last picture; `foreground` and `background` are int32 arrays (n, 7)
    of windows with the columns IMAGE to LINE.
    """

    def __init__(self, path, root, fg_threshold, bg_threshold):
        self.path = path
        self.images, self.channels = [], 0
        self._thresholds = np.float32(fg_threshold), np.float32(bg_threshold)
        foreground, background = [np.empty((0, 7), np.int32)], [np.empty((0, 7), np.int32)]
        lines = enumerate(read_lines(path, "a window file"), 1)
        while (start := _next(lines)) is not None:
            self._read_image(start, lines, root, foreground, background)
        if not self.images:
            raise DataError("the window file is empty", file=path)
        self.foreground, self.background = np.concatenate(foreground), np.concatenate(background)

    def _read_image(self, start, lines, root, foreground, background):
        """Append the windows of one picture, whose entry begins with the line `start`, to the tables of objects and background."""
        number, words = start[0], start[1].split()
        if words != ["#", str(len(self.images))]:
            raise self._wrong(number, f"must be '# {len(self.images)}', the number of the picture, got {shown(start[1])}")
        header = [_next(lines) or (number, "") for _ in range(5)]
        self.images.append(root + header[0][1])
        self.channels, _, _, count = (self._number(*line) for line in header[1:])
        rows = list(islice(lines, count))
        if len(rows) < count:
            raise self._wrong(header[4][0], f"{count} windows are announced, the file ends after {len(rows)}")
        if rows:
            table, overlap = self._table(rows)
            fg = overlap >= self._thresholds[0]
            bg = ~fg & (overlap < self._thresholds[1])
            table[bg, LABEL] = 0
            self._check(table, fg, "an object's class must be at least 1", table[:, LABEL] < 1)
            self._check(table, fg | bg, "needs x1 <= x2 and y1 <= y2",
                        (table[:, X1] > table[:, X2]) | (table[:, Y1] > table[:, Y2]))
            foreground.append(table[fg])
            background.append(table[bg])

    def _table(self, rows):
        """Return the table of the windows in `rows`, (number, text) of lines, and their overlaps, float32 as in Caffe."""
        values = _windows(" ".join([text for _, text in rows]), len(rows))
        if values is None:
            for number, text in rows:
                if _windows(text, 1) is None:
                    raise self._wrong(number, "a window is 'class overlap x1 y1 x2 y2', integers but for the overlap, got "
                                              f"{shown(text.strip())}")
            raise self._wrong(rows[0][0], "each window must be on a line of its own")
        table = np.empty((len(rows), 7), np.int32)
        table[:, IMAGE], table[:, LABEL] = len(self.images) - 1, values[:, 0]
        table[:, X1:LINE], table[:, LINE] = values[:, 2:], [number for number, _ in rows]
        return table, values[:, 1].astype(np.float32)

    def _check(self, table, used, rule, wrong):
        """Raise DataError for the first window that is used and wrong: bool arrays with an entry for each row of `table`."""
        for row in table[used & wrong][:1]:
            raise self._wrong(int(row[LINE]), f"{rule}, got class {row[LABEL]}, {_box(row)}")

    def _number(self, line, text):
        """Return the integer of a header line: channels, height, width, or number of windows."""
        with located(file=self.path, line=line):
            return integer(text, "channels, height, width or the number of windows", least=0)

    def _wrong(self, line, message):
        """Return the error for a line of the window file."""
        return DataError(message, file=self.path, line=line)


def _next(lines):
    """Return number and text of the next line that is not blank, None at the end; blank lines may separate headers."""
    for number, text in lines:
        if text.strip():
            return number, text.strip()
    return None


def _windows(text, count):
    """Return the numbers of `count` windows, all lines at once for speed, float64 of (count, 6); None if they are malformed."""
    if not text.isascii() or "_" in text:   # NumPy accepts underscores, and digits other than 0 to 9
        return None
    try:
        values = np.array(text.split(), np.float64).reshape(count, 6)
    except ValueError:
        return None
    valid = (np.abs(values) < 2**31).all() and not (values[:, [0, 2, 3, 4, 5]] % 1).any()
    return values if valid else None


def _box(row):
    """Return the corners of a window as text for errors."""
    return "x1 y1 x2 y2 = " + " ".join(str(row[k]) for k in (X1, Y1, X2, Y2))


class WindowBatches:
    """Make batches of windows: background first, then objects, drawn with replacement.

    Of a batch, for several processes of their joint batch, the share `fraction` shows objects; one begins at record `start`. A
    window, with `square` made a square about its centre, is scaled to `crop_size` with `context` pixels around it in the result.
    `mean`, float64 of (3, crop_size, crop_size), is subtracted. With `cache` the picture files are kept in
    memory. Pictures must lie in the folder `within`, if given (`minicaffe.proto.files.check_below`).
    """

    def __init__(self, windows, fraction, start, crop_size, seed, *, context=0, square=False, mirror=False, mean=None,
                 scale=1.0, cache=False, within=None):
        self.windows, self.fraction, self.start, self.crop = windows, fraction, start, crop_size
        self.source = windows.path
        self.context, self.square, self.mirror, self.scale, self.seed = context, square, mirror, scale, seed
        self.mean = mean
        read = functools.partial(read_content, within=within)
        self._read = functools.cache(read) if cache else read

    def fill(self, numbers, buffer):
        """Put the windows that are drawn for the records `numbers` into `buffer`, a BatchArrays."""
        data, labels = buffer.reshape((len(numbers), 3, self.crop, self.crop))
        data.fill(0)
        size = len(numbers) * numbers.step  # of the batch of all processes
        background = size - objects_of(size, self.fraction)
        first = numbers.start - (numbers.start - self.start) % numbers.step  # of that batch, which may be smaller than others
        for i, number in enumerate(numbers):
            table = self.windows.background if number - first < background else self.windows.foreground
            if not len(table):
                raise DataError(f"has {len(self.windows.background)} windows of background and {len(self.windows.foreground)} of "
                                f"objects, and the batches of {numbers.step} processes need both", file=self.source)
            row = table[draw(self.seed, number, WINDOW, len(table))]
            flip = self.mirror and draw(self.seed, number, MIRROR, 2) == 1
            with located(file=self.source, line=int(row[LINE]), record=number):
                self._put(row, flip, data[i])
            if labels is not None:
                labels[i] = row[LABEL]

    def close(self):
        """Do nothing, as no file stays open; each batch reader has this method."""

    def _put(self, row, flip, out):
        """Write one window, cut out, resized, flipped and scaled, into `out` (3, crop, crop), whose context stays zero."""
        path = self.windows.images[int(row[IMAGE])]
        image = decode_picture(self._read(path), path)
        (x1, y1, x2, y2), size, top, left, right = self._region(row, image.shape, out.dtype.type)
        left = right if flip else left      # distances from the border of `out`
        size = min(size[0], self.crop - top), min(size[1], self.crop - left)  # roundings may add up
        if min(size) < 1:
            return  # less than half a pixel of it would be seen
        pixels = opencv().resize(image[y1:y2 + 1, x1:x2 + 1], (size[1], size[0]))
        if flip:
            pixels = pixels[:, ::-1]
        rows, columns = slice(top, top + size[0]), slice(left, left + size[1])
        pixels = pixels.transpose(2, 0, 1).astype(out.dtype)
        if self.mean is not None:
            pixels -= self.mean[:, rows, columns].astype(out.dtype)
        out[:, rows, columns] = pixels * out.dtype.type(self.scale)

    def _region(self, row, shape, real):
        """Return the box to cut out, the (height, width) to resize it to, and its distances in `out` from top, left and right."""
        x1, y1, x2, y2 = (int(row[k]) for k in (X1, Y1, X2, Y2))
        height, width = shape[:2]
        if not self.context and not self.square:
            if x1 < 0 or y1 < 0 or x2 >= width or y2 >= height:
                raise DataError(f"the window {_box(row)} reaches beyond '{self.windows.images[row[IMAGE]]}', which is "
                                f"{height} x {width}")
            return (x1, y1, x2, y2), (self.crop, self.crop), 0, 0, 0
        # Caffe computes in the net's type, `real`, and rounds halves away from zero.
        grow = real(self.crop) / real(self.crop - 2 * self.context)
        half_h, half_w = real(y2 - y1 + 1) / real(2), real(x2 - x1 + 1) / real(2)
        centre_x, centre_y = real(x1) + half_w, real(y1) + half_h
        if self.square:
            half_h = half_w = max(half_h, half_w)
        x1, x2 = _round(centre_x - half_w * grow), _round(centre_x + half_w * grow)
        y1, y2 = _round(centre_y - half_h * grow), _round(centre_y + half_h * grow)
        scale_x, scale_y = real(self.crop) / real(x2 - x1 + 1), real(self.crop) / real(y2 - y1 + 1)
        left, right = max(0, -x1), max(0, x2 - width + 1)
        top, bottom = max(0, -y1), max(0, y2 - height + 1)
        x1, x2, y1, y2 = x1 + left, x2 - right, y1 + top, y2 - bottom
        if x1 > x2 or y1 > y2:
            raise DataError(f"the window {_box(row)} lies outside '{self.windows.images[row[IMAGE]]}', which is "
                            f"{height} x {width}")
        left, right, top = (_round(real(pad) * scale) for pad, scale in ((left, scale_x), (right, scale_x), (top, scale_y)))
        size = _round(real(y2 - y1 + 1) * scale_y), _round(real(x2 - x1 + 1) * scale_x)
        return (x1, y1, x2, y2), size, top, left, right


def objects_of(size, fraction):
    """Return how many windows of a batch show objects; Caffe multiplies in single precision and rounds down."""
    return int(np.float32(size) * np.float32(fraction))


def _round(value):
    """Round halves away from zero, as C's round, which Caffe calls; Python's rounds them to even numbers."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
