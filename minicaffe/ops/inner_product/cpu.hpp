// The inner product layer on the CPU: matrix products by the BLAS, the bias and its gradient by loops.
//
// x is (M, K), y (M, N), the weights (N, K), or (K, N) if transposed.
#pragma once
#include "minicaffe/ops/gemm/blas.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {
namespace cpu {

/// sums[j] += the sum over i of x[i][j], in the order of i.
template <class T> struct ColumnSum {
  index_t rows, n;
  const T* x;
  T* sums;
  MC_HD void operator()(index_t j) const {
    T sum = T(0);
    for (index_t i = 0; i < rows; ++i) sum += x[i * n + j];
    sums[j] += sum;
  }
};

/// y[i][j] = bias[j] + x[i] . weight[j] for all i.
template <class T> struct RowDots {
  index_t m, n, k;
  const T *x, *weight, *bias;
  T* y;
  MC_HD void operator()(index_t j) const {
    for (index_t i = 0; i < m; ++i)
      y[i * n + j] = block_sum<T>(DotTerm<T>{x + i * k, weight + j * k}, 0, k) + (bias ? bias[j] : T(0));
  }
};

// Up to this many rows the weights are read once as they lie; a BLAS would first copy all of them (4 times slower, measured).
constexpr index_t kFewRows = 4;

/// y = x W^T + bias; `bias` may be null.
template <class T>
void inner_product_forward(const Blas& blas, Threads threads, index_t m, index_t n, index_t k, bool transpose, const T* x,
                           const T* weight, const T* bias, T* y) {
  if (m <= kFewRows && !transpose) return for_each(threads, n, RowDots<T>{m, n, k, x, weight, bias, y}, m * k + 1);
  if (bias)
    parallel(threads, m, std::max<index_t>(1, kGrain / n), [&](int, index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) std::memcpy(y + i * n, bias, size_t(n) * sizeof(T));
    });
  parallel_gemm(blas, threads, false, !transpose, m, n, k, T(1), x, weight, bias ? T(1) : T(0), y);
}

/// dweight += dy^T x (or x^T dy), dbias += column sums of dy, dx = dy W; each is left out if null.
template <class T>
void inner_product_backward(const Blas& blas, Threads threads, index_t m, index_t n, index_t k, bool transpose, const T* x,
                            const T* weight, const T* dy, T* dweight, T* dbias, T* dx) {
  if (dweight && m) {
    if (transpose)
      parallel_gemm(blas, threads, true, false, k, n, m, T(1), x, dy, T(1), dweight);
    else
      parallel_gemm(blas, threads, true, false, n, k, m, T(1), dy, x, T(1), dweight);
  }
  if (dbias) for_each(threads, n, ColumnSum<T>{m, n, dy, dbias}, m + 1);
  if (dx) parallel_gemm(blas, threads, false, transpose, m, k, n, T(1), dy, weight, T(0), dx);
}

}  // namespace cpu
}  // namespace mc
