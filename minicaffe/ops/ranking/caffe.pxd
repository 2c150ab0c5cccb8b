from minicaffe.device.context cimport Context
from minicaffe.ops.loss.caffe cimport Labels

cdef extern from "minicaffe/ops/ranking/caffe.hpp" namespace "mc" nogil:
    void count_correct(const Context&, int dtype, const Labels&, long long top_k, const void* score, const void* label, double of,
                       void* out)
    void top_of_each "MC_TYPED(mc::top_of_each)"(int dtype, const Context&, long long outer, long long n, long long inner,
                                                 long long top_k, long long stride, const void* x, void* index, void* value)
