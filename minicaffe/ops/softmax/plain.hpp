// Softmax along the channels of [outer, channels, inner] as its formula (Caffe softmax_layer.cpp). The faster ways are in
// ops/softmax/kernel.hpp.
#pragma once
#include "minicaffe/loops/lanes/caffe.hpp"
#include "minicaffe/ops/array.hpp"

namespace mc::plain {

/// y = exp(x - max) / sum of these; y may be x.
inline void softmax_forward(const Channels& c, Array x, Array y) {
  for (index_t o = 0; o < c.outer; ++o)
    for (index_t i = 0; i < c.inner; ++i) {
      const index_t first = o * c.channels * c.inner + i, end = first + c.channels * c.inner;
      double largest = -INFINITY, sum = 0;
      for (index_t at = first; at < end; at += c.inner) largest = std::max<double>(largest, x[at]);
      for (index_t at = first; at < end; at += c.inner) sum += std::exp(x[at] - largest);
      for (index_t at = first; at < end; at += c.inner) y[at] = std::exp(x[at] - largest) / sum;
    }
}

/// dx = y (dy - sum of dy y); dx may be dy.
inline void softmax_backward(const Channels& c, Array y, Array dy, Array dx) {
  for (index_t o = 0; o < c.outer; ++o)
    for (index_t i = 0; i < c.inner; ++i) {
      const index_t first = o * c.channels * c.inner + i, end = first + c.channels * c.inner;
      double dot = 0;
      for (index_t at = first; at < end; at += c.inner) dot += dy[at] * y[at];
      for (index_t at = first; at < end; at += c.inner) dx[at] = y[at] * (dy[at] - dot);
    }
}

}  // namespace mc::plain
