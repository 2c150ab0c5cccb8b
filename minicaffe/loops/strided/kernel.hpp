// Tensors whose elements lie in strides: slices, transposed views, values repeated by a stride of 0.
#pragma once
#include "minicaffe/kernels/divider.hpp"
#include "minicaffe/kernels/grid.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

constexpr int kMaxStridedAxes = 8;  // after neighbouring axes have been joined (loops/strided/caffe.hpp)

MC_HD index_t signed_(unsigned x) { return int(x); }  // an offset modulo 2^32 or, below, 2^64 as a signed number
MC_HD index_t signed_(unsigned long long x) { return index_t(x); }

constexpr int kAnyAxes = -1;

/// From a linear index to the offset of that element in each of N tensors of one shape. Index is unsigned where all indices and
/// offsets fit in 31 bits, else unsigned long long; a negative stride is one modulo 2^32 or 2^64. Axes is their number where the
/// compiler is to know it: one axis then costs no division, two cost one (THC's OffsetInfo); kAnyAxes: the member `axes` is it.
/// Kernels that a program writes, compiled at run time, fix Axes, and get the members as bytes in this order.
template <class Index, int N, int Axes = kAnyAxes> struct OffsetInfo {
  static constexpr int kRoom = Axes == kAnyAxes ? kMaxStridedAxes : Axes;
  int axes;  // at least 1, the last moves fastest
  DividerArray<Index, kRoom> size;
  Index stride[kRoom][N];
  /// Set the offset of element i in each tensor.
  MC_HD void offsets(index_t i, index_t (&offset)[N]) const {
    Index rest = Index(i), sum[N];
    for (int t = 0; t < N; ++t) sum[t] = 0;
    for (int a = (Axes == kAnyAxes ? axes : Axes) - 1; a > 0; --a) {
      IntDivider<Index> divider = size.at(a);
      Index quotient = divider.quotient(rest), position = rest - quotient * divider.divisor;
      for (int t = 0; t < N; ++t) sum[t] += position * stride[a][t];
      rest = quotient;
    }
    for (int t = 0; t < N; ++t) offset[t] = signed_(sum[t] + rest * stride[0][t]);
  }
};

/// y = x at index i of the shape, for any strides and types. Tensor 0 of the offsets is y, tensor 1 is x.
// e.g. StridedCopy<T, T, unsigned>
template <class X, class Y, class Index> struct StridedCopy {
  OffsetInfo<Index, 2> info;
  const X* x;
  Y* y;
  MC_HD void operator()(index_t i) const {
    index_t offset[2];
    info.offsets(i, offset);
    y[offset[0]] = Y(x[offset[1]]);
  }
};

/// The gradient of Tile: dx[o][j] = the sum over t of dy[o][t][j], for rows of `inner` elements and `tiles` copies
template <class T> struct TileBackward {
  index_t inner, tiles;
  const T* dy;
  T* dx;
  MC_HD void operator()(index_t i) const {
    index_t o = i / inner, j = i - o * inner;
    T sum = T(0);
    for (index_t t = 0; t < tiles; ++t) sum += dy[(o * tiles + t) * inner + j];
    dx[i] = sum;
  }
};

constexpr int kTile = 32;

/// As StridedCopy, where y is contiguous along axis `p` and x along axis `q` (copy_tiles in caffe.hpp). A block copies a tile of
/// kTile x kTile elements: it reads x along q and transposes it through shared memory, so that all global accesses are coalesced.
template <class X, class Y> struct TiledCopy {
  static constexpr int kThreads = 256;
  static constexpr bool kBarriers = true;
  struct Shared {
    X tile[kTile][kTile + 1];  // an odd pitch, so that the elements of a column are in different banks
  };
  unsigned p_size, q_size;
  IntDivider<unsigned> p_tiles, q_tiles;
  OffsetInfo<unsigned, 2> others;  // the other axes
  index_t p_stride[2], q_stride[2];  // of y, of x
  const X* x;
  Y* y;

  MC_DEVICE void operator()(const Thread& t, Shared& room) const {
    const unsigned rest = p_tiles.quotient(t.block()), other = q_tiles.quotient(rest);
    const unsigned p0 = (t.block() - rest * p_tiles.divisor) * kTile, q0 = (rest - other * q_tiles.divisor) * kTile;
    const unsigned column = t.thread() % kTile, first = t.thread() / kTile;
    constexpr unsigned kRows = kThreads / kTile;
    index_t start[2];
    others.offsets(other, start);
    for (unsigned row = first; row < kTile && q0 + column < q_size; row += kRows)
      if (p0 + row < p_size) room.tile[row][column] = x[start[1] + (p0 + row) * p_stride[1] + (q0 + column) * q_stride[1]];
    t.barrier();
    for (unsigned row = first; row < kTile && q0 + row < q_size; row += kRows)
      if (p0 + column < p_size)
        y[start[0] + (p0 + column) * p_stride[0] + (q0 + row) * q_stride[0]] = Y(room.tile[column][row]);
  }
};

}  // namespace mc
