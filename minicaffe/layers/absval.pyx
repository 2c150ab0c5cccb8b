"""AbsVal: ``y = |x|``, gradient 0 at 0; never in place (Caffe absval_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void abs_forward "mc::map1<mc::AbsForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void abs_backward "mc::map2<mc::AbsBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy, void* dx)


cdef class AbsValLayer(NeuronLayer):
    refuses_in_place = True

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        abs_forward(on, self.dtype, n, x, y)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        abs_backward(on, self.dtype, n, x, dy, dx)
