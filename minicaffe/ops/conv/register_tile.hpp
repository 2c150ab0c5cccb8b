// The small matrix product that convolutions are made of: a tile of C whose sums stay in vector registers.
//
// C = A B. A gives single numbers, read with any two strides. B is packed in panels of exactly one tile's columns: row k of
// a panel lies right behind row k - 1. So the product needs neither a copy of A nor, thanks to packing straight from the
// image (ops/conv/caffe.hpp), a column matrix in memory. GCC's vector types make one source serve every instruction set.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

constexpr int kMaxTileRows = 10, kMaxTileColumns = 32;

/// c[r][j] = start[r] + sum over k < depth of a[r * a_row + k * a_step] * b[k][j]; without `start`, what c holds is added to.
/// All kRows rows of a are read, only the first `rows` of c are touched.
template <class T, int kBytes, int kRows>
MC_HD void tile_product(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, const T* start, T* c, index_t ldc,
                        int rows) {
  typedef T Vector __attribute__((vector_size(kBytes)));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  constexpr int kLanes = kBytes / sizeof(T);
  Vector sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (start) {
      sum[r][0] = sum[r][1] = Vector{} + start[r];
    } else if (r < rows) {
      sum[r][0] = *reinterpret_cast<const Unaligned*>(c + r * ldc);
      sum[r][1] = *reinterpret_cast<const Unaligned*>(c + r * ldc + kLanes);
    } else {
      sum[r][0] = sum[r][1] = Vector{};
    }
  }
  for (index_t k = 0; k < depth; ++k) {
    Vector b0 = *reinterpret_cast<const Unaligned*>(b), b1 = *reinterpret_cast<const Unaligned*>(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      T x = a[r * a_row];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
    a += a_step;
    b += 2 * kLanes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    if (r < rows) {
      *reinterpret_cast<Unaligned*>(c + r * ldc) = sum[r][0];
      *reinterpret_cast<Unaligned*>(c + r * ldc + kLanes) = sum[r][1];
    }
}

// On a boundary of a cache line: 16 bytes beside one, these loops take 5 to 13% longer (measured).
#define MC_TILE(name, target, bytes)                                                                                        \
  template <class T, int kRows>                                                                                             \
  __attribute__((aligned(64)))                                                                                              \
  target void name(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, const T* start, T* c, index_t ldc, \
                   int rows) {                                                                                              \
    tile_product<T, bytes, kRows>(depth, a, a_row, a_step, b, start, c, ldc, rows);                                         \
  }
MC_TILE(tile_baseline, , 16)
#ifdef MC_X86
MC_TILE(tile_avx2, MC_AVX2, 32)
MC_TILE(tile_avx512, MC_AVX512, 64)
#endif
#undef MC_TILE

/// A tile product and the size of its tile.
template <class T> struct Tile {
  int rows, columns;
  void (*product)(index_t depth, const T* a, index_t a_row, index_t a_step, const T* b, const T* start, T* c, index_t ldc,
                  int rows);
};

/// The tile for this processor that wastes the fewest rows on a matrix A of `height` rows. Two vectors a row: with as many rows
/// as the registers hold, loads stay behind the multiplications.
template <class T> Tile<T> tile_for(index_t height) {
  auto better = [height](int rows, int than) { return (height + rows - 1) / rows * rows < (height + than - 1) / than * than; };
#ifdef MC_X86
  if (isa() == kAvx512) {
    Tile<T> tile{10, int(128 / sizeof(T)), tile_avx512<T, 10>};
    if (better(8, tile.rows)) tile = {8, tile.columns, tile_avx512<T, 8>};
    return tile;
  }
  if (isa() == kAvx2) {
    Tile<T> tile{6, int(64 / sizeof(T)), tile_avx2<T, 6>};
    if (better(5, tile.rows)) tile = {5, tile.columns, tile_avx2<T, 5>};
    return tile;
  }
#endif
  return {4, int(32 / sizeof(T)), tile_baseline<T, 4>};
}

}  // namespace cpu
}  // namespace mc
