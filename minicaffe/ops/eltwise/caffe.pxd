from minicaffe.device.context cimport Context

cdef extern from "minicaffe/ops/eltwise/caffe.hpp" namespace "mc" nogil:
    const int kMaxInputs, kMaxInputsOfMaximum
    void weighted_sum "mc::combine<mc::WeightedSum>"(const Context&, int dtype, long long n, int inputs, const void* const* x,
                                                     const double* c, void* y)
    void rectified_sum "mc::combine<mc::RectifiedSum>"(const Context&, int dtype, long long n, int inputs, const void* const* x,
                                                       const double* c, void* y)
    void product "mc::combine<mc::ProductOf>"(const Context&, int dtype, long long n, int inputs, const void* const* x,
                                              const double* c, void* y)
    void largest(const Context&, int dtype, long long n, int inputs, const void* const* x, void* y)
    void largest_backward(const Context&, int dtype, long long n, int inputs, int winner, const void* const* x, const void* dy,
                          void* dx)
    void quotient_gradient "mc::map3<mc::QuotientGradient>"(const Context&, int dtype, long long n, const void* x, const void* y,
                                                            const void* dy, void* dx)
    void spread(const Context&, int dtype, long long n, int outputs, const void* x, const double* c, void* const* y)
    void relu_gradient "mc::map2<mc::ReluBackward>"(const Context&, int dtype, long long n, const void* top, const void* dy,
                                                    void* dx, double slope)
