// Local response normalisation by engine CAFFE. The formula is ops/lrn/plain.hpp.
//
// Forward by the tiles of the CPU takes a 36th of the formula's time across channels with beta 0.75 (LrnThreeQuarters), a 5th with
// others (LrnPower), in one thread with AVX-512.
//
// A device runs ops/lrn/kernel.hpp and keeps s for backward. The CPU computes s again in backward, which takes less time than
// storing it. There both regions are one algorithm on tiles of rows. Across channels the rows of a tile are the channels, cut to a
// block of neighbouring pixels, and the window spans rows; within a channel a tile is a plane, and the window spans rows and
// columns. Every window is summed separately from data in the first-level cache: vector additions are cheap there, rounding errors
// do not accumulate along the channels as in a running sum, and a NaN affects only its own windows.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {

/// The tiles of the CPU, numbered over all groups, and the scales s of a row of one.
template <class T> struct LrnTile {
  LrnWindow window;
  index_t block, tiles;  // tiles of a group
  T k, alpha;
  LrnTile(const LrnShape& s)
      : window(s), block(s.block), tiles((window.width + block - 1) / block), k(T(s.k)), alpha(T(s.alpha)) {}
  MC_HD index_t start(index_t tile) const { return tile / tiles * window.rows * window.width + tile % tiles * block; }  // in x
  MC_HD index_t length(index_t tile) const { return min_(block, window.width - tile % tiles * block); }  // elements of a row

  /// s[i] = k + alpha sum of x^2 over the window of element i of a row, of n elements in the tile; x points at the tile.
  MC_HD void scales(const T* x, index_t row, index_t n, T* s) const {
    for (index_t i = 0; i < n; ++i) s[i] = T(0);
    index_t end = min_(row + window.half_rows + 1, window.rows);
    for (index_t r = max_(row - window.half_rows, index_t(0)); r < end; ++r)
      for (index_t shift = -window.half_columns; shift <= window.half_columns; ++shift) {
        const T* from = x + r * window.width + shift;
        index_t last = min_(n, n - shift);
#pragma GCC ivdep
        for (index_t i = max_(index_t(0), -shift); i < last; ++i) s[i] += from[i] * from[i];
      }
#pragma GCC ivdep
    for (index_t i = 0; i < n; ++i) s[i] = k + alpha * s[i];
  }
};

/// y of one tile; y first gets s.
template <class T, class Power> struct LrnForwardTile {
  LrnTile<T> tile;
  Power power;
  const T* x;
  T* y;
  MC_HD void operator()(index_t index) const {
    index_t start = tile.start(index), n = tile.length(index);
    for (index_t row = 0; row < tile.window.rows; ++row) {
      const T* from = x + start + row * tile.window.width;
      T* to = y + start + row * tile.window.width;
      tile.scales(x + start, row, n, to);
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) to[i] = from[i] * power(to[i]);
    }
  }
};

/// dx = dy s^-beta - 2 alpha beta x sum over the window of dy x s^(-beta-1). `ratio` holds those terms of one tile.
template <class T, class Power> struct LrnBackwardTile {
  LrnTile<T> tile;
  Power power;
  T beta;
  const T *x, *dy;
  T *dx, *ratio;
  MC_HD void operator()(index_t index) const {
    index_t start = tile.start(index), n = tile.length(index), width = tile.window.width, block = tile.block;
    index_t half_columns = tile.window.half_columns;
    for (index_t row = 0; row < tile.window.rows; ++row) {
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
    for (index_t row = 0; row < tile.window.rows; ++row) {
      index_t at = start + row * width, end = min_(row + tile.window.half_rows + 1, tile.window.rows);
      for (index_t r = max_(row - tile.window.half_rows, index_t(0)); r < end; ++r)
        for (index_t shift = -half_columns; shift <= half_columns; ++shift) {
          const T* terms = ratio + r * block + shift;
          index_t last = min_(n, n - shift);
#pragma GCC ivdep
          for (index_t i = max_(index_t(0), -shift); i < last; ++i) dx[at + i] -= factor * x[at + i] * terms[i];
        }
    }
  }
};

/// work(X(), power) with the element type of `dtype` and the functor for beta.
template <class Work> void with_power(int dtype, double beta, const Work& work) {
  dispatch_layout(dtype, [&](auto type) {
    using T = typename Element<decltype(type)>::Compute;
    if (beta == 0.75)
      work(type, LrnThreeQuarters<T>{});
    else
      work(type, LrnPower<T>{T(beta)});
  });
}

/// work(thread, begin, end) for the tiles of all groups, on threads of the CPU.
template <class T, class Work> void each_tile(const Context& on, const LrnShape& s, const LrnTile<T>& tile, const Work& work) {
  index_t grain = cpu::kGrain / (16 * std::max<index_t>(1, s.rows * s.block));
  cpu::parallel(on.threads, s.groups * tile.tiles, grain, work);
}

/// The number of elements of scratch memory that backward needs: on the CPU one tile of rows x block elements a thread.
inline index_t lrn_scratch(const Context& on, const LrnShape& s) { return on.stream ? 0 : on.threads * s.rows * s.block; }

/// The device stores s in `scale`, of the shape of x, for backward; the CPU does not use it.
inline void lrn_forward(const Context& on, int dtype, const LrnShape& s, const void* x_, void* y_, void* scale) {
  with_power(dtype, s.beta, [&](auto type, auto power) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    auto x = static_cast<const X*>(x_);
    auto y = static_cast<X*>(y_);
    if (on.stream)
      return cuda::for_each(*on.stream, s.groups * s.items(), LrnForwardAt<X, T, decltype(power)>{
          s, power, T(s.k), T(s.alpha), x, y, static_cast<T*>(scale)});
    if constexpr (std::is_same_v<X, T>) {
      LrnForwardTile<T, decltype(power)> one{LrnTile<T>(s), power, x, y};
      each_tile(on, s, one.tile, [&](int, index_t begin, index_t end) { cpu::range(one, begin, end); });
    }
  });
}

/// The device reads y and `scale` from forward, the CPU neither.
inline void lrn_backward(const Context& on, int dtype, const LrnShape& s, const void* x_, const void* y, const void* scale,
                         const void* dy_, void* dx_, void* scratch) {
  with_power(dtype, s.beta, [&](auto type, auto power) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    auto x = static_cast<const X*>(x_), dy = static_cast<const X*>(dy_);
    auto dx = static_cast<X*>(dx_);
    if (on.stream)
      return cuda::for_each(*on.stream, s.groups * s.items(), LrnBackwardAt<X, T, decltype(power)>{
          s, power, T(2) * T(s.alpha) * T(s.beta), x, {static_cast<const X*>(y), dy, static_cast<const T*>(scale)}, dx});
    if constexpr (std::is_same_v<X, T>) {
      LrnBackwardTile<T, decltype(power)> one{LrnTile<T>(s), power, T(s.beta), x, dy, dx, nullptr};
      each_tile(on, s, one.tile, [&](int thread, index_t begin, index_t end) {
        auto mine = one;
        mine.ratio = static_cast<T*>(scratch) + thread * s.rows * s.block;
        cpu::range(mine, begin, end);
      });
    }
  });
}

}  // namespace mc
