// Depthwise convolution on the CPU: every channel has one kernel of its own, over two axes. There is no matrix product to win from
// here: an output is a short sum. So rows of the image are multiplied and added, tap by tap.
#pragma once
#include "minicaffe/kernels/reduce.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {

inline bool is_depthwise(const ConvShape& s) { return s.group_channels == 1 && s.m == 1 && s.window.num_axes == 2; }

/// visit(tap, first pixel, first output, count) for what each tap sees of each row of outputs; pixels are a stride apart.
template <class Visit> MC_HD void each_tap(const Window& w, const Visit& visit) {
  const int taps = w.kernel[0] * w.kernel[1];
  const index_t stride = w.stride[1], width = w.in[1];
  for (index_t row = 0; row < w.out[0]; ++row)
    for (int tap = 0; tap < taps; ++tap) {
      const index_t y = row * w.stride[0] - w.pad[0] + index_t(tap / w.kernel[1]) * w.dilation[0];
      const index_t x = index_t(tap % w.kernel[1]) * w.dilation[1] - w.pad[1];
      const index_t begin = x < 0 ? ceil_div(-x, stride) : 0;
      const index_t end = x < width ? min_<index_t>(w.out[1], ceil_div(width - x, stride)) : 0;
      if (y >= 0 && y < w.in[0] && begin < end) visit(tap, y * width + x + begin * stride, row * w.out[1] + begin, end - begin);
    }
}

template <class T> struct DepthwiseForward {
  const Window& w;
  index_t channels;
  const T *x, *weight, *bias;
  T* y;
  MC_HD void operator()(index_t plane) const {
    const index_t channel = plane % channels, outputs = w.out_count(), stride = w.stride[1];
    const T *from = x + plane * w.in_count(), *factors = weight + channel * w.kernel_count(), start = bias ? bias[channel] : T(0);
    T* const to = y + plane * outputs;
    for (index_t i = 0; i < outputs; ++i) to[i] = start;
    each_tap(w, [=](int tap, index_t pixel, index_t output, index_t n) MC_INLINE {
      const T factor = factors[tap];
      if (stride == 1)
        MC_IVDEP for (index_t i = 0; i < n; ++i) to[output + i] += factor * from[pixel + i];
      else
        MC_IVDEP for (index_t i = 0; i < n; ++i) to[output + i] += factor * from[pixel + i * stride];
    });
  }
};

template <class T> struct DepthwiseBackwardData {
  const Window& w;
  index_t channels;
  const T *dy, *weight, *bias;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    const index_t channel = plane % channels, pixels = w.in_count(), stride = w.stride[1];
    const T *from = dy + plane * w.out_count(), *factors = weight + channel * w.kernel_count(), start = bias ? bias[channel] : T(0);
    T* const to = dx + plane * pixels;
    for (index_t i = 0; i < pixels; ++i) to[i] = start;
    each_tap(w, [=](int tap, index_t pixel, index_t output, index_t n) MC_INLINE {
      const T factor = factors[tap];
      if (stride == 1)
        MC_IVDEP for (index_t i = 0; i < n; ++i) to[pixel + i] += factor * from[output + i];
      else
        for (index_t i = 0; i < n; ++i) to[pixel + i * stride] += factor * from[output + i];
    });
  }
};

/// x[i * stride] dy[i]
template <class T> struct StridedDotTerm {
  index_t stride;
  const T *x, *dy;
  MC_HD T operator()(index_t i) const { return x[i * stride] * dy[i]; }
};

/// One channel of all images, in their order.
template <class T> struct DepthwiseBackwardWeights {
  const Window& w;
  index_t images, channels;
  const T *x, *dy;
  T* dweight;
  MC_HD void operator()(index_t channel) const {
    const index_t stride = w.stride[1];
    for (index_t plane = channel; plane < images * channels; plane += channels) {
      const T *image = x + plane * w.in_count(), *top = dy + plane * w.out_count();
      T* const to = dweight + channel * w.kernel_count();
      each_tap(w, [=](int tap, index_t pixel, index_t output, index_t n) MC_INLINE {
        to[tap] += stride == 1 ? block_sum<T>(StridedDotTerm<T>{1, image + pixel, top + output}, 0, n)
                               : block_sum<T>(StridedDotTerm<T>{stride, image + pixel, top + output}, 0, n);
      });
    }
  }
};

}  // namespace cpu
}  // namespace mc
