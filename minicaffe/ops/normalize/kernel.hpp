// Dividing by the Euclidean norm over channels (SSD's Normalize; Liu et al., "ParseNet", 2015). A blob is [outer, channels,
// inner]; a position is one index of outer and one of inner.
//
// A functor takes up to kWidth neighbours of a row at once: on the CPU, where their loop vectorises and one division by the
// row's length serves all of them, many; on a device one, so that neighbouring threads read neighbouring elements.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// Rows of `inner` elements in pieces of kWidth.
struct Pieces {
  index_t channels, inner, per_row;
  bool whole;   // one norm for all positions of an index of outer, else one for each position
  bool shared;  // one scale for all channels
};

/// norm[position] = the sum over channels of a b s
// e.g. PositionDots<T, 1>
template <class T, int kWidth> struct PositionDots {
  Pieces p;
  const T *a, *b, *s;  // s may be null: 1
  T* out;
  MC_HD void operator()(index_t i) const {
    index_t outer = i / p.per_row, begin = (i - outer * p.per_row) * kWidth, n = min_<index_t>(kWidth, p.inner - begin);
    T sum[kWidth] = {};
    for (index_t c = 0; c < p.channels; ++c) {
      const index_t at = (outer * p.channels + c) * p.inner + begin;
      const T factor = s ? s[p.shared ? 0 : c] : T(1);
      for (index_t k = 0; k < n; ++k) sum[k] += a[at + k] * b[at + k] * factor;
    }
    for (index_t k = 0; k < n; ++k) out[outer * p.inner + begin + k] = sum[k];
  }
};

/// sqrt(eps + x)
template <class T> struct RootOfSum {
  T eps;
  MC_HD T operator()(T x) const { return sqrt_(eps + x); }
};

/// unit = x / norm, y = unit s
// e.g. UnitForward<T, 1>
template <class T, int kWidth> struct UnitForward {
  Pieces p;
  const T *x, *norm, *s;
  T *unit, *y;
  MC_HD void operator()(index_t i) const {
    index_t row = i / p.per_row, begin = (i - row * p.per_row) * kWidth, n = min_<index_t>(kWidth, p.inner - begin);
    index_t outer = row / p.channels, at = row * p.inner + begin;
    const T factor = s[p.shared ? 0 : row - outer * p.channels];
    const T* of = norm + (p.whole ? outer : outer * p.inner + begin);
    for (index_t k = 0; k < n; ++k) {
      T u = x[at + k] / of[p.whole ? 0 : k];
      unit[at + k] = u;
      y[at + k] = u * factor;
    }
  }
};

/// dx = (s dy - unit dot) / norm, where dot is the sum of unit s dy over all that norm covers
// e.g. UnitBackward<T, 1>
template <class T, int kWidth> struct UnitBackward {
  Pieces p;
  const T *unit, *dy, *norm, *dot, *s;
  T* dx;
  MC_HD void operator()(index_t i) const {
    index_t row = i / p.per_row, begin = (i - row * p.per_row) * kWidth, n = min_<index_t>(kWidth, p.inner - begin);
    index_t outer = row / p.channels, at = row * p.inner + begin;
    const T factor = s[p.shared ? 0 : row - outer * p.channels];
    const index_t of = p.whole ? outer : outer * p.inner + begin;
    for (index_t k = 0; k < n; ++k) {
      index_t position = of + (p.whole ? 0 : k);
      dx[at + k] = (factor * dy[at + k] - unit[at + k] * dot[position]) / norm[position];
    }
  }
};

}  // namespace mc
