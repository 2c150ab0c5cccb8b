"""Scale: ``y = scale x + bias``, broadcast (Caffe scale_layer.cpp).

Different from Caffe: the gradient of a scale is added to its diff in every case; there a scale that covers all of x, or a batch of
one, overwrites it.
"""

from minicaffe.layers.base.broadcast cimport AxesLayer, Blob, Context, Layout
from minicaffe.ops.broadcast.caffe cimport scale_by, scale_shift
from minicaffe.engines.epilogue cimport Epilogue
from minicaffe.loops.sums.caffe cimport channel_dots

from minicaffe.errors import ShapeError
from minicaffe.proto import caffe_pb2


cdef class ScaleLayer(AxesLayer):
    """``y = x * scale``, with ``bias_term`` ``+ bias``, both broadcast.

    scale is blobs[0], or the second bottom; bias is the last of blobs.
    """

    backward_reads_tops = False

    cdef int bias   # index of the bias in blobs, -1 without one

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.scale_param
        self.field = "scale_param"
        if len(bottom) == 1:
            filler = param.filler if param.HasField("filler") else caffe_pb2.FillerParameter(value=1)
            self.add_param(self.parameter_shape(bottom, param), filler, "scale_param.filler")
        self.bias = -1
        if param.bias_term:
            self.bias = len(self.blobs)
            self.add_param(self.values(bottom).shape, param.bias_filler, "scale_param.bias_filler")

    @property
    def backward_reads_bottoms(self):
        return list(self.param.top) != list(self.param.bottom)      # in place it keeps x

    cpdef reshape(self, list bottom, list top):
        self.view_by_values(bottom, top, self.param.scale_param)
        if self.bias >= 0 and self.blobs[self.bias].count != self.axes.channels:
            raise ShapeError(f"has {self.axes.channels} values, the bias has {self.blobs[self.bias].count}; the shape of the scale "
                             "must stay", field="bottom[1]")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* s = self.values(bottom).data_on(on)
        cdef const void* b = (<Blob> self.blobs[self.bias]).data_on(on) if self.bias >= 0 else NULL
        cdef Layout layout = self.layout_forward(on, bottom)
        cdef const void* x = (<Blob> bottom[0]).data_in_layout(on, layout)
        cdef void* kept = self.keep(on, bottom, top, layout)
        cdef void* y = (<Blob> top[0]).overwrite_data_in_layout(on, layout)
        with nogil:
            if b:
                scale_shift(on, self.dtype, self.stored, x, y, kept, s, b)
            else:
                scale_by(on, self.dtype, self.stored, x, y, kept, s)

    def join(self, Epilogue epilogue, list bottom, bint backward):
        if backward or len(bottom) > 1 or self.blobs[0].shape != bottom[0].shape[1:2] or self.axes.outer != bottom[0].shape[0]:
            return False    # not a parameter for each channel
        if self.bias < 0:
            return epilogue.affine(self.blobs[0], None, (self.needs_gradient(0), False))
        return epilogue.affine(self.blobs[0], self.blobs[self.bias], (self.needs_gradient(0), self.needs_gradient(self.bias)))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob values = self.values(bottom)
        cdef bint learned = len(bottom) == 1, add = learned
        cdef Layout layout = self.layout_backward(on, bottom, top)
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, layout)
        cdef const void* x
        cdef const void* s
        cdef void* out
        if self.bias >= 0 and self.needs_gradient(self.bias):
            self.sum_dy(on, dy, self.blobs[self.bias], True)
        if self.needs_gradient(0) if learned else propagate_down[1]:
            x = self.forward_x(bottom, top).data_in_layout(on, layout)
            out = values.gradient_on(on, None, &add) if learned else values.mutable_diff_on(on)
            with nogil:
                channel_dots(on, self.dtype, self.stored, 1, add, out, x, dy)
        if propagate_down[0]:
            s, out = values.data_on(on), (<Blob> bottom[0]).overwrite_diff_in_layout(on, layout)
            with nogil:
                scale_by(on, self.dtype, self.stored, dy, out, NULL, s)
