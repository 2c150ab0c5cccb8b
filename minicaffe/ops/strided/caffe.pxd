from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/strided/caffe.hpp" namespace "mc" nogil:
    void copy_strided(const Context&, int dtype, int axes, const long long* sizes, const void* x, const long long* x_strides,
                      void* y, const long long* y_strides)
    void copy_strided_bf16(const Context&, bint back, int axes, const long long* sizes, const void* x, const long long* x_strides,
                           void* y, const long long* y_strides)
    void round_to_bf16(const Context&, long long n, const void* x, void* y)
