"""Clip: ``y = max(min, min(x, max))``; the gradient passes where ``min <= x <= max`` (Caffe clip_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void clip_forward "mc::map1<mc::ClipForward>"(const Context&, int dtype, long long n, const void* x, void* y, double lo,
                                                  double hi)
    void clip_backward "mc::map2<mc::ClipBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy,
                                                    void* dx, double lo, double hi)


cdef class ClipLayer(NeuronLayer):
    cdef double lo, hi

    cpdef layer_setup(self, list bottom, list top):
        self.lo, self.hi, self.reads_bottom = self.param.clip_param.min, self.param.clip_param.max, True

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        clip_forward(on, self.dtype, n, x, y, self.lo, self.hi)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        clip_backward(on, self.dtype, n, x, dy, dx, self.lo, self.hi)
