"""ELU: ``y = x`` for x > 0, else ``alpha (exp(x) - 1)``; in place for alpha >= 0 (Caffe elu_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void elu_forward "mc::map1<mc::EluForward>"(const Context&, int dtype, long long n, const void* x, void* y, double alpha)
    void elu_backward "mc::map3<mc::EluBackward>"(const Context&, int dtype, long long n, const void* x, const void* y,
                                                  const void* dy, void* dx, double alpha)


cdef class ELULayer(NeuronLayer):
    cdef double alpha

    cpdef layer_setup(self, list bottom, list top):
        self.alpha = self.param.elu_param.alpha
        self.reads_bottom = self.alpha < 0

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        elu_forward(on, self.dtype, n, x, y, self.alpha)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        elu_backward(on, self.dtype, n, x, y, dy, dx, self.alpha)
