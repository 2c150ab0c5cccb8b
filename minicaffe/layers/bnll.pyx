"""BNLL: ``y = log(1 + exp(x))`` (Caffe bnll_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void bnll_forward "mc::map1<mc::BnllForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void bnll_backward "mc::map2<mc::BnllBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy, void* dx)


cdef class BNLLLayer(NeuronLayer):
    cpdef layer_setup(self, list bottom, list top):
        self.reads_bottom = True

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        bnll_forward(on, self.dtype, n, x, y)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        bnll_backward(on, self.dtype, n, x, dy, dx)
