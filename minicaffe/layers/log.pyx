"""Log: ``y = log_base(scale x + shift)``, base -1 means e (Caffe log_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

from minicaffe.errors import ConfigError
from minicaffe.layers.base.checks import log_of_base

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void log_forward "mc::map1<mc::LogForward>"(const Context&, int dtype, long long n, const void* x, void* y, double scale,
                                                double shift, double per_base)
    void log_backward "mc::map2<mc::LogBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy, void* dx,
                                                  double scale, double shift, double per_base)


cdef class LogLayer(NeuronLayer):
    cdef double scale, shift, per_base

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.log_param
        log_base = log_of_base(param.base, "log_param.base")
        if log_base == 0:
            raise ConfigError("must not be 1, whose logarithm is 0", field="log_param.base")
        self.scale, self.shift, self.per_base, self.reads_bottom = param.scale, param.shift, 1 / log_base, True

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        log_forward(on, self.dtype, n, x, y, self.scale, self.shift, self.per_base)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        log_backward(on, self.dtype, n, x, dy, dx, self.scale, self.shift, self.per_base)
