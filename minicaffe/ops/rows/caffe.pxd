from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/rows/caffe.hpp" namespace "mc" nogil:
    long long read_indices "MC_TYPED(mc::cpu::read_indices)"(int dtype, long long n, const void* x, long long limit, int* out)
    void copy_rows(const Context&, long long n, const int* index, long long bytes, bint back, const void* x, void* y)
    void add_rows "MC_TYPED(mc::add_rows)"(int dtype, const Context&, long long n, const int* index, long long columns,
                                           const void* x, void* y)
