// What a convolution is: sizes, and tables of what each output row sees.
#pragma once
#include <algorithm>
#include <vector>
#include "minicaffe/ops/conv/kernel.hpp"

namespace mc {

inline index_t ceil_div(index_t a, index_t b) { return (a + b - 1) / b; }
inline index_t round_up(index_t a, index_t b) { return ceil_div(a, b) * b; }

/// The geometry of a convolution, and tables of what each output row sees.
struct ConvShape {
  index_t images = 0, channels = 0, outputs = 0, groups = 1;
  Window window;
  index_t pixels, positions, taps;  // elements of an input plane, an output plane and a kernel
  index_t group_channels, m, k;     // of one group

  /// Set everything from the sizes; `w` has its out sizes. A window without axes becomes one with a single pixel.
  void set(index_t images_, index_t channels_, index_t outputs_, index_t groups_, const Window& w) {
    images = images_, channels = channels_, outputs = outputs_, groups = groups_;
    window = w;
    if (!window.num_axes) {
      window.num_axes = 1;
      window.in[0] = window.kernel[0] = window.stride[0] = window.dilation[0] = window.out[0] = 1;
      window.pad[0] = 0;
    }
    pixels = window.in_count(), positions = window.out_count(), taps = window.kernel_count();
    group_channels = channels / groups, m = outputs / groups, k = group_channels * taps;
    fill_tables();
  }

  // Along the last axis an output row reads pixels `stride` apart; the other axes say which input row that is.
  index_t row_length, outer_taps, last_kernel, last_stride;
  std::vector<index_t> input_row;  // [output row][outer tap]: offset of the input row in its plane, -1 outside the image
  std::vector<index_t> first, from, to;  // [last tap]: pixel of output 0; the outputs from..to-1 lie inside the input row
  index_t all_from, all_to;              // the outputs for which every last tap lies inside

  void fill_tables() {
    const int last = window.num_axes - 1;
    row_length = window.out[last], last_kernel = window.kernel[last], last_stride = window.stride[last];
    outer_taps = taps / last_kernel;
    const index_t rows = row_length ? positions / row_length : 0;
    input_row.resize(size_t(rows * outer_taps));
    for (index_t i = 0; i < rows * outer_taps; ++i) {
      index_t row = i / outer_taps, tap = i % outer_taps, offset = 0, scale = window.in[last];
      bool inside = true;
      for (int a = last - 1; a >= 0; --a) {
        index_t x = row % window.out[a] * window.stride[a] - window.pad[a] + tap % window.kernel[a] * window.dilation[a];
        row /= window.out[a];
        tap /= window.kernel[a];
        inside = inside && x >= 0 && x < window.in[a];
        offset += x * scale;
        scale *= window.in[a];
      }
      input_row[size_t(i)] = inside ? offset : -1;
    }
    first.resize(size_t(last_kernel));
    from.resize(size_t(last_kernel));
    to.resize(size_t(last_kernel));
    all_from = 0, all_to = row_length;
    for (index_t i = 0; i < last_kernel; ++i) {
      index_t x = i * window.dilation[last] - window.pad[last];
      first[size_t(i)] = x;
      from[size_t(i)] = x < 0 ? ceil_div(-x, last_stride) : 0;
      to[size_t(i)] = window.in[last] > x ? ceil_div(window.in[last] - x, last_stride) : 0;
      all_from = std::max(all_from, from[size_t(i)]), all_to = std::min(all_to, to[size_t(i)]);
    }
  }
};

}  // namespace mc
