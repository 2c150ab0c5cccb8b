"""Pooling: the maximum, mean or a random element of windows that slide over each plane (Caffe pooling_layer.cpp).

Different from Caffe: STOCHASTIC runs on the CPU too, drawing from the layer's generator, so that a resumed run repeats its
draws; a window that lies wholly outside the image gets no gradient (Caffe writes out of bounds).
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.pooling.operation cimport MAX, STOCHASTIC, Pooling, PoolShape

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError, located

cdef enum:
    FLOOR = 1        # minicaffe.proto PoolingParameter.RoundMode

MAX_SIZE = 2**31 - 1


cdef class PoolingLayer(DeviceLayer):
    """Pool each plane of the bottom.

    ``out = ceil((in + 2 pad - kernel) / stride) + 1`` (or floor), less one where with padding the last window would start
    beyond the image and the leading padding. MAX: the gradient goes to the first maximum. AVE: the divisor counts padding.
    STOCHASTIC: in TRAIN a pixel with probability ``x / sum x``, in TEST ``sum x^2 / sum x``; only TRAIN has a gradient.

    Parameters
    ----------
    bottom : Blob, shape (N, C, H, W)
    top : Blob, shape (N, C, H', W')
    top[1] : Blob, optional, of the same shape
        With MAX: the position ``h W + w`` of each maximum, -1 where there is none.

    Raises
    ------
    ConfigError, ShapeError
        For contradicting or impossible windows, a bottom without exactly 4 axes, or an empty output.
    """

    exact_num_bottom_blobs = 1
    min_top_blobs = 1
    max_top_blobs = 2
    refuses_in_place = True
    backward_reads_bottoms = False

    cdef Pooling op     # computes both passes by an engine; `shape` has the window and all sizes
    cdef bint whole, floor_mode     # global_pooling; sizes are rounded down
    cdef Blob mask      # of the top's shape: positions of maxima or draws, for backward; None: a top has them, or none are needed

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

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef PoolShape* s = &self.op.shape
        if x.num_axes != 4:
            raise ShapeError(f"Pooling needs 4 axes (num, channels, height, width), got {list(x.shape)}", field="bottom[0]")
        s.images, s.channels, s.height, s.width = x.dims[0], x.dims[1], x.dims[2], x.dims[3]
        if self.whole:
            s.kernel_h, s.kernel_w = x.dims[2], x.dims[3]
        padded = s.pad_h or s.pad_w
        sizes = [_pooled(size, kernel, stride, pad, padded, self.floor_mode) for size, kernel, stride, pad in (
            (s.height, s.kernel_h, s.stride_h, s.pad_h),
            (s.width, s.kernel_w, s.stride_w, s.pad_w))]
        if x.count and min(sizes) < 1:
            raise ShapeError(f"a kernel of {s.kernel_h}x{s.kernel_w} does not fit planes of {s.height}x"
                             f"{s.width} with padding {s.pad_h}x{s.pad_w}; the output would be "
                             f"{sizes[0]}x{sizes[1]}", field="pooling_param.kernel_size")
        if not s.height * s.width:
            sizes = [0, 0]  # planes without pixels have no windows, whatever the padding
        s.out_height, s.out_width = [max(size, 0) for size in sizes]
        with located(field="pooling_param.pad"):
            for blob in top:
                blob.reshape_to((x.dims[0], x.dims[1], s.out_height, s.out_width))
        if self.mask is not None or len(top) > 1:
            if self.dtype == FLOAT and s.height * s.width > 2**24:
                raise ShapeError(f"planes of {s.height}x{s.width} have more pixels than a float32 mask can count, "
                                 "2^24; pool smaller planes, or use float64", field="bottom[0]")
            if self.mask is not None:
                self.mask.reshape_like(top[0])
        self.op.changed()       # engines are chosen again for the new sizes

    @property
    def window(self):
        """Kernel, stride and pad, each as [height, width]; for exports to other frameworks."""
        s = self.op.shape
        return [s.kernel_h, s.kernel_w], [s.stride_h, s.stride_w], [s.pad_h, s.pad_w]

    @property
    def backward_reads_tops(self):      # False: a plan may recycle their data before backward
        return bool(self.op.mask_shown)

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.op]

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [] if self.mask is None else [self.mask]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if not (<Blob> bottom[0]).count:
            return 0
        if self.op.drawn:       # one random counter for each output
            self.op.seed, self.op.start = self.generator.seed, self.generator.reserve((<Blob> top[0]).count)
        self.op.mask = top[1] if len(top) > 1 else self.mask
        return self.op.forward(on, bottom[0], top[0])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not (<Blob> bottom[0]).count:
            return 0
        if self.op.method == STOCHASTIC and not self.op.drawn:
            raise ConfigError("STOCHASTIC pooling has a gradient in phase TRAIN only; use AVE, or propagate_down: false",
                              field="pooling_param.pool")
        self.op.mask = top[1] if len(top) > 1 else self.mask
        return self.op.backward(on, bottom[0], top[0])


def _pair(param, name, side, least, optional=True):
    """Return [height, width] from field `name`, or from `side`_h and `side`_w; by default that of `name`, if `optional`."""
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


def _pooled(size, kernel, stride, pad, padded, floor_mode):
    """Return the number of windows along an axis, in pixels; less than 1 if the kernel does not fit. `padded`: either axis is."""
    room = size + 2 * pad - kernel
    windows = (room // stride if floor_mode else -(-room // stride)) + 1
    if padded and (windows - 1) * stride >= size + pad:
        windows -= 1
    return windows
