// Local response normalisation as its formula (Caffe lrn_layer.cpp). The faster ways are in ops/lrn/caffe.hpp.
#pragma once
#include <vector>
#include "minicaffe/ops/array.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc::plain {

/// The sum of term(j) over the elements j of the window around element i.
template <class Term> double window_sum(const LrnShape& s, index_t i, const Term& term) {
  const index_t column = i % s.width, row = i / s.width % s.rows, start = i - row * s.width - column;
  return s.sum<double>(term, start, row, column);
}

/// s[i] = k + alpha sum of x^2 over the window around element i
inline std::vector<double> lrn_scales(const LrnShape& s, Array x) {
  std::vector<double> scales(size_t(s.groups * s.rows * s.width));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = s.k + s.alpha * window_sum(s, index_t(i), [=](index_t j) { return x[j] * x[j]; });
  return scales;
}

/// y = x s^-beta
inline void lrn_forward(const LrnShape& s, Array x, Array y) {
  const std::vector<double> scales = lrn_scales(s, x);
  for (size_t i = 0; i < scales.size(); ++i) y[index_t(i)] = x[index_t(i)] * std::pow(scales[i], -s.beta);
}

/// dx = dy s^-beta - 2 alpha beta x sum of dy x s^(-beta - 1) over the window
inline void lrn_backward(const LrnShape& s, Array x, Array dy, Array dx) {
  const std::vector<double> scales = lrn_scales(s, x);
  std::vector<double> shares(scales.size());
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = dy[index_t(i)] * x[index_t(i)] * std::pow(scales[i], -s.beta - 1);
  for (size_t j = 0; j < shares.size(); ++j) {
    const index_t i = index_t(j);
    const double sum = window_sum(s, i, [&](index_t other) { return shares[size_t(other)]; });
    dx[i] = dy[i] * std::pow(scales[j], -s.beta) - 2 * s.alpha * s.beta * x[i] * sum;
  }
}

}  // namespace mc::plain
