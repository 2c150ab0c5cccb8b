from minicaffe.engines.engine cimport Operation

cdef extern from "minicaffe/ops/lrn/kernel.hpp" nogil:
    struct LrnShape "mc::LrnShape":
        long long groups, rows, width, block, half_rows, half_columns   # as in kernel.hpp; set by layer LRN
        double k, alpha, beta


cdef class LRN(Operation):
    cdef LrnShape shape
