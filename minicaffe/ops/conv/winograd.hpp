// Convolutions of 3x3 and 5x5 pixels by Winograd's algorithm, with a quarter (3x3) or a sixth (5x5) of the multiplications.
//
// Along each axis, 4 outputs of a kernel of r numbers come from a tile of r + 3 pixels. Read as polynomials, their product is known
// from its values at r + 3 points: tile and kernel are evaluated there, the values multiplied one by one, and the outputs
// interpolated. Sums over channels happen in between, so for each of the (r + 3)^2 points of a tile there is one matrix product,
// tiles x channels by channels x outputs. The gradients are the same with the roles exchanged: outputs and kernels are evaluated and
// tiles interpolated, which are added where they overlap; or tiles and outputs are evaluated and kernels interpolated.
//
// Vectors hold neighbouring channels of one pixel. In images where these are neighbours in memory (lanes) they are loaded as they lie,
// otherwise collected. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015).
#pragma once
#include <type_traits>
#include <vector>
#include "minicaffe/ops/conv/register_tile.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {
namespace winograd {

constexpr int kOut = 4;  // outputs of a tile along an axis

/// What evaluates at the points 0, 1, -1, 2, -2 (for 5x5 also 1/2, -1/2) and infinity: matrices with a row for each point.
///
/// The rows of a number and of its negative have equal entries in even columns, opposite ones in odd columns.
template <int r> struct Points {
  static constexpr int kPoints = r + kOut - 1, kNumbers = kPoints - 1;
  float tile[kPoints][kPoints] = {}, kernel[kPoints][r] = {}, out[kPoints][kOut] = {};

  constexpr Points() {
    const double at[7] = {0, 1, -1, 2, -2, 0.5, -0.5};
    for (int k = 0; k < kPoints; ++k) {
      // The coefficients of the polynomial that is zero at the other numbers, lowest first, and its value at this one.
      double c[kPoints] = {1}, value = 1, power = 1;
      int degree = 0;
      for (int j = 0; j < kNumbers; ++j) {
        if (j == k) continue;
        ++degree;
        for (int i = degree; i >= 0; --i) c[i] = (i ? c[i - 1] : 0) - at[j] * (i < degree ? c[i] : 0);
        if (k < kNumbers) value *= at[k] - at[j];
      }
      for (int i = 0; i < kPoints; ++i) tile[k][i] = float(c[i]);
      for (int i = 0; i < r || i < kOut; ++i) {
        const bool highest = k == kNumbers;
        if (i < r) kernel[k][i] = float(highest ? i == r - 1 : power / value);
        if (i < kOut) out[k][i] = float(highest ? i == kOut - 1 : power);
        if (!highest) power *= at[k];
      }
    }
  }
};
template <int r> constexpr Points<r> kPoints{};

// Which matrix of Points<r>.
template <int r> struct OfTile {
  static constexpr int kSize = r + kOut - 1;
  static constexpr float at(int k, int i) { return kPoints<r>.tile[k][i]; }
};
template <int r> struct OfKernel {
  static constexpr int kSize = r;
  static constexpr float at(int k, int i) { return kPoints<r>.kernel[k][i]; }
};
template <int r> struct OfOut {
  static constexpr int kSize = kOut;
  static constexpr float at(int k, int i) { return kPoints<r>.out[k][i]; }
};

/// to[k] = sum over i of M(k, i) from[i]
template <class M, int points, class Number, class Vector>
MC_HD void evaluate(const Number* from, index_t step, Vector* to, index_t to_step) {
  constexpr int size = M::kSize;
#pragma GCC unroll 8
  for (int k = 0; k < points; k += k == 0 || k == points - 1 ? 1 : 2) {
    Vector even{}, odd{};
#pragma GCC unroll 8
    for (int i = 0; i < size; ++i) {
      if (M::at(k, i) == 0) continue;
      (i % 2 ? odd : even) += M::at(k, i) * from[i * step];
    }
    to[k * to_step] = even + odd;
    if (k && k < points - 1) to[(k + 1) * to_step] = even - odd;
  }
}

/// to[i] = sum over k of M(k, i) from[k]
template <class M, int points, class Vector> MC_HD void interpolate(const Vector* from, index_t step, Vector* to, index_t to_step) {
  constexpr int size = M::kSize;
  Vector result[size] = {};
#pragma GCC unroll 8
  for (int k = 0; k < points; k += k == 0 || k == points - 1 ? 1 : 2) {
    const bool pair = k && k < points - 1;
    const Vector one = from[k * step], other = pair ? from[(k + 1) * step] : Vector{};
    const Vector sum = one + other, difference = one - other;
#pragma GCC unroll 8
    for (int i = 0; i < size; ++i)
      if (M::at(k, i) != 0) result[i] += M::at(k, i) * (i % 2 ? difference : sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < size; ++i) to[i * to_step] = result[i];
}

/// Images of which a group of channels is seen, as tiles whose upper left pixels are 4 apart.
struct Images {
  index_t channels, height, width;  // of the whole image
  index_t first, count;             // the channels that are seen
  index_t pad_y, pad_x;             // how far the first tile lies outside
  index_t tiles_n, tiles_y, tiles_x;
  bool lanes;  // whether a vector of channels lies together

  MC_HD index_t tiles() const { return tiles_y * tiles_x; }
};

/// What a tile, or the outputs of a tile, and a block of channels see of the images.
struct Part {
  index_t row, column;           // of the tile
  index_t y, x;                  // of its first pixel
  index_t plane;                 // where the first channel's plane begins, or with lanes the block's
  int top, bottom, left, right;  // which of its pixels are in the image
  int lanes;                     // how many channels there are

  MC_HD Part(const Images& images, index_t tile, index_t c, int size, int width) {
    const index_t n = tile / images.tiles();
    row = tile % images.tiles() / images.tiles_x, column = tile % images.tiles_x;
    y = row * kOut - images.pad_y, x = column * kOut - images.pad_x;
    top = int(max_(index_t(0), -y)), bottom = int(min_(index_t(size), images.height - y));
    left = int(max_(index_t(0), -x)), right = int(min_(index_t(size), images.width - x));
    lanes = int(min_(index_t(width), images.count - c));
    plane = images.height * images.width * (images.lanes ? n * round_up(images.channels, width) + images.first + c
                                                         : n * images.channels + images.first + c);
  }
};

/// Where the values of a tile and a block of channels are, of the first point; those of the next point are `point` further.
struct Values {
  index_t row, panel, point;
  template <int kLanes> MC_HD index_t at(index_t tile, index_t block) const {
    return tile * row + block / 2 * panel + block % 2 * kLanes;
  }
};

template <int kLanes> struct Lane {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  typedef float Unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));
};

typedef float Four __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(alignof(float)), may_alias));

/// The numbers i, j, k, l of the eight in a and b.
template <int i, int j, int k, int l> MC_HD void pick(const Four& a, const Four& b, Four* to) {
#if defined(__clang__) || __GNUC__ >= 12
  *to = __builtin_shufflevector(a, b, i, j, k, l);
#else
  typedef int Indices __attribute__((vector_size(16)));
  *to = __builtin_shuffle(a, b, Indices{i, j, k, l});
#endif
}

/// Four rows of four numbers as columns.
MC_HD void turn(const float* from, index_t row, Four* to) {
  Four rows[4], halves[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const UnalignedFour*>(from + i * row);
  pick<0, 4, 1, 5>(rows[0], rows[1], &halves[0]), pick<2, 6, 3, 7>(rows[0], rows[1], &halves[1]);
  pick<0, 4, 1, 5>(rows[2], rows[3], &halves[2]), pick<2, 6, 3, 7>(rows[2], rows[3], &halves[3]);
  pick<0, 1, 4, 5>(halves[0], halves[2], &to[0]), pick<2, 3, 6, 7>(halves[0], halves[2], &to[1]);
  pick<0, 1, 4, 5>(halves[1], halves[3], &to[2]), pick<2, 3, 6, 7>(halves[1], halves[3], &to[3]);
}

/// Evaluate a square of vectors, whose rows are `row` apart; the values at each point are `point` floats behind those at the one before.
template <class M, int points, int kLanes, class Number>
MC_HD void evaluate_square(const Number* from, index_t row, float* to, index_t point) {
  constexpr int size = M::kSize;
  typename Lane<kLanes>::Vector half[points * size];
#pragma GCC unroll 8
  for (int j = 0; j < size; ++j) evaluate<M, points>(from + j, row, half + j, size);
  for (int k = 0; k < points; ++k) {
    typename Lane<kLanes>::Vector result[points];
    evaluate<M, points>(half + k * size, 1, result, 1);
#pragma GCC unroll 8
    for (int i = 0; i < points; ++i)
      *reinterpret_cast<typename Lane<kLanes>::Unaligned*>(to + (k * points + i) * point) = result[i];
  }
}

/// A square of vectors from its values at all points.
template <class M, int points, int kLanes, class Vector>
MC_HD void interpolate_square(const float* from, index_t point, Vector* to) {
  constexpr int size = M::kSize;
  Vector half[size * points];
  for (int k = 0; k < points; ++k) {
    Vector numbers[points];
#pragma GCC unroll 8
    for (int i = 0; i < points; ++i)
      numbers[i] = *reinterpret_cast<const typename Lane<kLanes>::Unaligned*>(from + (i * points + k) * point);
    interpolate<M, points>(numbers, 1, half + k, points);
  }
#pragma GCC unroll 8
  for (int i = 0; i < size; ++i) interpolate<M, points>(half + i * points, 1, to + i * size, 1);
}

/// The pixels of a part, zeros where there are none; `all`: there are all.
template <int size, int kLanes>
MC_HD void collect(const Images& images, const float* plane, const Part& part, bool all, typename Lane<kLanes>::Vector* pixels) {
  typedef typename Lane<kLanes>::Vector Vector;
  typedef typename Lane<kLanes>::Unaligned Unaligned;
  for (int i = 0; !all && i < size * size; ++i) pixels[i] = Vector{};
  if (images.lanes) {
    for (int i = part.top; i < part.bottom; ++i) {
      const float* const from = plane + ((part.y + i) * images.width + part.x) * kLanes;
      for (int j = part.left; j < part.right; ++j) pixels[i * size + j] = *reinterpret_cast<const Unaligned*>(from + j * kLanes);
    }
    return;
  }
  float* const pixel = reinterpret_cast<float*>(pixels);
  const index_t next = images.height * images.width;
  const int turned = part.right - part.left == size ? part.lanes / 4 * 4 : 0;
  for (int lane = 0; lane < turned; lane += 4)
    for (int i = part.top; i < part.bottom; ++i)
      for (int j : {0, size - 4}) {
        Four columns[4];
        turn(plane + lane * next + (part.y + i) * images.width + part.x + j, next, columns);
        for (int k = 0; k < 4; ++k) *reinterpret_cast<UnalignedFour*>(pixel + (i * size + j + k) * kLanes + lane) = columns[k];
      }
  for (int lane = turned; lane < part.lanes; ++lane) {
    const float* const from = plane + lane * next + part.y * images.width + part.x;
    for (int i = part.top; i < part.bottom; ++i)
      for (int j = part.left; j < part.right; ++j) pixel[(i * size + j) * kLanes + lane] = from[i * images.width + j];
  }
}

/// Evaluate tiles of images: index = tile * blocks + block of channels.
template <class M, int points, int kLanes> struct Evaluate {
  typedef typename Lane<kLanes>::Vector Vector;
  typedef typename Lane<kLanes>::Unaligned Unaligned;
  Images images;
  Values values;
  index_t first_tile, first_block, blocks;
  const float* x;
  float* to;

  MC_HD void operator()(index_t index) const {
    constexpr int size = M::kSize;
    const index_t block = index % blocks;
    const Part part(images, first_tile + index / blocks, (first_block + block) * kLanes, size, kLanes);
    const float* const plane = x + part.plane;
    float* const at = to + values.template at<kLanes>(index / blocks, block);
    const bool whole = part.bottom - part.top == size && part.right - part.left == size;
    if (whole && images.lanes) {
      const Unaligned* const pixels = reinterpret_cast<const Unaligned*>(plane) + part.y * images.width + part.x;
      evaluate_square<M, points, kLanes>(pixels, images.width, at, values.point);
    } else {
      Vector pixels[size * size];
      collect<size, kLanes>(images, plane, part, whole && part.lanes == kLanes, pixels);
      evaluate_square<M, points, kLanes>(pixels, size, at, values.point);
    }
  }
};

/// What follows a convolution: y = f(scale y + shift + addend), where f multiplies negative numbers by the channel's slope; the addend
/// is arranged as y. Null: not that.
struct Finish {
  const float *scale, *shift, *addend, *slopes;
};

/// Interpolate outputs (OfOut), or tiles (OfTile), which are added where they overlap.
template <class M, int points, int kLanes> struct Interpolate {
  static constexpr bool kOverlap = M::kSize > kOut;
  typedef typename Lane<kLanes>::Vector Vector;
  typedef typename Lane<kLanes>::Unaligned Unaligned;
  Images images;
  Values values;
  index_t first_tile, end_tile, first_block, blocks;
  const float* from;
  Finish finish;
  float* y;

  /// How many indices there are: one for each tile and block of channels, or each image where tiles overlap.
  index_t count() const {
    return (kOverlap ? (end_tile - 1) / images.tiles() - first_tile / images.tiles() + 1 : end_tile - first_tile) * blocks;
  }

  MC_HD void operator()(index_t index) const {
    const index_t block = index % blocks;
    if constexpr (kOverlap) {
      const index_t image = first_tile / images.tiles() + index / blocks;
      const index_t begin = max_(first_tile, image * images.tiles()), end = min_(end_tile, (image + 1) * images.tiles());
      for (index_t tile = begin; tile < end; ++tile) interpolate_tile(tile, block);
    } else {
      interpolate_tile(first_tile + index / blocks, block);
    }
  }
  MC_HD void interpolate_tile(index_t tile, index_t block) const {
    constexpr int size = M::kSize;
    const index_t c = (first_block + block) * kLanes;
    const Part part(images, tile, c, size, kLanes);
    Vector out[size * size];
    interpolate_square<M, points, kLanes>(from + values.template at<kLanes>(tile - first_tile, block), values.point, out);
    if constexpr (!kOverlap) finish_tile(out, c, part);
    // What tiles above and to the left have written.
    const int above = kOverlap && part.row ? size - kOut : 0, before = kOverlap && part.column ? size - kOut : 0;
    float* const plane = y + part.plane;
    if (images.lanes) {
      for (int i = part.top; i < part.bottom; ++i)
        for (int j = part.left; j < part.right; ++j) {
          Unaligned* const to = reinterpret_cast<Unaligned*>(plane + ((part.y + i) * images.width + part.x + j) * kLanes);
          *to = kOverlap && (i < above || j < before) ? *to + out[i * size + j] : out[i * size + j];
        }
    } else {
      const float* const numbers = reinterpret_cast<const float*>(out);
      const index_t next = images.height * images.width;
      const int turned = part.right - part.left == size && size % 4 == 0 ? part.lanes / 4 * 4 : 0;
      for (int lane = 0; lane < turned; lane += 4)
        for (int i = part.top; i < part.bottom; ++i)
          for (int j = 0; j < size; j += 4) {
            Four rows[4];
            turn(numbers + (i * size + j) * kLanes + lane, kLanes, rows);
            const bool add = i < above || j < before;
            for (int k = 0; k < 4; ++k) {
              UnalignedFour* const to =
                  reinterpret_cast<UnalignedFour*>(plane + (lane + k) * next + (part.y + i) * images.width + part.x + j);
              *to = add ? *to + rows[k] : rows[k];
            }
          }
      for (int lane = turned; lane < part.lanes; ++lane)
        for (int i = part.top; i < part.bottom; ++i)
          for (int j = part.left; j < part.right; ++j) {
            float* const to = plane + lane * next + (part.y + i) * images.width + part.x + j;
            const float number = numbers[(i * size + j) * kLanes + lane];
            *to = kOverlap && (i < above || j < before) ? *to + number : number;
          }
    }
  }
  /// out = f(scale out + shift + addend) for the channels of a part, which begin with c.
  MC_HD void finish_tile(Vector* out, index_t c, const Part& part) const {
    if (!finish.scale && !finish.shift && !finish.addend && !finish.slopes) return;
    Vector scale = Vector{} + 1.f, shift{}, slopes = Vector{} + 1.f, addends[kOut * kOut] = {};
    for (int lane = 0; lane < part.lanes; ++lane) {
      if (finish.scale) scale[lane] = finish.scale[images.first + c + lane];
      if (finish.shift) shift[lane] = finish.shift[images.first + c + lane];
      if (finish.slopes) slopes[lane] = finish.slopes[images.first + c + lane];
    }
    if (finish.addend) collect<kOut, kLanes>(images, finish.addend + part.plane, part, false, addends);
    for (int i = 0; i < kOut * kOut; ++i) {
      out[i] = scale * out[i] + shift + addends[i];
      if (finish.slopes) out[i] = out[i] > 0 ? out[i] : out[i] * slopes + Vector{};  // a sum, so that 0 is not -0
    }
  }
};

/// Weights in plain order, seen as a matrix of kernels: the rows are channels of what is convolved, the columns of the result.
struct Kernels {
  index_t rows, columns;
  index_t row, column;  // elements from one to the next
};

/// Evaluate kernels: index = block of columns * rows + row.
template <int r, int kLanes> struct EvaluateKernels {
  typedef typename Lane<kLanes>::Vector Vector;
  Kernels kernels;
  Values values;
  index_t first_block;
  const float* w;
  float* to;

  MC_HD void operator()(index_t index) const {
    const index_t row = index % kernels.rows, block = index / kernels.rows, column = (first_block + block) * kLanes;
    Vector taps[r * r] = {};
    const int lanes = int(min_(index_t(kLanes), kernels.columns - column));
    const float* const from = w + row * kernels.row + column * kernels.column;
    float* const tap = reinterpret_cast<float*>(taps);
    for (int lane = 0; lane < lanes; ++lane)
#pragma GCC unroll 32
      for (int i = 0; i < r * r; ++i) tap[i * kLanes + lane] = from[lane * kernels.column + i];
    evaluate_square<OfKernel<r>, r + kOut - 1, kLanes>(taps, r, to + values.template at<kLanes>(row, block), values.point);
  }
};

/// Interpolate kernels, and add them to the gradient of the weights: index = block of columns * rows + row.
template <int r, int kLanes> struct InterpolateKernels {
  typedef typename Lane<kLanes>::Vector Vector;
  Kernels kernels;
  Values values;
  index_t first_block;
  const float* from;
  float* dw;

  MC_HD void operator()(index_t index) const {
    const index_t row = index % kernels.rows, block = index / kernels.rows, column = (first_block + block) * kLanes;
    Vector taps[r * r];
    interpolate_square<OfKernel<r>, r + kOut - 1, kLanes>(from + values.template at<kLanes>(row, block), values.point, taps);
    const int lanes = int(min_(index_t(kLanes), kernels.columns - column));
    const float* const tap = reinterpret_cast<const float*>(taps);
    float* const to = dw + row * kernels.row + column * kernels.column;
    for (int lane = 0; lane < lanes; ++lane)
      for (int i = 0; i < r * r; ++i) to[lane * kernels.column + i] += tap[i * kLanes + lane];
  }
};

/// The three computations, with kernels of r x r and vectors of `kLanes` floats.
template <int r, int kLanes> class Convolution {
 public:
  /// `lanes`: channels of the images lie in blocks of `kLanes`.
  Convolution(Threads threads, const ConvShape& shape, bool lanes) : threads_(threads), s_(shape), lanes_(lanes) {}

  /// Floats of scratch memory that forward or backward needs at most.
  index_t scratch() const {
    return std::max(Room(threads_, image(0), s_.m, true).floats(false),
                    Room(threads_, columns(0), s_.group_channels, false).floats(true));
  }

  /// y lies among `y_channels` channels, which may be more than its own.
  void forward(const float* x, const float* w, const Finish& finish, float* y, index_t y_channels, float* scratch) const {
    for (index_t g = 0; g < s_.groups; ++g) {
      const Images from = image(g);
      Images to = columns(g);
      to.channels = y_channels;
      const Room room(threads_, from, to.count, true);
      const float* const weights = w + g * s_.m * s_.group_channels * taps;
      evaluate<OfTile<r>>(room, room.all(), room.whole, from, x, kernels(true), weights, room.memory(scratch, 0));
      room.each_part(threads_, scratch, [&](const Chunk& part, const Memory& at) {
        evaluate<OfTile<r>>(room, part, !room.whole, from, x, kernels(true), weights, at);
        convolve<OfOut<r>>(room, part, from, to, finish, y, at);
      });
    }
  }
  /// dx, and what is added to the gradients of the weights and of the bias; each may be null, the last is only with the weights'.
  void backward(const float* x, const float* dy, const float* w, float* dx, float* dw, float* db, float* scratch) const {
    for (index_t g = 0; g < s_.groups; ++g) {
      const Images from = columns(g), to = image(g);
      const Room room(threads_, from, to.count, false);
      const index_t first = g * s_.m * s_.group_channels * taps;
      const float* const weights = dx ? w + first : nullptr;
      evaluate<OfOut<r>>(room, room.all(), room.whole, from, dy, kernels(false), weights, room.memory(scratch, 0));
      room.each_part(threads_, scratch, [&](const Chunk& part, const Memory& at) {
        evaluate<OfOut<r>>(room, part, !room.whole, from, dy, kernels(false), weights, at);
        if (dw) learn(room, part, from, to, x, dw + first, db, at);
        if (dx) convolve<OfTile<r>>(room, part, from, to, Finish{}, dx, at);
      });
    }
  }

 private:
  static constexpr int points = r + kOut - 1, kAll = points * points, kPanel = 2 * kLanes, taps = r * r;
  static constexpr float kZeros[kMaxTileRows] = {};

  // Floats of values of tiles, and of kernels, that are computed at a time: 1 MiB and 2 MiB were measured to be best, and at least
  // four tiles of a product.
  static constexpr index_t kTiles = 1 << 18, kKernels = 1 << 19, kSummed = 64;

  /// What is computed at a time: tiles from `tile` on, and panels of what they become; which blocks of channels these are.
  struct Chunk {
    index_t tile, tiles, panel, panels, first_block, blocks;
  };

  /// Scratch memory: values of tiles, of outputs and of kernels, and the gradient of the latter.
  struct Memory {
    float *v, *m, *u, *du;
  };

  /// What is computed at a time, so that it stays in the caches. Either some tiles and all outputs, or, where kernels are more than
  /// both, all tiles and some outputs. What all need, kernels or tiles, is evaluated first. Then each thread goes its own way with
  /// memory of its own, as long as that shares out the work evenly, so that it finds in its caches what it has written itself; or
  /// all threads share each loop: where tiles overlap in the result or are added up, since the order of sums must not depend on
  /// the number of threads.
  struct Room {
    index_t tiles, rows, blocks, outputs, panels;
    bool whole;         // all tiles at a time
    int parts;          // threads that go their own way
    index_t step;       // at a time: panels of outputs, or rows of tiles of a product
    Values v_at, m_at, u_at;

    /// `apart`: tiles can be computed apart from each other.
    Room(Threads threads, const Images& from, index_t channels, bool apart) {
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
      // A vector more from point to point: else all may fall into one set of the cache.
      v_at = {width, kPanel, length * width + kLanes};
      m_at = {kPanel, length * kPanel, group * length * kPanel + kLanes};
      u_at = {kPanel, from.count * kPanel, group * from.count * kPanel + kLanes};
    }
    index_t units_of_tiles() const { return ceil_div(tiles, rows); }
    index_t units() const { return whole ? panels : units_of_tiles(); }
    index_t at_a_time(index_t count) const { return ceil_div(count, ceil_div(count, std::max<index_t>(1, step))); }

    index_t tile_floats() const { return kAll * v_at.point + kMaxTileRows * v_at.row; }     // products read some more
    index_t output_floats() const { return kAll * m_at.point; }
    index_t kernel_floats() const { return kAll * u_at.point; }
    index_t floats(bool learns) const {
      return (whole ? 1 : parts) * tile_floats() + parts * output_floats() + (whole ? parts : 1) * (1 + learns) * kernel_floats();
    }
    Memory memory(float* scratch, int part) const {
      float* const m = scratch + (whole ? 1 : parts) * tile_floats();
      float* const u = m + parts * output_floats();
      const index_t kernels = (whole ? parts : 1) * kernel_floats();
      return {scratch + (whole ? 0 : part) * tile_floats(), m + part * output_floats(), u + (whole ? part : 0) * kernel_floats(),
              u + kernels + (whole ? part : 0) * kernel_floats()};
    }
    Chunk all() const { return {0, tiles, 0, panels, 0, outputs}; }

    /// work(Chunk, Memory) for each.
    template <class Work> void each_part(Threads threads, float* scratch, const Work& work) const {
      const auto walk = [&](int part, index_t first, index_t last) {
        for (index_t at = first, n = at_a_time(last - first); at < last; at += n) {
          const index_t many = std::min(n, last - at);
          work(whole ? Chunk{0, tiles, at, many, at * 2, std::min(many * 2, outputs - at * 2)}
                     : Chunk{at * rows, std::min(many * rows, tiles - at * rows), 0, panels, 0, outputs},
               memory(scratch, part));
        }
      };
      if (parts > 1)
        parallel(threads, units(), 1, walk);
      else
        walk(0, 0, units());
    }
  };

  /// The weights of a group: rows of channels and columns of outputs, or the other way round.
  Kernels kernels(bool forward) const {
    const Kernels kernels{s_.group_channels, s_.m, taps, s_.group_channels * taps};
    return forward ? kernels : Kernels{kernels.columns, kernels.rows, kernels.column, kernels.row};
  }
  Images image(index_t group) const {
    const Window& w = s_.window;
    return {s_.channels, w.in[0], w.in[1], group * s_.group_channels, s_.group_channels, w.pad[0], w.pad[1], s_.images,
            ceil_div(w.out[0], kOut), ceil_div(w.out[1], kOut), lanes_};
  }
  Images columns(index_t group) const {
    Images images = image(group);
    images.channels = s_.outputs, images.height = s_.window.out[0], images.width = s_.window.out[1];
    images.first = group * s_.m, images.count = s_.m, images.pad_y = images.pad_x = 0;
    return images;
  }

  /// Evaluate the `tiles` of a part, or else its kernels, unless `w` is null.
  template <class M>
  void evaluate(const Room& room, const Chunk& part, bool tiles, const Images& from, const float* x, const Kernels& kernels,
                const float* w, const Memory& at) const {
    if (tiles)
      each<Evaluate<M, points, kLanes>>(part.tiles * room.blocks, {from, room.v_at, part.tile, 0, room.blocks, x, at.v});
    else if (w)
      each<EvaluateKernels<r, kLanes>>(2 * part.panels * kernels.rows, {kernels, room.u_at, part.first_block, w, at.u});
  }

  /// y from the values in v.
  template <class To>
  void convolve(const Room& room, const Chunk& part, const Images& from, const Images& to, const Finish& finish, float* y,
                const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.u;
    const Tile<float> tile = tile_for<float>(room.tiles);
    each_product(part.panels, [&](index_t k, index_t p) {
      for (index_t t = 0; t < part.tiles; t += tile.rows)
        tile.product(from.count, v + k * room.v_at.point + t * room.v_at.row, room.v_at.row, 1,
                     u + k * room.u_at.point + p * room.u_at.panel, kZeros,
                     m + k * room.m_at.point + p * room.m_at.panel + t * kPanel, kPanel,
                     int(std::min<index_t>(tile.rows, part.tiles - t)));
    });
    const Interpolate<To, points, kLanes> interpolation{to, room.m_at, part.tile, part.tile + part.tiles, part.first_block,
                                                        part.blocks, m, finish, y};
    each(interpolation.count(), interpolation);
  }

  /// Add to the gradients of weights and bias, from the values of outputs (`from`) in v and the image x.
  void learn(const Room& room, const Chunk& part, const Images& from, const Images& to, const float* x, float* dw, float* db,
             const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.du;
    const Tile<float> tile = tile_for<float>(from.count);
    if (part.blocks % 2) fill(threads_, kAll * room.m_at.point, 0.f, m);  // half a panel without channels
    each<Evaluate<OfTile<r>, points, kLanes>>(part.tiles * part.blocks,
                                              {to, room.m_at, part.tile, part.first_block, part.blocks, x, m});
    each_product(part.panels, [&](index_t k, index_t p) {
      const float *const values = v + k * room.v_at.point, *const pixels = m + k * room.m_at.point + p * room.m_at.panel;
      float sum[kMaxTileRows * kPanel];
      // Sums of few tiles are added: one sum over all would lose digits.
      for (index_t t = 0; t < part.tiles; t += kSummed) {
        const index_t summed = std::min(kSummed, part.tiles - t);
        for (index_t c = 0; c < from.count; c += tile.rows) {
          const int rows = int(std::min<index_t>(tile.rows, from.count - c));
          float* const to = u + k * room.u_at.point + p * room.u_at.panel + c * kPanel;
          const bool first = !part.tile && !t;
          tile.product(summed, values + t * room.v_at.row + c, 1, room.v_at.row, pixels + t * kPanel, kZeros, first ? to : sum, kPanel,
                       rows);
          for (int i = 0; !first && i < rows * kPanel; ++i) to[i] += sum[i];
        }
      }
      if (db && !part.panel && !p && k == points + 1) {  // the value of a polynomial at 1 is the sum of its coefficients
        std::vector<float> total(size_t(from.count));
        for (index_t t = 0; t < part.tiles; ++t)
          for (index_t c = 0; c < from.count; ++c) total[size_t(c)] += values[t * room.v_at.row + c];
        for (index_t c = 0; c < from.count; ++c) db[from.first + c] += total[size_t(c)];
      }
    });
    if (part.tile + part.tiles == room.tiles)
      each<InterpolateKernels<r, kLanes>>(part.blocks * from.count, {kernels(false), room.u_at, part.first_block, u, dw});
  }

  /// functor(i) for 0 <= i < n.
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

/// In blocks of how many channels images may lie; 0: a block would belong to two groups, or vectors are too short.
inline int lanes(const ConvShape& s) {
  const int width = isa() == kAvx512 ? 16 : isa() == kAvx2 ? 8 : 0;
  return width && (s.groups == 1 || (s.group_channels % width == 0 && s.m % width == 0)) ? width : 0;
}

/// Why this convolution is not computed here; null: it is.
inline const char* refusal(const ConvShape& s) {
  const Window& w = s.window;
  if (w.num_axes != 2 || w.kernel[0] != w.kernel[1] || (w.kernel[0] != 3 && w.kernel[0] != 5)) return "a kernel other than 3x3 or 5x5";
  for (int a = 0; a < 2; ++a)
    if (w.stride[a] != 1 || w.dilation[a] != 1) return "a stride or a dilation";
  return nullptr;
}

/// Whether it takes less time than the multiplications of the convolution itself, by what was measured: to evaluate and interpolate a
/// tile takes as long as its product with 36 more channels or outputs, and to evaluate a kernel as 52 more tiles; a product of many
/// tiles takes a fifth longer than direct convolution takes for as many multiplications.
inline bool pays(const ConvShape& s) {
  const double points = double(s.window.kernel[0] + kOut - 1) * (s.window.kernel[0] + kOut - 1);
  const double tiles = double(s.images * ceil_div(s.window.out[0], kOut) * ceil_div(s.window.out[1], kOut));
  const double products = points * (tiles * (1 + 36. / double(s.group_channels) + 36. / double(s.m)) + 52);
  return 1.2 * products < double(s.images * s.positions * s.taps);
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

inline index_t scratch(Threads threads, const ConvShape& s, bool lanes) {
  return with(threads, s, lanes, [](const auto& convolution) { return convolution.scratch(); });
}
inline void forward(Threads threads, const ConvShape& s, bool lanes, const void* x, const void* w, const float* scale,
                    const float* shift, const void* addend, const float* slopes, void* y, index_t y_channels, void* scratch) {
  with(threads, s, lanes, [&](const auto& convolution) {
    convolution.forward(static_cast<const float*>(x), static_cast<const float*>(w),
                        Finish{scale, shift, static_cast<const float*>(addend), slopes}, static_cast<float*>(y), y_channels,
                        static_cast<float*>(scratch));
  });
}
inline void backward(Threads threads, const ConvShape& s, bool lanes, const void* x, const void* dy, const void* w, void* dx, void* dw,
                     void* db, void* scratch) {
  with(threads, s, lanes, [&](const auto& convolution) {
    convolution.backward(static_cast<const float*>(x), static_cast<const float*>(dy), static_cast<const float*>(w),
                         static_cast<float*>(dx), static_cast<float*>(dw), static_cast<float*>(db), static_cast<float*>(scratch));
  });
}

}  // namespace winograd
}  // namespace cpu
}  // namespace mc
