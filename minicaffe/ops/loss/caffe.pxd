from libcpp cimport bool as cpp_bool

from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/loss/caffe.hpp" namespace "mc" nogil:
    const int kNoLabel
    struct Labels:
        long long outer, classes, inner
        int ignore
    struct Pairs:
        long long count, width
        double margin
        cpp_bool legacy
    long long check_labels "mc::cpu::check_labels"(int dtype, const Labels&, const void* label, long long* valid)
    long long check_targets "mc::cpu::check_targets"(int dtype, long long n, int ignore, const void* target, long long* valid)
    long long find_fraction "mc::cpu::find_fraction"(int dtype, long long n, const void* x)
    void log_loss(const Context&, int dtype, const Labels&, const void* p, const void* label, double floor, double coeff, void* out)
    void log_loss_backward(const Context&, int dtype, const Labels&, const void* p, const void* label, double scale, double floor,
                           void* dx)
    void softmax_loss_backward(const Context&, int dtype, const Labels&, const void* p, const void* label, double scale, void* dx)
    void infogain(const Context&, int dtype, const Labels&, const void* p, const void* label, const void* h, double floor,
                  double coeff, void* out)
    void infogain_backward(const Context&, int dtype, const Labels&, const void* p, const void* label, const void* h, double scale,
                           void* dx)
    void hinge(const Context&, int dtype, const Labels&, const void* x, const void* label, bint squared, double coeff, void* out)
    void hinge_backward(const Context&, int dtype, const Labels&, const void* x, const void* label, bint squared, double scale,
                        void* dx)
    void squared_distance(const Context&, int dtype, long long n, const void* a, const void* b, double coeff, void* out)
    void scaled_difference "mc::map2<mc::ScaledDifference>"(
        const Context&, int dtype, long long n, const void* a, const void* b, void* dx, double scale)
    void sigmoid_loss(const Context&, int dtype, long long n, int ignore, const void* x, const void* t, double coeff, void* out)
    void sigmoid_loss_backward(const Context&, int dtype, long long n, int ignore, const void* x, const void* t, double scale,
                               void* dx)
    void smooth_l1(const Context&, int dtype, long long n, const void* a, const void* b, const void* w, double coeff, void* out)
    void smooth_l1_backward(const Context&, int dtype, long long n, const void* a, const void* b, const void* w, double scale,
                            void* dx)
    void contrastive(const Context&, int dtype, const Pairs&, const void* a, const void* b, const void* similar, double coeff,
                     void* out)
    void contrastive_backward(const Context&, int dtype, const Pairs&, const void* a, const void* b, const void* similar,
                              double scale, void* dx)
