from minicaffe.device.context cimport Context
from minicaffe.ops.gemm.blas cimport Blas

cdef extern from "minicaffe/ops/recurrent/caffe.hpp" namespace "mc" nogil:
    # Shapes: c_prev, c, h (n, size); gates, acts (n, 4 size); cont (n).
    void lstm_forward "mc::lstm_step<mc::LstmForward>"(const Context&, int dtype, long long n, long long size, const void* c_prev,
                                                       const void* gates, const void* cont, void* acts, void* c, void* h)
    void lstm_backward "mc::lstm_step<mc::LstmBackward>"(
        const Context&, int dtype, long long n, long long size, const void* c_prev, const void* acts, const void* c, const void* dc,
        const void* dh, void* dc_prev, void* dgates)
    cppclass Recurrence:
        long long steps, n, size, gates
        const void* weight
        const void* cont
        void* packed
        bint bf16
    void rnn_steps_forward "MC_TYPED(mc::rnn_steps_forward)"(int dtype, const Context&, const Blas& blas, const Recurrence&,
                                                             const void* h0, void* gates, void* kept, void* h)
    void rnn_steps_backward "MC_TYPED(mc::rnn_steps_backward)"(int dtype, const Context&, const Blas& blas, const Recurrence&,
                                                               const void* h, const void* dy, void* dgates, void* scratch)
    void lstm_steps_forward "MC_TYPED(mc::lstm_steps_forward)"(
        int dtype, const Context&, const Blas& blas, const Recurrence&, const void* h0, const void* c0, void* gates, void* kept,
        void* c, void* h)
    void lstm_steps_backward "MC_TYPED(mc::lstm_steps_backward)"(
        int dtype, const Context&, const Blas& blas, const Recurrence&, const void* c0, const void* acts, const void* c,
        const void* dy, void* dgates, void* scratch)
