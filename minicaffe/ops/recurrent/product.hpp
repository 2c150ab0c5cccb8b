// Products with one matrix at every step of a sequence, on the CPU: it is packed once, and each step reads it in packed order.
//
// A BLAS would pack it at every step, which takes as long as the product of a few rows. No element depends on the partition. An
// index of a functor is that of a panel. for_few_rows (ops/inner_product) runs those with kBytes, the size of a vector register.
#pragma once
#include "minicaffe/device/bf16.hpp"
#include "minicaffe/ops/inner_product/few_rows.hpp"

namespace mc {
namespace cpu {

/// Pack op(w), which has k rows and n columns, in panels of two vector registers' columns: row d of a panel lies right behind row
/// d - 1, and missing columns are 0. w is (n, k) if `transpose`. m, the rows that will be multiplied by it, is not read here.
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

/// c = a op(w), or c += a op(w) if `add`: a is (m, k), c (m, n), op(w) packed by PackPanels.
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

  /// Rows i to i + kTogether - 1 at once: the packed panel is read once for them.
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

/// 16 pairs of Bf16: of two rows, in 16 columns.
struct LanePairs {
  unsigned __attribute__((vector_size(64))) all;
  MC_HD explicit LanePairs(const Bf16* x) { std::memcpy(&all, x, sizeof all); }
};
/// sum[l] += a[0] b[2 l] + a[1] b[2 l + 1]
MC_HD void add_products(Lanes& sum, const Bf16* a, const LanePairs& b) {
#ifdef MC_X86
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b.all), "m"(*reinterpret_cast<const Bf16(*)[2]>(a)));
#else
  Bf16 pairs[2 * kLanes];
  std::memcpy(pairs, &b, sizeof pairs);
  for (int l = 0; l < kLanes; ++l) sum[l] += a[0] * pairs[2 * l] + a[1] * pairs[2 * l + 1];
#endif
}

/// y = x, rounded to T, Bf16.
template <class T> struct Rounded {
  const float* x;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = T(x[i]); }
  template <class V> MC_HD void lanes(index_t i) const { put_lanes(y + i, get_lanes<V>(x + i)); }
};

/// PackPanels in precision bf16, T is Bf16: panels of 32 columns, in which two neighbouring rows lie in pairs, as they are
/// multiplied; of an odd number of rows the last has zeros beside it.
template <class T> struct PackPairs {
  static constexpr index_t kWide = 2 * kLanes;
  index_t k, n;
  const float* w;
  bool transpose;
  T* packed;

  static index_t even(index_t k) { return k + k % 2; }
  static index_t blocks(index_t n) { return (n + kWide - 1) / kWide; }

  MC_HD void operator()(index_t block) const {
    const index_t left = block * kWide, wide = min_(n - left, kWide);
    T* to = packed + left * even(k);
    for (index_t d = 0; d < k + k % 2; ++d)
      for (index_t j = 0; j < kWide; ++j)
        to[d / 2 * 2 * kWide + 2 * j + d % 2] = d < k && j < wide ? w[transpose ? (left + j) * k + d : d * n + left + j] : 0.f;
  }
};

/// c = a op(w), or c += a op(w) if `add`: a is (m, k rounded up to an even number), c (m, n), op(w) packed by PackPairs.
template <class T> struct PairsProduct {
  static constexpr index_t kWide = PackPairs<T>::kWide;
  index_t k, n, m;
  const T *a, *packed;
  float* c;
  bool add;

  MC_HD void operator()(index_t block) const {
    index_t i = 0;
    for (; m - i >= 8; i += 8) rows<8>(block, i);
    for (; m - i >= 3; i += 3) rows<3>(block, i);
    for (; i < m; ++i) rows<1>(block, i);
  }

  /// Rows i to i + kRows - 1 at once: the packed pairs are read once for them.
  template <int kRows> MC_HD void rows(index_t block, index_t i) const {
    const index_t left = block * kWide, wide = min_(n - left, kWide), deep = k + k % 2;
    const T *from = a + i * deep, *b = packed + left * deep;
    Lanes sum[kRows][2] = {};
    for (index_t d = 0; d < deep; d += 2, b += 2 * kWide) {
      const LanePairs b0(b), b1(b + kWide);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        add_products(sum[r][0], from + r * deep + d, b0), add_products(sum[r][1], from + r * deep + d, b1);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float* const to = c + (i + r) * n + left;
      float edge[kWide] = {};
      if (add) std::memcpy(edge, to, size_t(wide) * sizeof(float));
      for (int half = 0; half < 2; ++half) sum[r][half] += get_lanes<Lanes>(edge + half * kLanes);
      std::memcpy(edge, sum[r], sizeof edge);
      std::memcpy(to, edge, size_t(wide) * sizeof(float));
    }
  }
};

}  // namespace cpu
}  // namespace mc
