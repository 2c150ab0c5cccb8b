// The inner product layer: matrix products, the bias and its gradient; for element types known at run time.
//
// x is (M, K), y (M, N), the weights (N, K), or (K, N) if transposed.
#pragma once
#include "minicaffe/ops/inner_product/cpu.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {

/// y = x W^T + bias; `bias` may be null.
template <class T>
void inner_product_forward_of(const Context& on, const cpu::Blas& blas, index_t m, index_t n, index_t k, bool transpose, const T* x,
                              const T* weight, const T* bias, T* y) {
  if (!on.stream) return cpu::inner_product_forward(blas, on.threads, m, n, k, transpose, x, weight, bias, y);
  gemm(on, blas, false, !transpose, m, n, k, T(1), x, k, weight, transpose ? n : k, T(0), y, n);
  if (bias) broadcast_unary(on, m, n, 1, ShiftBy<T>{bias}, y, y, static_cast<T*>(nullptr));
}

/// dweight += dy^T x (or x^T dy), dbias += column sums of dy, dx = dy W; each is left out if null.
template <class T>
void inner_product_backward_of(const Context& on, const cpu::Blas& blas, index_t m, index_t n, index_t k, bool transpose, const T* x,
                               const T* weight, const T* dy, T* dweight, T* dbias, T* dx) {
  if (!on.stream) return cpu::inner_product_backward(blas, on.threads, m, n, k, transpose, x, weight, dy, dweight, dbias, dx);
  if (dweight && transpose) gemm(on, blas, true, false, k, n, m, T(1), x, k, dy, n, T(1), dweight, n);
  if (dweight && !transpose) gemm(on, blas, true, false, n, k, m, T(1), dy, n, x, k, T(1), dweight, k);
  if (dbias) channel_sums(on, m, n, 1, SumTerm<T>{dy}, 1.0, true, dbias);
  if (dx) gemm(on, blas, false, transpose, m, k, n, T(1), dy, n, weight, transpose ? n : k, T(0), dx, k);
}

inline void inner_product_forward(const Context& on, const cpu::Blas& blas, int dtype, index_t m, index_t n, index_t k,
                                  bool transpose, const void* x, const void* weight, const void* bias, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    inner_product_forward_of(on, blas, m, n, k, transpose, static_cast<const T*>(x), static_cast<const T*>(weight),
                             static_cast<const T*>(bias), static_cast<T*>(y));
  });
}

inline void inner_product_backward(const Context& on, const cpu::Blas& blas, int dtype, index_t m, index_t n, index_t k,
                                   bool transpose, const void* x, const void* weight, const void* dy, void* dweight, void* dbias,
                                   void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    inner_product_backward_of(on, blas, m, n, k, transpose, static_cast<const T*>(x), static_cast<const T*>(weight),
                              static_cast<const T*>(dy), static_cast<T*>(dweight), static_cast<T*>(dbias), static_cast<T*>(dx));
  });
}

}  // namespace mc
