// Convolution by engine CAFFE. The formula is ops/conv/plain.hpp; a deconvolution is the same with forward and backward exchanged.
//
// Faster ways, and their gain for 64 channels in one thread, AVX-512, float32:
// - depthwise.hpp, on the CPU with one channel a group: 6 to 7 times as fast as tiles with 3x3 kernels, 2 to 3 with stride 2.
// - tiles (the loops of conv_forward and its gradients), on the CPU otherwise: 70 to 290 times as fast as the formula (28x28, 3x3).
// - im2col and GEMM, on a device (namespace cuda).
//
// Caffe fills a column matrix for a whole image and hands it to a BLAS. On the CPU a thread copies the input rows that a stretch of
// columns reads, packs the few columns that one tile of the product needs (ops/conv/columns.hpp) into a buffer that stays in its
// cache, and multiplies at once (ops/conv/register_tile.hpp). The columns of all images are numbered through,
// j = image * positions + position, so that small images fill whole tiles together and a single large one still occupies all
// threads. Work is cut by sizes alone, never by the number of threads: results do not depend on it.
// Names, for one group: M outputs, K = channels * taps rows of the column matrix, N positions of an image; tap: kernel element.
#pragma once
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/conv/columns.hpp"
#include "minicaffe/ops/conv/depthwise.hpp"
#include "minicaffe/ops/conv/register_tile.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"

namespace mc {

/// f(i) for 0 <= i < n, where f is F{w, from, to}, Im2col or Col2im, compiled for two axes or any. `cost`: see for_each.
template <template <class, int> class F, class T>
void each_window(const Context& on, index_t n, index_t cost, const Window& w, const T* from, T* to) {
  w.num_axes == 2 ? for_each(on, n, F<T, 2>{w, from, to}, cost) : for_each(on, n, F<T, 0>{w, from, to}, cost);
}
/// Im2col and Col2im of all elements, on the CPU (layer Im2col) or a device; several images count as more channels.
template <class T> void im2col(const Context& on, index_t channels, const Window& w, const T* image, T* column) {
  each_window<Im2col>(on, channels * w.kernel_count() * w.out_count(), 16, w, image, column);
}
template <class T> void col2im(const Context& on, index_t channels, const Window& w, const T* column, T* image) {
  each_window<Col2im>(on, channels * w.in_count(), 16 * w.kernel_count(), w, column, image);
}

// The column matrix of as many images as fit into this many elements is in memory at once, of one image at least.
constexpr index_t kColumnElements = index_t(1) << 24;

inline index_t columns_of_image(const ConvShape& s) { return s.channels * s.taps * s.positions; }  // elements
inline index_t images_at_once(const ConvShape& s) {
  return std::max<index_t>(1, std::min(s.images, kColumnElements / std::max<index_t>(1, columns_of_image(s))));
}

namespace cuda {

/// work(first image, images, their column matrix) for all images, images_at_once at a time. The matrix is `scratch`, which `work`
/// fills, or for 1x1 kernels the image itself.
template <class T, class Work> void each_column_matrix(const ConvShape& s, T* image, T* scratch, const Work& work) {
  const index_t most = images_at_once(s);
  for (index_t i = 0; i < s.images; i += most)
    work(i, std::min(most, s.images - i), s.columns_are_image() ? image + i * columns_of_image(s) : scratch);
}

// The three functions below on a device, by column matrices and GEMM.
template <class T>
void conv_forward(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* x, const T* weight, const T* bias, T* y,
                  T* scratch) {
  each_column_matrix(s, const_cast<T*>(x), scratch, [&](index_t first, index_t images, T* columns) {
    if (columns == scratch) im2col(on, images * s.channels, s.window, x + first * s.channels * s.pixels, columns);
    GemmBatches batches;
    batches.count = images, batches.b = columns_of_image(s), batches.c = s.outputs * s.positions;
    for (index_t g = 0; g < s.groups; ++g)
      gemm(on, blas, false, false, s.m, s.positions, s.k, T(1), weight + g * s.m * s.k, s.k, columns + g * s.k * s.positions,
           s.positions, T(0), y + (first * s.outputs + g * s.m) * s.positions, s.positions, batches);
  });
  if (bias) broadcast_unary(on, {s.images, s.outputs, s.positions}, ShiftBy<T>{bias}, y, y);
}

template <class T>
void conv_backward_data(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* dy, const T* weight, const T* bias,
                        T* dx, T* scratch) {
  each_column_matrix(s, dx, scratch, [&](index_t first, index_t images, T* columns) {
    GemmBatches batches;
    batches.count = images, batches.b = s.outputs * s.positions, batches.c = columns_of_image(s);
    for (index_t g = 0; g < s.groups; ++g)
      gemm(on, blas, true, false, s.k, s.positions, s.m, T(1), weight + g * s.m * s.k, s.k,
           dy + (first * s.outputs + g * s.m) * s.positions, s.positions, T(0), columns + g * s.k * s.positions, s.positions,
           batches);
    if (columns == scratch) col2im(on, images * s.channels, s.window, columns, dx + first * s.channels * s.pixels);
  });
  if (bias) broadcast_unary(on, {s.images, s.channels, s.pixels}, ShiftBy<T>{bias}, dx, dx);
}

/// Without `add` dweight is overwritten, if there are images.
template <class T>
void conv_backward_weights(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* x, const T* dy, T* dweight,
                           bool add, T* scratch) {
  each_column_matrix(s, const_cast<T*>(x), scratch, [&](index_t first, index_t images, T* columns) {
    if (columns == scratch) im2col(on, images * s.channels, s.window, x + first * s.channels * s.pixels, columns);
    GemmBatches batches;
    batches.terms = images, batches.term_a = s.outputs * s.positions, batches.term_b = columns_of_image(s);
    for (index_t g = 0; g < s.groups; ++g)
      gemm(on, blas, false, true, s.m, s.k, s.positions, T(1), dy + (first * s.outputs + g * s.m) * s.positions, s.positions,
           columns + g * s.k * s.positions, s.positions, add || first ? T(1) : T(0), dweight + g * s.m * s.k, s.k, batches);
  });
}

}  // namespace cuda

namespace cpu {

constexpr index_t kDepth = 384;      // the most rows of a packed panel: 48 KiB at full width, read from an L2 cache
constexpr index_t kChunk = 256;      // columns that forward takes through the same rows of the weights
constexpr index_t kBlock = 128;      // columns that backward_data unfolds at once, for kBlockRows rows: within an L2 cache
constexpr index_t kBlockRows = 512;
constexpr index_t kDotRows = 64;      // rows that backward_weights unfolds at once, of as many columns as leave them and the
constexpr index_t kDotElements = index_t(1) << 19;  // gradients of their outputs in a second or third cache
constexpr index_t kTasks = 8;         // how many independent parts a backward pass should have at least, for the threads

/// The least number of tasks for a thread, where each takes `multiplications`: the grain of `parallel`.
inline index_t task_grain(index_t multiplications) { return ceil_div(kProductGrain, std::max<index_t>(1, multiplications)); }

/// The number of rows that forward packs at once: whole kernel rows, and about as many each time.
inline index_t panel_depth(const ConvShape& s) {
  return round_up(ceil_div(s.k, std::max<index_t>(1, ceil_div(s.k, kDepth))), s.last_kernel);
}

/// The number of elements of the input rows that the given columns read in `rows` rows of the column matrix. All parts of scratch
/// memory are whole vectors, so that no vector of a panel lies in two cache lines.
inline index_t copied_rows(const ConvShape& s, index_t columns, index_t rows) {
  return round_up((rows / s.taps + 2) * SeenRows::most(s, columns), kOvershoot) + kOvershoot;
}

/// The number of elements of scratch memory that conv_forward needs on the CPU.
template <class T> index_t forward_scratch(const ConvShape& s, int threads) {
  const index_t depth = panel_depth(s);
  return round_up(s.groups * kMaxTileRows * s.k, kOvershoot) +
         threads * (kMaxTileColumns * depth + kOvershoot + copied_rows(s, kChunk, depth));
}

/// Copy the rows that rows k0..k1-1 of the column matrix need, of a group whose first channel is at `x`.
template <class T> void load_rows(const SeenRows& seen, const T* x, index_t k0, index_t k1, T* copies) {
  range(LoadRows<T>{seen, k0 / seen.s.taps, x, copies}, k0 / seen.s.taps, ceil_div(k1, seen.s.taps));
}

/// The rows k0..k1-1 of the column matrix for one tile, `ld` apart, with zeros up to `width`.
template <class T>
void pack_rows(const SeenRows& seen, index_t tile, index_t k0, index_t k1, const T* copies, T* columns, index_t ld, index_t width) {
  const index_t kernel = seen.s.last_kernel;
  range(PackLines<T>{seen, tile, k0 / kernel, k1 / kernel, copies, columns, ld, width}, 0, 1);
}

/// The parts of conv_backward_data: blocks of channels, and batches of images whose columns fill tiles together.
struct DataBlocks {
  index_t channels, count, images, batches;  // channels of a block, blocks of a group; images of a batch, batches
  explicit DataBlocks(const ConvShape& s) {
    images = std::max<index_t>(1, std::min(2 * kBlock / std::max<index_t>(1, s.positions), s.images / kTasks));  // 2 kBlock columns
    batches = ceil_div(s.images, images);
    index_t blocks = std::max(ceil_div(s.k, kBlockRows), ceil_div(kTasks, std::max<index_t>(1, batches * s.groups)));
    channels = ceil_div(s.group_channels, std::min(blocks, s.group_channels));
    count = ceil_div(s.group_channels, channels);
  }
};

/// The number of elements of scratch memory that conv_backward_data needs on the CPU.
template <class T> index_t backward_data_scratch(const ConvShape& s, int threads) {
  DataBlocks blocks(s);
  index_t rows = round_up(blocks.channels * s.taps, tile_for<T>(blocks.channels * s.taps).rows);
  return round_up(s.groups * blocks.count * rows * s.m, kOvershoot) +
         threads * ((rows + std::min(s.m, kDepth)) * kBlock + copied_rows(s, kBlock, 0));
}

/// The parts of conv_backward_weights: blocks of rows of the column matrix, and parts of the images that are summed up at the end.
struct WeightBlocks {
  index_t rows, count, parts, images;  // rows of a block, blocks of a group; parts, images of a part
  index_t columns, rows_at_once;  // of the column matrix that are packed at once
  index_t ld, buffer;             // of packed rows; elements of scratch memory for a thread
  explicit WeightBlocks(const ConvShape& s) {
    // The longer a sum, the less it costs to add its lanes up; longer than 2048 brings nothing.
    const index_t most = std::max<index_t>(512, std::min<index_t>(2048, kDotElements / (kDotRows + s.m)));
    const index_t all = s.images * s.positions, fit = (1 << 22) / std::max<index_t>(1, s.outputs * s.k);  // elements of sums
    parts = std::max<index_t>(1, std::min({kTasks, s.images, fit, all / most}));
    images = ceil_div(s.images, parts);
    parts = std::max<index_t>(1, ceil_div(s.images, std::max<index_t>(1, images)));
    columns = std::max<index_t>(1, images * s.positions);
    columns = round_up(ceil_div(columns, ceil_div(columns, most)), kOvershoot);
    ld = columns + kOvershoot;
    const index_t wanted = ceil_div(kTasks, parts * s.groups);
    rows = round_up(std::max<index_t>(ceil_div(s.k, wanted), std::min<index_t>(s.k, 32)), s.last_kernel);
    count = ceil_div(s.k, rows);
    rows_at_once = std::min(rows, round_up(kDotRows, s.last_kernel));
    buffer = (rows_at_once + s.m) * ld + kOvershoot + copied_rows(s, columns, rows_at_once);
  }
};

/// The number of elements of scratch memory that conv_backward_weights needs on the CPU.
template <class T> index_t backward_weights_scratch(const ConvShape& s, int threads) {
  WeightBlocks blocks(s);
  return round_up(blocks.parts * s.groups * blocks.count * blocks.rows * s.m, kOvershoot) + threads * blocks.buffer;
}

}  // namespace cpu

/// The number of elements of scratch memory that each of the three functions below needs.
inline index_t conv_scratch(const Context& on, int dtype, const ConvShape& s) {
  if (on.stream) return s.columns_are_image() ? 0 : images_at_once(s) * columns_of_image(s);
  if (cpu::is_depthwise(s)) return cpu::depthwise_scratch(s, on.threads);
  return dispatch(dtype, [&](auto type) -> index_t {
    using T = decltype(type);
    return std::max({cpu::forward_scratch<T>(s, on.threads), cpu::backward_data_scratch<T>(s, on.threads),
                     cpu::backward_weights_scratch<T>(s, on.threads)});
  });
}

/// y = W * x + bias for every image; `bias` may be null. It is also the gradient of a deconvolution's bottom.
template <class T>
void conv_forward(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* x, const T* weight, const T* bias, T* y,
                  T* scratch) {
  using namespace cpu;
  if (on.stream) return cuda::conv_forward(on, blas, s, x, weight, bias, y, scratch);
  if (is_depthwise(s))
    return depthwise<DepthwiseForward>(s, on.threads, s.images * s.channels, scratch, s.channels, x, weight, bias, y);
  const Tile<T> tile = tile_for<T>(s.m);
  const index_t columns = s.images * s.positions, depth = panel_depth(s);
  const index_t chunks = ceil_div(columns, kChunk);
  // The weights of the last tile of each group, filled up with rows of zeros.
  const index_t whole = s.m / tile.rows * tile.rows;
  T *tails = scratch, *buffers = scratch + round_up(s.groups * kMaxTileRows * s.k, kOvershoot);
  for (index_t g = 0; g < s.groups && whole < s.m; ++g)
    for (index_t r = 0; r < tile.rows; ++r) {
      T* row = tails + (g * kMaxTileRows + r) * s.k;
      if (whole + r < s.m)
        std::memcpy(row, weight + (g * s.m + whole + r) * s.k, size_t(s.k) * sizeof(T));
      else
        std::fill(row, row + s.k, T(0));
    }

  const index_t buffer = kMaxTileColumns * depth + kOvershoot + copied_rows(s, kChunk, depth);
  auto product = [&](T* panel, index_t g, index_t begin, index_t end, SeenRows* seen) {
    T* copies = panel + kMaxTileColumns * depth + kOvershoot;
    seen->see(begin, end, tile.columns);
    for (index_t k0 = 0; k0 < s.k; k0 += depth) {
      const index_t k1 = std::min(s.k, k0 + depth);
      load_rows(*seen, x + g * s.group_channels * s.pixels, k0, k1, copies);
      for (index_t j = begin, t = 0; j < end; j += tile.columns, ++t) {
        const index_t width = std::min<index_t>(tile.columns, end - j);
        pack_rows(*seen, t, k0, k1, copies, panel, tile.columns, tile.columns);
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
          // Columns of several images, or fewer than a tile has: computed in a separate tile and copied.
          if (k0)
            for_each_image(s, j, j + width, [&](index_t offset, index_t column, index_t length) {
              for (int r = 0; r < rows; ++r)
                copy_run(out + offset + r * s.positions, length, corner + r * tile.columns + column);
            });
          tile.product(k1 - k0, a + k0, s.k, 1, panel, from, corner, tile.columns, rows);
          for_each_image(s, j, j + width, [&](index_t offset, index_t column, index_t length) {
            for (int r = 0; r < rows; ++r)
              copy_run(corner + r * tile.columns + column, length, out + offset + r * s.positions);
          });
        }
      }
    }
  };
  const index_t grain = task_grain(s.m * s.k * std::min(columns, kChunk));
  parallel(on.threads, s.groups * chunks, grain, [&](int thread, index_t first, index_t last) {
    SeenRows seen(s);
    for (index_t task = first; task < last; ++task) {
      const index_t begin = task % chunks * kChunk, end = std::min(columns, begin + kChunk);
      for (index_t j = begin, next; j < end; j = next) {
        next = SeenRows::stretch_end(s, j, end, kChunk);
        product(buffers + thread * buffer, task / chunks, j, next, &seen);
      }
    }
  });
}

/// dx = the transposed operation on dy, overwritten; `bias`, one a channel of x, is added (a deconvolution's); may be null.
template <class T>
void conv_backward_data(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* dy, const T* weight, const T* bias,
                        T* dx, T* scratch) {
  using namespace cpu;
  if (on.stream) return cuda::conv_backward_data(on, blas, s, dy, weight, bias, dx, scratch);
  if (is_depthwise(s))
    return depthwise<DepthwiseBackwardData>(s, on.threads, s.images * s.channels, scratch, s.channels, dy, weight, bias, dx);
  const DataBlocks blocks(s);
  const index_t block_rows = blocks.channels * s.taps, depth = std::min(s.m, kDepth);
  const Tile<T> tile = tile_for<T>(block_rows);
  const index_t rows = round_up(block_rows, tile.rows), all_blocks = s.groups * blocks.count;
  T *packed = scratch, *buffers = scratch + round_up(all_blocks * rows * s.m, kOvershoot);

  // The weights of each block as tiles [m][row], so that the product reads them in order.
  parallel(on.threads, all_blocks, ceil_div(kGrain, rows * s.m), [&](int, index_t first, index_t last) {
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

  const index_t grain = task_grain(rows * s.m * blocks.images * s.positions);
  parallel(on.threads, blocks.batches * all_blocks, grain, [&](int thread, index_t first, index_t last) {
    SeenRows seen(s);
    T* columns = buffers + thread * ((rows + depth) * kBlock + copied_rows(s, kBlock, 0));
    T *panel = columns + rows * kBlock, *copies = panel + depth * kBlock;
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
      for (index_t j = image0 * s.positions, end; j < image1 * s.positions; j = end) {
        end = SeenRows::stretch_end(s, j, image1 * s.positions, kBlock);
        for (index_t m0 = 0; m0 < s.m; m0 += depth) {
          const index_t m1 = std::min(s.m, m0 + depth);
          for (index_t p = j; p < end; p += tile.columns) {
            const index_t panel_end = std::min<index_t>(end, p + tile.columns);
            for_each_image(s, p, panel_end, [&](index_t offset, index_t column, index_t length) {
              for (index_t m = m0; m < m1; ++m)
                copy_run(dy + offset + (g * s.m + m) * s.positions, length, panel + (m - m0) * tile.columns + column);
            });
            for (index_t t = 0; t < channels * s.taps; t += tile.rows)
              tile.product(m1 - m0, packed + b * rows * s.m + t * s.m + m0 * tile.rows, 1, tile.rows, panel,
                           m0 ? nullptr : zeros, columns + t * kBlock + (p - j), kBlock, tile.rows);
          }
        }
        seen.see(j, end, kBlock);
        range(AddLines<T>{seen, columns, kBlock, copies, x}, 0, channels);
      }
    }
  });
}

/// dweight += dy * im2col(x)^T, summed over images in an order that sizes alone decide.
/// `add`: on a device without it dweight is overwritten, if there are images.
template <class T>
void conv_backward_weights(const Context& on, const cpu::Blas& blas, const ConvShape& s, const T* x, const T* dy, T* dweight,
                           bool add, T* scratch) {
  using namespace cpu;
  if (on.stream) return cuda::conv_backward_weights(on, blas, s, x, dy, dweight, add, scratch);
  if (is_depthwise(s))
    return depthwise<DepthwiseBackwardWeights>(s, on.threads, s.channels, scratch, s.images, s.channels, x, dy, dweight);
  const WeightBlocks blocks(s);
  const DotTile<T> tile = dot_tile_for<T>(s.m);
  const index_t rows = blocks.rows, all_blocks = s.groups * blocks.count, part_size = all_blocks * rows * s.m;
  T *sums = scratch, *buffers = scratch + round_up(blocks.parts * part_size, kOvershoot);
  if (!s.images || !s.positions) return;

  // sums[part][group and block][output m][row k]: both factors lie along the vectors.
  const index_t grain = task_grain(rows * s.m * blocks.images * s.positions);
  parallel(on.threads, blocks.parts * all_blocks, grain, [&](int thread, index_t first, index_t last) {
    SeenRows seen(s);
    T *tops = buffers + thread * blocks.buffer, *columns = tops + s.m * blocks.ld;
    T* copies = columns + blocks.rows_at_once * blocks.ld + kOvershoot;
    for (index_t task = first; task < last; ++task) {
      const index_t part = task / all_blocks, b = task % all_blocks, g = b / blocks.count, block = b % blocks.count * rows;
      const index_t block_end = std::min(s.k, block + rows);
      const index_t begin = part * blocks.images * s.positions;
      const index_t end = std::min(s.images, (part + 1) * blocks.images) * s.positions;
      T* sum = sums + task * rows * s.m;
      std::fill(sum, sum + rows * s.m, T(0));
      for (index_t j = begin, next; j < end; j = next) {
        next = SeenRows::stretch_end(s, j, end, blocks.columns);
        const index_t depth = round_up(next - j, kOvershoot);
        for_each_image(s, j, next, [&](index_t offset, index_t column, index_t length) {
          for (index_t m = 0; m < s.m; ++m)
            copy_run(dy + offset + (g * s.m + m) * s.positions, length, tops + m * blocks.ld + column);
        });
        for (index_t m = 0; m < s.m; ++m) std::fill(tops + m * blocks.ld + (next - j), tops + m * blocks.ld + depth, T(0));
        seen.see(j, next, blocks.columns);
        for (index_t k0 = block; k0 < block_end; k0 += blocks.rows_at_once) {
          const index_t k1 = std::min(block_end, k0 + blocks.rows_at_once);
          load_rows(seen, x + g * s.group_channels * s.pixels, k0, k1, copies);
          pack_rows(seen, 0, k0, k1, copies, columns, blocks.ld, depth);
          for (index_t m = 0; m < s.m; m += tile.rows)
            for (index_t k = k0; k < k1; k += tile.columns)
              tile.product(depth, tops + m * blocks.ld, int(std::min<index_t>(tile.rows, s.m - m)),
                           columns + (k - k0) * blocks.ld, int(std::min<index_t>(tile.columns, k1 - k)), blocks.ld,
                           sum + m * rows + (k - block), rows);
        }
      }
    }
  });

  parallel(on.threads, s.outputs, ceil_div(kGrain, s.k * blocks.parts), [&](int, index_t first, index_t last) {
    for (index_t i = first; i < last; ++i)
      for (index_t b = 0; b < blocks.count; ++b) {
        const T* total = sums + ((i / s.m * blocks.count + b) * s.m + i % s.m) * rows;
        const index_t k0 = b * rows, count = std::min(rows, s.k - k0);
        for (index_t part = 0; part < blocks.parts; ++part) add_run(total + part * part_size, count, dweight + i * s.k + k0);
      }
  });
}

}  // namespace mc
