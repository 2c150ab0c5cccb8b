// im2col and col2im on the CPU, for the few columns of the column matrix that a thread works on (ops/conv/caffe.hpp).
//
// The columns of all images are numbered through, j = image * positions + position. SeenRows finds the input rows that a stretch of
// them reads. LoadRows copies these rows of some channels, padded with zeros; at a stride it stores pixels together that are read
// together. So what a tap (kernel element; outer: on all axes but the last) reads for an output row is a run at a fixed distance,
// without tests for borders, and PackLines packs columns by whole vectors: one that is too long is overwritten by the next run.
#pragma once
#include "minicaffe/ops/conv/register_tile.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {

constexpr index_t kOvershoot = 16;  // elements that packing may read and write beyond the end: those of its longest vector

/// to[i] = from[i] for n elements, a constant of the compiler.
template <class T, int n> MC_HD void copy_vector(const T* from, T* to) { std::memcpy(to, from, n * sizeof(T)); }
template <class T, int n> MC_HD void fill_vector(T* to) { std::memset(to, 0, n * sizeof(T)); }

/// y[i] = x[i]; the last vector may overlap the one before.
template <class T> MC_HD void copy_run(const T* x, index_t n, T* y) {
  if (n >= 16) {
    for (index_t i = 0; i < n - 16; i += 16) copy_vector<T, 16>(x + i, y + i);
    copy_vector<T, 16>(x + n - 16, y + n - 16);
  } else if (n >= 8) {
    copy_vector<T, 8>(x, y);
    copy_vector<T, 8>(x + n - 8, y + n - 8);
  } else if (n >= 4) {
    copy_vector<T, 4>(x, y);
    copy_vector<T, 4>(x + n - 4, y + n - 4);
  } else {
    for (index_t i = 0; i < n; ++i) y[i] = x[i];
  }
}

/// y[i] += x[i]
template <class T> MC_HD void add_run(const T* x, index_t n, T* y) {
  for (; n >= 16; n -= 16, x += 16, y += 16) add_vector<T, 16>(x, y);
  if (n >= 8) add_vector<T, 8>(x, y), n -= 8, x += 8, y += 8;
  if (n >= 4) add_vector<T, 4>(x, y), n -= 4, x += 4, y += 4;
  for (index_t i = 0; i < n; ++i) y[i] += x[i];
}

/// The input rows that a stretch of columns reads.
class SeenRows {
 public:
  /// Pixels of an input row that lie together in its copy, `count` of them: number i is pixel first + i * stride of the row.
  /// Numbers from..to-1 are inside the row, the others are padding.
  struct Run {
    index_t first, from, to;
  };
  /// A part of an output row, of kOvershoot columns at most, all in one tile: `length` of them from `column` of the tile on.
  struct Segment {
    index_t column, length;
  };

  const ConvShape& s;
  index_t count = 0;             // elements of a run
  std::vector<Run> runs;         // of each row: one for each rest of the stride, or for each tap (find_runs)
  std::vector<index_t> taps;     // [element of the kernel on the last axis]: where in a copied row it reads for output 0
  std::vector<index_t> rows;     // the rows to copy: offset of each from the first image, -1 for one outside of it (all padding)
  std::vector<Segment> segments;
  std::vector<index_t> tiles;    // [tile]: its first segment; and, last, how many segments there are
  std::vector<index_t> offsets;  // [outer tap][segment]: where it begins among the copied rows, for tap 0 of the last axis

  explicit SeenRows(const ConvShape& shape) : s(shape), taps(size_t(s.last_kernel)) {}

  /// The number of elements that the rows of one channel take, for stretches of at most `columns`: for scratch memory.
  static index_t most(const ConvShape& s, index_t columns) {
    if (!s.positions) return 0;
    const index_t length = std::min(s.row_length, columns);
    const index_t output_rows = s.row_length > columns ? 1 : (columns - 1) / s.row_length + 2;
    const index_t images = std::min(s.images, (columns - 1) / s.positions + 2);
    return (1 + std::min(output_rows * s.outer_taps, images * s.input_rows)) * row_size(s, length);
  }
  /// The end of a stretch from `begin` on: at most `end`, at most `columns` further, and in the same output row if rows are longer.
  static index_t stretch_end(const ConvShape& s, index_t begin, index_t end, index_t columns) {
    return std::min({end, begin + columns, s.row_length > columns ? (begin / s.row_length + 1) * s.row_length : end});
  }

  index_t channel_size() const { return index_t(rows.size() * runs.size()) * count; }  // elements of a channel's copied rows

  /// Set all members for the columns begin..end-1, a stretch that is multiplied in tiles of `tile` columns each.
  void see(index_t begin, index_t end, index_t tile) {
    const index_t out_rows = s.positions / s.row_length, outer = s.outer_taps;
    const index_t first_row = begin / s.row_length, last_row = (end - 1) / s.row_length;
    const index_t first_x = first_row == last_row ? begin % s.row_length : 0;
    find_runs(first_x, first_row == last_row ? end - begin : s.row_length);
    const index_t size = index_t(runs.size()) * count;
    rows.clear();
    at_.resize(size_t((last_row - first_row + 1) * outer));
    index_t outside = -1, image = first_row / out_rows, out_row = first_row % out_rows;
    slots_.assign(size_t(s.input_rows), -1);
    for (index_t row = first_row, *at = at_.data(); row <= last_row; ++row, at += outer) {
      const index_t* numbers = s.input_row.data() + out_row * outer;
      for (index_t tap = 0; tap < outer; ++tap) {
        index_t& slot = numbers[tap] < 0 ? outside : slots_[size_t(numbers[tap])];
        if (slot < 0) {
          slot = index_t(rows.size()) * size;
          rows.push_back(numbers[tap] < 0 ? -1 : image * s.channels * s.pixels + numbers[tap] * s.row_pixels);
        }
        at[tap] = slot;
      }
      if (++out_row == out_rows) ++image, out_row = 0, std::fill(slots_.begin(), slots_.end(), -1);
    }
    cut(begin, end, tile, first_x);
  }

 private:
  static index_t row_size(const ConvShape& s, index_t length) {  // elements of a copied row for `length` outputs (find_runs)
    const index_t reach = (s.last_kernel - 1) * s.last_dilation;
    return std::min(s.last_stride * (length + reach / s.last_stride), s.last_kernel * length);
  }

  /// Cut the columns into segments of tiles, and set their offsets among the copied rows.
  void cut(index_t begin, index_t end, index_t tile, index_t first_x) {
    segments.clear(), tiles.clear(), places_.clear();
    index_t at = 0, x = begin % s.row_length;
    for (index_t j = begin, column = 0, length; j < end; j += length, x += length, column += length) {
      if (x == s.row_length) at += s.outer_taps, x = 0;
      if (column == tile) column = 0;
      if (!column) tiles.push_back(index_t(segments.size()));
      length = std::min({s.row_length - x, end - j, kOvershoot, tile - column});
      segments.push_back({column, length});
      places_.push_back({at, x - first_x});
    }
    tiles.push_back(index_t(segments.size()));
    offsets.resize(segments.size() * size_t(s.outer_taps));
    index_t* to = offsets.data();
    for (index_t tap = 0; tap < s.outer_taps; ++tap)
      for (const auto& place : places_) *to++ = at_[size_t(place.first + tap)] + place.second;
  }

  /// Runs that several taps share, of the pixels that leave the same rest when divided by the stride; or one for each tap where
  /// that takes less memory.
  void find_runs(index_t first_x, index_t length) {
    const index_t reach = (s.last_kernel - 1) * s.last_dilation, shared = length + reach / s.last_stride;
    const bool share = s.last_stride * shared <= s.last_kernel * length;
    count = share ? shared : length;
    runs.clear();
    for (index_t r = 0; r < (share ? s.last_stride : s.last_kernel); ++r) {
      const index_t first = (share ? r : r * s.last_dilation) + first_x * s.last_stride - s.last_pad;
      const index_t from = first < 0 ? std::min(count, ceil_div(-first, s.last_stride)) : 0;
      const index_t inside = first < s.row_pixels ? ceil_div(s.row_pixels - first, s.last_stride) : 0;
      runs.push_back({first, from, std::max(from, std::min(count, inside))});
    }
    for (index_t k = 0; k < s.last_kernel; ++k) {
      const index_t x = k * s.last_dilation;
      taps[size_t(k)] = share ? x % s.last_stride * count + x / s.last_stride : k * count;
    }
  }

  std::vector<index_t> slots_;  // [input row of an image]: where among the copied rows, or -1
  std::vector<index_t> at_;     // [output row of the stretch][outer tap]: the same
  std::vector<std::pair<index_t, index_t>> places_;  // [segment]: where in at_, and in a run
};

/// Copy the rows of one channel, from plane x + channel * pixels to `rows`, which begin with those of `first_channel`.
template <class T> struct LoadRows {
  const SeenRows& seen;
  index_t first_channel;
  const T* x;
  T* rows;
  MC_HD void operator()(index_t channel) const {
    const index_t stride = seen.s.last_stride, count = seen.count;
    const T* plane = x + channel * seen.s.pixels;
    T* to = rows + (channel - first_channel) * seen.channel_size();
    for (const index_t row : seen.rows)
      for (const SeenRows::Run& run : seen.runs) {
        const index_t from = run.from, n = row < 0 ? 0 : run.to - from;
        const T* pixels = plane + row + run.first;
        if (n < count)
          for (index_t i = 0; i < count; i += kOvershoot) fill_vector<T, kOvershoot>(to + i);
        if (stride == 1) copy_run(pixels + from, n, to + from);
        else
          for (index_t i = from; i < from + n; ++i) to[i] = pixels[i * stride];
        to += count;
      }
  }
};

/// im2col of a tile for the lines begin..end-1, from copied rows. A line is what the taps of one kernel row read of one channel:
/// last_kernel rows of the column matrix. The first row is written to `columns`, each further one `ld` behind the one before.
/// Elements up to `width` that no segment fills are zeros. `rows` begin with the channel of line `begin`.
template <class T> struct PackLines {
  const SeenRows& seen;
  index_t tile, begin, end;
  const T* rows;
  T* columns;
  index_t ld, width;

  /// The loop over lines, with vectors of n elements.
  template <int n> MC_HD void pack() const {
    const index_t all = seen.tiles.back(), first = seen.tiles[size_t(tile)], count = seen.tiles[size_t(tile + 1)] - first;
    const index_t kernel = seen.s.last_kernel, outer = seen.s.outer_taps, size = seen.channel_size();
    const SeenRows::Segment* segments = seen.segments.data() + first;
    const index_t filled = segments[count - 1].column + segments[count - 1].length;
    T* to = columns;
    for (index_t line = begin; line < end; ++line) {
      const T* from = rows + (line / outer - begin / outer) * size;
      const index_t* offsets = seen.offsets.data() + line % outer * all + first;
      for (index_t k = 0; k < kernel; ++k, to += ld) {
        const T* pixels = from + seen.taps[size_t(k)];
        for (index_t i = 0; i < count; ++i) copy_vector<T, n>(pixels + offsets[i], to + segments[i].column);
        for (index_t i = filled; i < width; ++i) to[i] = T(0);
      }
    }
  }
  /// All lines; the index is unused: a functor has one so that it is compiled for each instruction set (device/apply.hpp).
  MC_HD void operator()(index_t) const {
    static_assert(kOvershoot == 16);
    if (seen.s.row_length > 8) pack<16>();
    else if (seen.s.row_length > 4) pack<8>();
    else pack<4>();
  }
};

/// col2im of one channel: its columns are added up in `rows`, scratch memory of channel_size() elements, and these added to dx. Row
/// r of the columns begins at columns + r * ld.
template <class T> struct AddLines {
  const SeenRows& seen;
  const T* columns;
  index_t ld;
  T *rows, *dx;
  MC_HD void operator()(index_t channel) const {
    const index_t kernel = seen.s.last_kernel, outer = seen.s.outer_taps, segments = index_t(seen.segments.size());
    const index_t size = seen.channel_size(), stride = seen.s.last_stride, *offsets = seen.offsets.data(), *taps = seen.taps.data();
    const SeenRows::Segment* all = seen.segments.data();
    for (index_t i = 0; i < size; ++i) rows[i] = T(0);
    const T* from = columns + channel * outer * kernel * ld;
    // Element by element of the kernel row, not segment by segment: additions to a pixel that was just written would wait.
    for (index_t tap = 0; tap < outer; ++tap)
      for (index_t k = 0; k < kernel; ++k, from += ld)
        for (index_t i = 0; i < segments; ++i) {
          const SeenRows::Segment& g = all[i];
          T* to = rows + offsets[tap * segments + i] + taps[k];
          if (g.length == 16) add_vector<T, 16>(from + g.column, to);
          else if (g.length == 8) add_vector<T, 8>(from + g.column, to);
          else add_run(from + g.column, g.length, to);
        }
    const T* run_at = rows;
    for (const index_t row : seen.rows)
      for (const SeenRows::Run& run : seen.runs) {
        T* pixels = dx + channel * seen.s.pixels + row + run.first;
        const index_t end = row < 0 ? run.from : run.to;
        if (stride == 1) add_run(run_at + run.from, end - run.from, pixels + run.from);
        else
          for (index_t i = run.from; i < end; ++i) pixels[i * stride] += run_at[i];
        run_at += seen.count;
      }
  }
};

/// Call visit(offset in y, for output 0, first column as counted from `begin`, length) for each image among columns begin..end-1.
template <class Visit> MC_HD void for_each_image(const ConvShape& s, index_t begin, index_t end, const Visit& visit) {
  for (index_t j = begin; j < end;) {
    index_t image = j / s.positions, position = j % s.positions, length = std::min(s.positions - position, end - j);
    visit(image * s.outputs * s.positions + position, j - begin, length);
    j += length;
  }
}

}  // namespace cpu
}  // namespace mc
