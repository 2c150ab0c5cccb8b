// The geometry of a convolution: sizes, and tables of the input rows that each output row reads.
#pragma once
#include <algorithm>
#include <vector>
#include "minicaffe/ops/conv/kernel.hpp"

namespace mc {

inline index_t ceil_div(index_t a, index_t b) { return (a + b - 1) / b; }
inline index_t round_up(index_t a, index_t b) { return ceil_div(a, b) * b; }

/// Set by a layer's reshape, read by all engines. "Image" is the side of the pixels, "columns" that of the positions of the window.
struct ConvShape {
  index_t images = 0, channels = 0, outputs = 0, groups = 1;  // channels of the image side, outputs: channels of the column side
  Window window;
  index_t pixels, positions, taps;  // elements of a plane of the image, of the columns, and of a kernel of one channel
  index_t group_channels, m, k;     // of one group: channels, outputs, and rows of the column matrix (channels x taps)

  /// Set all members. `w` has its out sizes already. A window without axes becomes one with a single pixel.
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

  // Along the last axis an output row reads pixels `last_stride` apart; the other axes select its input rows, one for each outer
  // tap (element of the kernel on these axes). A plane has input_rows of row_pixels; an output row has row_length positions. The
  // last_ members are the window's on the last axis. Where every column is a pixel (1x1), a plane is one row.
  index_t input_rows, row_pixels, row_length, outer_taps, last_kernel, last_stride, last_dilation, last_pad;
  std::vector<index_t> input_row;  // [output row][outer tap]: number of the input row in its plane, -1 outside the image

  /// Whether the column matrix is the image itself: kernels of one pixel that miss none.
  bool columns_are_image() const {
    for (int a = 0; a < window.num_axes; ++a)
      if (window.kernel[a] != 1 || window.stride[a] != 1 || window.pad[a]) return false;
    return true;
  }

  /// Compute the members that follow from the sizes; `set` calls it.
  void fill_tables() {
    const int last = window.num_axes - 1;
    row_pixels = window.in[last], row_length = window.out[last], last_kernel = window.kernel[last];
    last_stride = window.stride[last], last_dilation = window.dilation[last], last_pad = window.pad[last];
    input_rows = 1;
    if (columns_are_image()) row_pixels = row_length = positions;
    else for (int a = 0; a < last; ++a) input_rows *= window.in[a];
    outer_taps = taps / last_kernel;
    const index_t rows = row_length ? positions / row_length : 0;
    input_row.resize(size_t(rows * outer_taps));
    for (index_t i = 0; i < rows * outer_taps; ++i) {
      index_t row = i / outer_taps, tap = i % outer_taps, number = 0, scale = 1;
      bool inside = true;
      for (int a = last - 1; a >= 0; --a) {
        index_t x = row % window.out[a] * window.stride[a] - window.pad[a] + tap % window.kernel[a] * window.dilation[a];
        row /= window.out[a];
        tap /= window.kernel[a];
        inside = inside && x >= 0 && x < window.in[a];
        number += x * scale;
        scale *= window.in[a];
      }
      input_row[size_t(i)] = inside ? number : -1;
    }
  }
};

}  // namespace mc
