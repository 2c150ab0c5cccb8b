from libcpp cimport bool as cpp_bool

from minicaffe.device.context cimport Context

# A loss is out = coeff times the sum of n terms; `cost` is that of one element of a gradient; functor members come last.
cdef extern from "minicaffe/ops/loss/caffe.hpp" namespace "mc" nogil:
    const int kNoLabel
    struct Labels:
        long long outer, classes, inner
        int ignore
    long long check_labels "MC_TYPED(mc::cpu::check_labels)"(int dtype, const Labels&, const void* label, long long* valid)
    long long check_targets "MC_TYPED(mc::cpu::check_targets)"(int dtype, long long n, int ignore, const void* target,
                                                               long long* valid)
    void log_loss "mc::sum_typed<mc::LogLossTerm>"(const Context&, int dtype, long long n, double coeff, void* out, const Labels&,
                                                   const void* p, const void* label, double floor)
    void log_loss_backward(const Context&, int dtype, const Labels&, const void* p, const void* label, double scale, double floor,
                           void* dx)
    void softmax_loss_backward(const Context&, int dtype, const Labels&, const void* p, const void* label, double scale, void* dx)
    void infogain "mc::sum_typed<mc::InfogainTerm>"(const Context&, int dtype, long long n, double coeff, void* out, const Labels&,
                                                    const void* p, const void* label, const void* h, double floor)
    void infogain_backward "mc::each_typed<mc::InfogainBackward>"(
        const Context&, int dtype, long long n, long long cost, const Labels&, const void* p, const void* label, const void* h,
        double scale, void* dx)
    void hinge "mc::sum_typed<mc::HingeTerm>"(const Context&, int dtype, long long n, double coeff, void* out, const Labels&,
                                              const void* x, const void* label, cpp_bool squared)
    void hinge_backward "mc::each_typed<mc::HingeBackward>"(
        const Context&, int dtype, long long n, long long cost, const Labels&, const void* x, const void* label, cpp_bool squared,
        double scale, void* dx)
    void squared_distance "mc::sum_typed<mc::SquaredDistanceTerm>"(const Context&, int dtype, long long n, double coeff, void* out,
                                                                   const void* a, const void* b)
    void scaled_difference "mc::map2<mc::ScaledDifference>"(
        const Context&, int dtype, long long n, const void* a, const void* b, void* dx, double scale)
    void sigmoid_loss "mc::sum_typed<mc::SigmoidLossTerm>"(const Context&, int dtype, long long n, double coeff, void* out,
                                                           int ignore, const void* x, const void* t)
    void sigmoid_loss_backward "mc::each_typed<mc::SigmoidLossBackward>"(
        const Context&, int dtype, long long n, long long cost, int ignore, const void* x, const void* t, double scale, void* dx)
    void smooth_l1 "mc::sum_typed<mc::SmoothL1Term>"(const Context&, int dtype, long long n, double coeff, void* out, const void* a,
                                                     const void* b, const void* inside, const void* outside, double sigma2)
    void smooth_l1_backward "mc::each_typed<mc::SmoothL1Backward>"(
        const Context&, int dtype, long long n, long long cost, const void* a, const void* b, const void* inside,
        const void* outside, double sigma2, double scale, void* dx)
    void contrastive "mc::sum_typed<mc::ContrastiveTerm>"(
        const Context&, int dtype, long long n, double coeff, void* out, long long width, const void* a, const void* b,
        const void* similar, double margin, cpp_bool legacy)
    void contrastive_backward "mc::each_typed<mc::ContrastiveBackward>"(
        const Context&, int dtype, long long n, long long cost, long long width, const void* a, const void* b, const void* similar,
        double margin, cpp_bool legacy, double scale, void* dx)
