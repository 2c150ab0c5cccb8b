from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/strips/caffe.hpp" namespace "mc" nogil:
    void copy_strips(const Context&, long long rows, long long strip, const void* x, long long x_pitch, void* y, long long y_pitch)
    void copy_box(const Context&, int axes, const long long* size, const long long* whole, const long long* offset, bint back,
                  void* box, void* array)
    void tile_backward "mc::each_typed<mc::TileBackward>"(const Context&, int dtype, long long n, long long cost, long long inner,
                                                          long long tiles, const void* dy, void* dx)
