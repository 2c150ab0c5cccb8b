// Products with one matrix at every step of a sequence, on the CPU: it is packed once, and each step reads it as it lies.
//
// A BLAS would pack it at every step, which takes as long as the product of a few rows. No element depends on how the work is cut.
#pragma once
#include "minicaffe/ops/inner_product/few_rows.hpp"

namespace mc {
namespace cpu {

/// Pack op(w), which has k rows and n columns, in panels of two vector registers' columns: row d of a panel lies right behind row
/// d - 1, and missing columns are 0. w is (n, k) if `transpose`. m is how many rows will be multiplied by it.
template <class T, int kBytes> struct PackPanels {
  static constexpr index_t kWide = 2 * kBytes / sizeof(T);
  static constexpr index_t kLong = 16;  // rows at a time: the cache lines that they share stay near
  index_t k, n, m;
  const T* w;
  bool transpose;
  T* packed;

  static index_t blocks(index_t, index_t n) { return (n + kWide - 1) / kWide; }

  MC_HD void operator()(index_t block) const {
    T* to = packed + block * kWide * k;
    const index_t left = block * kWide, wide = min_(n - left, kWide), step = transpose ? 1 : n;
    for (index_t first = 0; first < k; first += kLong) {
      const index_t end = min_(first + kLong, k);
      for (index_t j = 0; j < kWide; ++j) {
        const T* from = w + (transpose ? (left + j) * k : left + j);
        for (index_t d = first; d < end; ++d) to[d * kWide + j] = j < wide ? from[d * step] : T(0);
      }
    }
  }
};

/// c = a op(w), or c += a op(w): a is (m, k), c (m, n), op(w) packed as above.
template <class T, int kBytes> struct PackedProduct {
  static constexpr index_t kWide = PackPanels<T, kBytes>::kWide;
  static constexpr int kRows = kBytes == 64 ? 8 : kBytes == 32 ? 6 : 4;
  index_t k, n, m;
  const T *a, *packed;
  T* c;
  bool add;

  static index_t blocks(index_t k, index_t n) { return PackPanels<T, kBytes>::blocks(k, n); }

  MC_HD void operator()(index_t block) const {
    index_t i = 0;
    for (; m - i >= kRows; i += kRows) rows<kRows>(block, i);
    for (; m - i >= 3; i += 3) rows<3>(block, i);
    for (; i < m; ++i) rows<1>(block, i);
  }

  template <int kTogether> MC_HD void rows(index_t block, index_t i) const {
    const index_t left = block * kWide, wide = min_(n - left, kWide);
    const T zeros[kTogether] = {};
    T edge[kTogether * kWide], *at = c + i * n + left, *to = wide < kWide ? edge : at;
    if (wide < kWide && add)
      for (int r = 0; r < kTogether; ++r) std::memcpy(edge + r * kWide, at + r * n, size_t(wide) * sizeof(T));
    tile_product<T, kBytes, kTogether>(k, a + i * k, k, 1, packed + left * k, kWide, add ? nullptr : zeros, to,
                                       wide < kWide ? kWide : n, kTogether);
    if (wide < kWide)
      for (int r = 0; r < kTogether; ++r) std::memcpy(at + r * n, edge + r * kWide, size_t(wide) * sizeof(T));
  }
};

}  // namespace cpu
}  // namespace mc
