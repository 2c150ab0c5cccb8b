cdef extern from "minicaffe/ops/gemm/blas.hpp" namespace "mc::cpu" nogil:
    cppclass Blas:
        pass

cdef const Blas* blas() except NULL
