from minicaffe.device.context cimport Context

cdef extern from "minicaffe/loops/strided/caffe.hpp" namespace "mc" nogil:
    void copy_typed(const Context&, int dtype, long long n, const void* x, void* y)
    void fill_typed(const Context&, int dtype, long long n, double value, void* y)
    void copy_strided(const Context&, int x_type, int y_type, int axes, const long long* sizes, const void* x,
                      const long long* x_strides, void* y, const long long* y_strides)
    void round_to_bf16(const Context&, long long n, const void* x, void* y)
    void sum_bf16 "mc::add_bf16"(long long n, const void* x, void* y)
    void tile_backward "mc::each_typed<mc::TileBackward>"(const Context&, int dtype, long long n, long long cost, long long inner,
                                                          long long tiles, const void* dy, void* dx)
