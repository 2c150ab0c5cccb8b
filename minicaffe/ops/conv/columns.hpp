// im2col and col2im on the CPU: single rows of the column matrix, for the few columns that a thread works on (ops/conv/caffe.hpp).
//
// The columns of all images are numbered through, j = image * positions + position. A stretch of them is a list of segments,
// parts of output rows, whose pixels lie evenly spaced in one input row: they are copied and added as runs.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {

constexpr index_t kBlock = 128;  // the most columns that are packed or added at once

/// A part of one output row of one image, as it lies in a row of packed columns.
struct Segment {
  index_t image, row, begin, end;  // output positions row * row_length + begin ... end - 1
  index_t column;                  // where it starts among the packed columns
};

/// The columns begin..end-1 as segments.
inline void segments_of(const ConvShape& s, index_t begin, index_t end, std::vector<Segment>* out) {
  out->clear();
  for (index_t j = begin; j < end;) {
    index_t image = j / s.positions, position = j % s.positions, row = position / s.row_length, x = position % s.row_length;
    index_t length = std::min(s.row_length - x, end - j);
    out->push_back({image, row, x, x + length, j - begin});
    j += length;
  }
}

template <class T, int n> MC_HD void copy_vector(const T* x, T* y) { std::memcpy(y, x, n * sizeof(T)); }

/// y[i] = x[i * stride]; the last vector may overlap the one before.
template <class T> MC_HD void copy_run(const T* x, index_t stride, index_t n, T* y) {
  if (stride != 1) {
    for (index_t i = 0; i < n; ++i) y[i] = x[i * stride];
  } else if (n >= 16) {
    for (index_t i = 0; i < n - 16; i += 16) copy_vector<T, 16>(x + i, y + i);
    copy_vector<T, 16>(x + n - 16, y + n - 16);
  } else if (n >= 8) {
    copy_vector<T, 8>(x, y);
    if (n > 8) copy_vector<T, 8>(x + n - 8, y + n - 8);
  } else if (n >= 4) {
    copy_vector<T, 4>(x, y);
    copy_vector<T, 4>(x + n - 4, y + n - 4);
  } else {
    for (index_t i = 0; i < n; ++i) y[i] = x[i];
  }
}

template <class T, int n> MC_HD void add_vector(const T* x, T* y) {
  typedef T Vector __attribute__((vector_size(n * sizeof(T)), aligned(alignof(T)), may_alias));
  *reinterpret_cast<Vector*>(y) += *reinterpret_cast<const Vector*>(x);
}

/// y[i * stride] += x[i]
template <class T> MC_HD void add_run(const T* x, index_t stride, index_t n, T* y) {
  if (stride != 1) {
    for (index_t i = 0; i < n; ++i) y[i * stride] += x[i];
    return;
  }
  for (; n >= 16; n -= 16, x += 16, y += 16) add_vector<T, 16>(x, y);
  if (n >= 8) add_vector<T, 8>(x, y), n -= 8, x += 8, y += 8;
  if (n >= 4) add_vector<T, 4>(x, y), n -= 4, x += 4, y += 4;
  for (index_t i = 0; i < n; ++i) y[i] += x[i];
}

/// A line of the column matrix is what the taps of one kernel row see of one channel: last_kernel rows. Call
/// visit(row, column, pixel, length) with what each of them holds of each segment: `length` elements from `column` on, which
/// stand for the pixels from `pixel` on; and outside(row, column, length) for elements that lie outside the image.
template <class Visit, class Outside>
MC_HD void visit_line(const ConvShape& s, const Segment* segments, index_t count, index_t line, const Visit& visit,
                      const Outside& outside) {
  constexpr index_t kOutside = -(index_t(1) << 62);
  const index_t plane = line / s.outer_taps * s.pixels + s.first[0], tap = line % s.outer_taps;
  const index_t image = s.channels * s.pixels, stride = s.last_stride, step = s.window.dilation[s.window.num_axes - 1];
  index_t start[kBlock];  // the pixel that the kernel row's first element has under a segment's first output
  bool inside = true, eights = stride == 1;
  for (index_t i = 0; i < count; ++i) {
    const Segment& g = segments[i];
    const index_t row = s.input_row[size_t(g.row * s.outer_taps + tap)];
    start[i] = row < 0 ? kOutside : g.image * image + plane + row + g.begin * stride;
    inside = inside && row >= 0 && g.begin >= s.all_from && g.end <= s.all_to;
    eights = eights && g.end - g.begin == 8;
  }
  // Element by element of the kernel row, not segment by segment: additions to a pixel that was just written would wait.
  for (index_t k = 0; k < s.last_kernel; ++k) {
    const index_t from = s.from[size_t(k)], to = s.to[size_t(k)];
    if (inside && eights) {  // short rows: no test of the length for each
      for (index_t i = 0; i < count; ++i) visit(k, segments[i].column, start[i] + k * step, index_t(8));
      continue;
    }
    for (index_t i = 0; i < count; ++i) {
      const Segment& g = segments[i];
      if (inside) {
        visit(k, g.column, start[i] + k * step, g.end - g.begin);
        continue;
      }
      const index_t begin = start[i] == kOutside ? g.end : std::min(g.end, std::max(g.begin, from));
      const index_t end = std::max(begin, std::min(g.end, to));
      outside(k, g.column, begin - g.begin);
      visit(k, g.column + begin - g.begin, start[i] + k * step + (begin - g.begin) * stride, end - begin);
      outside(k, g.column + end - g.begin, g.end - end);
    }
  }
}

/// im2col of one line for the given segments: the columns of row r of the first line begin at columns + r * ld.
template <class T> struct PackLine {
  const ConvShape& s;
  const std::vector<Segment>& segments;
  index_t first_line;
  const T* x;
  T* columns;
  index_t ld;
  MC_HD void operator()(index_t line) const {
    T* y = columns + (line - first_line) * s.last_kernel * ld;
    const index_t stride = s.last_stride, ld_ = ld;
    const T* x_ = x;
    visit_line(s, segments.data(), index_t(segments.size()), line,
               [=](index_t row, index_t column, index_t pixel, index_t n) {
                 copy_run(x_ + pixel, stride, n, y + row * ld_ + column);
               },
               [=](index_t row, index_t column, index_t n) {
                 for (index_t i = 0; i < n; ++i) y[row * ld_ + column + i] = T(0);
               });
  }
};

/// col2im of one channel: the reverse, adding to the image.
template <class T> struct AddChannel {
  const ConvShape& s;
  const std::vector<Segment>& segments;
  const T* columns;
  index_t ld;
  T* x;
  MC_HD void operator()(index_t channel) const {
    const index_t stride = s.last_stride, ld_ = ld;
    T* x_ = x;
    for (index_t line = channel * s.outer_taps; line < (channel + 1) * s.outer_taps; ++line) {
      const T* y = columns + line * s.last_kernel * ld;
      visit_line(s, segments.data(), index_t(segments.size()), line,
                 [=](index_t row, index_t column, index_t pixel, index_t n) {
                   add_run(y + row * ld_ + column, stride, n, x_ + pixel);
                 },
                 [](index_t, index_t, index_t) {});
    }
  }
};

/// Call visit(offset in y of row 0, first column, length) for each image among the columns begin..end-1.
template <class Visit> MC_HD void for_each_image(const ConvShape& s, index_t begin, index_t end, const Visit& visit) {
  for (index_t j = begin; j < end;) {
    index_t image = j / s.positions, position = j % s.positions, length = std::min(s.positions - position, end - j);
    visit(image * s.outputs * s.positions + position, j - begin, length);
    j += length;
  }
}

}  // namespace cpu
}  // namespace mc
