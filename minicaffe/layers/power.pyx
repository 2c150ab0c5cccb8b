"""Power: ``y = (shift + scale x)^power`` (Caffe power_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void power_forward "mc::map1<mc::PowerForward>"(const Context&, int dtype, long long n, const void* x, void* y, double power,
                                                    double scale, double shift)
    void power_backward "mc::map3<mc::PowerBackward>"(const Context&, int dtype, long long n, const void* x, const void* y,
                                                      const void* dy, void* dx, double power, double scale, double shift)


cdef class PowerLayer(NeuronLayer):
    cdef double power, scale, shift

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.power_param
        self.power, self.scale, self.shift = param.power, param.scale, param.shift
        self.reads_bottom = param.power not in (0, 1)

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        power_forward(on, self.dtype, n, x, y, self.power, self.scale, self.shift)

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        power_backward(on, self.dtype, n, x, y, dy, dx, self.power, self.scale, self.shift)
