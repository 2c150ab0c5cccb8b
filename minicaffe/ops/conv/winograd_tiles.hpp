// The loops of Winograd's algorithm (winograd.hpp) over tiles of images and over kernels, as functors.
//
// Vectors hold a block of kLanes neighbouring channels of one pixel. In images where these are neighbours in memory (lanes) they
// are loaded as they lie, otherwise collected. M is a Square of winograd_points.hpp: the matrices that evaluate or interpolate.
#pragma once
#include "minicaffe/ops/conv/shape.hpp"
#include "minicaffe/ops/conv/winograd_points.hpp"

namespace mc {
namespace cpu {
namespace winograd {

/// Images of which one group of channels is read or written, as tiles whose upper left pixels are 4 apart.
struct Images {
  index_t channels, height, width;  // of the whole image
  index_t first, count;             // the channels of the group
  index_t pad_y, pad_x;             // how far the first tile lies outside
  index_t tiles_n, tiles_y, tiles_x;  // images; tiles of each along both axes. Tile t is tile t % tiles() of image t / tiles()
  bool lanes;  // whether a vector of channels lies together

  MC_HD index_t tiles() const { return tiles_y * tiles_x; }
};

/// The part of the images that is tile number `tile`, of size x size pixels, for the `width` channels from c of the group on.
struct Part {
  index_t row, column;           // of the tile
  index_t y, x;                  // of its first pixel
  index_t plane;                 // where the first channel's plane begins, or with lanes the block's
  int top, bottom, left, right;  // the rows top..bottom-1 and columns left..right-1 of the tile that are in the image
  int lanes;                     // the channels that there are, of `width`

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

/// The strides of values, in floats: from tile to tile (or row of kernels), from panel (two blocks of channels) to panel, and from
/// point to point. `at` is where the first point of a tile and a block is.
struct Values {
  index_t row, panel, point;
  template <int kLanes> MC_HD index_t at(index_t tile, index_t block) const {
    return tile * row + block / 2 * panel + block % 2 * kLanes;
  }
};

template <int kLanes> struct Lane {  // a vector of channels, and one at any float in memory
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  typedef float Unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));
};

typedef float Four __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(alignof(float)), may_alias));

/// *to = the numbers i, j, k, l of the eight in a and b.
template <int i, int j, int k, int l> MC_HD void shuffle(const Four& a, const Four& b, Four* to) {
#if defined(__clang__) || __GNUC__ >= 12
  *to = __builtin_shufflevector(a, b, i, j, k, l);
#else
  typedef int Indices __attribute__((vector_size(16)));
  *to = __builtin_shuffle(a, b, Indices{i, j, k, l});
#endif
}

/// to = the columns of four rows of four numbers, `row` apart.
MC_HD void transpose(const float* from, index_t row, Four* to) {
  Four rows[4], halves[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const UnalignedFour*>(from + i * row);
  shuffle<0, 4, 1, 5>(rows[0], rows[1], &halves[0]), shuffle<2, 6, 3, 7>(rows[0], rows[1], &halves[1]);
  shuffle<0, 4, 1, 5>(rows[2], rows[3], &halves[2]), shuffle<2, 6, 3, 7>(rows[2], rows[3], &halves[3]);
  shuffle<0, 1, 4, 5>(halves[0], halves[2], &to[0]), shuffle<2, 3, 6, 7>(halves[0], halves[2], &to[1]);
  shuffle<0, 1, 4, 5>(halves[1], halves[3], &to[2]), shuffle<2, 3, 6, 7>(halves[1], halves[3], &to[3]);
}

/// Evaluate a square of kSize x kSize vectors, its rows `row` vectors apart, at all points of both axes: kValues vectors, `point`
/// floats apart.
template <class M, int kLanes, class Number> MC_HD void evaluate_square(const Number* from, index_t row, float* to, index_t point) {
  constexpr int rows = M::Y::kRows, columns = M::X::kRows, size = M::kSize;
  typename Lane<kLanes>::Vector half[rows * size], result[columns];
#pragma GCC unroll 8
  for (int j = 0; j < size; ++j) evaluate<typename M::Y>(from + j, row, half + j, size);
  for (int k = 0; k < rows; ++k) {
    evaluate<typename M::X>(half + k * size, 1, result, 1);
#pragma GCC unroll 16
    for (int i = 0; i < columns; ++i)
      *reinterpret_cast<typename Lane<kLanes>::Unaligned*>(to + (k * columns + i) * point) = result[i];
  }
}

/// Compute a square of kSize x kSize vectors from its values at all points of both axes (winograd_points.hpp), which lie `point`
/// floats apart.
template <class M, int kLanes, class Vector> MC_HD void interpolate_square(const float* from, index_t point, Vector* to) {
  constexpr int rows = M::Y::kRows, columns = M::X::kRows, size = M::kSize;
  Vector half[size * columns], values[rows], column[size];
  for (int k = 0; k < columns; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
      values[i] = *reinterpret_cast<const typename Lane<kLanes>::Unaligned*>(from + (i * columns + k) * point);
    interpolate<typename M::Y>(values, column);
#pragma GCC unroll 8
    for (int i = 0; i < size; ++i) half[i * columns + k] = column[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < size; ++i) interpolate<typename M::X>(half + i * columns, to + i * size);
}

/// pixels = those of a part whose planes begin at `plane`, zeros where there are none. `all`: no pixel and no channel is missing.
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
        transpose(plane + lane * next + (part.y + i) * images.width + part.x + j, next, columns);
        for (int k = 0; k < 4; ++k) *reinterpret_cast<UnalignedFour*>(pixel + (i * size + j + k) * kLanes + lane) = columns[k];
      }
  for (int lane = turned; lane < part.lanes; ++lane) {
    const float* const from = plane + lane * next + part.y * images.width + part.x;
    for (int i = part.top; i < part.bottom; ++i)
      for (int j = part.left; j < part.right; ++j) pixel[(i * size + j) * kLanes + lane] = from[i * images.width + j];
  }
}

/// Evaluate tiles of images x, and write the values to `to`, in which the first tile has number 0: index = tile * blocks + block.
template <class M, int kLanes> struct Evaluate {
  typedef typename Lane<kLanes>::Vector Vector;
  typedef typename Lane<kLanes>::Unaligned Unaligned;
  Images images;
  Values values;
  index_t first_tile, first_block, blocks;
  const float* x;
  float* to;
  bool sums;  // whether to store the sum of each tile's pixels, too, behind its last value

  MC_HD void operator()(index_t index) const {
    constexpr int size = M::kSize;
    const index_t block = index % blocks;
    const Part part(images, first_tile + index / blocks, (first_block + block) * kLanes, size, kLanes);
    const float* const plane = x + part.plane;
    float* const at = to + values.template at<kLanes>(index / blocks, block);
    const bool whole = part.bottom - part.top == size && part.right - part.left == size;
    if (whole && images.lanes) {
      const Unaligned* const pixels = reinterpret_cast<const Unaligned*>(plane) + part.y * images.width + part.x;
      evaluate_square<M, kLanes>(pixels, images.width, at, values.point);
      if (sums) sum<size>(pixels, images.width, at + M::kValues * values.point);
    } else {
      Vector pixels[size * size];
      collect<size, kLanes>(images, plane, part, whole && part.lanes == kLanes, pixels);
      evaluate_square<M, kLanes>(pixels, size, at, values.point);
      if (sums) sum<size>(pixels, size, at + M::kValues * values.point);
    }
  }
  template <int size, class Number> static MC_HD void sum(const Number* pixels, index_t row, float* to) {  // for the bias
    Vector sum{};
    for (int i = 0; i < size * size; ++i) sum += pixels[i / size * row + i % size];
    *reinterpret_cast<Unaligned*>(to) = sum;
  }
};

/// The epilogue of a convolution: y = f(scale y + shift + addend), where f multiplies negative numbers by the channel's slope; the
/// addend is arranged as y, the others have a value for each channel of all groups. Null: not that.
struct Finish {
  const float *scale, *shift, *addend, *slopes;
};

/// Interpolate to y, overwritten: outputs (OfOut) with the epilogue, or tiles (OfTile), which are added where they overlap.
template <class M, int kLanes> struct Interpolate {
  static constexpr bool kOverlap = M::kSize > kOut;
  typedef typename Lane<kLanes>::Vector Vector;
  typedef typename Lane<kLanes>::Unaligned Unaligned;
  Images images;
  Values values;
  index_t first_tile, end_tile, first_block, blocks;
  const float* from;
  Finish finish;
  float* y;

  /// The number of indices: one for each tile and block of channels, or each image where tiles overlap.
  index_t count() const {
    return (kOverlap ? (end_tile - 1) / images.tiles() - first_tile / images.tiles() + 1 : end_tile - first_tile) * blocks;
  }

  MC_HD void operator()(index_t index) const {
    const index_t block = index % blocks;
    if constexpr (kOverlap) {  // one thread computes the tiles of an image in order, as each adds to those before
      const index_t image = first_tile / images.tiles() + index / blocks;
      const index_t begin = max_(first_tile, image * images.tiles()), end = min_(end_tile, (image + 1) * images.tiles());
      for (index_t tile = begin; tile < end; ++tile) interpolate_tile(tile, block);
    } else {
      interpolate_tile(first_tile + index / blocks, block);
    }
  }
  /// Compute the outputs of one tile from its values at the points, with the epilogue.
  MC_HD void interpolate_tile(index_t tile, index_t block) const {
    constexpr int size = M::kSize;
    const index_t c = (first_block + block) * kLanes;
    const Part part(images, tile, c, size, kLanes);
    Vector out[size * size];
    interpolate_square<M, kLanes>(from + values.template at<kLanes>(tile - first_tile, block), values.point, out);
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
            transpose(numbers + (i * size + j) * kLanes + lane, kLanes, rows);
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

/// Weights in plain order as a matrix of kernels: rows are the channels that are read, columns those of the result.
struct Kernels {
  index_t rows, columns;
  index_t row, column;  // elements from one to the next
};

/// Evaluate kernels w, and write the values to `to`, which begins with block `first_block`: index = block of columns * rows + row.
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
    evaluate_square<OfKernel<r>, kLanes>(taps, r, to + values.template at<kLanes>(row, block), values.point);
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
    interpolate_square<OfKernel<r>, kLanes>(from + values.template at<kLanes>(row, block), values.point, taps);
    const int lanes = int(min_(index_t(kLanes), kernels.columns - column));
    const float* const tap = reinterpret_cast<const float*>(taps);
    float* const to = dw + row * kernels.row + column * kernels.column;
    for (int lane = 0; lane < lanes; ++lane)
      for (int i = 0; i < r * r; ++i) to[lane * kernels.column + i] += tap[i * kLanes + lane];
  }
};

}  // namespace winograd
}  // namespace cpu
}  // namespace mc
