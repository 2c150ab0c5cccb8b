"""Pooling: the maximum, mean or a random element of windows that slide over each plane (Caffe pooling_layer.cpp).

Different from Caffe: STOCHASTIC runs on the CPU too, drawing from the layer's generator, so that a resumed run repeats its
draws; a window that lies wholly outside the image gets no gradient (Caffe writes out of bounds); volumes are pooled, too.
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.pooling.operation cimport MAX, STOCHASTIC, Pooling, PoolShape

import math

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError, located

cdef enum:
    FLOOR = 1        # minicaffe.proto PoolingParameter.RoundMode

MAX_SIZE = 2**31 - 1


cdef class PoolingLayer(DeviceLayer):
    """Pool each plane of the bottom, or each volume by `kernel_size`, `stride` and `pad` for its three axes, or as a whole.

    ``out = ceil((in + 2 pad - kernel) / stride) + 1`` (or floor), less one where with padding the last window would start
    beyond the image and the leading padding. MAX: the gradient goes to the first maximum. AVE: the divisor counts padding.
    STOCHASTIC: in TRAIN a pixel with probability ``x / sum x``, in TEST ``sum x^2 / sum x``; only TRAIN has a gradient.

    Parameters
    ----------
    bottom : Blob, shape (N, C, H, W), or (N, C, D, H, W) with MAX and AVE
    top : Blob, shape (N, C, H', W') or (N, C, D', H', W')
    top[1] : Blob, optional, of the same shape
        With MAX of planes: the position ``h W + w`` of each maximum, -1 where there is none.

    Raises
    ------
    ConfigError, ShapeError
        For contradicting or impossible windows, a bottom without 4 or 5 axes, or an empty output.
    """

    exact_num_bottom_blobs = 1
    min_top_blobs = 1
    max_top_blobs = 2
    refuses_in_place = True
    backward_reads_bottoms = False

    cdef Pooling op         # over height and width
    cdef Pooling depth      # over the depth of volumes, behind it; None for planes
    cdef bint whole, floor_mode
    cdef Blob mask, planes, depth_mask      # planes: between the two operations

    cpdef layer_setup(self, list bottom, list top):
        cdef PoolShape* s
        param = self.param.pooling_param
        self.floor_mode, self.whole = param.round_mode == FLOOR, param.global_pooling
        self.op = Pooling(self.dtype, param.engine)
        s = &self.op.shape
        self.op.method = param.pool
        self.op.drawn = param.pool == STOCHASTIC and self.phase != TEST
        self.op.mask_shown = len(top) > 1
        if self.op.method != MAX and len(top) > 1:
            raise ConfigError(f"only MAX pooling has a mask as second top, got {len(top)} tops", field="top")
        if not self.whole:
            s.kernel_h, s.kernel_w = _pair(param, "kernel_size", "kernel", 1, optional=False)
        elif given := [name for name in ("kernel_size", "kernel_h", "kernel_w") if param.HasField(name)]:
            raise ConfigError("must not be given with global_pooling, whose kernel is the whole plane",
                              field=f"pooling_param.{given[0]}")
        s.stride_h, s.stride_w = _pair(param, "stride", "stride", 1)
        s.pad_h, s.pad_w = _pair(param, "pad", "pad", 0)
        if self.whole:
            if (s.pad_h, s.pad_w, s.stride_h, s.stride_w) != (0, 0, 1, 1):
                raise ConfigError("needs pad 0 and stride 1", field="pooling_param.global_pooling")
        elif s.pad_h >= s.kernel_h or s.pad_w >= s.kernel_w:
            raise ConfigError(f"must be less than the kernel, got {s.pad_h}x{s.pad_w} for a kernel of "
                              f"{s.kernel_h}x{s.kernel_w}", field="pooling_param.pad")
        if self.op.method == STOCHASTIC and (s.pad_h or s.pad_w):
            raise ConfigError("must be 0 for STOCHASTIC pooling", field="pooling_param.pad")
        if self.op.method == MAX and len(top) == 1 or self.op.drawn:
            self.mask = self.new_blob(what="mask")
        if (<Blob> bottom[0]).num_axes == 5:
            self.set_up_depth(param, len(top))

    cdef int set_up_depth(self, param, int tops) except -1:
        """Make the operation over the depth of volumes: the maximum and the sum of a box are those of its planes' results."""
        if given := [name for name in ("kernel_h", "stride_h", "pad_h") if param.HasField(name)]:
            raise ConfigError("is for planes; a bottom with 5 axes needs kernel_size, stride and pad, which are for all three axes",
                              field=f"pooling_param.{given[0]}")
        if self.op.method == STOCHASTIC or tops > 1:
            raise ConfigError("STOCHASTIC pooling, and a mask as second top, need a bottom with 4 axes", field="pooling_param.pool")
        self.depth = Pooling(self.dtype, param.engine)
        self.depth.method = self.op.method
        s, d = &self.op.shape, &self.depth.shape
        d.kernel_h, d.stride_h, d.pad_h, d.kernel_w, d.stride_w = s.kernel_h, s.stride_h, s.pad_h, 1, 1
        self.planes = self.new_blob(what="planes")
        if self.op.method == MAX:
            self.depth_mask = self.new_blob(what="depth mask")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef PoolShape* s = &self.op.shape
        cdef PoolShape* d = &self.depth.shape if self.depth is not None else NULL
        cdef int first = d != NULL      # the height's place among the axes of the window
        if x.num_axes != 4 + first:
            raise ShapeError("Pooling needs 4 axes (num, channels, height, width), or 5 with a depth before the height, the same "
                             f"number after each reshape, got {list(x.shape)}", field="bottom[0]")
        s.images, s.channels = x.dims[0], x.count_range(1, 2 + first)
        s.height, s.width = x.dims[2 + first], x.dims[3 + first]
        if self.whole:
            s.kernel_h, s.kernel_w = s.height, s.width
            if d != NULL:
                d.kernel_h = x.dims[2]
        image = list(x.shape[2:])
        kernel, strides, pad = self.window
        sizes = [_pooled(*of_axis, any(pad), self.floor_mode) for of_axis in zip(image, kernel, strides, pad)]
        if x.count and min(sizes) < 1:
            raise ShapeError(f"a kernel of {_text(kernel)} does not fit planes of {_text(image)} with padding {_text(pad)}; the "
                             f"output would be {_text(sizes)}", field="pooling_param.kernel_size")
        # Planes without pixels have no windows, whatever the padding.
        sizes = [max(size, 0) for size in sizes] if math.prod(image) else [0] * len(image)
        s.out_height, s.out_width = sizes[first], sizes[first + 1]
        with located(field="pooling_param.pad"):
            for blob in top:
                blob.reshape_to((*x.shape[:2], *sizes))
        pixels = s.height * s.width
        if d != NULL:
            d.images, d.channels, d.height, d.out_height = s.images, x.dims[1], x.dims[2], sizes[0]
            d.width = d.out_width = s.out_height * s.out_width
            pixels = max(pixels, d.height * d.width)
            self.planes.reshape_to((s.images, s.channels, s.out_height, s.out_width))
            self.depth.changed()
        if self.mask is not None or len(top) > 1:
            if self.dtype == FLOAT and pixels > 2**24:
                raise ShapeError(f"planes of {_text(image)} have more pixels than a float32 mask can count, 2^24; pool smaller "
                                 "planes, or use float64", field="bottom[0]")
            if self.mask is not None:
                self.mask.reshape_like(top[0] if d == NULL else self.planes)
            if self.depth_mask is not None:
                self.depth_mask.reshape_like(top[0])
        self.op.changed()

    @property
    def window(self):
        """Kernel, stride and pad, each as [height, width], or [depth, height, width] of volumes."""
        s = self.op.shape
        planes = [s.kernel_h, s.kernel_w], [s.stride_h, s.stride_w], [s.pad_h, s.pad_w]
        if self.depth is None:
            return planes
        s = self.depth.shape
        return [s.kernel_h, *planes[0]], [s.stride_h, *planes[1]], [s.pad_h, *planes[2]]

    @property
    def backward_reads_tops(self):
        return bool(self.op.mask_shown)

    def operations(self):
        return [self.op] if self.depth is None else [self.op, self.depth]

    def scratch_blobs(self):
        return [blob for blob in (self.mask, self.planes, self.depth_mask) if blob is not None]

    cdef Blob mask_of(self, list top):
        return top[1] if len(top) > 1 else self.mask

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if not (<Blob> bottom[0]).count:
            return 0
        if self.op.drawn:
            self.op.seed, self.op.start = self.generator.seed, self.generator.reserve((<Blob> top[0]).count)
        if self.depth is not None:
            self.op.forward(on, bottom[0], self.planes, self.mask)
            return self.depth.forward(on, self.planes, top[0], self.depth_mask)
        return self.op.forward(on, bottom[0], top[0], self.mask_of(top))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0] or not (<Blob> bottom[0]).count:
            return 0
        if self.op.method == STOCHASTIC and not self.op.drawn:
            raise ConfigError("STOCHASTIC pooling has a gradient in phase TRAIN only; use AVE, or propagate_down: false",
                              field="pooling_param.pool")
        if self.depth is not None:
            self.depth.backward(on, self.planes, top[0], self.depth_mask)
            return self.op.backward(on, bottom[0], self.planes, self.mask)
        return self.op.backward(on, bottom[0], top[0], self.mask_of(top))


def _pair(param, name, side, least, optional=True):
    """Read `name`, or both `side`_h and `side`_w; neither, if it is `optional`, is the default of `name`."""
    pair = [f"{side}_h", f"{side}_w"]
    given = [form for form in (name, *pair) if param.HasField(form)]
    if given not in ([name], pair) and (given or not optional):
        raise ConfigError(f"give {name}, or both {pair[0]} and {pair[1]}; got {' and '.join(given) or 'none'}",
                          field=f"pooling_param.{name}")
    forms = pair if given == pair else [name, name]
    for form in forms:
        if not least <= getattr(param, form) <= MAX_SIZE:
            raise ConfigError(f"must be from {least} to 2^31 - 1, got {getattr(param, form)}", field=f"pooling_param.{form}")
    return [getattr(param, form) for form in forms]


def _text(sizes):
    return "x".join(map(str, sizes))


def _pooled(size, kernel, stride, pad, padded, floor_mode):
    """The number of windows along an axis; may be less than 1 where the kernel does not fit."""
    room = size + 2 * pad - kernel
    windows = (room // stride if floor_mode else -(-room // stride)) + 1
    if padded and (windows - 1) * stride >= size + pad:
        windows -= 1
    return windows
