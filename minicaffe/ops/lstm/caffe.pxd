from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/lstm/caffe.hpp" namespace "mc" nogil:
    void lstm_forward(const Context&, int dtype, long long n, long long size, const void* c_prev, const void* gates,
                      const void* cont, void* acts, void* c, void* h)
    void lstm_backward(const Context&, int dtype, long long n, long long size, const void* c_prev, const void* acts,
                       const void* c, const void* dc, const void* dh, void* dc_prev, void* dgates)
