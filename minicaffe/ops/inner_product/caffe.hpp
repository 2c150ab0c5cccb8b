// The inner product layer by engine CAFFE: matrix products, the bias and its gradient.
//
// x is (M, K), y (M, N), the weights (N, K), or (K, N) if transposed.
#pragma once
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"
#include "minicaffe/ops/inner_product/few_rows.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {

/// sums[j] += the sum over i of x[i][j], in the order of i, for a block of columns: row by row, as x lies.
template <class T> struct ColumnSums {
  static constexpr index_t kWide = 64;
  index_t rows, n;
  const T* x;
  T* sums;
  MC_HD void operator()(index_t block) const {
    const index_t left = block * kWide, wide = min_(n - left, kWide);
    T sum[kWide] = {};
    const T* row = x + left;
    if (wide == kWide)
      for (index_t i = 0; i < rows; ++i, row += n)
        for (index_t j = 0; j < kWide; ++j) sum[j] += row[j];
    else
      for (index_t i = 0; i < rows; ++i, row += n)
        for (index_t j = 0; j < wide; ++j) sum[j] += row[j];
    for (index_t j = 0; j < wide; ++j) sums[left + j] += sum[j];
  }
};

/// y = x W^T + bias; `bias` may be null.
inline void inner_product_forward(const Context& on, const cpu::Blas& blas, int dtype, index_t m, index_t n, index_t k,
                                  bool transpose, const void* x_, const void* weight_, const void* bias_, void* y_) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto x = static_cast<const T*>(x_), weight = static_cast<const T*>(weight_), bias = static_cast<const T*>(bias_);
    auto y = static_cast<T*>(y_);
    if (!on.stream && m <= cpu::kFewRows && k >= cpu::kLongRows * m && !transpose)
      return cpu::for_few_rows<cpu::FewDots, T>(on.threads, k, n, m, x, weight, bias, y);
    const bool ahead = bias && !on.stream;  // the CPU's product is added to the bias
    if (ahead)
      cpu::parallel(on.threads, m, cpu::kGrain / n, [&](int, index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) std::memcpy(y + i * n, bias, size_t(n) * sizeof(T));
      });
    gemm(on, blas, false, !transpose, m, n, k, T(1), x, k, weight, transpose ? n : k, ahead ? T(1) : T(0), y, n);
    if (bias && !ahead) broadcast_unary(on, {m, n, 1}, ShiftBy<T>{bias}, y, y);
  });
}

/// dweight += dy^T x (or x^T dy), dbias += column sums of dy, dx = dy W; each is left out if null. Without `add_weight`, and on a
/// device without `add_bias`, the gradient is overwritten.
inline void inner_product_backward(const Context& on, const cpu::Blas& blas, int dtype, index_t m, index_t n, index_t k,
                                   bool transpose, const void* x_, const void* weight_, const void* dy_, void* dweight_,
                                   bool add_weight, void* dbias_, bool add_bias, void* dx_) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto x = static_cast<const T*>(x_), weight = static_cast<const T*>(weight_), dy = static_cast<const T*>(dy_);
    auto dweight = static_cast<T*>(dweight_), dbias = static_cast<T*>(dbias_), dx = static_cast<T*>(dx_);
    const T keep = add_weight ? T(1) : T(0);
    if (dweight && transpose)
      gemm(on, blas, true, false, k, n, m, T(1), x, k, dy, n, keep, dweight, n);
    else if (dweight && !on.stream && m <= cpu::kFewRows)
      cpu::for_few_rows<cpu::FewProduct, T>(on.threads, k, n, m, index_t(1), n, dy, x, dweight, add_weight);
    else if (dweight)
      gemm(on, blas, true, false, n, k, m, T(1), dy, n, x, k, keep, dweight, k);
    if (dbias && on.stream) channel_sums(on, {m, n, 1}, SumTerm<T>{dy}, 1.0, add_bias, dbias);
    if (dbias && !on.stream)
      cpu::for_each(on.threads, (n + ColumnSums<T>::kWide - 1) / ColumnSums<T>::kWide, ColumnSums<T>{m, n, dy, dbias},
                    ColumnSums<T>::kWide * m + 1);
    if (dx && !on.stream && !transpose && m >= cpu::kFewestRows && m <= cpu::kFewRows)
      cpu::for_few_rows<cpu::FewProduct, T>(on.threads, k, m, n, n, index_t(1), dy, weight, dx, false);
    else if (dx)
      gemm(on, blas, false, transpose, m, k, n, T(1), dy, n, weight, transpose ? n : k, T(0), dx, k);
  });
}

}  // namespace mc
