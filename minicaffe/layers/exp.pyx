"""Exp: ``y = base^(shift + scale x)``, base -1 means e (Caffe exp_layer.cpp)."""

from libc.math cimport exp

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

from minicaffe.layers.base.checks import log_of_base

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void exp_forward "mc::map1<mc::ExpForward>"(const Context&, int dtype, long long n, const void* x, void* y, double inner,
                                                double outer)
    void exp_backward "mc::map2<mc::ExpBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy, void* dx,
                                                  double inner)


cdef class ExpLayer(NeuronLayer):
    cdef double inner, outer

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.exp_param
        log_base = log_of_base(param.base, "exp_param.base")
        self.inner, self.outer = log_base * param.scale, exp(log_base * param.shift)

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        exp_forward(on, self.dtype, n, x, y, self.inner, self.outer)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        exp_backward(on, self.dtype, n, y, dy, dx, self.inner)
