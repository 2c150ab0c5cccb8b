// Windows that slide over an image: im2col lays them out as the columns of a matrix, col2im adds such columns up.
//
// An image is (channels, in...), a column matrix (channels, kernel..., out...); window position o reads, by kernel
// element k, the pixel o * stride - pad + k * dilation of each axis, and 0 outside the image (Caffe util/im2col.cpp).
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

constexpr int kMaxWindowAxes = 31;  // a blob has 32 axes, one is the channels

/// The sliding window, spatial axes only: for each axis the sizes of image (in), kernel and columns (out), and the steps.
struct Window {
  int num_axes;
  int in[kMaxWindowAxes], kernel[kMaxWindowAxes], stride[kMaxWindowAxes], pad[kMaxWindowAxes], dilation[kMaxWindowAxes],
      out[kMaxWindowAxes];

  MC_HD index_t in_count() const { return product(in); }
  MC_HD index_t kernel_count() const { return product(kernel); }
  MC_HD index_t out_count() const { return product(out); }
  MC_HD index_t product(const int* sizes) const {
    index_t count = 1;
    for (int a = 0; a < num_axes; ++a) count *= sizes[a];
    return count;
  }
};

/// One element of the column matrix; images in a row count as channels. kAxes: the spatial axes if known when compiling, else 0.
// e.g. Im2col<T, 2>
template <class T, int kAxes> struct Im2col {
  Window window;
  const T* image;
  T* column;
  MC_HD void operator()(index_t i) const {
    const int axes = kAxes ? kAxes : window.num_axes;
    index_t position = i, tap = i / window.out_count(), offset = 0, scale = 1;  // divided by one axis after the other, last first
    bool inside = true;
    for (int a = axes - 1; a >= 0; --a) {
      index_t o = position % window.out[a], k = tap % window.kernel[a];
      position /= window.out[a];
      tap /= window.kernel[a];
      index_t x = o * window.stride[a] - window.pad[a] + k * window.dilation[a];
      inside = inside && x >= 0 && x < window.in[a];
      offset += x * scale;
      scale *= window.in[a];
    }
    column[i] = inside ? image[offset + tap * scale] : T(0);  // what is left of tap is the channel
  }
};

/// One pixel of the image: the sum of the column elements that read it, in the order of the kernel's elements.
// e.g. Col2im<T, 0>
template <class T, int kAxes> struct Col2im {
  Window window;
  const T* column;
  T* image;
  MC_HD void operator()(index_t i) const {
    const int axes = kAxes ? kAxes : window.num_axes;
    const index_t taps = window.kernel_count(), positions = window.out_count();
    const index_t channel = i / window.in_count();
    T sum = T(0);
    for (index_t tap = 0; tap < taps; ++tap) {
      index_t pixel = i, rest = tap, position = 0, scale = 1;
      bool seen = true;
      for (int a = axes - 1; a >= 0 && seen; --a) {
        index_t x = pixel % window.in[a] + window.pad[a] - rest % window.kernel[a] * window.dilation[a];
        pixel /= window.in[a];
        rest /= window.kernel[a];
        index_t o = x / window.stride[a];
        seen = x >= 0 && o * window.stride[a] == x && o < window.out[a];  // else no position reads the pixel by this tap
        position += o * scale;
        scale *= window.out[a];
      }
      if (seen) sum += column[(channel * taps + tap) * positions + position];
    }
    image[i] = sum;
  }
};

}  // namespace mc
