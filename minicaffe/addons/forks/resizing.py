"""Layers of forks that change height and width: bilinear (Interp, Resize), nearest, and the inverse of a max pooling (Upsample)."""

import logging

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, check_planes
from minicaffe.addons.forks.interpolation import bilinear
from minicaffe.addons.forks.messages import Field
from minicaffe.blob import NUMPY_TYPES, Blob
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.layers.base.checks import check_size

log = logging.getLogger(__name__)


class BilinearLayer(ForkLayer):
    """Base: top = A bottom B' for each plane, where A and B' (B transposed) have the weights of the rows and of the columns.

    A type defines two methods:

    - ``sizes(bottom)`` returns, for the height and for the width, (size of the bottom, number of pixels to skip at its beginning,
      number of pixels to read, size of the top).
    - ``weights(read_size, top_size)`` returns three arrays: for each pixel of the top, the first of the two pixels that it is
      computed from, the weight of this one, and the weight of the next.

    The CPU multiplies by matrices. On a device kernels compute each pixel from up to four others, in the layout of the bottom
    (addons/forks/interpolation/bilinear.pyx), by tables.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False

    built = None, None      # the key of `_of_axes`, and its result
    layout = None           # of the bottom in the last forward; not None only on a device

    def reshape(self, bottom, top):
        check_planes(bottom[0])
        self.current = self.sizes(bottom)
        top[0].reshape(*bottom[0].shape[:2], *(top_size for *_, top_size in self.current))

    def _matrix(self, size, skipped, read_size, top_size):
        """Return the weights as a matrix of shape (top_size, size); None if all pixels are read and copied."""
        if size == read_size == top_size:
            return None
        matrix = np.zeros((top_size, size), NUMPY_TYPES[self.dtype])
        first, *both = self.weights(read_size, top_size)
        for step, weights in enumerate(both):
            inside = first + step < read_size
            matrix[np.arange(top_size)[inside], skipped + first[inside] + step] = weights[inside]
        return matrix

    def _table(self, size, skipped, read_size, top_size):
        """Return the weights as a table for a device."""
        if size == read_size == top_size:
            first, first_weight, next_weight = np.arange(size), np.ones(size), np.zeros(size)
        else:
            first, first_weight, next_weight = self.weights(read_size, top_size)
            next_weight, first = np.where(first + 1 < read_size, next_weight, 0), first + skipped
        pixels = np.arange(size)
        begin, end = np.searchsorted(first, pixels - 1, "left"), np.searchsorted(first, pixels, "right")
        table = Blob((3 * top_size + 2 * size,), self.dtype, "bilinear table")
        table.data[...] = np.concatenate([first, first_weight, next_weight, begin, end])
        return table

    def _of_axes(self, build):
        """Return what `_matrix` or `_table` gives for the height and for the width; kept until the sizes change."""
        key = build.__name__, self.current
        if self.built[0] != key:
            self.built = key, [build(*size) for size in self.current]
        return self.built[1]

    def forward_gpu(self, bottom, top):
        self.layout = bilinear.forward(bottom[0], top[0], *self._of_axes(self._table))

    def backward_gpu(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bilinear.backward(bottom[0], top[0], *self._of_axes(self._table), self.layout)
        if any(propagate_down[1:]):
            bottom[1].fill_diff(0)

    def capture_obstacle(self):
        return None

    def forward(self, bottom, top):
        self.layout = None
        top[0].data[...] = _product(bottom[0].data, *self._of_axes(self._matrix))

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = _product(top[0].diff, *(None if one is None else one.T for one in self._of_axes(self._matrix)))


def _product(planes, rows, columns):
    """Return ``rows x columns.T`` for each plane x, in the order with fewer multiplications; None is an identity matrix."""
    growth = [0 if one is None else 1 / one.shape[1] - 1 / one.shape[0] for one in (rows, columns)]
    if rows is not None and growth[0] <= growth[1]:
        planes, rows = rows @ planes, None
    if columns is not None:     # as one product
        planes = (planes.reshape(-1, planes.shape[3]) @ columns.T).reshape(*planes.shape[:3], len(columns))
    return planes if rows is None else rows @ planes


class InterpLayer(BilinearLayer):
    """Bilinear interpolation in which the corners of the bottom and the top lie on each other.

    First -pad_beg pixels are cut off at the top and left, and -pad_end at the bottom and right. H is the height that remains. The
    height of the top is given by the first rule whose fields are in the file; the width likewise:

    - `use_blob_size`: that of bottom[1]
    - `shrink_factor`: (H - 1) / shrink_factor + 1, rounded down
    - `zoom_factor`: H + (H - 1) (zoom_factor - 1)
    - `height` and `width`
    - `shrink_factor` and `zoom_factor`: first shrunk, then zoomed
    - `full_zoom_factor`: H full_zoom_factor

    Row i of H' lies at i (H - 1) / (H' - 1) of the bottom, computed in float32, or at 0 if H' is 1. With p its whole part and f
    the rest it is (1 - f) row p + f row p + 1; equal sizes are a copy.

    Different from its forks: a size that no rule uses is reported. On the CPU a value that is not finite spreads to its whole
    plane.

    Source: pspnet and deeplab-v2 interp_layer.cpp (Chen et al. 2014, Zhao et al. 2017).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W)
    bottom[1] : Blob, 4 axes, only with `use_blob_size`
        Only its height and width are used.
    top[0] : Blob, shape (N, C, H', W')
    """

    exact_num_bottom_blobs = -1
    min_bottom_blobs, max_bottom_blobs = 1, 2
    no_gradient = {1: "the size"}

    message = "interp_param"
    fields_of_message = (
        Field("height", 0, "of the top", 0), Field("width", 0, "of the top", 0),
        Field("zoom_factor", 1, "H + (H - 1) (zoom_factor - 1) rows", 1),
        Field("shrink_factor", 1, "(H - 1) / shrink_factor + 1 rows", 1),
        Field("pad_beg", 0, "the negative of the pixels that are cut off at the top and left"),
        Field("pad_end", 0, "the negative of the pixels that are cut off at the bottom and right"),
        Field("use_blob_size", False, "the size is that of bottom[1]"),
        Field("full_zoom_factor", 1, "H full_zoom_factor rows", 1),
        Field("mode", "LINEAR", "LINEAR alone", choices=("LINEAR",)))

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        given, values = self.given, self.values
        for name in ("pad_beg", "pad_end"):
            if values[name] > 0:
                raise self.value_error(name, "must be at most 0: a negative number cuts pixels off, there is no padding")
        if values["use_blob_size"] != (len(bottom) == 2):
            raise self.value_error("use_blob_size", f"must be true if there are two bottoms, else false; there are {len(bottom)}")
        rules = {("use_blob_size",): values["use_blob_size"],
                 ("shrink_factor",): "zoom_factor" not in given, ("zoom_factor",): "shrink_factor" not in given,
                 ("height", "width"): True, ("shrink_factor", "zoom_factor"): True, ("full_zoom_factor",): True}
        self.rule = next((names for names, counts in rules.items() if counts and given.issuperset(names)), None)
        if self.rule is None:
            raise ConfigError("gives no size: give height and width, zoom_factor, shrink_factor, full_zoom_factor or use_blob_size",
                              field=self.message)
        for name in {"height", "width"}.intersection(self.rule):
            check_size(values[name], f"{self.message}.{name}")
        unused = given.intersection(name for names in rules for name in names).difference(self.rule, ("use_blob_size",))
        if unused:
            log.warning("layer '%s': %s of %s is ignored, as %s is given", self.name, ", ".join(sorted(unused)), self.message,
                        " and ".join(self.rule))

    def sizes(self, bottom):
        skipped, values = -self.values["pad_beg"], self.values
        sizes = []
        for axis, name in (2, "height"), (3, "width"):
            size = bottom[0].shape[axis]
            read_size = size - skipped + values["pad_end"]
            if read_size < 1:
                raise ShapeError(f"pad_beg {-skipped} and pad_end {values['pad_end']} leave no pixel of axis {axis} of bottom[0], "
                                 f"shape {list(bottom[0].shape)}", field=f"{self.message}.pad_beg")
            if self.rule == ("use_blob_size",):
                check_planes(bottom[1], "bottom[1]")
                top_size = bottom[1].shape[axis]
            elif name in self.rule:
                top_size = values[name]
            elif self.rule == ("full_zoom_factor",):
                top_size = read_size * values["full_zoom_factor"]
            else:
                between = (read_size - 1) // values["shrink_factor"] if "shrink_factor" in self.rule else read_size - 1
                top_size = between * (values["zoom_factor"] if "zoom_factor" in self.rule else 1) + 1
            check_size(top_size, f"{self.message}.{self.rule[0]}")
            sizes.append((size, skipped, read_size, top_size))
        return sizes

    def weights(self, read_size, top_size):
        ratio = np.float32(read_size - 1) / np.float32(top_size - 1) if top_size > 1 else np.float32(0)
        positions = ratio * np.arange(top_size, dtype=np.float32)
        first = np.minimum(positions.astype(np.int64), read_size - 1)
        rest = np.where(first < read_size - 1, positions - first, 0).astype(NUMPY_TYPES[self.dtype])
        return first, 1 - rest, rest


class ResizeLayer(BilinearLayer):
    """Bilinear interpolation to `height` x `width`, or with `is_pyramid_test` to the bottom's size times two factors.

    Row i of H' lies at i H / H' of the bottom. With p its whole part and f the rest it is (1 - f) row p + f row p + 1. A row
    outside the bottom counts as 0, so the last rows and columns of a larger top are darker.

    Source: caffe-windows resize_layer.cpp. Resize of pose_action has other fields, and is not this type.

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W)
    top[0] : Blob, shape (N, C, H', W')
    """

    message = "resize_param"
    fields_of_message = (
        Field("height", 0, "of the top", 0), Field("width", 0, "of the top", 0),
        Field("is_pyramid_test", False, "use the factors, not height and width"),
        Field("out_height_scale", 0.0, "height of the top by that of the bottom; rounded down", 0),
        Field("out_width_scale", 0.0, "width of the top by that of the bottom; rounded down", 0))

    def sizes(self, bottom):
        sizes = []
        for axis, name in (2, "height"), (3, "width"):
            size, top_size = bottom[0].shape[axis], self.values[name]
            if self.values["is_pyramid_test"]:
                name = f"out_{name}_scale"
                top_size = int(min(np.float32(self.values[name]) * np.float32(size), 2.0**31))    # int() refuses inf
                if top_size < 1:
                    raise self.value_error(name, f"must make axis {axis} of the top at least 1, it is {size} in the bottom")
            check_size(top_size, f"{self.message}.{name}", needed=True)
            sizes.append((size, 0, size, top_size))
        return sizes

    def weights(self, read_size, top_size):
        first, rest = np.divmod(np.arange(top_size) * read_size, top_size)
        rest = (rest / top_size).astype(NUMPY_TYPES[self.dtype])
        return first, 1 - rest, rest


class UpsampleLayer(ForkLayer):
    """The layer of YOLO with one bottom, that of SegNet with two.

    YOLO: each pixel becomes a block of `scale` x `scale` pixels; `scale` is 1 unless given. UpsampleDarknet of synopsys is read as
    this. Unpooling of DeconvNet and FuseNet is read as SegNet's.

    SegNet: value i of a plane of bottom[0] is written to pixel ``bottom[1][i]`` of the top's plane; all others are 0. If two
    values have the same pixel, the later one is written. The gradient of each value is that of its pixel, also of a value that a
    later one replaces. Height and width of the top are `upsample_h` and `upsample_w`. Without these they are those of the bottom
    times `scale_h` and `scale_w`, or times `scale` (2 by default); `pad_out_h` and `pad_out_w` subtract 1, for an odd side.
    A value of the mask that is not a pixel of the top's plane raises DataError.

    Different from its forks: a size that comes from a scale follows changes of the bottom's shape.

    Source: mobilenet-yolo upsample_layer.cpp (Redmon and Farhadi 2018, YOLOv3); segnet upsample_layer.cpp (Badrinarayanan et al.
    2015).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W), of YOLO's (..., H, W)
    bottom[1] : Blob, of the same shape, only of SegNet's
        The mask: numbers of pixels in a plane, by rows. It is the second top of the MAX Pooling whose inverse this is.
    top[0] : Blob, shape (N, C, H', W'), of YOLO's (..., H scale, W scale)
    """

    min_bottom_blobs, max_bottom_blobs = 1, 2
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_tops = False
    no_gradient = {1: "the mask"}

    message = "upsample_param"
    fields_of_message = (
        Field("scale", 2, "height and width of the top by those of the bottom; 1 if there is one bottom", 1),
        Field("scale_h", 2, "as scale, of the height alone; needs scale_w", 2),
        Field("scale_w", 2, "as scale, of the width alone; needs scale_h", 2),
        Field("pad_out_h", False, "one row less; needs a scale of 2"),
        Field("pad_out_w", False, "one column less; needs a scale of 2"),
        Field("upsample_h", 0, "height of the top; needs upsample_w", 2), Field("upsample_w", 0, "width of the top", 2))

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        values = self.values
        self.masked = self.backward_reads_bottoms = len(bottom) == 2    # the mask says where the gradients are
        self.side = values["scale"] if "scale" in self.given else 1     # of a block, for YOLO's Upsample
        if not self.masked:
            more = sorted(self.given - {"scale"})
            if more:
                raise ConfigError("is of SegNet's Upsample, which has the mask as its second bottom; with one bottom only scale "
                                  "is read", field=f"{self.message}.{more[0]}")
            return
        for pair in (("upsample_h", "upsample_w"), ("scale_h", "scale_w")):
            if len(self.given.intersection(pair)) == 1:
                raise ConfigError(f"give both of {' and '.join(pair)}, or none", field=f"{self.message}.{pair[0]}")
        if "upsample_h" in self.given:
            unused = sorted(self.given - {"upsample_h", "upsample_w"})
            if unused:
                log.warning("layer '%s': %s of %s is ignored, as upsample_h is given", self.name, ", ".join(unused),
                            self.message)
            return
        for name in ("h", "w"):
            if self._scale(name) < 2:
                raise self.value_error("scale", "must be at least 2 for an Upsample with a mask")
            if values[f"pad_out_{name}"] and self._scale(name) != 2:
                raise ConfigError(f"needs a scale of 2, which is {self._scale(name)}", field=f"{self.message}.pad_out_{name}")

    def _scale(self, name):
        return self.values[f"scale_{name}" if f"scale_{name}" in self.given else "scale"]

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if not self.masked:
            if len(shape) < 2:
                raise ShapeError(f"must have at least 2 axes, the last are height and width, got {list(shape)}", field="bottom[0]")
            top[0].reshape(*shape[:-2], *(size * self.side for size in shape[-2:]))
            return
        check_planes(bottom[0])
        if bottom[1].shape != shape:
            raise ShapeError(f"the mask must have the shape of bottom[0], {list(shape)}, got {list(bottom[1].shape)}",
                             field="bottom[1]")
        top_size = [self.values[f"upsample_{name}"] if "upsample_h" in self.given else
                size * self._scale(name) - self.values[f"pad_out_{name}"] for name, size in zip("hw", shape[2:])]
        top[0].reshape(*shape[:2], *top_size)

    def _pixels(self, bottom, top):
        """Return the index of each value of the bottom in the flat top."""
        mask, pixels = bottom[1].data, top[0].shape[2] * top[0].shape[3]
        wrong = ~((mask >= 0) & (mask < pixels) & (mask == np.floor(mask)))
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            raise DataError(f"the mask has {mask[place]:g} at {list(place)}, which is not a pixel of a plane of the top, "
                            f"{top[0].shape[2]}x{top[0].shape[3]}; it must be the second top of the MAX Pooling whose bottom had "
                            "that size", field="bottom[1]")
        planes = np.arange(mask.shape[0] * mask.shape[1], dtype=np.int64).reshape(*mask.shape[:2], 1, 1)
        return mask.astype(np.int64) + pixels * planes

    def _blocks(self, shape, array):
        """Return an array of the top's shape with the axes (..., H, side, W, side)."""
        return array.reshape(*shape[:-1], self.side, shape[-1], self.side)

    def forward(self, bottom, top):
        if not self.masked:
            self._blocks(bottom[0].shape, top[0].data)[...] = bottom[0].data[..., None, :, None]
            return
        pixels = self._pixels(bottom, top)
        values = top[0].data.reshape(-1)
        values[...] = 0
        values[pixels.reshape(-1)] = bottom[0].data.reshape(-1)

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0] and self.masked:
            bottom[0].diff[...] = top[0].diff.reshape(-1)[self._pixels(bottom, top)]
        elif propagate_down[0]:
            bottom[0].diff[...] = self._blocks(bottom[0].shape, top[0].diff).sum(axis=(-3, -1))
