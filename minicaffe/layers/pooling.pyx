"""Pooling: the maximum, mean or a random element of windows that slide over each plane (Caffe pooling_layer.cpp).

Different from Caffe: STOCHASTIC runs on the CPU too, drawing from the layer's generator, so that a resumed run repeats its
draws; a window that lies wholly outside the image gets no gradient (Caffe writes out of bounds).
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import refuse_in_place

cdef extern from "minicaffe/ops/pooling/caffe.hpp" nogil:
    struct PoolShape "mc::PoolShape":
        long long height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w
    struct PoolFrame "mc::PoolFrame":
        long long height, width
    PoolFrame pool_frame "mc::pool_frame"(const PoolShape&)
    void max_forward "mc::pool_forward<mc::MaxOf>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*, void*)
    void mean_forward "mc::pool_forward<mc::MeanOf>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*, void*)
    void stochastic_mean_forward "mc::pool_outputs<mc::StochasticMean>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*)
    void stochastic_forward "mc::stochastic_forward"(
        const Context&, int, const PoolShape&, long long, unsigned long long, unsigned long long, const void*, void*, void*)
    void mask_backward "mc::mask_backward"(const Context&, int, const PoolShape&, long long, const void*, const void*, void*)
    void mean_backward "mc::mean_backward"(const Context&, int, const PoolShape&, long long, const void*, void*, void*)

cdef extern from "minicaffe/ops/pooling/cudnn.hpp" namespace "mc::cuda" nogil:
    bint cudnn_mean_forward(const Context&, int engine, int, const PoolShape&, long long images, long long channels,
                            const void* x, void* y)
    bint cudnn_mean_backward(const Context&, int engine, int, const PoolShape&, long long images, long long channels,
                             const void* x, const void* y, const void* dy, void* dx)

cdef enum:
    MAX = 0          # minicaffe.proto PoolingParameter.PoolMethod
    AVE = 1
    STOCHASTIC = 2
    FLOOR = 1        # PoolingParameter.RoundMode

MAX_SIZE = 2**31 - 1


cdef class PoolingLayer(DeviceLayer):
    """Pool each plane of the bottom.

    ``out = ceil((in + 2 pad - kernel) / stride) + 1`` (or floor), less one where with padding the last window would start
    beyond the image and the leading padding. MAX: the gradient goes to the first maximum. AVE: the divisor counts padding.
    STOCHASTIC: in TRAIN a pixel with probability ``x / sum x``, in TEST ``sum x^2 / sum x``; only TRAIN has a gradient.
    Engine CUDNN computes AVE only (ops/pooling/cudnn.hpp says why).

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

    cdef PoolShape s
    cdef int pool, engine
    cdef bint whole, floor_mode, drawn
    cdef Blob mask, scratch

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.pooling_param
        self.pool, self.floor_mode, self.whole = param.pool, param.round_mode == FLOOR, param.global_pooling
        self.engine = param.engine
        self.drawn = self.pool == STOCHASTIC and self.phase != TEST
        if self.pool != MAX and len(top) > 1:
            raise ConfigError(f"only MAX pooling has a mask as second top, got {len(top)} tops", field="top")
        refuse_in_place(self, bottom, top)
        self._read_kernel(param)
        self.s.stride_h, self.s.stride_w = _pair(param, "stride", 1)
        self.s.pad_h, self.s.pad_w = _pair(param, "pad", 0)
        if self.whole:
            if (self.s.pad_h, self.s.pad_w, self.s.stride_h, self.s.stride_w) != (0, 0, 1, 1):
                raise ConfigError("needs pad 0 and stride 1", field="pooling_param.global_pooling")
        elif self.s.pad_h >= self.s.kernel_h or self.s.pad_w >= self.s.kernel_w:
            raise ConfigError(f"must be less than the kernel, got {self.s.pad_h}x{self.s.pad_w} for a kernel of "
                              f"{self.s.kernel_h}x{self.s.kernel_w}", field="pooling_param.pad")
        if self.pool == STOCHASTIC and (self.s.pad_h or self.s.pad_w):
            raise ConfigError("must be 0 for STOCHASTIC pooling", field="pooling_param.pad")
        if self.pool == MAX and len(top) == 1 or self.drawn:
            self.mask = self.new_blob(what="mask")
        self.scratch = self.new_blob()

    def _read_kernel(self, param):
        """Set the kernel, unless it is the whole plane."""
        given = [name for name in ("kernel_size", "kernel_h", "kernel_w") if param.HasField(name)]
        if self.whole:
            if given:
                raise ConfigError("must not be given with global_pooling, whose kernel is the whole plane",
                                  field=f"pooling_param.{given[0]}")
        elif given == ["kernel_size"]:
            self.s.kernel_h = self.s.kernel_w = _positive(param, "kernel_size")
        elif given == ["kernel_h", "kernel_w"]:
            self.s.kernel_h, self.s.kernel_w = _positive(param, "kernel_h"), _positive(param, "kernel_w")
        else:
            raise ConfigError(f"give kernel_size, or both kernel_h and kernel_w; got {' and '.join(given) or 'none'}",
                              field="pooling_param.kernel_size")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        if x.num_axes != 4:
            raise ShapeError(f"Pooling needs 4 axes (num, channels, height, width), got {list(x.shape)}", field="bottom[0]")
        self.s.height, self.s.width = x.dims[2], x.dims[3]
        if self.whole:
            self.s.kernel_h, self.s.kernel_w = x.dims[2], x.dims[3]
        padded = self.s.pad_h or self.s.pad_w
        sizes = [_pooled(size, kernel, stride, pad, padded, self.floor_mode) for size, kernel, stride, pad in (
            (self.s.height, self.s.kernel_h, self.s.stride_h, self.s.pad_h),
            (self.s.width, self.s.kernel_w, self.s.stride_w, self.s.pad_w))]
        if x.count and min(sizes) < 1:
            raise ShapeError(f"a kernel of {self.s.kernel_h}x{self.s.kernel_w} does not fit planes of {self.s.height}x"
                             f"{self.s.width} with padding {self.s.pad_h}x{self.s.pad_w}; the output would be "
                             f"{sizes[0]}x{sizes[1]}", field="pooling_param.kernel_size")
        if not self.s.height * self.s.width:
            sizes = [0, 0]  # planes without pixels have no windows, whatever the padding
        self.s.out_height, self.s.out_width = [max(size, 0) for size in sizes]
        try:
            for blob in top:
                blob.reshape_to((x.dims[0], x.dims[1], self.s.out_height, self.s.out_width))
        except ShapeError as error:
            raise error.at(field="pooling_param.pad")
        if self.mask is not None or len(top) > 1:
            if self.dtype == FLOAT and self.s.height * self.s.width > 2**24:
                raise ShapeError(f"planes of {self.s.height}x{self.s.width} have more pixels than a float32 mask can count, "
                                 "2^24; pool smaller planes, or use float64", field="bottom[0]")
            if self.mask is not None:
                self.mask.reshape_like(top[0])

    cdef void* frames(self, const Context& on) except? NULL:
        """Scratch memory for what the windows of one plane cover, for each thread of the CPU."""
        if on.stream != NULL:
            return NULL
        cdef PoolFrame frame = pool_frame(self.s)
        self.scratch.reshape_to((on.threads.count, frame.height, frame.width))
        return self.scratch.mutable_data_on(on)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        if not x.count:
            return 0
        cdef long long planes = x.dims[0] * x.dims[1]
        cdef const void* x_data = x.data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        cdef Blob mask = top[1] if len(top) > 1 else self.mask
        cdef void* where = mask.mutable_data_on(on) if mask is not None else NULL
        cdef void* scratch = self.frames(on)
        cdef unsigned long long start = self.generator.reserve((<Blob> top[0]).count) if self.drawn else 0
        cdef unsigned long long seed = self.generator.seed
        with nogil:
            if self.pool == MAX:
                max_forward(on, self.dtype, self.s, planes, x_data, y, where, scratch)
            elif self.pool == AVE:
                if not cudnn_mean_forward(on, self.engine, self.dtype, self.s, x.dims[0], x.dims[1], x_data, y):
                    mean_forward(on, self.dtype, self.s, planes, x_data, y, NULL, scratch)
            elif self.drawn:
                stochastic_forward(on, self.dtype, self.s, planes, seed, start, x_data, y, where)
            else:
                stochastic_mean_forward(on, self.dtype, self.s, planes, x_data, y, NULL)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0] or not (<Blob> bottom[0]).count:
            return 0
        if self.pool == STOCHASTIC and not self.drawn:
            raise ConfigError("STOCHASTIC pooling has a gradient in phase TRAIN only; use AVE, or propagate_down: false",
                              field="pooling_param.pool")
        cdef Blob x = bottom[0]
        cdef long long planes = x.dims[0] * x.dims[1]
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef const void* x_data = NULL
        cdef const void* y = NULL
        if self.pool == AVE and on.stream != NULL:  # for cuDNN
            x_data, y = x.data_on(on), (<Blob> top[0]).data_on(on)
        cdef Blob mask = top[1] if len(top) > 1 else self.mask
        cdef const void* where = mask.data_on(on) if mask is not None else NULL
        cdef void* scratch = self.frames(on)
        with nogil:
            if self.pool == AVE:
                if not cudnn_mean_backward(on, self.engine, self.dtype, self.s, x.dims[0], x.dims[1], x_data, y, dy, dx):
                    mean_backward(on, self.dtype, self.s, planes, dy, dx, scratch)
            else:
                mask_backward(on, self.dtype, self.s, planes, dy, where, dx)


def _positive(param, name):
    value = getattr(param, name)
    if not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"must be from 1 to 2^31 - 1, got {value}", field=f"pooling_param.{name}")
    return value


def _pair(param, name, least):
    """Read `name`, or both `name`_h and `name`_w."""
    given = [form for form in (name, name + "_h", name + "_w") if param.HasField(form)]
    if given not in ([], [name], [name + "_h", name + "_w"]):
        raise ConfigError(f"give {name}, or both {name}_h and {name}_w; got {' and '.join(given)}",
                          field=f"pooling_param.{name}")
    forms = given[1:] and given or [name, name]
    for form in forms:
        if not least <= getattr(param, form) <= MAX_SIZE:
            raise ConfigError(f"must be from {least} to 2^31 - 1, got {getattr(param, form)}", field=f"pooling_param.{form}")
    return [getattr(param, form) for form in forms]


def _pooled(size, kernel, stride, pad, padded, floor_mode):
    """The number of windows along an axis; may be less than 1 where the kernel does not fit."""
    room = size + 2 * pad - kernel
    windows = (room // stride if floor_mode else -(-room // stride)) + 1
    if padded and (windows - 1) * stride >= size + pad:
        windows -= 1
    return windows


register_layer("Pooling", PoolingLayer)
