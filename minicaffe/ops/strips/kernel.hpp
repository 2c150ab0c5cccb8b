// Copying strips and boxes, one 4-byte word a time, for the grid of a device, where sizes of the last axis are in words; the sum of
// repeated strips.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// Strip r of `strip` words lies at r times the pitch.
struct StripCopy {
  index_t strip, x_pitch, y_pitch;
  const unsigned* x;
  unsigned* y;
  MC_HD void operator()(index_t i) const {
    index_t r = i / strip, j = i - r * strip;
    y[r * y_pitch + j] = x[r * x_pitch + j];
  }
};

constexpr int kBoxAxes = 32;

/// The box of `size` that starts at `offset` in an array of shape `whole`; `back` writes to the array instead.
struct BoxCopy {
  int axes;
  bool back;
  index_t size[kBoxAxes], whole[kBoxAxes], offset[kBoxAxes];
  unsigned *box, *array;
  MC_HD void operator()(index_t i) const {
    index_t rest = i, position = 0, pitch = 1;
    for (int a = axes - 1; a >= 0; --a) {
      index_t outer = rest / size[a];
      position += (offset[a] + rest - outer * size[a]) * pitch;
      rest = outer;
      pitch *= whole[a];
    }
    if (back) array[position] = box[i];
    else box[i] = array[position];
  }
};

/// The gradient of Tile: dx[o][j] = the sum over t of dy[o][t][j], for strips of `inner` elements and `tiles` copies
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
