// Bilinear interpolation (Interp and Resize of forks): each pixel of the top is a sum of up to four pixels of the bottom. A table
// of each axis has their positions and weights.
//
// Images are [images, height, width, channels]: in plain order the planes are the images, with one channel.
#pragma once
#include "minicaffe/kernels/types.hpp"
#include "minicaffe/kernels/vector.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {

/// Pixel i of the top has first_weight[i] of pixel first[i] of the bottom and next_weight[i] of the one after it, which is not read
/// if this is 0. Pixel j of the bottom is in pixels begin[j] to end[j] - 1 of the top.
template <class T> struct AxisTable {
  const T *first, *first_weight, *next_weight, *begin, *end;
  MC_HD AxisTable(const T* table, index_t size, index_t top_size)
      : first(table), first_weight(table + top_size), next_weight(table + 2 * top_size), begin(table + 3 * top_size),
        end(table + 3 * top_size + size) {}
  /// The weight of pixel j of the bottom in pixel i of the top, which has it or the one before it as its first.
  MC_HD T weight(index_t i, index_t j) const { return index_t(first[i]) == j ? first_weight[i] : next_weight[i]; }
};

struct ResizeShape {
  index_t channels, height, width, top_height, top_width;
};

// e.g. BilinearForward<T, 1>
template <class X, int kPack> struct BilinearForward {
  using T = typename Element<X>::Compute;
  using Values = Few<X, kPack>;
  ResizeShape s;
  const T *rows, *columns;  // tables
  const X* x;
  X* y;
  MC_HD void operator()(index_t i) const {
    const PoolPlace<kPack> to(i, s.top_height, s.top_width, s.channels);
    const AxisTable<T> row(rows, s.height, s.top_height), column(columns, s.width, s.top_width);
    const X* image = x + to.image * s.height * s.width * s.channels + to.channel;
    const index_t top = index_t(row.first[to.h]), left = index_t(column.first[to.w]);
    T sum[kPack] = {};
    for (index_t h = 0; h < 2; ++h)
      for (index_t w = 0; w < 2; ++w) {
        const T by_row = h ? row.next_weight[to.h] : row.first_weight[to.h];
        const T by_column = w ? column.next_weight[to.w] : column.first_weight[to.w];
        if (by_row == T(0) || by_column == T(0)) continue;
        const Values from = *reinterpret_cast<const Values*>(image + ((top + h) * s.width + left + w) * s.channels);
        for (int l = 0; l < kPack; ++l) sum[l] += by_row * (by_column * T(from[l]));
      }
    Values result;
    for (int l = 0; l < kPack; ++l) result[l] = X(sum[l]);
    *reinterpret_cast<Values*>(y + to.at) = result;
  }
};

// e.g. BilinearBackward<T, 1>
template <class X, int kPack> struct BilinearBackward {
  using T = typename Element<X>::Compute;
  using Values = Few<X, kPack>;
  ResizeShape s;
  const T *rows, *columns;
  const X* dy;
  X* dx;
  MC_HD void operator()(index_t i) const {
    const PoolPlace<kPack> to(i, s.height, s.width, s.channels);
    const AxisTable<T> row(rows, s.height, s.top_height), column(columns, s.width, s.top_width);
    const X* image = dy + to.image * s.top_height * s.top_width * s.channels + to.channel;
    T sum[kPack] = {};
    for (index_t h = index_t(row.begin[to.h]); h < index_t(row.end[to.h]); ++h) {
      const T by_row = row.weight(h, to.h);
      for (index_t w = index_t(column.begin[to.w]); w < index_t(column.end[to.w]); ++w) {
        const T by_column = column.weight(w, to.w);
        const Values from = *reinterpret_cast<const Values*>(image + (h * s.top_width + w) * s.channels);
        for (int l = 0; l < kPack; ++l) sum[l] += by_row * (by_column * T(from[l]));
      }
    }
    Values result;
    for (int l = 0; l < kPack; ++l) result[l] = X(sum[l]);
    *reinterpret_cast<Values*>(dx + to.at) = result;
  }
};

}  // namespace mc
