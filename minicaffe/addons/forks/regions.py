"""Layers of the R-CNN family that cut regions of interest (ROIs) out of a feature map: the top has a map of one size for each ROI.

A ROI is a row (index of the image in the batch, x1, y1, x2, y2) in pixels of the net's input, and both corners belong to it. ROIs
get no gradient: backward writes zeros, as in the forks. Nets of the forks train the layers that propose ROIs by separate losses.
"""

from itertools import product

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, check_planes
from minicaffe.addons.forks.messages import Field
from minicaffe.addons.forks.rois import MAX_COORDINATE, check_rois, read_rois
from minicaffe.errors import ConfigError, ShapeError

SCALE = Field("spatial_scale", 1.0, "pixels of the bottom for one pixel of the net's input: 1/16 = 0.0625 for strides of 16")
HEIGHT, WIDTH = Field("pooled_h", 0, "rows of the top", 0), Field("pooled_w", 0, "columns of the top", 0)
PAD = Field("pad_ratio", 0.0, "each side of a ROI moves out by this fraction of the ROI's size", 0)


class RegionLayer(ForkLayer):
    """Base of the types that pool ROIs.

    A type defines

    - ``size()``, the rows and columns of the top;
    - ``positions(boxes, height, width)``, an iterable that has, for each box, the rows and columns of the bottom that `pool` reads;
    - ``pool(planes, position, out)``, which writes an array (rows, columns, channels) for one box;
    - ``pool_backward(planes, position, dy, dx)``, which adds the gradient of `pool` to dx.
    """

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    refuses_in_place = True
    no_gradient = {1: "ROIs"}
    backward_reads_tops = False

    def setup(self, bottom, top):
        if not 0 < self.values["spatial_scale"] < MAX_COORDINATE:
            raise self.value_error("spatial_scale", f"must be above 0 and less than {MAX_COORDINATE:g}")
        if not self.values.get("pad_ratio", 0) < MAX_COORDINATE:
            raise self.value_error("pad_ratio", f"must be less than {MAX_COORDINATE:g}")

    def reshape(self, bottom, top):
        check_planes(bottom[0])
        top[0].reshape(check_rois(bottom[1]), self.top_channels(bottom[0].shape[1]), *self.size())

    def top_channels(self, channels):
        """Return the channels of the top."""
        return channels

    def order(self, array):
        """Return a view of an array of bottom[0]'s shape, with the channels last: rows of all channels are pooled at once."""
        return array.transpose(0, 2, 3, 1)

    def regions(self, bottom):
        """Return an iterable of (index of the image, position) for each ROI."""
        images, _, height, width = bottom[0].shape
        rois = read_rois(bottom[1], images)
        return zip(rois[:, 0].astype(int), self.positions(rois[:, 1:], height, width)) if len(rois) else ()

    def forward(self, bottom, top):
        regions = self.regions(bottom)
        planes, out = np.ascontiguousarray(self.order(bottom[0].cpu_data)), top[0].data.transpose(0, 2, 3, 1)
        pooled = np.empty(out.shape[1:], out.dtype)
        for roi, (image, position) in enumerate(regions):
            self.pool(planes[image], position, pooled)
            out[roi] = pooled

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            planes, dy = np.ascontiguousarray(self.order(bottom[0].cpu_data)), top[0].cpu_diff.transpose(0, 2, 3, 1)
            dx = np.zeros_like(planes)
            for roi, (image, position) in enumerate(self.regions(bottom)):
                self.pool_backward(planes[image], position, np.ascontiguousarray(dy[roi]), dx[image])
            self.order(bottom[0].diff)[...] = dx


class ROIPoolingLayer(RegionLayer):
    """The maximum of each of `pooled_h` x `pooled_w` bins of a ROI; the bins of a ROI overlap, so that they cover it.

    The ROI's corners are multiplied by `spatial_scale` and rounded, halves away from zero. Let y1 be the ROI's first row and h its
    height. Bin i of n has the rows of the bottom from floor(i h / n) + y1 to ceil((i + 1) h / n) + y1, exclusive. A bin without
    pixels gives 0. The first of equal maxima, by rows, gets the gradient.
    A ROI outside of the batch, or with coordinates that are not finite, raises DataError, which names it.

    Different from its forks: it has a gradient on the CPU; a NaN in a bin gives NaN.

    Source: caffe-fast-rcnn roi_pooling_layer.cpp (Girshick 2015, Fast R-CNN); `pad_ratio` of mscnn, `pooled_size` of intel.

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W)
    bottom[1] : Blob, shape (R, 5) or (R, 5, 1, 1)
        ROIs; R may be 0.
    top[0] : Blob, shape (R, C, pooled_h, pooled_w)
    """

    message = "roi_pooling_param"
    fields_of_message = (HEIGHT, WIDTH, Field("pooled_size", [int], "one number, or height and width, instead of both", 1),
                         SCALE, PAD)

    def setup(self, bottom, top):
        super().setup(bottom, top)
        sizes = self.values["pooled_size"]
        if len(sizes) > 2 or sizes and self.given & {"pooled_h", "pooled_w"}:
            raise self.value_error("pooled_size", "give one or two numbers, or pooled_h and pooled_w instead")
        for name in ("pooled_h", "pooled_w"):
            if not sizes and self.values[name] < 1:
                raise self.value_error(name, "must be given and at least 1")

    def size(self):
        sizes = self.values["pooled_size"] or (self.values["pooled_h"], self.values["pooled_w"])
        return sizes[0], sizes[-1]

    def positions(self, boxes, height, width):
        """Return (start, end) of the rows, and of the columns, of the bins of each box."""
        corners = round_away(padded(boxes, self.values["pad_ratio"]) * self.values["spatial_scale"])
        low, sides = corners[:, :2], np.maximum(corners[:, 2:] - corners[:, :2] + 1, 1)
        return bins(low, sides / np.array(self.size()[::-1], boxes.dtype), self.size(), (height, width), floor_before_start=True)

    def pool(self, planes, position, out):
        rows, columns = position
        first = columns[0][0]
        strip = slice(first, columns[-1][1])
        for i, (low, high) in enumerate(rows):
            if low >= high:
                out[i] = 0
                continue
            row = planes[low:high, strip].max(0)
            for j, (left, right) in enumerate(columns):
                out[i, j] = row[left - first:right - first].max(0) if left < right else 0

    def pool_backward(self, planes, position, dy, dx):
        rows, columns = position
        first, channels = rows[0][0], np.arange(planes.shape[2])
        for j, (left, right) in enumerate(columns):
            if left >= right:
                continue
            most, where = first_maximum(planes[first:rows[-1][1], left:right].swapaxes(0, 1))
            for i, (low, high) in enumerate(rows):
                if low < high:
                    row = first_maximum(most[low - first:high - first])[1] + (low - first)
                    dx[first + row, left + where[row, channels], channels] += dy[i, j]


class PSROIPoolingLayer(RegionLayer):
    """The mean of each of g x g bins of a ROI, g = `group_size`; each bin reads its own group of channels.

    Bin (i, j) of channel d of the top is pooled from channel (d g + i) g + j of the bottom. The ROI's corners are rounded, halves
    away from zero, 1 is added to x2 and y2, and all are multiplied by `spatial_scale`; its sides are at least 0.1. Let y1 be its
    first row and h its height. Bin i has the rows of the bottom from floor(i h / g + y1) to ceil((i + 1) h / g + y1), exclusive. A
    bin without pixels gives 0.
    A ROI outside of the batch, or with coordinates that are not finite, raises DataError, which names it.

    Different from its forks: mini-caffe rounds after it multiplies, py-RFCN-priv averages four samples of each bin. Their files
    look the same, so this is what caffe-rfcn, caffe-windows and intel compute.

    Source: caffe-rfcn psroi_pooling_layer.cpp (Dai et al. 2016, R-FCN).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, output_dim group_size^2, H, W)
    bottom[1] : Blob, shape (R, 5) or (R, 5, 1, 1)
        ROIs; R may be 0.
    top[0] : Blob, shape (R, output_dim, group_size, group_size)
    """

    message = "psroi_pooling_param"
    fields_of_message = (SCALE._replace(default=float), Field("output_dim", int, "channels of the top", 1),
                         Field("group_size", int, "bins along each side", 1))

    def size(self):
        return (self.values["group_size"],) * 2

    def top_channels(self, channels):
        dim, group = self.values["output_dim"], self.values["group_size"]
        if channels != dim * group ** 2:
            raise ShapeError(f"must have output_dim x group_size^2 = {dim} x {group}^2 = {dim * group ** 2} channels, "
                             f"got {channels}", field="bottom[0]")
        return dim

    def order(self, array):
        num, channels, height, width = array.shape
        group = self.values["group_size"]
        return array.reshape(num, self.values["output_dim"], group, group, height, width).transpose(0, 2, 3, 4, 5, 1)

    def positions(self, boxes, height, width):
        """Return (start, end) of the rows, and of the columns, of the bins of each box."""
        corners = round_away(boxes)
        corners[:, 2:] += 1
        corners *= self.values["spatial_scale"]
        sides = np.maximum(corners[:, 2:] - corners[:, :2], boxes.dtype.type(0.1))
        return bins(corners[:, :2], sides / boxes.dtype.type(self.values["group_size"]), self.size(), (height, width))

    def pool(self, planes, position, out):
        for (i, rows), (j, columns) in product(*map(enumerate, position)):
            cells = planes[i, j, slice(*rows), slice(*columns)]
            out[i, j] = cells.sum((0, 1)) / max(cells.shape[0] * cells.shape[1], 1)

    def pool_backward(self, planes, position, dy, dx):
        for (i, rows), (j, columns) in product(*map(enumerate, position)):
            cells = dx[i, j, slice(*rows), slice(*columns)]
            cells += dy[i, j] / max(cells.shape[0] * cells.shape[1], 1)


class ROIAlignLayer(RegionLayer):
    """Bilinear samples of a ROI at (`pooled_h` + 1) x (`pooled_w` + 1) points, from corner to corner.

    Let p = `pad_ratio` (x2 - x1 + 1), s = `spatial_scale`, a = (x1 - p) s - 1/2 and b = (x2 + p) s - 1/2. The columns are at
    a + k (b - a) / pooled_w for k = 0 to pooled_w; rows likewise. A point outside of -1/2 to W - 1/2 gives 0, and so does a ROI
    with b <= a. A point less than half a pixel from the border has the value of the border's pixel. Nets pool the samples
    afterwards.
    A ROI outside of the batch, or with coordinates that are not finite, raises DataError, which names it.

    Different from its forks: it has a gradient on the CPU. py-RFCN-priv and synopsys have other layers of this name, with
    `roi_align_param`, which is an error. None of them is ROIAlign of Mask R-CNN, which averages samples.

    Source: mscnn roi_align_layer.cpp (Cai and Vasconcelos 2018, Cascade R-CNN).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W)
    bottom[1] : Blob, shape (R, 5) or (R, 5, 1, 1)
        ROIs; R may be 0.
    top[0] : Blob, shape (R, C, pooled_h + 1, pooled_w + 1)
    """

    message = "roi_pooling_param"
    fields_of_message = (HEIGHT._replace(default=int, least=1), WIDTH._replace(default=int, least=1), SCALE, PAD)

    def layer_setup(self, bottom, top):
        if "roi_align_param" in self.fields:
            raise ConfigError("py-RFCN-priv and synopsys compute different things from it, and minicaffe neither; for the ROIAlign "
                              "of mscnn and cascade-rcnn give roi_pooling_param", field="roi_align_param")
        super().layer_setup(bottom, top)

    def size(self):
        return self.values["pooled_h"] + 1, self.values["pooled_w"] + 1

    def positions(self, boxes, height, width):
        """Return the results of `linear_samples` for the rows and for the columns of each box."""
        # padded() moves out the corners as the formula does.
        corners = padded(boxes, self.values["pad_ratio"]) * self.values["spatial_scale"] - boxes.dtype.type(0.5)
        empty = (corners[:, 2:] <= corners[:, :2]).any(1)
        rows = linear_samples(corners[:, 1], corners[:, 3], self.values["pooled_h"], height, empty)
        return zip(rows, linear_samples(corners[:, 0], corners[:, 2], self.values["pooled_w"], width, empty))

    def pool(self, planes, position, out):
        (low, high, low_weight, high_weight), (left, right, left_weight, right_weight) = position
        low, high, left_weight, right_weight = (array[:, np.newaxis] for array in (low, high, left_weight, right_weight))
        low_weight, high_weight = low_weight[:, np.newaxis, np.newaxis], high_weight[:, np.newaxis, np.newaxis]
        out[...] = low_weight * (left_weight * planes[low, left] + right_weight * planes[low, right])
        out += high_weight * (left_weight * planes[high, left] + right_weight * planes[high, right])

    def pool_backward(self, planes, position, dy, dx):
        rows, columns = position
        row = np.zeros((len(dy), *dx.shape[1:]), dx.dtype)
        for j, (left, right, left_weight, right_weight) in enumerate(zip(*columns)):
            row[:, left] += left_weight * dy[:, j]
            row[:, right] += right_weight * dy[:, j]
        for i, (low, high, low_weight, high_weight) in enumerate(zip(*rows)):
            dx[low] += low_weight * row[i]
            dx[high] += high_weight * row[i]


def round_away(values):
    """Return the values rounded, halves away from zero, as C does; NumPy rounds them to even."""
    whole = np.trunc(values)
    return whole + np.copysign(np.abs(values - whole) >= 0.5, values)


def first_maximum(values):
    """Return the maxima along axis 0 and the first index of each; faster than argmax, which copies the array for other axes."""
    most, where = values[0].copy(), np.zeros(values.shape[1:], np.int32)
    for i in range(1, len(values)):
        np.copyto(where, i, where=values[i] > most)
        np.maximum(most, values[i], out=most)
    return most, where


def padded(boxes, ratio):
    """Return boxes whose sides have moved out by `ratio` times the size; both edges belong to a box."""
    pad = ratio * (boxes[:, 2:] - boxes[:, :2] + 1)
    return np.concatenate([boxes[:, :2] - pad, boxes[:, 2:] + pad], 1)


def bins(start, side, counts, limits, floor_before_start=False):
    """Return, for each box, the (start, end) of the rows and of the columns of its bins, within a map.

    Parameters
    ----------
    start, side : ndarray, shape (R, 2)
        x and y of the first corners, and of the sides of a bin.
    counts, limits : tuple of int
        Of the bins in each direction, rows first; the map's height and width.
    floor_before_start : bool
        Whether multiples of a side are rounded before the start is added; with floats that is not the same.
    """
    edges = []
    for axis, count, limit in zip((1, 0), counts, limits):
        steps = np.arange(count + 1, dtype=side.dtype) * side[:, axis, np.newaxis]
        first = start[:, axis, np.newaxis]
        after, steps = (first, steps) if floor_before_start else (0, steps + first)
        low, high = np.floor(steps[:, :-1]) + after, np.ceil(steps[:, 1:]) + after
        edges.append(np.stack([low, high], 2).clip(0, limit).astype(int).tolist())
    return zip(*edges)


def linear_samples(start, end, count, limit, empty):
    """Return how count + 1 points from `start` to `end` on one axis are interpolated, for each box.

    A box has four arrays: the pixels before the points, the pixels after them, the weights of the first and of the second. Weights
    are 0 for points outside of the map, and in boxes that are `empty`.
    """
    step = (end - start) / start.dtype.type(count)
    points = start[:, np.newaxis] + np.arange(count + 1, dtype=start.dtype) * step[:, np.newaxis]
    inside = (points >= -0.5) & (points <= limit - 0.5) & ~empty[:, np.newaxis]
    points = points.clip(0, limit - 1)
    low = np.floor(points)
    fraction = points - low
    low = low.astype(int)
    return zip(low, np.minimum(low + 1, limit - 1), np.where(inside, 1 - fraction, 0), np.where(inside, fraction, 0))
