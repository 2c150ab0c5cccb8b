from minicaffe.device.context cimport Context
from minicaffe.loops.lanes.caffe cimport Channels

# out[k] = coeff times a sum over channel k, added to what is there if `add`.
cdef extern from "minicaffe/loops/sums/caffe.hpp" nogil:
    void channel_sums "mc::channel_sums_typed<mc::SumTerm>"(const Context&, int dtype, const Channels&, double coeff, bint add,
                                                            void* out, const void* x)
    void channel_abs_sums "mc::channel_sums_typed<mc::AbsTerm>"(const Context&, int dtype, const Channels&, double coeff, bint add,
                                                                void* out, const void* x)
    void channel_square_sums "mc::channel_sums_typed<mc::SquareTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x)
    void channel_dots "mc::channel_sums_typed<mc::DotTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x, const void* dy)
    void channel_prelu_sums "mc::channel_sums_typed<mc::PreluTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x, const void* dy)
