from minicaffe.device.context cimport Context
from minicaffe.loops.lanes.caffe cimport Channels

# out[k] = coeff times a sum over channel k, added to what is there if `add`.
cdef extern from "minicaffe/loops/sums/caffe.hpp" nogil:
    void absolute_sum "mc::sum_in_double<mc::AbsTerm>"(const Context&, int dtype, long long n, double* out, const void* x)
    void square_sum "mc::sum_in_double<mc::SquareTerm>"(const Context&, int dtype, long long n, double* out, const void* x)
    void dot "mc::sum_in_double<mc::DotTerm>"(const Context&, int dtype, long long n, double* out, const void* x, const void* y)
    void channel_sums "mc::channel_sums_typed<mc::SumTerm>"(const Context&, int dtype, const Channels&, double coeff, bint add,
                                                            void* out, const void* x)
    void channel_abs_sums "mc::channel_sums_typed<mc::AbsTerm>"(const Context&, int dtype, const Channels&, double coeff, bint add,
                                                                void* out, const void* x)
    void channel_square_sums "mc::channel_sums_typed<mc::SquareTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x)
    void channel_dots "mc::channel_sums_typed<mc::DotTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x, const void* dy)
