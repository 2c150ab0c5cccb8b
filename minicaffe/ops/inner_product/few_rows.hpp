// Inner products of few rows on the CPU: the weights, which are most of the data, are read once and in place, whereas a BLAS copies
// all of them first. No element depends on the partition of the work, so the results do not depend on the number of threads.
#pragma once
#include "minicaffe/ops/conv/register_tile.hpp"

namespace mc {
namespace cpu {

// Up to here a BLAS is slower: by half at 16 rows, hardly at 48 (measured).
constexpr int kFewRows = 32;
// FewDots needs k >= kLongRows * m: to add up a dot product's vector takes as long as some 100 products (measured).
constexpr int kLongRows = 16;
// For the bottom's gradient by FewProduct, whose tiles fewer rows would leave mostly empty.
constexpr int kFewestRows = 4;

/// Forward: y[i][j] = bias[j] + x[i] . weight[j] for kWeights neighbouring j (a block) and all i; y (m, n), x (m, k), weight
/// (n, k); `bias` may be null. kBytes is the size of a vector register.
template <class T, int kBytes> struct FewDots {
  static constexpr int kLanes = kBytes / sizeof(T), kWeights = kBytes == 64 ? 6 : 3, kRows = 4;
  index_t k, n, m;
  const T *x, *weight, *bias;
  T* y;

  static index_t blocks(index_t, index_t n) { return (n + kWeights - 1) / kWeights; }  // for for_few_rows

  MC_HD void operator()(index_t block) const {
    for (index_t i = 0; i < m; i += kRows) {
      if (m - i == 1) rows<1>(i, block * kWeights);
      else rows<kRows>(i, block * kWeights);
    }
  }

  /// Rows i to i + kTogether - 1 at once: the block of weights is read once for them.
  template <int kTogether> MC_HD void rows(index_t i, index_t j) const {
    const index_t whole = k - k % kLanes;
    const int high = int(min_(m - i, index_t(kTogether))), wide = int(min_(n - j, index_t(kWeights)));
    const T *row = x + i * k, *of = weight + j * k;
    T* const to = y + i * n + j;
    for (int r = 0; r < high; ++r)
      for (int c = 0; c < wide; ++c) {
        T rest = bias ? bias[j + c] : T(0);
        for (index_t d = whole; d < k; ++d) rest += row[r * k + d] * of[c * k + d];
        to[r * n + c] = rest;
      }
    // Adds the products of the first `whole` elements to y.
    tile_dots<T, kBytes, kTogether, kWeights>(whole, row, high, of, wide, k, to, n);
  }
};

/// Backward: a block of C = A B, or C += A B if `add`, for A (height, depth), B (depth, k), C (height, k), where A[j][i] =
/// a[j * a_row + i * a_step]: dw = dy^T x, dx = dy W.
template <class T, int kBytes> struct FewProduct {
  static constexpr int kRows = kBytes == 64 ? 8 : kBytes == 32 ? 6 : 4, kWide = 2 * kBytes / sizeof(T);
  static constexpr index_t kHigh = 48, kLong = 512;  // of a block of C: its part of B stays in the cache. ROWS of operation.pyx
                                                     // is a multiple of kHigh
  static constexpr index_t kDeep = 16;               // rows of B at a time, more than which are too many streams of memory
  index_t k, height, depth;
  index_t a_row, a_step;
  const T *a, *b;
  T* c;
  bool add;

  static index_t blocks(index_t k, index_t height) { return (height + kHigh - 1) / kHigh * ((k + kLong - 1) / kLong); }

  MC_HD void operator()(index_t block) const {
    const index_t across = (k + kLong - 1) / kLong, wide = ((k + across - 1) / across + kWide - 1) / kWide * kWide;
    const index_t top = block / across * kHigh, left = block % across * wide;
    const index_t bottom = min_(top + kHigh, height), right = min_(left + wide, k);
    const T zeros[kRows] = {};
    T factors[kDeep * kRows], edge_b[kDeep * kWide], edge_c[kRows * kWide];
    for (index_t first = 0; first == 0 || first < depth; first += kDeep) {  // at least once, for zeros
      const index_t deep = min_(depth - first, kDeep);
      // tile_product begins with zeros, or, without `start`, with C.
      const T *const start = add || first ? nullptr : zeros, *const from = b + first * k;
      for (index_t j = top; j < bottom; j += kRows) {
        const int high = int(min_(bottom - j, index_t(kRows)));
        for (index_t i = 0; i < deep; ++i)
          for (int r = 0; r < kRows; ++r) factors[i * kRows + r] = r < high ? a[(j + r) * a_row + (first + i) * a_step] : T(0);
        index_t d = left;
        for (; d + kWide <= right; d += kWide)
          tile_product<T, kBytes, kRows>(deep, factors, 1, kRows, from + d, k, start, c + j * k + d, k, high);
        if (d >= right) continue;
        const size_t bytes = size_t(right - d) * sizeof(T);
        for (index_t i = 0; i < deep; ++i) std::memcpy(edge_b + i * kWide, from + i * k + d, bytes);
        for (int r = 0; r < high; ++r) std::memcpy(edge_c + r * kWide, c + (j + r) * k + d, bytes);
        tile_product<T, kBytes, kRows>(deep, factors, 1, kRows, edge_b, kWide, start, edge_c, kWide, high);
        for (int r = 0; r < high; ++r) std::memcpy(c + (j + r) * k + d, edge_c + r * kWide, bytes);
      }
    }
  }
};

/// Run F<T, bytes of a vector register>{k, n, m, members...} for all its blocks, F::blocks(k, n), each computed by one thread. For
/// FewProduct n is the height and m the depth.
template <template <class, int> class F, class T, class... Members>
void for_few_rows(Threads threads, index_t k, index_t n, index_t m, Members... members) {
  auto run = [&](auto range, auto f) {
    const index_t blocks = f.blocks(k, n);
    parallel(threads, blocks, kProductGrain * blocks / (m * n * k + 1), [&](int, index_t i, index_t end) { range(f, i, end); });
  };
#ifdef MC_X86
  if (isa() == kAvx512) return run(range_avx512<F<T, 64>>, F<T, 64>{k, n, m, members...});
  if (isa() == kAvx2) return run(range_avx2<F<T, 32>>, F<T, 32>{k, n, m, members...});
#endif
  run(range_baseline<F<T, 16>>, F<T, 16>{k, n, m, members...});
}

}  // namespace cpu
}  // namespace mc
