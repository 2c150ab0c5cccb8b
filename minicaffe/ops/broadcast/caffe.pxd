from minicaffe.device.context cimport Context
from minicaffe.loops.lanes.caffe cimport Channels

# `kept`, unless null, receives a copy of x.
cdef extern from "minicaffe/ops/broadcast/caffe.hpp" nogil:
    void scale_by "mc::broadcast1<mc::ScaleBy>"(const Context&, int dtype, const Channels&, const void* x, void* y, void* kept,
                                                const void* s)
    void scale_shift "mc::broadcast1<mc::ScaleShift>"(const Context&, int dtype, const Channels&, const void* x, void* y,
                                                      void* kept, const void* s, const void* b)
    void shift_by "mc::broadcast1<mc::ShiftBy>"(const Context&, int dtype, const Channels&, const void* x, void* y, void* kept,
                                                const void* b)
    void prelu_forward "mc::broadcast1<mc::PreluForward>"(const Context&, int dtype, const Channels&, const void* x, void* y,
                                                          void* kept, const void* a)
    void prelu_backward "mc::broadcast2<mc::PreluBackward>"(const Context&, int dtype, const Channels&, const void* x,
                                                            const void* dy, void* dx, const void* a)
    void channel_prelu_sums "mc::channel_sums_typed<mc::PreluTerm>"(
        const Context&, int dtype, const Channels&, double coeff, bint add, void* out, const void* x, const void* dy)
    void sum_backward "mc::broadcast1<mc::SumBackward>"(const Context&, int dtype, const Channels&, const void* x, void* dx,
                                                        void* kept, const void* dy, double coeff)
    void abs_sum_backward "mc::broadcast1<mc::AbsSumBackward>"(const Context&, int dtype, const Channels&, const void* x, void* dx,
                                                               void* kept, const void* dy, double coeff)
    void square_sum_backward "mc::broadcast1<mc::SquareSumBackward>"(
        const Context&, int dtype, const Channels&, const void* x, void* dx, void* kept, const void* dy, double coeff)
