// Products of row-major matrices on CPU or device: BLAS on the CPU, cuBLAS on the device, or our kernel if cuBLAS is missing.
#pragma once
#include "minicaffe/cuda/libraries.hpp"
#include "minicaffe/ops/gemm/blas.hpp"
#include "minicaffe/ops/gemm/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

/// A batch of `count` products, each the sum of `terms` products into one C, as a convolution's weight gradient over images.
struct GemmBatches {
  index_t count = 1, a = 0, b = 0, c = 0;     // elements from one A, B or C of the batch to the next; 0: all products share it
  index_t terms = 1, term_a = 0, term_b = 0;  // elements from one A or B of a sum to the next
};

namespace cuda {

// Our kernels: side, patch and depth of the tiles. 128 x 128 with 8 x 8 sums a thread needs at most 128 registers, so that two
// blocks fit on a multiprocessor; for double they would not.
template <class T> struct GemmTiles {
  using Large = Gemm<float, 128, 4, 8>;
  using Small = Gemm<float, 32, 2, 16>;
};
template <> struct GemmTiles<double> {
  using Large = Gemm<double, 64, 2, 8>;
  using Small = Gemm<double, 32, 2, 8>;
};
// The speed of a small tile relative to a large one, as it reads more per product. It is preferred if large tiles leave
// multiprocessors idle. (An estimate: to be measured.)
constexpr double kSmallPace = 0.45;
constexpr index_t kMaxGridZ = 65535;

template <class K> index_t gemm_tiles(index_t m, index_t n) {  // of kernel K for one C, and so its blocks
  return ((m + K::kSide - 1) / K::kSide) * ((n + K::kSide - 1) / K::kSide);
}

/// An operand without the steps that depend on the tile (launch_gemm).
template <class T>
GemmOperand<T> gemm_operand(const T* data, index_t ld, index_t batch, index_t term, bool along_depth) {
  constexpr index_t kPack = Pack<T>::kSize;
  bool aligned = aligned16(data) && ld % kPack == 0 && batch % kPack == 0 && term % kPack == 0;
  return {data, ld, batch, term, 0, 0, along_depth, aligned};
}

/// Launch kernel K, once for as many products of the batch as a grid may have along z.
template <class K, class T>
void launch_gemm(Stream& stream, index_t m, index_t n, index_t k, T alpha, GemmOperand<T> a, GemmOperand<T> b, T beta, T* c,
                 index_t ldc, const GemmBatches& batches) {
  for (GemmOperand<T>* x : {&a, &b}) {
    x->step = x->along_depth ? K::kDepth : K::kDepth * x->ld;
    x->wrap = x->term - ((k + K::kDepth - 1) / K::kDepth - 1) * x->step;
  }
  K kernel{a, b, c, ldc, batches.c, int(m), int(n), int(k), int(batches.terms), int((n + K::kSide - 1) / K::kSide), alpha, beta};
  for (index_t first = 0; first < batches.count; first += kMaxGridZ) {
    launch(stream, kernel, unsigned(gemm_tiles<K>(m, n)), 1, unsigned(std::min(kMaxGridZ, batches.count - first)));
    kernel.a.data += kMaxGridZ * kernel.a.batch;
    kernel.b.data += kMaxGridZ * kernel.b.batch;
    kernel.c += kMaxGridZ * kernel.c_batch;
  }
}

/// `gemm` on a device by our own kernel, if there is no cuBLAS or k is 0, with the tile that takes less time by estimate.
template <class T>
void our_gemm(Stream& stream, bool trans_a, bool trans_b, index_t m, index_t n, index_t k, T alpha, const T* a, index_t lda,
              const T* b, index_t ldb, T beta, T* c, index_t ldc, const GemmBatches& batches) {
  using Large = typename GemmTiles<T>::Large;
  using Small = typename GemmTiles<T>::Small;
  auto left = gemm_operand(a, lda, batches.a, batches.term_a, !trans_a);
  auto right = gemm_operand(b, ldb, batches.b, batches.term_b, trans_b);
  auto time = [&](index_t tiles, int side) {  // of the busiest multiprocessor, in elements of C
    return double((tiles * batches.count + stream.multiprocessors - 1) / stream.multiprocessors) * side * side;
  };
  if (time(gemm_tiles<Large>(m, n), Large::kSide) <= time(gemm_tiles<Small>(m, n), Small::kSide) / kSmallPace)
    launch_gemm<Large>(stream, m, n, k, alpha, left, right, beta, c, ldc, batches);
  else
    launch_gemm<Small>(stream, m, n, k, alpha, left, right, beta, c, ldc, batches);
}

/// `gemm` by cuBLAS, which is column-major: ours are transposed for it. C^T = op(B)^T op(A)^T, the operands are exchanged.
template <class T>
void library_gemm(Stream& stream, bool trans_a, bool trans_b, index_t m, index_t n, index_t k, T alpha, const T* a, index_t lda,
                  const T* b, index_t ldb, T beta, T* c, index_t ldc, const GemmBatches& batches) {
  if (stream.failed) return;
  const Libraries& libraries = *stream.libraries;
  for (index_t term = 0; term < batches.terms; ++term) {
    T keep = term ? T(1) : beta;  // the sum so far
    const bool watched = stream.recording;  // launches are recorded: `watch` is called before and after
    if (watched) libraries.watch(&stream, nullptr);
    int status = libraries.gemm_of(T())(libraries.cublas, trans_b, trans_a, int(n), int(m), int(k), &alpha,
                                        b + term * batches.term_b, int(ldb), batches.b, a + term * batches.term_a, int(lda),
                                        batches.a, &keep, c, int(ldc), batches.c, int(batches.count));
    if (status) return libraries.fail(&stream, "cublasGemmStridedBatched", status);
    if (watched) libraries.watch(&stream, "cublasGemmStridedBatched");
  }
}

}  // namespace cuda

/// C = alpha op(A) op(B) + beta C on the CPU, or on the device of `on`, where op(A) is m x k, op(B) k x n, and op transposes if
/// trans_; lda, ldb, ldc: elements from row to row as stored. Where beta is 0, C is not read. All sizes are below 2^31.
template <class T>
void gemm(const Context& on, const cpu::Blas& blas, bool trans_a, bool trans_b, index_t m, index_t n, index_t k, T alpha,
          const T* a, index_t lda, const T* b, index_t ldb, T beta, T* c, index_t ldc, GemmBatches batches = {}) {
  if (m <= 0 || n <= 0 || batches.count <= 0) return;
  // Terms that follow each other along the depth are one product of greater depth.
  if (batches.terms > 1 && trans_a && !trans_b && batches.term_a == k * lda && batches.term_b == k * ldb)
    k *= batches.terms, batches.terms = 1;
  if (batches.terms <= 0 || k <= 0) batches.terms = 1, k = 0;
  if (on.stream && on.stream->libraries && on.stream->libraries->cublas && k > 0)
    return cuda::library_gemm(*on.stream, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batches);
  if (on.stream)
    return cuda::our_gemm(*on.stream, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batches);
  for (index_t i = 0; i < batches.count; ++i)
    for (index_t term = 0; term < batches.terms; ++term)
      cpu::parallel_gemm(blas, on.threads, trans_a, trans_b, m, n, k, alpha, a + i * batches.a + term * batches.term_a, lda,
                         b + i * batches.b + term * batches.term_b, ldb, term ? T(1) : beta, c + i * batches.c, ldc);
}

}  // namespace mc
