from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/tile/caffe.hpp" namespace "mc" nogil:
    void tile_backward(const Context&, int dtype, long long n, long long inner, long long tiles, const void* dy, void* dx)
