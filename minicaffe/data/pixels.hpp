// The loops of transform.pyx: crop, mirror, mean and scale of checked pictures, without the GIL. Plain rows vectorise.
#pragma once
#include <cstdint>

#include "minicaffe/kernels/random.hpp"

namespace mc {

/// One picture as it lies in memory; what the pointers point to is kept alive by Batch.
struct Picture {
  const uint8_t* bytes;  // the pixels, or null: then `floats`
  const float* floats;
  int64_t channels, height, width;
  int64_t plane, row, pixel;  // steps in elements
  int32_t label;
};

struct Rule {
  double scale;
  int64_t crop_h, crop_w;  // 0: none
  bool mirror, random_crop;
  uint64_t seed;
  int64_t mean_plane, mean_row;  // steps in a mean picture; row 0: one value a channel; both 0: one value for all
  const float* mean32;           // null without a mean
  const double* mean64;
};

enum Draw { kMirror, kTop, kLeft };

/// Random integer in [0, n), uniform up to n / 2^32; a pure function of its arguments.
inline int64_t draw_below(uint64_t seed, uint64_t ordinal, int which, uint64_t n) {
  u32 bits[4];
  Philox{seed}(ordinal, bits);
  return int64_t((bits[which] * n) >> 32);
}

/// The part of a picture that record `ordinal` shows, and whether it is flipped.
struct Window {
  int64_t top, left, rows, columns;
  bool flip;
};

inline Window window_of(const Rule& rule, int64_t height, int64_t width, uint64_t ordinal) {
  Window window = {0, 0, height, width, rule.mirror && draw_below(rule.seed, ordinal, kMirror, 2)};
  if (!rule.crop_h) return window;
  window.top = (height - rule.crop_h) / 2, window.left = (width - rule.crop_w) / 2;
  if (rule.random_crop) {
    window.top = draw_below(rule.seed, ordinal, kTop, height - rule.crop_h + 1);
    window.left = draw_below(rule.seed, ordinal, kLeft, width - rule.crop_w + 1);
  }
  window.rows = rule.crop_h, window.columns = rule.crop_w;
  return window;
}

/// out[i] = (source - mean) * scale. `mean` goes along with the source if `mean_row`, else it is one value or null.
template <class S, class T>
void copy_row(const S* source, int64_t step, bool flip, const T* mean, bool mean_row, T scale, T* __restrict out,
              int64_t n) {
  const T value = mean && !mean_row ? *mean : T(0);
  if (step == 1 && !flip && !mean_row) {
    for (int64_t i = 0; i < n; ++i) out[i] = (T(source[i]) - value) * scale;
  } else if (step == 1 && !flip) {
    for (int64_t i = 0; i < n; ++i) out[i] = (T(source[i]) - mean[i]) * scale;
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = flip ? n - 1 - i : i;
      out[i] = (T(source[j * step]) - (mean_row ? mean[j] : value)) * scale;
    }
  }
}

template <class S, class T>
void copy_picture(const Picture& p, const S* source, const Rule& rule, const T* mean, uint64_t ordinal, T* out) {
  const Window window = window_of(rule, p.height, p.width, ordinal);
  int64_t rows = window.rows, columns = window.columns;
  const int64_t top = window.top, left = window.left;
  const bool flip = window.flip, mean_row = mean && rule.mean_row;
  if (!rule.crop_h && !flip && p.row == columns * p.pixel) columns *= rows, rows = 1;  // a plane is one long row
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t h = 0; h < rows; ++h, out += columns) {
      const T* m = mean ? mean + c * rule.mean_plane + (mean_row ? (top + h) * rule.mean_row + left : 0) : nullptr;
      const S* s = source + c * p.plane + (top + h) * p.row + left * p.pixel;
      copy_row(s, p.pixel, flip, m, mean_row, T(rule.scale), out, columns);
    }
  }
}

/// Write n pictures of `size` elements each and, unless null, their labels; picture i is record first + i * stride.
template <class T>
void copy_batch(const Picture* pictures, int64_t n, const Rule& rule, const T* mean, uint64_t first, uint64_t stride,
                T* data, int64_t size, T* labels) {
  for (int64_t i = 0; i < n; ++i) {
    const Picture& p = pictures[i];
    if (p.bytes) copy_picture(p, p.bytes, rule, mean, first + i * stride, data + i * size);
    else copy_picture(p, p.floats, rule, mean, first + i * stride, data + i * size);
    if (labels) labels[i] = T(p.label);
  }
}

}  // namespace mc
