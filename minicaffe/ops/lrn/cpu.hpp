// Local response normalisation on the CPU: y = x s^-beta with s = k + alpha sum of x^2 over a window.
//
// Both regions are one algorithm on tiles of rows. Across channels the rows of a tile are the channels, cut to a block of
// neighbouring pixels, and the window spans rows; within a channel a tile is a plane, and the window spans rows and columns.
// Every window is summed anew from data in the first-level cache: vector additions are cheap there, no rounding error
// travels along the channels as in a running sum, and a NaN reaches its own windows only.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {
namespace cpu {

struct LrnShape {
  index_t groups, rows, width;          // groups of `rows` rows, each `width` elements
  index_t block;                        // elements of a row in one tile; the last tile may have fewer
  index_t half_rows, half_columns;      // reach of the window
  double k, alpha, beta;                // alpha is divided by the window size already
  index_t tiles() const { return (width + block - 1) / block; }
};

template <class T> struct LrnTile {
  LrnShape shape;
  T k, alpha;
  index_t tiles;
  LrnTile(const LrnShape& s) : shape(s), k(T(s.k)), alpha(T(s.alpha)), tiles(s.tiles()) {}
  MC_HD index_t start(index_t tile) const {
    return tile / tiles * shape.rows * shape.width + tile % tiles * shape.block;
  }
  MC_HD index_t length(index_t tile) const { return min_(shape.block, shape.width - tile % tiles * shape.block); }

  /// s[i] = k + alpha sum of x^2 over the window of element i of a row; x points at the tile.
  MC_HD void scales(const T* x, index_t row, index_t n, T* s) const {
    for (index_t i = 0; i < n; ++i) s[i] = T(0);
    index_t end = min_(row + shape.half_rows + 1, shape.rows);
    for (index_t r = max_(row - shape.half_rows, index_t(0)); r < end; ++r)
      for (index_t shift = -shape.half_columns; shift <= shape.half_columns; ++shift) {
        const T* from = x + r * shape.width + shift;
        index_t last = min_(n, n - shift);
#pragma GCC ivdep
        for (index_t i = max_(index_t(0), -shift); i < last; ++i) s[i] += from[i] * from[i];
      }
#pragma GCC ivdep
    for (index_t i = 0; i < n; ++i) s[i] = k + alpha * s[i];
  }
};

template <class T, class Power> struct LrnForward {
  LrnTile<T> tile;
  Power power;
  const T* x;
  T* y;
  MC_HD void operator()(index_t index) const {
    index_t start = tile.start(index), n = tile.length(index);
    for (index_t row = 0; row < tile.shape.rows; ++row) {
      const T* from = x + start + row * tile.shape.width;
      T* to = y + start + row * tile.shape.width;
      tile.scales(x + start, row, n, to);
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) to[i] = from[i] * power(to[i]);
    }
  }
};

/// dx = dy s^-beta - 2 alpha beta x sum over the window of dy x s^(-beta-1). `ratio` holds those terms of one tile.
template <class T, class Power> struct LrnBackward {
  LrnTile<T> tile;
  Power power;
  T beta;
  const T *x, *dy;
  T *dx, *ratio;
  MC_HD void operator()(index_t index) const {
    index_t start = tile.start(index), n = tile.length(index), width = tile.shape.width, block = tile.shape.block;
    index_t half_columns = tile.shape.half_columns;
    for (index_t row = 0; row < tile.shape.rows; ++row) {
      index_t at = start + row * width;
      T* terms = ratio + row * block;
      tile.scales(x + start, row, n, terms);
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) {
        T direct = dy[at + i] * power(terms[i]);
        dx[at + i] = direct;
        terms[i] = direct * x[at + i] / terms[i];
      }
    }
    T factor = T(2) * tile.alpha * beta;
    for (index_t row = 0; row < tile.shape.rows; ++row) {
      index_t at = start + row * width, end = min_(row + tile.shape.half_rows + 1, tile.shape.rows);
      for (index_t r = max_(row - tile.shape.half_rows, index_t(0)); r < end; ++r)
        for (index_t shift = -half_columns; shift <= half_columns; ++shift) {
          const T* terms = ratio + r * block + shift;
          index_t last = min_(n, n - shift);
#pragma GCC ivdep
          for (index_t i = max_(index_t(0), -shift); i < last; ++i) dx[at + i] -= factor * x[at + i] * terms[i];
        }
    }
  }
};

template <class T, class Work> void with_power(const LrnShape& s, const Work& work) {
  if (s.beta == 0.75)
    work(LrnThreeQuarters<T>{});
  else
    work(LrnPower<T>{T(s.beta)});
}

inline index_t lrn_grain(const LrnShape& s) {
  return std::max<index_t>(1, kGrain / (16 * std::max<index_t>(1, s.rows * s.block)));
}

inline void lrn_forward(Threads threads, int dtype, const LrnShape& s, const void* x, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    with_power<T>(s, [&](auto power) {
      LrnForward<T, decltype(power)> one{LrnTile<T>(s), power, static_cast<const T*>(x), static_cast<T*>(y)};
      parallel(threads, s.groups * s.tiles(), lrn_grain(s), [&](int, index_t b, index_t e) { range(one, b, e); });
    });
  });
}

/// `scratch` holds one tile, rows x block elements, for each thread.
inline void lrn_backward(Threads threads, int dtype, const LrnShape& s, const void* x, const void* dy, void* dx, void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    with_power<T>(s, [&](auto power) {
      LrnBackward<T, decltype(power)> one{LrnTile<T>(s), power, T(s.beta), static_cast<const T*>(x),
                                          static_cast<const T*>(dy), static_cast<T*>(dx), nullptr};
      parallel(threads, s.groups * s.tiles(), lrn_grain(s), [&](int thread, index_t b, index_t e) {
        auto mine = one;
        mine.ratio = static_cast<T*>(scratch) + thread * s.rows * s.block;
        range(mine, b, e);
      });
    });
  });
}

}  // namespace cpu
}  // namespace mc
