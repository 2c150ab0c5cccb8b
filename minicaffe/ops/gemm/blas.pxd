cdef extern from "minicaffe/ops/gemm/blas.hpp" namespace "mc::cpu" nogil:
    ctypedef void (*sgemm_t "mc::cpu::CblasGemm<float>")()
    ctypedef void (*dgemm_t "mc::cpu::CblasGemm<double>")()
    cppclass Blas:
        sgemm_t sgemm
        dgemm_t dgemm

cdef const Blas* blas() except NULL
