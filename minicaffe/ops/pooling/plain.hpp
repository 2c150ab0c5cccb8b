// Pooling as its formula (Caffe pooling_layer.cpp). The faster ways are in ops/pooling/caffe.hpp.
#pragma once
#include "minicaffe/ops/array.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc::plain {

/// MAX: y is the first maximum of each window, `mask` its pixel, or -1. AVE, where `mask` is null: the window's sum / its area.
inline void pool_forward(const PoolShape& s, Array x, Array y, Array mask) {
  for (index_t plane = 0, o = 0; plane < s.planes(); ++plane)
    for (index_t ph = 0; ph < s.out_height; ++ph)
      for (index_t pw = 0; pw < s.out_width; ++pw, ++o) {
        const PoolWindow window = pool_window(s, ph, pw);
        double best = -kFloatMax, sum = 0;
        index_t where = -1;
        for (index_t h = window.top; h < window.bottom; ++h)
          for (index_t w = window.left; w < window.right; ++w) {
            const index_t pixel = h * s.width + w;
            const double value = x[plane * s.height * s.width + pixel];
            sum += value;
            if (value > best) best = value, where = pixel;
          }
        y[o] = mask ? best : sum / double(window.area);
        if (mask) mask[o] = double(where);
      }
}

/// MAX: dx, overwritten, is the sum of each dy at the pixel of its mask. AVE: dy in equal shares at all pixels of the window.
inline void pool_backward(const PoolShape& s, Array dy, Array mask, Array dx) {
  const index_t pixels = s.height * s.width;
  for (index_t i = 0; i < s.planes() * pixels; ++i) dx[i] = 0;
  for (index_t plane = 0, o = 0; plane < s.planes(); ++plane)
    for (index_t ph = 0; ph < s.out_height; ++ph)
      for (index_t pw = 0; pw < s.out_width; ++pw, ++o) {
        const PoolWindow window = pool_window(s, ph, pw);
        if (mask && mask[o] >= 0 && mask[o] < double(pixels)) dx[plane * pixels + index_t(mask[o])] += dy[o];
        for (index_t h = window.top; h < window.bottom && !mask; ++h)
          for (index_t w = window.left; w < window.right; ++w)
            dx[plane * pixels + h * s.width + w] += dy[o] / double(window.area);
      }
}

}  // namespace mc::plain
