from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/tile/caffe.hpp" nogil:
    void tile_backward "mc::each_typed<mc::TileBackward>"(const Context&, int dtype, long long n, long long cost, long long inner,
                                                          long long tiles, const void* dy, void* dx)
