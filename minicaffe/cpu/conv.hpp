// Convolution on the CPU: im2col and GEMM in one, a panel of columns at a time.
//
// Caffe fills a column matrix for a whole image and hands it to a BLAS. Here a thread packs the few columns that one tile of
// the product needs (cpu/tile.hpp) into a buffer that stays in its cache, and multiplies at once. The columns of all images
// are numbered through, j = image * positions + position, so that small images fill whole tiles together and a single large
// one still occupies all threads. Work is cut by sizes alone, never by the number of threads: results do not depend on it.
//
// Names, for one group: M outputs, K = channels * taps rows of the column matrix, N positions of an image. A deconvolution
// is the same with forward and backward exchanged.
#pragma once
#include <vector>
#include "minicaffe/cpu/tile.hpp"
#include "minicaffe/kernels/im2col.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {
namespace cpu {

constexpr index_t kDepth = 256;     // about the rows of a packed panel: 32 KiB at full width, the size of an L1 cache
constexpr index_t kChunk = 256;     // columns that forward packs before it walks over the weights
constexpr index_t kBlock = 128;     // columns that backward unfolds at once, with up to kBlockRows rows: within an L2 cache
constexpr index_t kBlockRows = 512;
constexpr index_t kTasks = 8;       // how many independent parts a backward pass should have at least

inline index_t ceil_div(index_t a, index_t b) { return (a + b - 1) / b; }
inline index_t round_up(index_t a, index_t b) { return ceil_div(a, b) * b; }

/// A part of one output row of one image, as it lies in a row of packed columns.
struct Segment {
  index_t image, row, begin, end;  // output positions row * row_length + begin ... end - 1
  index_t column;                  // where it starts among the packed columns
};

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

  /// The most rows of a packed panel: whole kernel rows.
  index_t depth() const { return std::min(k, std::max<index_t>(1, kDepth / last_kernel) * last_kernel); }

  /// The columns begin..end-1 as segments.
  void segments(index_t begin, index_t end, std::vector<Segment>* out) const {
    out->clear();
    for (index_t j = begin; j < end;) {
      index_t image = j / positions, position = j % positions, row = position / row_length, x = position % row_length;
      index_t length = std::min(row_length - x, end - j);
      out->push_back({image, row, x, x + length, j - begin});
      j += length;
    }
  }
};

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
               [=](index_t row, index_t column, index_t pixel, index_t n) { copy_run(x_ + pixel, stride, n, y + row * ld_ + column); },
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
                 [=](index_t row, index_t column, index_t pixel, index_t n) { add_run(y + row * ld_ + column, stride, n, x_ + pixel); },
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

/// How many elements of scratch memory each of the functions below needs.
template <class T> index_t forward_scratch(const ConvShape& s, int threads) {
  index_t panels = kChunk / tile_for<T>(s.m).columns;
  return s.groups * kMaxTileRows * s.k + threads * panels * kMaxTileColumns * s.depth();
}

/// y = W * x + bias for every image; `bias` may be null.
template <class T>
void conv_forward(const ConvShape& s, int threads, const T* x, const T* weight, const T* bias, T* y, T* scratch) {
  const Tile<T> tile = tile_for<T>(s.m);
  const index_t columns = s.images * s.positions, depth = s.depth();
  const index_t chunks = ceil_div(columns, kChunk), panels = kChunk / tile.columns;
  // The weights of the last tile of each group, filled up with rows of zeros.
  const index_t whole = s.m / tile.rows * tile.rows;
  T *tails = scratch, *buffers = scratch + s.groups * kMaxTileRows * s.k;
  for (index_t g = 0; g < s.groups && whole < s.m; ++g)
    for (index_t r = 0; r < tile.rows; ++r) {
      T* row = tails + (g * kMaxTileRows + r) * s.k;
      if (whole + r < s.m)
        std::memcpy(row, weight + (g * s.m + whole + r) * s.k, size_t(s.k) * sizeof(T));
      else
        std::fill(row, row + s.k, T(0));
    }

  auto chunk_product = [&](T* buffer, index_t g, index_t begin, index_t end, std::vector<Segment>* segments) {
    for (index_t k0 = 0; k0 < s.k; k0 += depth) {
      const index_t k1 = std::min(s.k, k0 + depth);
      for (index_t p = 0, j = begin; j < end; ++p, j += tile.columns) {
        T* panel = buffer + p * depth * tile.columns;
        const index_t width = std::min<index_t>(tile.columns, end - j);
        s.segments(j, j + width, segments);
        range(PackLine<T>{s, *segments, k0 / s.last_kernel, x + g * s.group_channels * s.pixels, panel, tile.columns},
              k0 / s.last_kernel, k1 / s.last_kernel);
        const bool direct = width == tile.columns && j % s.positions + width <= s.positions;
        for (index_t m = 0; m < s.m; m += tile.rows) {
          const int rows = int(std::min<index_t>(tile.rows, s.m - m));
          const T* a = m < whole ? weight + (g * s.m + m) * s.k : tails + g * kMaxTileRows * s.k;
          T* out = y + (g * s.m + m) * s.positions;
          T start[kMaxTileRows] = {}, corner[kMaxTileRows * kMaxTileColumns];
          for (int r = 0; r < rows && bias; ++r) start[r] = bias[g * s.m + m + r];
          const T* from = k0 ? nullptr : start;
          if (direct) {
            out += j / s.positions * s.outputs * s.positions + j % s.positions;
            tile.product(k1 - k0, a + k0, s.k, 1, panel, from, out, s.positions, rows);
            continue;
          }
          // Columns of several images, or fewer than a tile has: by way of a tile of their own.
          if (k0)
            for_each_image(s, j, j + width, [&](index_t offset, index_t column, index_t length) {
              for (int r = 0; r < rows; ++r)
                copy_run(out + offset + r * s.positions, 1, length, corner + r * tile.columns + column);
            });
          tile.product(k1 - k0, a + k0, s.k, 1, panel, from, corner, tile.columns, rows);
          for_each_image(s, j, j + width, [&](index_t offset, index_t column, index_t length) {
            for (int r = 0; r < rows; ++r)
              copy_run(corner + r * tile.columns + column, 1, length, out + offset + r * s.positions);
          });
        }
      }
    }
  };
  parallel(threads, s.groups * chunks, 1, [&](int thread, index_t first, index_t last) {
    std::vector<Segment> segments;
    T* buffer = buffers + thread * panels * kMaxTileColumns * depth;
    for (index_t task = first; task < last; ++task) {
      const index_t begin = task % chunks * kChunk;
      chunk_product(buffer, task / chunks, begin, std::min(columns, begin + kChunk), &segments);
    }
  });
}

/// How backward_data is cut: blocks of channels, and batches of images whose columns fill tiles together.
struct DataBlocks {
  index_t channels, count, images, batches;
  explicit DataBlocks(const ConvShape& s) {
    images = std::max<index_t>(1, std::min(2 * kBlock / std::max<index_t>(1, s.positions), s.images / kTasks));
    batches = ceil_div(s.images, images);
    index_t blocks = std::max(ceil_div(s.k, kBlockRows), ceil_div(kTasks, std::max<index_t>(1, batches * s.groups)));
    channels = ceil_div(s.group_channels, std::min(blocks, s.group_channels));
    count = ceil_div(s.group_channels, channels);
  }
};

template <class T> index_t backward_data_scratch(const ConvShape& s, int threads) {
  DataBlocks blocks(s);
  index_t rows = round_up(blocks.channels * s.taps, tile_for<T>(blocks.channels * s.taps).rows);
  return s.groups * blocks.count * rows * s.m + threads * (rows * kBlock + std::min(s.m, kDepth) * kBlock);
}

/// dx = the transposed operation on dy, overwritten; `bias`, one a channel of x, is added (a deconvolution's); may be null.
template <class T>
void conv_backward_data(const ConvShape& s, int threads, const T* dy, const T* weight, const T* bias, T* dx, T* scratch) {
  const DataBlocks blocks(s);
  const index_t block_rows = blocks.channels * s.taps, depth = std::min(s.m, kDepth);
  const Tile<T> tile = tile_for<T>(block_rows);
  const index_t rows = round_up(block_rows, tile.rows), all_blocks = s.groups * blocks.count;
  T *packed = scratch, *buffers = scratch + all_blocks * rows * s.m;

  // The weights of each block as tiles [m][row], so that the product reads them in order.
  parallel(threads, all_blocks, 1, [&](int, index_t first, index_t last) {
    for (index_t b = first; b < last; ++b) {
      const index_t g = b / blocks.count, k0 = b % blocks.count * block_rows, count = std::min(block_rows, s.k - k0);
      for (index_t t = 0; t < rows; t += tile.rows)
        for (index_t m = 0; m < s.m; ++m) {
          T* out = packed + b * rows * s.m + t * s.m + m * tile.rows;
          const T* in = weight + (g * s.m + m) * s.k + k0;
          for (index_t r = 0; r < tile.rows; ++r) out[r] = t + r < count ? in[t + r] : T(0);
        }
    }
  });

  parallel(threads, blocks.batches * all_blocks, 1, [&](int thread, index_t first, index_t last) {
    std::vector<Segment> segments;
    T *columns = buffers + thread * (rows + depth) * kBlock, *panel = columns + rows * kBlock;
    const T zeros[kMaxTileRows] = {};
    for (index_t task = first; task < last; ++task) {
      const index_t batch = task / all_blocks, b = task % all_blocks, g = b / blocks.count;
      const index_t channel = b % blocks.count * blocks.channels;
      const index_t channels = std::min(blocks.channels, s.group_channels - channel);
      const index_t image0 = batch * blocks.images, image1 = std::min(s.images, image0 + blocks.images);
      T* x = dx + (g * s.group_channels + channel) * s.pixels;
      for (index_t i = image0; i < image1; ++i)
        for (index_t c = 0; c < channels; ++c) {
          T* plane = x + (i * s.channels + c) * s.pixels;
          std::fill(plane, plane + s.pixels, bias ? bias[g * s.group_channels + channel + c] : T(0));
        }
      for (index_t j = image0 * s.positions; j < image1 * s.positions; j += kBlock) {
        const index_t end = std::min(image1 * s.positions, j + kBlock);
        for (index_t m0 = 0; m0 < s.m; m0 += depth) {
          const index_t m1 = std::min(s.m, m0 + depth);
          for (index_t p = j; p < end; p += tile.columns) {
            for_each_image(s, p, std::min<index_t>(end, p + tile.columns), [&](index_t offset, index_t column, index_t length) {
              for (index_t m = m0; m < m1; ++m)
                copy_run(dy + offset + (g * s.m + m) * s.positions, 1, length, panel + (m - m0) * tile.columns + column);
            });
            for (index_t t = 0; t < channels * s.taps; t += tile.rows)
              tile.product(m1 - m0, packed + b * rows * s.m + t * s.m + m0 * tile.rows, 1, tile.rows, panel,
                           m0 ? nullptr : zeros, columns + t * kBlock + (p - j), kBlock, tile.rows);
          }
        }
        s.segments(j, end, &segments);
        range(AddChannel<T>{s, segments, columns, kBlock, x}, 0, channels);
      }
    }
  });
}

/// How backward_weights is cut: blocks of rows of the column matrix, and parts of the images that are summed up at the end.
struct WeightBlocks {
  index_t rows, count, parts, images;
  explicit WeightBlocks(const ConvShape& s) {
    parts = std::max<index_t>(1, std::min({kTasks, s.images, index_t(1 << 22) / std::max<index_t>(1, s.outputs * s.k)}));
    images = ceil_div(s.images, parts);
    parts = std::max<index_t>(1, ceil_div(s.images, std::max<index_t>(1, images)));
    index_t wanted = std::max(ceil_div(s.k, kBlockRows), ceil_div(kTasks, parts * s.groups));
    rows = round_up(std::max<index_t>(ceil_div(s.k, wanted), std::min<index_t>(s.k, 32)), s.last_kernel);
    count = ceil_div(s.k, rows);
  }
};

template <class T> index_t backward_weights_scratch(const ConvShape& s, int threads) {
  WeightBlocks blocks(s);
  Tile<T> tile = tile_for<T>(blocks.rows);
  index_t rows = round_up(blocks.rows, tile.rows), width = round_up(s.m, tile.columns);
  return blocks.parts * s.groups * blocks.count * rows * width + threads * (rows + tile.columns) * kBlock;
}

/// dweight += dy * im2col(x)^T, summed over images in an order that sizes alone decide.
template <class T>
void conv_backward_weights(const ConvShape& s, int threads, const T* x, const T* dy, T* dweight, T* scratch) {
  const WeightBlocks blocks(s);
  const Tile<T> tile = tile_for<T>(blocks.rows);
  const index_t rows = round_up(blocks.rows, tile.rows), width = round_up(s.m, tile.columns);
  const index_t all_blocks = s.groups * blocks.count, part_size = all_blocks * rows * width;
  T *sums = scratch, *buffers = scratch + blocks.parts * part_size;
  if (!s.images || !s.positions) return;

  // sums[part][group and block][row k][output m]: the outputs lie along the vectors, the columns give the single numbers.
  parallel(threads, blocks.parts * all_blocks, 1, [&](int thread, index_t first, index_t last) {
    std::vector<Segment> segments;
    T *columns = buffers + thread * (rows + tile.columns) * kBlock, *panel = columns + rows * kBlock;
    const T zeros[kMaxTileRows] = {};
    for (index_t task = first; task < last; ++task) {
      const index_t part = task / all_blocks, b = task % all_blocks, g = b / blocks.count, k0 = b % blocks.count * blocks.rows;
      const index_t k1 = std::min(s.k, k0 + blocks.rows);
      const index_t begin = part * blocks.images * s.positions;
      const index_t end = std::min(s.images, (part + 1) * blocks.images) * s.positions;
      T* sum = sums + task * rows * width;
      for (index_t j = begin; j < end; j += kBlock) {
        const index_t length = std::min(kBlock, end - j);
        s.segments(j, j + length, &segments);
        range(PackLine<T>{s, segments, k0 / s.last_kernel, x + g * s.group_channels * s.pixels, columns, kBlock},
              k0 / s.last_kernel, k1 / s.last_kernel);
        for (index_t m0 = 0; m0 < s.m; m0 += tile.columns) {
          const index_t outputs = std::min<index_t>(tile.columns, s.m - m0);
          for_each_image(s, j, j + length, [&](index_t offset, index_t column, index_t n) {
            const T* in = dy + offset + (g * s.m + m0) * s.positions;
            for (index_t i = 0; i < n; ++i)
              for (index_t m = 0; m < outputs; ++m) panel[(column + i) * tile.columns + m] = in[m * s.positions + i];
          });
          for (index_t k = 0; k < k1 - k0; k += tile.rows)
            tile.product(length, columns + k * kBlock, kBlock, 1, panel, j > begin ? nullptr : zeros, sum + k * width + m0, width,
                         tile.rows);
        }
      }
    }
  });

  parallel(threads, s.groups * s.k, std::max<index_t>(1, kGrain / (s.m * blocks.parts)), [&](int, index_t first, index_t last) {
    for (index_t i = first; i < last; ++i) {
      const index_t g = i / s.k, k = i % s.k;
      T* total = sums + ((g * blocks.count + k / blocks.rows) * rows + k % blocks.rows) * width;
      for (index_t part = 1; part < blocks.parts; ++part) add_run(total + part * part_size, 1, s.m, total);
      for (index_t m = 0; m < s.m; ++m) dweight[(g * s.m + m) * s.k + k] += total[m];
    }
  });
}

/// dbias[c] += the sum of plane c over all images.
template <class T> struct BiasGradient {
  index_t images, channels, plane;
  const T* dy;
  T* dbias;
  MC_HD void operator()(index_t c) const {
    double sum = 0;
    for (index_t n = 0; n < images; ++n) {
      SumTerm<T> term{dy + (n * channels + c) * plane};
      for (index_t i = 0; i < plane; i += kSumBlock) sum += double(block_sum<T>(term, i, min_(plane, i + kSumBlock)));
    }
    dbias[c] += T(sum);
  }
};

/// The whole column matrix of (channels, in...), as the layer Im2col gives it out; images count as channels.
template <class T> void im2col(int threads, index_t channels, const Window& w, const T* image, T* column) {
  const index_t n = channels * w.kernel_count() * w.out_count();
  if (w.num_axes == 2)
    for_each(threads, n, Im2col<T, 2>{w, image, column}, 16);
  else
    for_each(threads, n, Im2col<T, 0>{w, image, column}, 16);
}

/// The reverse: each pixel is the sum of what saw it, overwritten.
template <class T> void col2im(int threads, index_t channels, const Window& w, const T* column, T* image) {
  const index_t n = channels * w.in_count(), cost = 16 * w.kernel_count();
  if (w.num_axes == 2)
    for_each(threads, n, Col2im<T, 2>{w, column, image}, cost);
  else
    for_each(threads, n, Col2im<T, 0>{w, column, image}, cost);
}

}  // namespace cpu
}  // namespace mc
