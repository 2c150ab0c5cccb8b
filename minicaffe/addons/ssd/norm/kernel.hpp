// Dividing by the Euclidean norm over channels (SSD's Normalize; Liu et al., "ParseNet", 2015). A blob is [outer, channels,
// inner], or with channels last, on a device, [outer, inner, channels]; a position is one index of outer and one of inner.
//
// A functor computes up to kWidth neighbours of a row at once. On the CPU these are many, so that their loop vectorises and one
// division by the row's length serves all of them. On a device it is one in plain order, so that neighbouring threads read
// neighbouring elements, and with channels last the channels of 16 bytes.
#pragma once
#include "minicaffe/kernels/types.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

/// Rows of neighbouring elements in pieces of kWidth: rows are of a channel, or with channels last of a position.
struct Pieces {
  index_t channels, inner, per_row;
  bool whole;   // one norm for all positions of an index of outer, else one for each position
  bool shared;  // one scale for all channels
};

/// A piece of a row: where its first element is, and the norm and the scale of that.
template <int kWidth, bool kLast> struct Piece {
  index_t at, count, norm, scale;
  bool whole, shared;
  MC_HD Piece(const Pieces& p, index_t i) : whole(p.whole), shared(p.shared) {
    const index_t row = i / p.per_row, begin = (i - row * p.per_row) * kWidth;
    if (kLast) {
      at = row * p.channels + begin, count = kWidth;
      norm = whole ? row / p.inner : row, scale = shared ? 0 : begin;
    } else {
      const index_t outer = row / p.channels;
      at = row * p.inner + begin, count = min_<index_t>(kWidth, p.inner - begin);
      norm = whole ? outer : outer * p.inner + begin, scale = shared ? 0 : row - outer * p.channels;
    }
  }
  MC_HD index_t norm_of(index_t k) const { return norm + (kLast || whole ? 0 : k); }
  template <class T> MC_HD T scale_of(index_t k, const T* s, T first) const { return kLast && !shared ? s[scale + k] : first; }

  // The elements of the piece: with channels last they are read and written at once, in plain order one by one.
  template <class X> MC_HD auto read(const X* x) const {
    if constexpr (kLast) return *reinterpret_cast<const Few<X, kWidth>*>(x + at);
    else return x + at;
  }
  template <class X> MC_HD auto begin(X* x) const {
    if constexpr (kLast) return Few<X, kWidth>();
    else return x + at;
  }
  template <class X, class Values> MC_HD void write(X* x, const Values& values) const {
    if constexpr (kLast) *reinterpret_cast<Few<X, kWidth>*>(x + at) = values;
  }
};

/// norm[position] = the sum over channels of a b s, in plain order
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

// e.g. NormTerm<T>
/// Term i of the sum of a b s of a norm, with channels last; `elements` below is the number of terms of one norm.
template <class X> struct NormTerm {
  using T = typename Element<X>::Compute;
  index_t begin, channels;
  bool shared;
  const X *a, *b;
  const T* s;  // may be null: 1
  MC_HD T operator()(index_t i) const {
    const T factor = s ? s[shared ? 0 : unsigned(i - begin) % unsigned(channels)] : T(1);
    return T(a[i]) * T(b[i]) * factor;
  }
};
template <class X> struct NormTerms {
  NormTerm<X> of;
  index_t elements;
  MC_HD NormTerm<X> at(index_t k) const { return {k * elements, of.channels, of.shared, of.a, of.b, of.s}; }
};

/// sqrt(eps + x)
template <class T> struct RootOfSum {
  T eps;
  MC_HD T operator()(T x) const { return sqrt_(eps + x); }
};

/// unit = x / norm, y = unit s
// e.g. UnitForward<T, 1, false>
template <class X, int kWidth, bool kLast> struct UnitForward {
  using T = typename Element<X>::Compute;
  Pieces pieces;
  const X* x;
  const T *norm, *s;
  X *unit, *y;
  MC_HD void operator()(index_t i) const {
    const Piece<kWidth, kLast> p(pieces, i);
    const auto from = p.read(x);
    auto units = p.begin(unit), to = p.begin(y);
    const T factor = s[p.scale];
    const T* of = norm;
    for (index_t k = 0; k < p.count; ++k) {
      T u = from[k] / of[p.norm_of(k)];
      units[k] = X(u);
      to[k] = X(u * p.scale_of(k, s, factor));
    }
    p.write(unit, units), p.write(y, to);
  }
};

/// dx = (s dy - unit dot) / norm, where dot is the sum of unit s dy over all that norm covers
// e.g. UnitBackward<T, 1, false>
template <class X, int kWidth, bool kLast> struct UnitBackward {
  using T = typename Element<X>::Compute;
  Pieces pieces;
  const X *unit, *dy;
  const T *norm, *dot, *s;
  X* dx;
  MC_HD void operator()(index_t i) const {
    const Piece<kWidth, kLast> p(pieces, i);
    const auto units = p.read(unit), from = p.read(dy);
    auto to = p.begin(dx);
    const T factor = s[p.scale];
    for (index_t k = 0; k < p.count; ++k) {
      const index_t position = p.norm_of(k);
      to[k] = X((p.scale_of(k, s, factor) * from[k] - units[k] * dot[position]) / norm[position]);
    }
    p.write(dx, to);
  }
};

}  // namespace mc
