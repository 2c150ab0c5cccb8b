// Local response normalisation: shape, s^-beta, and the kernels of the device (the CPU's loops: ops/lrn/caffe.hpp).
// The functor is chosen by beta, since a general power costs as much as the rest of the layer many times over.
#pragma once
#include "minicaffe/kernels/reduce.hpp"
#include "minicaffe/kernels/types.hpp"

namespace mc {

/// beta 0.75, the value of nearly every net: s^(3/4) = sqrt(s) sqrt(sqrt(s)).
template <class T> struct LrnThreeQuarters {
  MC_HD T operator()(T s) const {
    T root = sqrt_(s);
    return T(1) / (root * sqrt_(root));
  }
};

template <class T> struct LrnPower {  // any beta
  T beta;
  MC_HD T operator()(T s) const { return pow_(s, -beta); }
};

// Neighbouring rows for one thread of the device: the windows of all but the first are in its cache already.
constexpr index_t kLrnRows = 8;

/// A group of rows of `width` elements, and how far the window around an element reaches. Across channels a group is an image, a
/// row one of its channels, half_columns 0 (with channels last: a group is one row, the channels of a pixel); within a channel a
/// group is a plane. An item is one column of kLrnRows rows.
struct LrnWindow {
  index_t rows, width, half_rows, half_columns;  // half_: the elements of the window on each side
  MC_HD index_t chunks() const { return (rows + kLrnRows - 1) / kLrnRows; }  // of kLrnRows rows
  MC_HD index_t items() const { return width * chunks(); }  // of a group

  /// work.at(start of the group, row, column) for the elements of an item.
  template <class Work> MC_HD void visit(index_t item, const Work& work) const {
    index_t rest = item / width, column = item - rest * width, group = rest / chunks(), chunk = rest - group * chunks();
    index_t end = min_(rows, (chunk + 1) * kLrnRows);
    for (index_t row = chunk * kLrnRows; row < end; ++row) work.at(group * rows * width, row, column);
  }

  /// The sum of term(i) over the window around an element of the group that starts at `start`; it is cut at the group's edges.
  template <class T, class Term> MC_HD T sum(const Term& term, index_t start, index_t row, index_t column) const {
    T total = T(0);
    index_t last_row = min_(row + half_rows, rows - 1), last = min_(column + half_columns, width - 1);
    for (index_t r = max_(row - half_rows, index_t(0)); r <= last_row; ++r)
      for (index_t c = max_(column - half_columns, index_t(0)); c <= last; ++c) total += term(start + r * width + c);
    return total;
  }
};

/// A tensor as groups of rows, and the numbers of the formula.
struct LrnShape : LrnWindow {
  index_t groups;
  index_t block;          // elements of a row in one tile of the CPU; the last tile may have fewer
  double k, alpha, beta;  // alpha is divided by the window size already
};

/// x^2
// e.g. LrnSquare<T, T>
template <class X, class T> struct LrnSquare {
  const X* x;
  MC_HD T operator()(index_t i) const { return T(x[i]) * T(x[i]); }
};

/// s = k + alpha sum of x^2 over the window, stored in `scale` for backward, and y = x s^-beta, for an item
/// X are the elements as they are stored, T those that are computed with; Power is s^-beta.
// e.g. LrnForwardAt<T, T, LrnThreeQuarters<T>>
template <class X, class T, class Power> struct LrnForwardAt {
  LrnWindow window;
  Power power;
  T k, alpha;
  const X* x;
  X* y;
  T* scale;
  MC_HD void operator()(index_t item) const { window.visit(item, *this); }  // which calls `at` for each element
  MC_HD void at(index_t start, index_t row, index_t column) const {
    index_t i = start + row * window.width + column;
    T s = k + alpha * window.sum<T>(LrnSquare<X, T>{x}, start, row, column);
    scale[i] = s;
    y[i] = X(T(x[i]) * power(s));
  }
};

/// dy y / s, the share of an element in the gradients of its neighbours
// e.g. LrnRatioTerm<T, T>
template <class X, class T> struct LrnRatioTerm {
  const X *y, *dy;
  const T* scale;
  MC_HD T operator()(index_t i) const { return T(dy[i]) * T(y[i]) / scale[i]; }
};

/// dx = dy s^-beta - factor x sum of dy y / s over the window, factor = 2 alpha beta, for an item
// e.g. LrnBackwardAt<T, T, LrnThreeQuarters<T>>
template <class X, class T, class Power> struct LrnBackwardAt {
  LrnWindow window;
  Power power;
  T factor;
  const X* x;
  LrnRatioTerm<X, T> ratio;
  X* dx;
  MC_HD void operator()(index_t item) const { window.visit(item, *this); }
  MC_HD void at(index_t start, index_t row, index_t column) const {
    index_t i = start + row * window.width + column;
    dx[i] = X(T(ratio.dy[i]) * power(ratio.scale[i]) - factor * T(x[i]) * window.sum<T>(ratio, start, row, column));
  }
};

}  // namespace mc
