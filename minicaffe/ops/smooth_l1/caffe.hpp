// The smooth L1 loss on CPU or device (ops/smooth_l1/kernel.hpp).
#pragma once
#include "minicaffe/ops/smooth_l1/kernel.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {

template <class T> SmoothL1Term<T> smooth_l1_term(const void* a, const void* b, const void* w) {
  return {static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(w)};
}

/// out[0] = coeff times the sum of the terms
inline void smooth_l1(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* w, double coeff,
                      void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, n, smooth_l1_term<T>(a, b, w), coeff, false, static_cast<T*>(out));
  });
}

inline void smooth_l1_backward(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* w, double scale,
                               void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n, SmoothL1Backward<T>{smooth_l1_term<T>(a, b, w), T(scale), static_cast<T*>(dx)}, 4);
  });
}

}  // namespace mc
