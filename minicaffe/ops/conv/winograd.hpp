// Convolutions of 3x3 and 5x5 pixels by Winograd's algorithm, with a quarter (3x3) or less than a fifth (5x5) of the
// multiplications.
//
// Along each axis, 4 outputs of a kernel of r numbers come from a tile of r + 3 pixels. Read as polynomials, their product is
// known from its values at r + 3 points: tile and kernel are evaluated there, the values multiplied one by one, and the outputs
// interpolated. Sums over channels happen in between, so for each pair of points, one of each axis, there is one matrix
// product, tiles x channels by channels x outputs. The gradients are the same with the roles exchanged: outputs and kernels are
// evaluated and tiles interpolated, which are added where they overlap; or tiles and outputs are evaluated and kernels
// interpolated. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015).
#pragma once
#include <type_traits>
#include <vector>
#include "minicaffe/ops/conv/register_tile.hpp"
#include "minicaffe/ops/conv/shape.hpp"
#include "minicaffe/ops/conv/winograd_tiles.hpp"

namespace mc {
namespace cpu {
namespace winograd {

/// The three computations, with kernels of r x r and vectors of `kLanes` floats; `with` below makes one for a shape.
template <int r, int kLanes> class Convolution {
 public:
  /// `lanes`: channels of the images lie in blocks of `kLanes`.
  Convolution(Threads threads, const ConvShape& s, bool lanes)
      : threads_{parts_of(threads, s.images * s.positions * s.outputs * s.k, kProductGrain), threads.pool}, s_(s), lanes_(lanes) {}

  /// Floats of scratch memory that forward with `kept` values needs; else forward or backward at most.
  index_t scratch(bool kept) const {
    const Workspace forward(threads_, image(0), s_.m, true);
    return kept ? forward.floats(0)
                : std::max(forward.floats(1), Workspace(threads_, columns(0), s_.group_channels, false).floats(2));
  }

  /// Floats of the values of all kernels for forward.
  index_t values() const { return s_.groups * kAll * values_at().point; }
  /// Write these values of the kernels w to u.
  void evaluate_weights(const float* w, float* u) const {
    const index_t panels = ceil_div(s_.m, kPanel);
    for (index_t g = 0; g < s_.groups; ++g, w += s_.m * s_.group_channels * taps, u += kAll * values_at().point)
      each<EvaluateKernels<r, kLanes>>(2 * panels * s_.group_channels, {kernels(true), values_at(), 0, w, u});
  }

  /// y from x, overwritten, with an epilogue. y is among `y_channels` channels, more than its own if it is a part of a Concat.
  /// `u`: the values of the kernels by `evaluate_weights`, which are only read; null: evaluated here, from w.
  void forward(const float* x, const float* w, float* u, const Finish& finish, float* y, index_t y_channels,
               float* scratch) const {
    for (index_t g = 0; g < s_.groups; ++g) {
      const Images from = image(g);
      Images to = columns(g);
      to.channels = y_channels;
      Workspace space(threads_, from, to.count, true);
      if (u) space.u_at = values_at(), space.kept = u + g * kAll * space.u_at.point;
      const float* const weights = u ? nullptr : w + g * s_.m * s_.group_channels * taps;
      evaluate<OfTile<r>>(space, space.all(), space.whole, from, x, kernels(true), weights, space.memory(scratch, 0));
      space.each_part(threads_, scratch, [&](const Chunk& part, const Memory& at) {
        evaluate<OfTile<r>>(space, part, !space.whole, from, x, kernels(true), weights, at);
        convolve<OfOut<r>>(space, part, from, to, finish, y, at);
      });
    }
  }
  /// dx from dy and w, overwritten, unless null. Gradients from x and dy are added to dw and db unless null; db only along with dw.
  void backward(const float* x, const float* dy, const float* w, float* dx, float* dw, float* db, float* scratch) const {
    for (index_t g = 0; g < s_.groups; ++g) {
      const Images from = columns(g), to = image(g);
      const Workspace space(threads_, from, to.count, false);
      const index_t first = g * s_.m * s_.group_channels * taps;
      const float* const weights = dx ? w + first : nullptr;
      evaluate<OfOut<r>>(space, space.all(), space.whole, from, dy, kernels(false), weights, space.memory(scratch, 0), db);
      space.each_part(threads_, scratch, [&](const Chunk& part, const Memory& at) {
        evaluate<OfOut<r>>(space, part, !space.whole, from, dy, kernels(false), weights, at, db);
        if (dw) weight_gradient(space, part, from, to, x, dw + first, db, at);
        if (dx) convolve<OfTile<r>>(space, part, from, to, Finish{}, dx, at);
      });
    }
  }

 private:
  static constexpr int kAll = OfTile<r>::kValues, kPanel = 2 * kLanes, taps = r * r;
  static constexpr float kZeros[kMaxTileRows] = {};

  // Floats of values of tiles, and of kernels, that are computed at a time: 1 MiB and 2 MiB were measured to be best, and at least
  // four register tiles (rows of a matrix product, register_tile.hpp).
  static constexpr index_t kTiles = 1 << 18, kKernels = 1 << 19;
  // A sum over channels (or, of the gradient of kernels, over tiles) is the sum of sums of so many: a longer one rounds larger
  // numbers more often, which would be most of the rounding error, and shorter ones were measured to take longer.
  static constexpr index_t kSummed = 48;

  /// The part that is computed at a time: `tiles` tiles from `tile` on, and of the result's channels `panels` panels (of two blocks
  /// of kLanes) from `panel` on, and the same as blocks.
  struct Chunk {
    index_t tile, tiles, panel, panels, first_block, blocks;
  };

  /// Scratch memory of values at the points: of what is read (x or dy), of the result, of kernels, and of the kernels' gradient.
  struct Memory {
    float *v, *m, *u, *du;
  };

  /// The division of a group's work into chunks that stay in the caches. A chunk is some tiles and all outputs, or, where kernels
  /// are more than both, all tiles and some outputs. What all chunks need, kernels or tiles, is evaluated first. Then each thread
  /// computes chunks of its own in memory of its own, so in its own caches, if that divides the work evenly. Otherwise all threads
  /// share the loops of each chunk; also where tiles overlap in the result or are added up, since the order of sums must not
  /// depend on the number of threads.
  struct Workspace {
    index_t tiles, rows, blocks, outputs, panels;  // tiles of all images; rows of a product; blocks of input and of output channels
    bool whole;                                    // a chunk has all tiles
    int parts;                                     // threads with chunks of their own; 1: all share each
    index_t step;                                  // of a chunk: panels of outputs if `whole`, else products of `rows` tiles
    Values v_at, m_at, u_at;                       // the strides of Memory's v, m, and u and du
    float* kept = nullptr;                         // of all kernels of the group, with the strides u_at; null: u has a chunk's

    /// `from`: what is read; `channels`: of the result; `apart`: tiles do not overlap in it.
    Workspace(Threads threads, const Images& from, index_t channels, bool apart) {
      tiles = from.tiles_n * from.tiles(), rows = tile_for<float>(tiles).rows;
      blocks = ceil_div(from.count, kLanes), outputs = ceil_div(channels, kLanes), panels = ceil_div(outputs, 2);
      const index_t width = blocks * kLanes;
      whole = tiles * (width + panels * kPanel) <= width * panels * kPanel;
      step = whole ? kKernels / (kAll * kPanel * from.count)
                   : std::max<index_t>(4, kTiles / (kAll * (width + panels * kPanel) * rows));
      const index_t share = ceil_div(units(), threads.count);
      parts = (whole || apart) && share * threads.count * 10 <= units() * 11 ? threads.count : 1;
      step = at_a_time(parts > 1 ? share : units());
      const index_t length = (whole ? units_of_tiles() : step) * rows, group = whole ? step : panels;
      // A vector more from tile to tile and from point to point: else all may fall into one set of the cache.
      const index_t row = width % 128 ? width : width + kLanes;
      v_at = {row, kPanel, length * row + kLanes};
      m_at = {kPanel, length * kPanel, group * length * kPanel + kLanes};
      u_at = {kPanel, from.count * kPanel, group * from.count * kPanel + kLanes};
    }
    index_t units_of_tiles() const { return ceil_div(tiles, rows); }  // a unit of work: `rows` tiles, or a panel if `whole`
    index_t units() const { return whole ? panels : units_of_tiles(); }
    index_t at_a_time(index_t count) const { return ceil_div(count, ceil_div(count, std::max<index_t>(1, step))); }

    // With the sums of tiles; products read some more.
    index_t tile_floats() const { return (kAll + 1) * v_at.point + kMaxTileRows * v_at.row; }
    index_t output_floats() const { return kAll * m_at.point; }
    index_t kernel_floats() const { return kAll * u_at.point; }
    index_t floats(int kernels) const {  // of all scratch memory, with so many arrays of kernels
      return (whole ? 1 : parts) * tile_floats() + parts * output_floats() + (whole ? parts : 1) * kernels * kernel_floats();
    }
    /// The scratch memory of a part, a thread with chunks of its own: what is evaluated first is common to all.
    Memory memory(float* scratch, int part) const {
      float* const m = scratch + (whole ? 1 : parts) * tile_floats();
      float* const u = m + parts * output_floats();
      const index_t kernels = (whole ? parts : 1) * kernel_floats();
      return {scratch + (whole ? 0 : part) * tile_floats(), m + part * output_floats(), u + (whole ? part : 0) * kernel_floats(),
              u + kernels + (whole ? part : 0) * kernel_floats()};
    }
    Chunk all() const { return {0, tiles, 0, panels, 0, outputs}; }  // for what is evaluated first

    /// work(Chunk, Memory) for each chunk.
    template <class Work> void each_part(Threads threads, float* scratch, const Work& work) const {
      const auto walk = [&](int part, index_t first, index_t last) {
        Memory memory = this->memory(scratch, part);
        for (index_t at = first, n = at_a_time(last - first); at < last; at += n) {
          const index_t many = std::min(n, last - at);
          if (kept) memory.u = kept + (whole ? at * u_at.panel : 0);
          work(whole ? Chunk{0, tiles, at, many, at * 2, std::min(many * 2, outputs - at * 2)}
                     : Chunk{at * rows, std::min(many * rows, tiles - at * rows), 0, panels, 0, outputs},
               memory);
        }
      };
      if (parts > 1)
        parallel(threads, units(), 1, walk);
      else
        walk(0, 0, units());
    }
  };

  /// The strides of the values of all kernels of a group, as `evaluate_weights` writes them.
  Values values_at() const {
    return {kPanel, s_.group_channels * kPanel, ceil_div(s_.m, kPanel) * s_.group_channels * kPanel + kLanes};
  }
  /// The weights of a group: rows of channels and columns of outputs; the other way round for backward.
  Kernels kernels(bool forward) const {
    const Kernels kernels{s_.group_channels, s_.m, taps, s_.group_channels * taps};
    return forward ? kernels : Kernels{kernels.columns, kernels.rows, kernels.column, kernels.row};
  }
  Images image(index_t group) const {  // the channels of a group in the bottom, as tiles
    const Window& w = s_.window;
    return {s_.channels, w.in[0], w.in[1], group * s_.group_channels, s_.group_channels, w.pad[0], w.pad[1], s_.images,
            ceil_div(w.out[0], kOut), ceil_div(w.out[1], kOut), lanes_};
  }
  /// The outputs of a group in the top, in the same tiles.
  Images columns(index_t group) const {
    Images images = image(group);
    images.channels = s_.outputs, images.height = s_.window.out[0], images.width = s_.window.out[1];
    images.first = group * s_.m, images.count = s_.m, images.pad_y = images.pad_x = 0;
    return images;
  }

  /// Evaluate at the points: if `tiles`, the tiles of a part, else its kernels, unless `w` is null. `sums` of dy are for the bias.
  template <class M>
  void evaluate(const Workspace& space, const Chunk& part, bool tiles, const Images& from, const float* x, const Kernels& kernels,
                const float* w, const Memory& at, bool sums = false) const {
    if (tiles)
      each<Evaluate<M, kLanes>>(part.tiles * space.blocks, {from, space.v_at, part.tile, 0, space.blocks, x, at.v, sums});
    else if (w)
      each<EvaluateKernels<r, kLanes>>(2 * part.panels * kernels.rows, {kernels, space.u_at, part.first_block, w, at.u});
  }

  /// y, tiles of `to`, from the values in v and the kernels' in u: a matrix product for each point, and interpolation.
  template <class To>
  void convolve(const Workspace& space, const Chunk& part, const Images& from, const Images& to, const Finish& finish, float* y,
                const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.u;
    const Tile<float> tile = tile_for<float>(space.tiles);
    const index_t summed = ceil_div(from.count, ceil_div(from.count, kSummed));
    each_product(part.panels, [&](index_t k, index_t p) {
      for (index_t c = 0; c < from.count; c += summed)
        for (index_t t = 0; t < part.tiles; t += tile.rows)
          tile.product(std::min(summed, from.count - c), v + k * space.v_at.point + t * space.v_at.row + c, space.v_at.row, 1,
                       u + k * space.u_at.point + p * space.u_at.panel + c * kPanel, c ? nullptr : kZeros,
                       m + k * space.m_at.point + p * space.m_at.panel + t * kPanel, kPanel,
                       int(std::min<index_t>(tile.rows, part.tiles - t)));
    });
    const Interpolate<To, kLanes> interpolation{to, space.m_at, part.tile, part.tile + part.tiles, part.first_block, part.blocks,
                                                m, finish, y};
    each(interpolation.count(), interpolation);
  }

  /// Add to the gradients of weights and bias, from the values of dy (`from`) in v and the image x (`to`). In du the kernels'
  /// gradient is summed over chunks of tiles; it is interpolated after the last.
  void weight_gradient(const Workspace& space, const Chunk& part, const Images& from, const Images& to, const float* x,
                       float* dw, float* db, const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.du;
    const Tile<float> tile = tile_for<float>(from.count);
    if (part.blocks % 2) fill(threads_, kAll * space.m_at.point, 0.f, m);  // half a panel without channels
    each<Evaluate<OfTile<r>, kLanes>>(part.tiles * part.blocks,
                                      {to, space.m_at, part.tile, part.first_block, part.blocks, x, m, false});
    each_product(part.panels, [&](index_t k, index_t p) {
      const float *const values = v + k * space.v_at.point, *const pixels = m + k * space.m_at.point + p * space.m_at.panel;
      for (index_t t = 0; t < part.tiles; t += kSummed) {
        const index_t summed = std::min(kSummed, part.tiles - t);
        for (index_t c = 0; c < from.count; c += tile.rows) {
          const int rows = int(std::min<index_t>(tile.rows, from.count - c));
          float* const to = u + k * space.u_at.point + p * space.u_at.panel + c * kPanel;
          tile.product(summed, values + t * space.v_at.row + c, 1, space.v_at.row, pixels + t * kPanel,
                       part.tile + t ? nullptr : kZeros, to, kPanel, rows);
        }
      }
      if (db && !part.panel && !p && !k) {  // once for each tile, by one thread
        const float* const sums = v + kAll * space.v_at.point;
        std::vector<float> total(size_t(from.count));
        for (index_t t = 0; t < part.tiles; ++t)
          for (index_t c = 0; c < from.count; ++c) total[size_t(c)] += sums[t * space.v_at.row + c];
        for (index_t c = 0; c < from.count; ++c) db[from.first + c] += total[size_t(c)];
      }
    });
    if (part.tile + part.tiles == space.tiles)
      each<InterpolateKernels<r, kLanes>>(part.blocks * from.count, {kernels(false), space.u_at, part.first_block, u, dw});
  }

  /// functor(i) for 0 <= i < n, compiled for the instruction set of kLanes.
  template <class F> void each(index_t n, const F& functor) const {
    parallel(threads_, n, std::max<index_t>(1, kGrain / (4 * kAll * kLanes)), [&](int, index_t begin, index_t end) {
#ifdef MC_X86
      if constexpr (kLanes == 16) return range_avx512(functor, begin, end);
      if constexpr (kLanes == 8) return range_avx2(functor, begin, end);
#endif
      range_baseline(functor, begin, end);
    });
  }
  /// product(point, panel) for all points of `panels` panels.
  template <class Product> void each_product(index_t panels, const Product& product) const {
    parallel(threads_, kAll * panels, 1, [&](int, index_t unit, index_t end) {
      for (; unit < end; ++unit) product(unit / panels, unit % panels);
    });
  }

  Threads threads_;
  const ConvShape& s_;
  bool lanes_;
};

/// The number of channels of a block if images may be in lanes; 0: a block would belong to two groups, or vectors are too short.
inline int lanes(const ConvShape& s) {
  const int width = isa() == kAvx512 ? 16 : isa() == kAvx2 ? 8 : 0;
  return width && (s.groups == 1 || (s.group_channels % width == 0 && s.m % width == 0)) ? width : 0;
}

/// Why this convolution is not computed here; null: it is.
inline const char* refusal(const ConvShape& s) {
  const Window& w = s.window;
  if (w.num_axes != 2 || w.kernel[0] != w.kernel[1] || (w.kernel[0] != 3 && w.kernel[0] != 5))
    return "a kernel other than 3x3 or 5x5";
  for (int a = 0; a < 2; ++a)
    if (w.stride[a] != 1 || w.dilation[a] != 1) return "a stride or a dilation";
  return nullptr;
}

/// The time by measurements, in products of a channel and an output: to evaluate or interpolate a tile takes as long as its
/// product with 16 more channels or outputs, to evaluate a kernel as 25 more tiles, and to read its values, if they are `kept`, as
/// 10.
inline double products(const ConvShape& s, bool kept) {
  const double points = s.window.kernel[0] == 3 ? OfTile<3>::kValues : OfTile<5>::kValues;
  const double tiles = double(s.images * ceil_div(s.window.out[0], kOut) * ceil_div(s.window.out[1], kOut));
  return points * (tiles * (1 + 16. / double(s.group_channels) + 16. / double(s.m)) + (kept ? 10 : 25));
}

/// Whether to keep the values of kernels that do not change, if this saves a tenth of the time or more: of 3x3 they need four times
/// the memory of the weights, of 5x5 three times.
inline bool pays_to_keep(const ConvShape& s) { return products(s, true) < 0.9 * products(s, false); }

/// Whether it takes less time than direct convolution. A product of many tiles takes a fifth longer than direct convolution takes
/// for as many multiplications.
inline bool is_faster(const ConvShape& s, bool learned) {
  return 1.2 * products(s, !learned && pays_to_keep(s)) < double(s.images * s.positions * s.taps);
}

/// compute(the Convolution for this shape and processor)
template <class Compute> auto with(Threads threads, const ConvShape& s, bool lanes, const Compute& compute) {
  const auto choose = [&](auto r) {
#ifdef MC_X86
    if (isa() == kAvx512) return compute(Convolution<r, 16>(threads, s, lanes));
    if (isa() == kAvx2) return compute(Convolution<r, 8>(threads, s, lanes));
#endif
    return compute(Convolution<r, 4>(threads, s, lanes));
  };
  return s.window.kernel[0] == 3 ? choose(std::integral_constant<int, 3>()) : choose(std::integral_constant<int, 5>());
}

// For engine_winograd.pyx: the members of Convolution of these names, by void*.
inline index_t scratch(Threads threads, const ConvShape& s, bool lanes, bool kept) {
  return with(threads, s, lanes, [=](const auto& convolution) { return convolution.scratch(kept); });
}
inline index_t values(const ConvShape& s) {
  return with(Threads{}, s, false, [](const auto& convolution) { return convolution.values(); });
}
inline void evaluate_weights(Threads threads, const ConvShape& s, const void* w, void* u) {
  with(threads, s, false,
       [&](const auto& convolution) { convolution.evaluate_weights(static_cast<const float*>(w), static_cast<float*>(u)); });
}
inline void forward(Threads threads, const ConvShape& s, bool lanes, const void* x, const void* w, const void* u,
                    const float* scale, const float* shift, const void* addend, const float* slopes, void* y,
                    index_t y_channels, void* scratch) {
  with(threads, s, lanes, [&](const auto& convolution) {
    convolution.forward(static_cast<const float*>(x), static_cast<const float*>(w), static_cast<float*>(const_cast<void*>(u)),
                        Finish{scale, shift, static_cast<const float*>(addend), slopes}, static_cast<float*>(y), y_channels,
                        static_cast<float*>(scratch));
  });
}
inline void backward(Threads threads, const ConvShape& s, bool lanes, const void* x, const void* dy, const void* w, void* dx,
                     void* dw, void* db, void* scratch) {
  with(threads, s, lanes, [&](const auto& convolution) {
    convolution.backward(static_cast<const float*>(x), static_cast<const float*>(dy), static_cast<const float*>(w),
                         static_cast<float*>(dx), static_cast<float*>(dw), static_cast<float*>(db), static_cast<float*>(scratch));
  });
}

}  // namespace winograd
}  // namespace cpu
}  // namespace mc
