// The small matrix products that convolutions are made of: a tile of C whose sums stay in vector registers.
//
// C = A B: A gives single numbers, read with any two strides. B is packed in panels of exactly one tile's columns: row k of a panel
// lies right behind row k - 1. So the product needs neither a copy of A nor, thanks to packing from the image's rows
// (ops/conv/columns.hpp), a column matrix in memory. C = A B^T: dot products, where vectors lie along both A's rows and B's. GCC's
// vector types make one source serve every instruction set.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

constexpr int kMaxTileRows = 10, kMaxTileColumns = 32;

/// y[i] += x[i] for n elements, a constant of the compiler.
template <class T, int n> MC_HD void add_vector(const T* x, T* y) {
  typedef T Vector __attribute__((vector_size(n * sizeof(T)), aligned(alignof(T)), may_alias));
  *reinterpret_cast<Vector*>(y) += *reinterpret_cast<const Vector*>(x);
}

/// c[r][j] = start[r] + sum over k < depth of a[r * a_row + k * a_step] * b[k][j]; if `start` is null, the sum is added to c. j is
/// over two vectors of kBytes; row k of b begins at b + k * b_step. All kRows rows of a are read, only `rows` of c are touched.
template <class T, int kBytes, int kRows>
MC_HD void tile_product(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, index_t b_step, const T* start, T* c,
                        index_t ldc, int rows) {
  typedef T Vector __attribute__((vector_size(kBytes)));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  constexpr int kLanes = kBytes / sizeof(T);
  Vector sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = start ? Vector{} + start[r] : Vector{};
  for (index_t k = 0; k < depth; ++k) {
    Vector b0 = *reinterpret_cast<const Unaligned*>(b), b1 = *reinterpret_cast<const Unaligned*>(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      T x = a[r * a_row];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
    a += a_step;
    b += b_step;
  }
  // What c holds is added last: a new sum rounds numbers of its own size, not of the size of all that came before.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    if (r < rows) {
      Unaligned* const c0 = reinterpret_cast<Unaligned*>(c + r * ldc);
      Unaligned* const c1 = reinterpret_cast<Unaligned*>(c + r * ldc + kLanes);
      *c0 = start ? sum[r][0] : *c0 + sum[r][0];
      *c1 = start ? sum[r][1] : *c1 + sum[r][1];
    }
}

// On a boundary of a cache line: 16 bytes beside one, these loops take 5 to 13% longer (measured).
#define MC_TILE(name, target, bytes)                                                                                        \
  template <class T, int kRows>                                                                                             \
  __attribute__((aligned(64)))                                                                                              \
  target void name(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, const T* start, T* c, index_t ldc, \
                   int rows) {                                                                                              \
    tile_product<T, bytes, kRows>(depth, a, a_row, a_step, b, 2 * bytes / sizeof(T), start, c, ldc, rows);                  \
  }
MC_TILE(tile_baseline, , 16)
#ifdef MC_X86
MC_TILE(tile_avx2, MC_AVX2, 32)
MC_TILE(tile_avx512, MC_AVX512, 64)
#endif
#undef MC_TILE

/// A tile product, with b in packed panels, and the size of its tile: the rows of a and the columns of b.
template <class T> struct Tile {
  int rows, columns;
  void (*product)(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, const T* start, T* c, index_t ldc,
                  int rows);
};

/// Whether tiles of `rows` rows, the last of them filled up, cover a matrix of `height` rows with fewer rows than tiles of `than`.
inline bool wastes_less(index_t height, index_t rows, index_t than) {
  return (height + rows - 1) / rows * rows < (height + than - 1) / than * than;
}

/// The tile for this processor that wastes the fewest rows on a matrix A of `height` rows. Two vectors a row: with as many rows
/// as the registers hold, loads stay behind the multiplications.
template <class T> Tile<T> tile_for(index_t height) {
#ifdef MC_X86
  if (isa() == kAvx512 && wastes_less(height, 8, 10)) return {8, int(128 / sizeof(T)), tile_avx512<T, 8>};
  if (isa() == kAvx512) return {10, int(128 / sizeof(T)), tile_avx512<T, 10>};
  if (isa() == kAvx2 && wastes_less(height, 5, 6)) return {5, int(64 / sizeof(T)), tile_avx2<T, 5>};
  if (isa() == kAvx2) return {6, int(64 / sizeof(T)), tile_avx2<T, 6>};
#endif
  return {4, int(32 / sizeof(T)), tile_baseline<T, 4>};
}

/// The sum of n elements, a power of 2, by halves.
template <class T, int n> MC_HD T sum_vector(const T* x) {
  typedef T Half __attribute__((vector_size(n / 2 * sizeof(T)), aligned(alignof(T)), may_alias));
  const Half half = *reinterpret_cast<const Half*>(x) + *reinterpret_cast<const Half*>(x + n / 2);
  if constexpr (n == 4) return half[0] + half[1];
  else if constexpr (n == 2) return half[0];
  else return sum_vector<T, n / 2>(reinterpret_cast<const T*>(&half));
}

/// sum[r][c] += the sum over j < depth of a[r][j] * b[c][j], for `rows` rows of a (up to kRows) and `columns` rows of b, both `ld`
/// apart; rows of sum are `ld_sum` apart. The depth is a multiple of the lanes of a vector.
template <class T, int kBytes, int kRows, int kColumns>
MC_HD void tile_dots(index_t depth, const T* a, int rows, const T* b, int columns, index_t ld, T* sum, index_t ld_sum) {
  typedef T Vector __attribute__((vector_size(kBytes)));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  constexpr int kLanes = kBytes / sizeof(T);
  const T *row[kRows], *column[kColumns];
  for (int r = 0; r < kRows; ++r) row[r] = a + (r < rows ? r : rows - 1) * ld;  // the last row again: its sums are not stored
  for (int c = 0; c < kColumns; ++c) column[c] = b + (c < columns ? c : columns - 1) * ld;
  Vector dots[kRows][kColumns] = {};
  for (index_t j = 0; j < depth; j += kLanes) {
    Vector y[kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) y[c] = *reinterpret_cast<const Unaligned*>(column[c] + j);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector x = *reinterpret_cast<const Unaligned*>(row[r] + j);
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) dots[r][c] += x * y[c];
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      sum[r * ld_sum + c] += sum_vector<T, kLanes>(reinterpret_cast<const T*>(&dots[r][c]));
    }
}

#define MC_TILE(name, target, bytes)                                                                                          \
  template <class T, int kRows, int kColumns>                                                                                 \
  __attribute__((aligned(64)))                                                                                                \
  target void name(index_t depth, const T* a, int rows, const T* b, int columns, index_t ld, T* sum, index_t ld_sum) {        \
    tile_dots<T, bytes, kRows, kColumns>(depth, a, rows, b, columns, ld, sum, ld_sum);                                        \
  }
MC_TILE(dots_baseline, , 16)
#ifdef MC_X86
MC_TILE(dots_avx2, MC_AVX2, 32)
MC_TILE(dots_avx512, MC_AVX512, 64)
#endif
#undef MC_TILE

/// A product of dots (tile_dots) and the size of its tile: rows of a and rows of b.
template <class T> struct DotTile {
  int rows, columns;
  void (*product)(index_t depth, const T* a, int rows, const T* b, int columns, index_t ld, T* sum, index_t ld_sum);
};

/// The tile of dot products for this processor that wastes the fewest rows of `height`.
template <class T> DotTile<T> dot_tile_for(index_t height) {
#ifdef MC_X86
  if (isa() == kAvx512 && wastes_less(height, 4, 5)) return {4, 6, dots_avx512<T, 4, 6>};
  if (isa() == kAvx512) return {5, 5, dots_avx512<T, 5, 5>};
  if (isa() == kAvx2) return {4, 3, dots_avx2<T, 4, 3>};
#endif
  return {4, 3, dots_baseline<T, 4, 3>};
}

}  // namespace cpu
}  // namespace mc
