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
/// if this is 0. Pixel j of the bottom is in pixels begin[j] to end[j] - 1 of the top. `back`: the top is read for the bottom.
template <class T, bool back> struct AxisTable {
  const T *first, *first_weight, *next_weight, *begin, *end;
  MC_HD AxisTable(const T* table, index_t size, index_t top_size)
      : first(table), first_weight(table + top_size), next_weight(table + 2 * top_size), begin(table + 3 * top_size),
        end(table + 3 * top_size + size) {}
  /// The first pixel, and how many, that pixel `to` is computed from.
  MC_HD index_t from(index_t to) const { return index_t(back ? begin[to] : first[to]); }
  MC_HD index_t count(index_t to) const { return back ? index_t(end[to]) - index_t(begin[to]) : 2; }
  /// The weight of pixel number k of these.
  MC_HD T weight(index_t to, index_t k) const {
    const index_t i = back ? from(to) + k : to;
    return (back ? index_t(first[i]) == to : k == 0) ? first_weight[i] : next_weight[i];
  }
};

struct ResizeShape {
  index_t channels, height, width, top_height, top_width;
};

/// y from x, or with `back` the gradient of x from that of y.
// e.g. Bilinear<T, 1, false>
template <class X, int kPack, bool back> struct Bilinear {
  using T = typename Element<X>::Compute;
  using Values = Few<X, kPack>;
  ResizeShape s;
  const T *rows, *columns;  // tables
  const X* source;
  X* target;
  MC_HD void operator()(index_t i) const {
    const PoolPlace<kPack> to(i, back ? s.height : s.top_height, back ? s.width : s.top_width, s.channels);
    const index_t height = back ? s.top_height : s.height, width = back ? s.top_width : s.width;
    const AxisTable<T, back> row(rows, s.height, s.top_height), column(columns, s.width, s.top_width);
    const X* image = source + to.image * height * width * s.channels + to.channel;
    const index_t top = row.from(to.h), left = column.from(to.w);
    T sum[kPack] = {};
    for (index_t h = 0; h < row.count(to.h); ++h) {
      const T by_row = row.weight(to.h, h);
      for (index_t w = 0; w < column.count(to.w); ++w) {
        const T by_column = column.weight(to.w, w);
        if (!back && (by_row == T(0) || by_column == T(0))) continue;  // it may lie outside of the bottom
        const Values from = *reinterpret_cast<const Values*>(image + ((top + h) * width + left + w) * s.channels);
        for (int l = 0; l < kPack; ++l) sum[l] += by_row * (by_column * T(from[l]));
      }
    }
    Values result;
    for (int l = 0; l < kPack; ++l) result[l] = X(sum[l]);
    *reinterpret_cast<Values*>(target + to.at) = result;
  }
};

}  // namespace mc
