// Convolution as its formula (Caffe base_conv_layer.cpp). The faster ways are in ops/conv/caffe.hpp.
//
// An output is the bias and a sum of products, weight times pixel, over the channels of its group and the taps (elements) of the
// kernel. All three functions go through the same products: y += w x, and by the chain rule dx += w dy and dw += dy x. The bottom
// of a deconvolution is y, its top x. Arrays are in Caffe's order: x (images, channels, in...), y (images, outputs, out...).
#pragma once
#include "minicaffe/loops/lanes/caffe.hpp"
#include "minicaffe/ops/array.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc::plain {

/// The pixel of a plane that `tap` of the kernel reads for the output at `position`; -1 outside the image, where pixels are 0.
inline index_t pixel_of(const Window& w, index_t position, index_t tap) {
  index_t pixel = 0, scale = 1;
  for (int a = w.num_axes - 1; a >= 0; --a) {
    const index_t at = position % w.out[a] * w.stride[a] - w.pad[a] + tap % w.kernel[a] * w.dilation[a];
    if (at < 0 || at >= w.in[a]) return -1;
    pixel += at * scale;
    scale *= w.in[a];
    position /= w.out[a], tap /= w.kernel[a];
  }
  return pixel;
}

/// pixel_of for each tap and position: [tap][position].
inline std::vector<index_t> read_pixels(const ConvShape& s) {
  std::vector<index_t> pixels;
  for (index_t tap = 0; tap < s.taps; ++tap)
    for (index_t position = 0; position < s.positions; ++position) pixels.push_back(pixel_of(s.window, position, tap));
  return pixels;
}

/// y = the bias of its channel, 0 if `bias` is null
inline void set_to_bias(const Channels& c, Array bias, Array y) {
  for (index_t i = 0; i < c.outer * c.channels * c.inner; ++i) y[i] = bias ? double(bias[i / c.inner % c.channels]) : 0.0;
}

/// y from x: forward; or the gradient of a deconvolution's bottom, without a bias. `bias` may be null.
inline void conv_forward(const ConvShape& s, Array x, Array weight, Array bias, Array y) {
  set_to_bias({s.images, s.outputs, s.positions}, bias, y);
  const std::vector<index_t> pixels = read_pixels(s);
  for (index_t image = 0; image < s.images; ++image)
    for (index_t output = 0; output < s.outputs; ++output)
      for (index_t c = 0; c < s.group_channels; ++c)
        for (index_t tap = 0; tap < s.taps; ++tap)
          for (index_t position = 0; position < s.positions; ++position) {
            const index_t channel = output / s.m * s.group_channels + c, pixel = pixels[size_t(tap * s.positions + position)];
            if (pixel >= 0)
              y[(image * s.outputs + output) * s.positions + position] +=
                  weight[(output * s.group_channels + c) * s.taps + tap] * x[(image * s.channels + channel) * s.pixels + pixel];
          }
}

/// work(index in x, index in the weights, index in y) for each product of conv_forward.
template <class Work> void each_product(const ConvShape& s, const Work& work) {
  const std::vector<index_t> pixels = read_pixels(s);
  for (index_t image = 0; image < s.images; ++image)
    for (index_t output = 0; output < s.outputs; ++output)
      for (index_t c = 0; c < s.group_channels; ++c)
        for (index_t tap = 0; tap < s.taps; ++tap) {
          const index_t channel = output / s.m * s.group_channels + c;
          const index_t x = (image * s.channels + channel) * s.pixels, y = (image * s.outputs + output) * s.positions;
          for (index_t position = 0; position < s.positions; ++position) {
            const index_t pixel = pixels[size_t(tap * s.positions + position)];
            if (pixel >= 0) work(x + pixel, (output * s.group_channels + c) * s.taps + tap, y + position);
          }
        }
}

/// dx from dy; or a deconvolution's top from its bottom, with a bias.
inline void conv_backward_data(const ConvShape& s, Array dy, Array weight, Array bias, Array dx) {
  set_to_bias({s.images, s.channels, s.pixels}, bias, dx);
  each_product(s, [=](index_t i, index_t k, index_t j) { dx[i] += weight[k] * dy[j]; });
}

/// Add to dweight the products of dy and x.
inline void conv_backward_weights(const ConvShape& s, Array x, Array dy, Array dweight) {
  each_product(s, [=](index_t i, index_t k, index_t j) { dweight[k] += dy[j] * x[i]; });
}

/// Add to dbias the sums of dy over each channel of the top.
inline void conv_backward_bias(const Channels& top, Array dy, Array dbias) {
  for (index_t i = 0; i < top.outer * top.channels * top.inner; ++i) dbias[i / top.inner % top.channels] += dy[i];
}

}  // namespace mc::plain
