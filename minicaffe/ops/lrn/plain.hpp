// Local response normalisation as its formula (Caffe lrn_layer.cpp). The faster ways are in ops/lrn/caffe.hpp.
#pragma once
#include "minicaffe/ops/array.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc::plain {

/// The sum of term(j) over the elements j of the window around element i.
template <class Term> double window_sum(const LrnShape& s, index_t i, const Term& term) {
  const index_t column = i % s.width, row = i / s.width % s.rows, start = i - row * s.width - column;
  return s.sum<double>(term, start, row, column);
}

/// s = k + alpha sum of x^2 over the window around element i
inline double lrn_scale(const LrnShape& s, Array x, index_t i) {
  return s.k + s.alpha * window_sum(s, i, [=](index_t j) { return x[j] * x[j]; });
}

/// y = x s^-beta
inline void lrn_forward(const LrnShape& s, Array x, Array y) {
  for (index_t i = 0; i < s.groups * s.rows * s.width; ++i) y[i] = x[i] * std::pow(lrn_scale(s, x, i), -s.beta);
}

/// dx = dy s^-beta - 2 alpha beta x sum of dy x s^(-beta - 1) over the window
inline void lrn_backward(const LrnShape& s, Array x, Array dy, Array dx) {
  for (index_t i = 0; i < s.groups * s.rows * s.width; ++i) {
    const double sum =
        window_sum(s, i, [&](index_t j) { return dy[j] * x[j] * std::pow(lrn_scale(s, x, j), -s.beta - 1); });
    dx[i] = dy[i] * std::pow(lrn_scale(s, x, i), -s.beta) - 2 * s.alpha * s.beta * x[i] * sum;
  }
}

}  // namespace mc::plain
