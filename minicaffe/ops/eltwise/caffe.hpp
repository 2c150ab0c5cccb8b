// Passes over several blobs of one shape (ops/eltwise/kernel.hpp), for element types known at run time.
#pragma once
#include "minicaffe/device/bf16.hpp"
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/eltwise/kernel.hpp"

namespace mc {

/// One pass of F over inputs[0..m-1], m at most kMaxInputs: it calls itself with a smaller N until N is m.
template <template <class, int> class F, class T, int N = kMaxInputs>
void combine_pass(const Context& on, index_t n, int m, const T* const* inputs, const double* coefficients, T* y) {
  if constexpr (N > 1)
    if (m < N) return combine_pass<F, T, N - 1>(on, n, m, inputs, coefficients, y);
  F<T, N> f;
  for (int k = 0; k < N; ++k) f.x[k] = inputs[k], f.c[k] = typename F<T, N>::C(coefficients[k]);
  f.y = y;
  for_each_lane<T>(on, n, f, N);
}

/// y = inputs combined from left to right by F; passes after the first start from y. A null c means coefficients 1.
template <template <class, int> class F>
void combine(const Context& on, int dtype, index_t n, int inputs, const void* const* x, const double* c, void* out) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    const T* part[kMaxInputs];
    double weight[kMaxInputs];
    T* y = static_cast<T*>(out);
    for (int k = 0; k < inputs;) {
      int m = 0;
      if (k > 0) part[m] = y, weight[m++] = 1;
      while (m < kMaxInputs && k < inputs) part[m] = static_cast<const T*>(x[k]), weight[m++] = c ? c[k] : 1, ++k;
      combine_pass<F, T>(on, n, m, part, weight, y);
    }
  });
}

/// y = the maximum of all inputs; of the first two the second wins ties, a later one must be larger (Caffe).
inline void largest(const Context& on, int dtype, index_t n, int inputs, const void* const* x, void* y) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    for (int k = 1; k < inputs; ++k)
      map(on, n, LargerOf<typename Element<T>::Compute>{k == 1}, static_cast<const T*>(k == 1 ? x[0] : y),
          static_cast<const T*>(x[k]), static_cast<T*>(y));
  });
}

/// dx = dy where input `winner` is the maximum of the inputs, else 0: its gradient. At most kMaxInputsOfMaximum inputs.
inline void largest_backward(const Context& on, int dtype, index_t n, int inputs, int winner, const void* const* x, const void* dy,
                             void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    MaxBackward<T> f = {{}, inputs, winner, static_cast<const T*>(dy), static_cast<T*>(dx)};
    for (int k = 0; k < inputs; ++k) f.x[k] = static_cast<const T*>(x[k]);
    for_each(on, n, f, inputs);
  });
}

/// y[k] = c[k] x for m outputs, at most kMaxInputs, in one pass.
template <class T, int N = kMaxInputs>
void spread_pass(const Context& on, index_t n, int m, const T* x, const double* c, void* const* y) {
  if constexpr (N > 1)
    if (m < N) return spread_pass<T, N - 1>(on, n, m, x, c, y);
  Spread<T, N> f;
  f.x = x;
  for (int k = 0; k < N; ++k) f.c[k] = typename Element<T>::Compute(c[k]), f.y[k] = static_cast<T*>(y[k]);
  for_each_lane<T>(on, n, f, N);
}
/// The same for any number of outputs: the gradients of a sum; x may be one of up to kMaxInputs outputs.
inline void spread(const Context& on, int dtype, index_t n, int outputs, const void* x, const double* c, void* const* y) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    for (int k = 0; k < outputs; k += kMaxInputs)
      spread_pass(on, n, std::min(kMaxInputs, outputs - k), static_cast<const T*>(x), c + k, y + k);
  });
}

}  // namespace mc
