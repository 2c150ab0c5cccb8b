// The inner product as its formula (Caffe inner_product_layer.cpp). The faster ways are in ops/inner_product/caffe.hpp.
#pragma once
#include "minicaffe/ops/array.hpp"

namespace mc::plain {

/// x is (m, k), y (m, n), the weights (n, k), or (k, n) if `transpose`.
struct InnerShape {
  index_t m, n, k;
  bool transpose;
  /// work(index in x, index in the weights, index in y) for each product.
  template <class Work> void each_product(const Work& work) const {
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j)
        for (index_t d = 0; d < k; ++d) work(i * k + d, transpose ? d * n + j : j * k + d, i * n + j);
  }
};

/// y = x W^T + bias, which may be null
inline void inner_product_forward(const InnerShape& s, Array x, Array weight, Array bias, Array y) {
  for (index_t j = 0; j < s.m * s.n; ++j) y[j] = bias ? double(bias[j % s.n]) : 0.0;
  s.each_product([=](index_t i, index_t k, index_t j) { y[j] += weight[k] * x[i]; });
}

/// dx = dy W, overwritten
inline void inner_product_backward(const InnerShape& s, Array dy, Array weight, Array dx) {
  for (index_t i = 0; i < s.m * s.k; ++i) dx[i] = 0;
  s.each_product([=](index_t i, index_t k, index_t j) { dx[i] += weight[k] * dy[j]; });
}

/// Add to dweight and dbias, unless they are null: dW = dy^T x.
inline void inner_product_backward_params(const InnerShape& s, Array x, Array dy, Array dweight, Array dbias) {
  if (dweight) s.each_product([=](index_t i, index_t k, index_t j) { dweight[k] += dy[j] * x[i]; });
  for (index_t j = 0; dbias && j < s.m * s.n; ++j) dbias[j % s.n] += dy[j];
}

}  // namespace mc::plain
