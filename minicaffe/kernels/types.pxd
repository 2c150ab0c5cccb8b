cdef extern from "minicaffe/kernels/types.hpp" namespace "mc" nogil:
    const int kTypes, FLOAT, BF16
    long long item_size(int dtype)
    const char* numpy_name(int dtype)
    bint is_computed(int dtype)
