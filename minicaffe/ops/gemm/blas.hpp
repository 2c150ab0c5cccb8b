// Matrix products through a BLAS that is loaded at run time. All matrices are row-major.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

template <class T> using CblasGemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, T alpha, const T* a,
                                              int lda, const T* b, int ldb, T beta, T* c, int ldc);

/// The functions of the BLAS that was opened at run time (ops/gemm/blas.pyx).
struct Blas {
  CblasGemm<float> sgemm = nullptr;
  CblasGemm<double> dgemm = nullptr;
  const CblasGemm<float>& gemm_of(float) const { return sgemm; }
  const CblasGemm<double>& gemm_of(double) const { return dgemm; }
};

/// C = alpha op(A) op(B) + beta C on the calling thread. op(A) is m x k, op(B) k x n; ld: elements from row to row as stored.
template <class T>
void gemm(const Blas& blas, bool trans_a, bool trans_b, index_t m, index_t n, index_t k, T alpha, const T* a, index_t lda,
          const T* b, index_t ldb, T beta, T* c, index_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {  // BLAS refuses leading dimensions of an empty product
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
    return;
  }
  constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
  blas.gemm_of(T())(kRowMajor, trans_a ? kTrans : kNoTrans, trans_b ? kTrans : kNoTrans, int(m), int(n), int(k), alpha, a,
                    int(lda), b, int(ldb), beta, c, int(ldc));
}

/// The same, split over threads along the longer side of C.
template <class T>
void parallel_gemm(const Blas& blas, Threads threads, bool trans_a, bool trans_b, index_t m, index_t n, index_t k, T alpha,
                   const T* a, index_t lda, const T* b, index_t ldb, T beta, T* c, index_t ldc) {
  bool by_rows = m >= n;
  index_t side = by_rows ? m : n, other = by_rows ? n : m;
  parallel(threads, side, kProductGrain / (other * k + 1), [&](int, index_t begin, index_t end) {
    if (by_rows)
      gemm(blas, trans_a, trans_b, end - begin, n, k, alpha, trans_a ? a + begin : a + begin * lda, lda, b, ldb, beta,
           c + begin * ldc, ldc);
    else
      gemm(blas, trans_a, trans_b, m, end - begin, k, alpha, a, lda, trans_b ? b + begin * ldb : b + begin, ldb, beta,
           c + begin, ldc);
  });
}

}  // namespace cpu
}  // namespace mc
