// BatchNorm and MVN as their formulas (Caffe batch_norm_layer.cpp, mvn_layer.cpp), for [outer, channels, inner]. The faster ways,
// also fused with a Scale and a ReLU, are in ops/batch_norm/caffe.hpp.
#pragma once
#include <vector>
#include "minicaffe/loops/lanes/caffe.hpp"
#include "minicaffe/ops/array.hpp"
#include "minicaffe/ops/batch_norm/kernel.hpp"

namespace mc::plain {

/// Return for each channel the mean of term(i, channel) over its elements i.
template <class Term> std::vector<double> channel_means(const Channels& c, const Term& term) {
  std::vector<double> means(size_t(c.channels));
  for (index_t i = 0; i < c.outer * c.channels * c.inner; ++i) {
    const index_t k = i / c.inner % c.channels;
    means[size_t(k)] += term(i, k) / double(c.outer * c.inner);
  }
  return means;
}

/// y = (x - mean) factor, with factor = 1 / deviation, stored for backward. Mean and variance are read if `given`, else computed
/// from x and stored. y may be x, of which `kept`, unless null, gets a copy for backward. `rule` is a Deviation.
inline void standardize_forward(const Channels& c, int rule, double eps, bool given, Array x, Array mean, Array variance,
                                Array factor, Array y, Array kept) {
  if (!given) {
    const std::vector<double> means = channel_means(c, [=](index_t i, index_t) { return double(x[i]); });
    const auto squares = channel_means(c, [&](index_t i, index_t k) { return std::pow(x[i] - means[size_t(k)], 2); });
    for (index_t k = 0; k < c.channels; ++k) mean[k] = means[size_t(k)], variance[k] = squares[size_t(k)];
  }
  for (index_t k = 0; k < c.channels; ++k) factor[k] = deviation_factor<double>(Deviation(rule), variance[k], eps);
  for (index_t i = 0; i < c.outer * c.channels * c.inner; ++i) {
    const index_t k = i / c.inner % c.channels;
    if (kept) kept[i] = double(x[i]);
    y[i] = (x[i] - mean[k]) * factor[k];
  }
}

/// dx = (dy - mean of dy - (x - mean) factor^2 mean of dy (x - mean)) factor. Mean and factor have gradients unless they do not
/// depend on x: neither if they are `given`, the factor not if it is 1.
inline void standardize_backward(const Channels& c, int rule, bool given, Array x, Array mean, Array factor, Array dy, Array dx) {
  const bool scaled = !given && Deviation(rule) != Deviation::kNone;
  const auto dys = channel_means(c, [=](index_t i, index_t) { return given ? 0.0 : double(dy[i]); });
  const auto dots = channel_means(c, [=](index_t i, index_t k) { return scaled ? dy[i] * (x[i] - mean[k]) : 0.0; });
  for (index_t i = 0; i < c.outer * c.channels * c.inner; ++i) {
    const index_t k = i / c.inner % c.channels;
    const double by_x = scaled ? (x[i] - mean[k]) * factor[k] * factor[k] * dots[size_t(k)] : 0;
    dx[i] = (dy[i] - dys[size_t(k)] - by_x) * factor[k];
  }
}

}  // namespace mc::plain
