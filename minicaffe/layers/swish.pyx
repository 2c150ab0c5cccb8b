"""Swish: ``y = x sigmoid(beta x)`` (Caffe swish_layer.cpp). Keeps x when in place."""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.neuron cimport Context, NeuronLayer
from minicaffe.ops.broadcast.caffe cimport copy_typed

from minicaffe.layers.base.checks import saved_bottom

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void swish_forward "mc::map1<mc::SwishForward>"(const Context&, int dtype, long long n, const void* x, void* y, double beta)
    void swish_backward "mc::map3<mc::SwishBackward>"(const Context&, int dtype, long long n, const void* x, const void* y,
                                                      const void* dy, void* dx, double beta)


cdef class SwishLayer(NeuronLayer):
    cdef double beta
    cdef Blob kept   # x, where the layer works in place

    cpdef layer_setup(self, list bottom, list top):
        self.beta = self.param.swish_param.beta
        self.kept = self.new_blob() if top[0] is bottom[0] else None

    def scratch_blobs(self):
        return [] if self.kept is None else [self.kept]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        if self.kept is not None:
            self.kept.reshape_like(x)
            copy_typed(on, self.dtype, x.count, x.data_on(on), self.kept.mutable_data_on(on))
        return NeuronLayer.forward_on(self, on, bottom, top)

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        swish_forward(on, self.dtype, n, x, y, self.beta)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef Blob y = top[0]
        cdef const void* x = (<Blob> (bottom[0] if self.kept is None else saved_bottom(self.kept, bottom[0]))).data_on(on)
        swish_backward(on, self.dtype, y.count, x, y.data_on(on), y.diff_on(on), (<Blob> bottom[0]).mutable_diff_on(on), self.beta)
