"""PReLU: a leaky ReLU whose slopes are learned (Caffe prelu_layer.cpp)."""

from minicaffe.layers.base.broadcast cimport Blob, BroadcastLayer, Context, Layout
from minicaffe.ops.broadcast.caffe cimport channel_prelu_sums, prelu_backward, prelu_forward
from minicaffe.engines.epilogue cimport Epilogue

from minicaffe.errors import ShapeError
from minicaffe.proto import caffe_pb2


cdef class PReLULayer(BroadcastLayer):
    """``y = max(x, 0) + a min(x, 0)`` with a learned a for each channel (axis 1), or one for all (He et al. 2015)."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        cdef Blob x = bottom[0]
        param = self.param.prelu_param
        if x.num_axes < 2:
            raise ShapeError(f"needs at least 2 axes, the bottom has shape {list(x.shape)}", field="bottom[0]")
        filler = param.filler if param.HasField("filler") else caffe_pb2.FillerParameter(value=0.25)
        self.add_param(() if param.channel_shared else (x.shape[1],), filler, "prelu_param.filler")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], slope = self.blobs[0]
        if self.param.prelu_param.channel_shared:
            self.split_axes(x, 0, 0)    # one channel of all elements
        elif x.num_axes < 2 or x.dim(1) != slope.count:
            raise ShapeError(f"needs {slope.count} channels, the bottom has shape {list(x.shape)}", field="bottom[0]")
        else:
            self.split_axes(x, 1, 1)
        (<Blob?> top[0]).reshape_like(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* a = (<Blob> self.blobs[0]).data_on(on)
        cdef Layout layout = self.layout_forward(on, bottom)    # that of x, None: plain; sets `stored`, the sizes in it
        cdef Blob x = bottom[0], y = top[0]
        cdef void* kept = self.keep(on, bottom, top, layout)    # in place: receives a copy of x for backward; else NULL
        with nogil:
            prelu_forward(on, self.dtype, self.stored, x.data_in_layout(on, layout), y.overwrite_data_in_layout(on, layout),
                          kept, a)

    def fuse(self, Epilogue epilogue, list bottom, bint backward):      # into the layer below; `backward`: its own must run
        return not backward and epilogue.rectify(self.blobs[0])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob slope = self.blobs[0]
        cdef Layout layout = self.layout_backward(on, bottom, top)      # that of dy or x; sets `stored`
        cdef const void* x = self.forward_x(bottom, top).data_in_layout(on, layout)
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, layout)
        cdef void* out
        cdef bint add = True    # False: the gradient is zeros not written yet, overwrite them
        if self.needs_gradient(0):
            out = slope.gradient_on(on, None, &add)
            with nogil:
                channel_prelu_sums(on, self.dtype, self.stored, 1, add, out, x, dy)
        if propagate_down[0]:
            out = (<Blob> bottom[0]).overwrite_diff_in_layout(on, layout)
            with nogil:
                prelu_backward(on, self.dtype, self.stored, x, dy, out, slope.data_on(on))
