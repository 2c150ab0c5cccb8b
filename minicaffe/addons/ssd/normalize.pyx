"""Normalize: divide by the Euclidean norm, multiply by a learned scale (SSD's normalize_layer.cpp; Liu et al., "ParseNet", 2015).

Different from Caffe: the gradient is exact where channels have scales of their own (Caffe left the scales out of one sum), and
where a scale is 0 (Caffe divided by it); it is right in place too; the batch may grow.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.layouts cimport data_layout, element, of_images, of_mode

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/addons/ssd/norm/caffe.hpp" namespace "mc" nogil:
    struct UnitShape:
        long long outer, channels, inner
        bint whole, shared, last
    void unit_forward(const Context&, int dtype, const UnitShape&, double eps, const void* x, const void* s, void* positions,
                      void* norm, void* unit, void* y)
    void unit_backward(const Context&, int dtype, const UnitShape&, const void* unit, const void* dy, const void* norm,
                       const void* s, void* positions, void* dots, void* dx)
    void unit_scale_gradient(const Context&, int dtype, const UnitShape&, const void* unit, const void* dy, bint add, void* ds)


cdef class NormalizeLayer(DeviceLayer):
    """``y = scale x / sqrt(eps + sum x^2)``, the sum over channels at each position, or over a whole record.

    Parameters
    ----------
    bottom, top : Blob, shape (N, C, ...)
    norm_param.across_spatial : bool
        One norm for a record, else one for each of its positions.
    norm_param.channel_shared : bool
        blobs[0] is one scale, shape (), else one for each channel, shape (C,); filled by `scale_filler`, by default with 1.
    norm_param.eps : float
        At least 0; keeps the norm of what is all 0 above 0.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    backward_reads_bottoms = backward_reads_tops = False

    cdef UnitShape shape
    cdef double eps
    cdef Blob norm, unit            # of the last forward; unit is x / norm
    cdef Blob positions, dots       # scratch
    cdef Layout layout              # of the bottom in the last forward, on a device with channels last

    cpdef layer_setup(self, list bottom, list top):
        cdef Blob x = bottom[0]
        param = self.param.norm_param
        self.eps = param.eps
        if not self.eps >= 0:
            raise ConfigError(f"must be at least 0, got {param.eps:g}", field="norm_param.eps")
        self.shape.whole, self.shape.shared = param.across_spatial, param.channel_shared
        self._check(x)
        filler = param.scale_filler if param.HasField("scale_filler") else caffe_pb2.FillerParameter(value=1)
        self.add_param(() if param.channel_shared else (x.dims[1],), filler, "norm_param.scale_filler")
        self.norm, self.unit = self.new_blob(what="norm"), self.new_blob(what="normalised values")
        self.positions, self.dots = self.new_blob(), self.new_blob()

    def scratch_blobs(self):
        return [self.norm, self.unit, self.positions, self.dots]

    cdef int _check(self, Blob x) except -1:
        if x.num_axes < 2:
            raise ShapeError(f"needs at least 2 axes, the bottom has shape {list(x.shape)}", field="bottom[0]")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], scale = self.blobs[0]
        self._check(x)
        if not self.shape.shared and x.dims[1] != scale.count:
            raise ShapeError(f"needs {scale.count} channels, the bottom has shape {list(x.shape)}", field="bottom[0]")
        self.shape.outer, self.shape.channels, self.shape.inner = x.dims[0], x.dims[1], x.count_range(2, x.num_axes)
        (<Blob?> top[0]).reshape_like(x)
        self.unit.reshape_like(x)
        self.positions.reshape(self.shape.outer, self.shape.inner)
        for blob in (self.norm, self.dots):
            blob.reshape(self.shape.outer, 1 if self.shape.whole else self.shape.inner)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if not (<Blob> bottom[0]).count:
            return 0
        cdef Blob x = bottom[0], y = top[0]
        cdef const void* scale = (<Blob> self.blobs[0]).data_on(on)
        self.layout = of_images(data_layout(on, bottom, True), x)
        self.shape.last = self.layout is not None
        cdef int dtype = element(self.layout, x)
        with nogil:
            unit_forward(on, dtype, self.shape, self.eps, x.data_in_layout(on, self.layout), scale,
                         self.positions.mutable_data_on(on), self.norm.mutable_data_on(on),
                         self.unit.overwrite_data_in_layout(on, self.layout), y.overwrite_data_in_layout(on, self.layout))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0]
        if not x.count:
            return 0
        self.layout = of_mode(on, self.layout)
        self.shape.last = self.layout is not None
        cdef int dtype = element(self.layout, x)
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, self.layout)
        cdef const void* unit = self.unit.data_in_layout(on, self.layout)
        cdef const void* scale = (<Blob> self.blobs[0]).data_on(on)
        cdef bint add = True
        cdef void* out
        if self.needs_gradient(0):
            out = (<Blob> self.blobs[0]).gradient_on(on, None, &add)
            with nogil:
                unit_scale_gradient(on, dtype, self.shape, unit, dy, add, out)
        if propagate_down[0]:
            out = x.overwrite_diff_in_layout(on, self.layout)
            with nogil:
                unit_backward(on, dtype, self.shape, unit, dy, self.norm.data_on(on), scale, self.positions.mutable_data_on(on),
                              self.dots.mutable_data_on(on), out)
