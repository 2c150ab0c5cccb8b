// The loops of transform.pyx: crop, mirror, mean and scale of checked pictures, without the GIL. Loops over planar rows and over
// rows of decoded pictures, with three interleaved colours, are vectorised.
#pragma once
#include <cstdint>

#include "minicaffe/device/apply.hpp"
#include "minicaffe/kernels/random.hpp"

namespace mc {

/// One picture in memory; Batch keeps the memory behind the pointers alive.
struct Picture {
  const uint8_t* bytes;  // the pixels, or null: then `floats`
  const float* floats;
  int64_t channels, height, width;
  int64_t plane, row, pixel;  // steps from one channel, row and column to the next, in elements
  int32_t label;
};

/// A transform_param for the loops; a Transformer fills it and owns the mean.
struct Rule {
  double scale;
  int64_t crop_h, crop_w;    // 0: none
  bool mirror, random_crop;  // random_crop: in phase TRAIN; else the crop is the centre
  uint64_t seed;
  int64_t mean_plane, mean_row;  // steps in a mean picture; row 0: one value a channel; both 0: one value for all
  const float* mean32;           // the mean for float outputs, null without one
  const double* mean64;          // the same for double outputs
};

enum Draw { kMirror, kTop, kLeft };  // `which` of draw_below

/// Random integer in [0, n), uniform up to n / 2^32; a pure function of its arguments. `ordinal` counts the records since the start
/// of the training, in all epochs, so that a resumed training has the same draws. `which` is 0 to 3: Philox gives four numbers.
inline int64_t draw_below(uint64_t seed, uint64_t ordinal, int which, uint64_t n) {
  u32 bits[4];
  Philox{seed}(ordinal, bits);
  return int64_t((bits[which] * n) >> 32);
}

/// The part of a picture that is copied, in pixels of the picture; with `flip` it is mirrored, left to right.
struct Window {
  int64_t top, left, rows, columns;
  bool flip;
};

/// The Window of record `ordinal`, whose picture is height x width and not smaller than the crop.
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

constexpr int64_t kChunk = 256;  // pixels of the pieces in which a row is reversed

/// out[i] = (source[i * step] - mean) * scale for n pixels of a row. `mean`, not null, has a value for each if `mean_row`, or one.
template <class S, class T>
void shift_row(const S* source, int64_t step, const T* mean, bool mean_row, T scale, T* __restrict out, int64_t n) {
  const T value = *mean;
  if (step == 1 && !mean_row) {
    for (int64_t i = 0; i < n; ++i) out[i] = (T(source[i]) - value) * scale;
  } else if (step == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = (T(source[i]) - mean[i]) * scale;
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = (T(source[i * step]) - (mean_row ? mean[i] : value)) * scale;
  }
}

/// The same for the three interleaved colours of pixel i of a row, each with its own output.
template <class T, bool kMeanRow> struct ShiftColours {
  const uint8_t* source;
  const T *b, *g, *r;         // the means of the row, read if kMeanRow
  T blue, green, red, scale;  // the first values of b, g, r: the means of the channels otherwise
  T *x, *y, *z;               // outputs of blue, green and red
  void operator()(index_t i) const {
    x[i] = (T(source[3 * i]) - (kMeanRow ? b[i] : blue)) * scale;
    y[i] = (T(source[3 * i + 1]) - (kMeanRow ? g[i] : green)) * scale;
    z[i] = (T(source[3 * i + 2]) - (kMeanRow ? r[i] : red)) * scale;
  }
};
/// Run ShiftColours for n pixels; `mean` and `out` have a pointer for each colour.
template <bool kMeanRow, class T>
void shift_colours(const uint8_t* s, const T* const* mean, T scale, T* const* out, int64_t n) {
  const T *b = mean[0], *g = mean[1], *r = mean[2];
  cpu::range(ShiftColours<T, kMeanRow>{s, b, g, r, *b, *g, *r, scale, out[0], out[1], out[2]}, 0, n);
}

template <class T> void reverse_row(const T* __restrict from, T* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[n - 1 - i] = from[i];
}

/// As shift_row, with the pixels in reverse order if `flip`: in pieces, each by shift_row and then reversed.
template <class S, class T>
void copy_row(const S* source, int64_t step, bool flip, const T* mean, bool mean_row, T scale, T* out, int64_t n) {
  if (!flip) return shift_row(source, step, mean, mean_row, scale, out, n);
  T piece[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = std::min(kChunk, n - i);
    shift_row(source + i * step, step, mean_row ? mean + i : mean, mean_row, scale, piece, m);
    reverse_row(piece, out + n - i - m, m);
  }
}

/// As copy_row, for three interleaved colours; their outputs are `plane` elements apart.
template <class T> void copy_colours(const uint8_t* source, bool flip, const T* const* mean, bool mean_row, T scale, T* out,
                                     int64_t plane, int64_t n) {
  T piece[3][kChunk];
  for (int64_t i = 0; i < n; i += flip ? kChunk : n) {
    const int64_t m = flip ? std::min(kChunk, n - i) : n;
    const T* const means[3] = {mean[0] + (mean_row ? i : 0), mean[1] + (mean_row ? i : 0), mean[2] + (mean_row ? i : 0)};
    T* const plain[3] = {out, out + plane, out + 2 * plane};
    T* const turned[3] = {piece[0], piece[1], piece[2]};
    if (mean_row) shift_colours<true>(source + 3 * i, means, scale, flip ? turned : plain, m);
    else shift_colours<false>(source + 3 * i, means, scale, flip ? turned : plain, m);
    for (int c = 0; flip && c < 3; ++c) reverse_row(piece[c], out + c * plane + n - i - m, m);
  }
}

/// Write the window of a picture as planes (C, rows, columns) to `out`. `source` is its `bytes` or `floats`; `mean` may be null.
template <class S, class T>
void copy_picture(const Picture& p, const S* source, const Rule& rule, const T* mean, uint64_t ordinal, T* out) {
  const Window window = window_of(rule, p.height, p.width, ordinal);
  int64_t rows = window.rows, columns = window.columns;
  const int64_t top = window.top, left = window.left;
  const bool flip = window.flip, mean_row = mean && rule.mean_row;
  const T none = T(0);
  if (!rule.crop_h && !flip && p.row == columns * p.pixel) columns *= rows, rows = 1;  // a plane is one long row
  auto mean_at = [&](int64_t c, int64_t h) {
    return mean ? mean + c * rule.mean_plane + (mean_row ? (top + h) * rule.mean_row + left : 0) : &none;
  };
  if constexpr (std::is_same<S, uint8_t>::value)
    if (p.channels == 3 && p.pixel == 3 && p.plane == 1) {
      for (int64_t h = 0; h < rows; ++h) {
        const T* const means[3] = {mean_at(0, h), mean_at(1, h), mean_at(2, h)};
        copy_colours(source + (top + h) * p.row + left * 3, flip, means, mean_row, T(rule.scale), out + h * columns, rows * columns,
                     columns);
      }
      return;
    }
  for (int64_t c = 0; c < p.channels; ++c)
    for (int64_t h = 0; h < rows; ++h, out += columns) {
      const S* s = source + c * p.plane + (top + h) * p.row + left * p.pixel;
      copy_row(s, p.pixel, flip, mean_at(c, h), mean_row, T(rule.scale), out, columns);
    }
}

/// Write n pictures of `size` elements each and, unless null, their labels; picture i is record first + i * stride. `mean` is the
/// rule's of type T.
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
