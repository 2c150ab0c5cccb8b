// Gradient of a blob that was repeated along an axis (Caffe: Tile).
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// dx[o][j] = the sum over t of dy[o][t][j], for rows of `inner` elements and `tiles` copies
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

}  // namespace mc
