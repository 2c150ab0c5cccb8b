from minicaffe.device.threads cimport Threads

cdef extern from "minicaffe/ops/gemm/blas.hpp" namespace "mc::cpu" nogil:
    cppclass Blas:
        pass
    void parallel_gemm[T](const Blas& blas, Threads threads, bint trans_a, bint trans_b, long long m, long long n, long long k,
                          T alpha, const T* a, const T* b, T beta, T* c)

cdef const Blas* blas() except NULL
