// Convolutions of 3x3 and 5x5 pixels by Winograd's algorithm, with a quarter (3x3) or less than a fifth (5x5) of the
// multiplications.
//
// Along each axis, 4 outputs of a kernel of r numbers come from a tile of r + 3 pixels. Read as polynomials, their product is
// known from its values at r + 3 points: tile and kernel are evaluated there, the values multiplied one by one, and the outputs
// interpolated. Sums over channels happen in between, so for each pair of points, one of each axis, there is one matrix
// product, tiles x channels by channels x outputs. The gradients are the same with the roles exchanged: outputs and kernels are
// evaluated and tiles interpolated, which are added where they overlap; or tiles and outputs are evaluated and kernels
// interpolated.
//
// Vectors hold neighbouring channels of one pixel. In images where these are neighbours in memory (lanes) they are loaded as
// they lie, otherwise collected. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015).
#pragma once
#include <type_traits>
#include <vector>
#include "minicaffe/ops/conv/register_tile.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {
namespace winograd {

constexpr int kOut = 4;  // outputs of a tile along an axis

/// The matrices of one axis, with a row for each point: they evaluate tiles, kernels and outputs; transposed they interpolate.
///
/// The points are 0, pairs of a number and its negative, and infinity. They decide how rounding errors grow: a relative error e
/// of the values becomes f e in the result, f = f_y f_x. For independent data, f_x^2 is the sum over the points of an axis of
/// |tile row|^2 |kernel row|^2 |output row|^2, divided by 4 r (the mean of forward and both gradients). For 3x3, f is least
/// with 0.651 and 1.535: 4.7 (pairs c and 1/c: Alam, Anderson, Barabasz and Gregg 2022). 5/8 and 3/2 give 4.8, and their rows
/// are exact in float; 1 and 2 give 10.8. For 5x5 no numbers give less than 19, since f grows exponentially with the number of
/// points (Barabasz, Anderson, Soodhalter and Gregg 2018).
///
/// So one axis of 5x5 has the point i, a zero of x^2 + 1, in place of one pair (Barabasz and Gregg 2019), which gives 6.9. A
/// value at i is re + im i, and a product of two such values takes three multiplications: of re + t im for t = 2, -2 (rows like
/// a pair's) and 0.
template <int r, bool has_i> struct Points {
  static constexpr int kSize = r + kOut - 1, kPoints = kSize + has_i;
  double tile[kPoints][kSize] = {}, kernel[kPoints][r] = {}, out[kPoints][kOut] = {};

  constexpr Points() {
    constexpr double three[5] = {0, 0.625, -0.625, 1.5, -1.5}, five[7] = {0, 1, -1, 2, -2, 0.5, -0.5};
    constexpr double beside_i[5] = {0, 0.75, -0.75, 1.375, -1.375}, t[3] = {2, -2, 0};
    constexpr int numbers = kSize - 1 - 2 * has_i, infinity = kPoints - 1;
    const double* const at = has_i ? beside_i : r == 3 ? three : five;
    for (int k = 0; k < kPoints; ++k) {  // the coefficients, lowest first, of the polynomial that is 0 at the other points
      tile[k][0] = 1;
      for (int j = 0; j < numbers; ++j)
        if (j != k) multiply(tile[k], 1, -at[j]);
      if (has_i && (k < numbers || k == infinity)) multiply(tile[k], 2, 1);
      else if (has_i) multiply(tile[k], 1, t[k - numbers]);
    }
    for (int k = 0; k < numbers; ++k) {
      double value = 0, power = 1;
      for (int i = kSize - 1; i >= 0; --i) value = value * at[k] + tile[k][i];
      for (int i = 0; i < r || i < kOut; ++i, power *= at[k]) {
        if (i < r) kernel[k][i] = power / value;
        if (i < kOut) out[k][i] = power;
      }
    }
    // At i the polynomial of the numbers is w i, and of the three products p, in the order of t, re = 5/4 p_0 - (p_2 + p_-2) / 8
    // and im = (p_2 - p_-2) / 4.
    const double w = (1 + at[1] * at[1]) * (1 + at[3] * at[3]);
    for (int k = numbers; k < infinity; ++k) {
      const double scale = t[k - numbers] != 0 ? 1 / (8 * w) : -5 / (4 * w);
      for (int i = 0; i < r || i < kOut; ++i) {
        const double power = (i % 2 ? t[k - numbers] : 1) * (i / 2 % 2 ? -1 : 1);  // re + t im of i to the i
        if (i < r) kernel[k][i] = scale * power;
        if (i < kOut) out[k][i] = power;
      }
    }
    kernel[infinity][r - 1] = out[infinity][kOut - 1] = 1;
  }
  /// c *= x^n + a
  static constexpr void multiply(double* c, int n, double a) {
    for (int i = kSize - 1; i >= 0; --i) c[i] = a * c[i] + (i < n ? 0 : c[i - n]);
  }
};
template <int r, bool has_i> constexpr Points<r, has_i> kPoints{};

enum Role { kTile, kKernel, kOutputs };

/// One matrix of an axis. Rows of a pair have equal entries in even columns, opposite ones in odd columns.
template <int r, bool has_i, Role role> struct Matrix {
  static constexpr int kSize = role == kTile ? r + kOut - 1 : role == kKernel ? r : kOut, kRows = Points<r, has_i>::kPoints;
  static constexpr double at(int k, int i) {
    return role == kTile ? kPoints<r, has_i>.tile[k][i] : role == kKernel ? kPoints<r, has_i>.kernel[k][i]
                                                                            : kPoints<r, has_i>.out[k][i];
  }
  /// Whether row k + 1 is of the negative number, or negative t.
  static constexpr bool paired(int k) { return k % 2 && k < r + kOut - 3; }
  /// In which even or odd column a row has the entry that the others are multiples of; -1: all are 0.
  static constexpr int unit(int k, int parity) {
    int found = -1;
    for (int i = parity; i < kSize; i += 2)
      if (at(k, i) != 0 && (role == kTile || found < 0)) found = i;
    return found;
  }
  /// Whether column i is 0 above row k.
  static constexpr bool begins(int k, int i) {
    for (int j = 0; j < k; ++j)
      if (at(j, i) != 0) return false;
    return true;
  }
};

/// The matrices of both axes.
template <int r, Role role> struct Square {
  typedef Matrix<r, false, role> Y;
  typedef Matrix<r, r == 5, role> X;
  static constexpr int kSize = Y::kSize, kValues = Y::kRows * X::kRows;
};
template <int r> using OfTile = Square<r, kTile>;
template <int r> using OfKernel = Square<r, kKernel>;
template <int r> using OfOut = Square<r, kOutputs>;

/// The sum over even or odd columns i of M(k, i) from[i], divided by M(k, unit).
template <class Vector, class M, int k, int parity, class Number> MC_HD Vector sum_columns(const Number* from, index_t step) {
  constexpr int unit = M::unit(k, parity);
  Vector sum = from[unit * step];
#pragma GCC unroll 8
  for (int i = parity; i < M::kSize; i += 2)
    if (i != unit && M::at(k, i) != 0) sum += float(M::at(k, i) / M::at(k, unit)) * from[i * step];
  return sum;
}

/// to[k] = sum over i of M(k, i) from[i], from row k on
template <class M, int k = 0, class Number, class Vector>
MC_HD void evaluate(const Number* from, index_t step, Vector* to, index_t to_step) {
  constexpr int parity = M::unit(k, 0) < 0;
  const Vector sum = float(M::at(k, M::unit(k, parity))) * sum_columns<Vector, M, k, parity>(from, step);
  if constexpr (M::paired(k)) {
    constexpr float factor = float(M::at(k, M::unit(k, 1)));
    const Vector odd = sum_columns<Vector, M, k, 1>(from, step);
    to[k * to_step] = sum + factor * odd;
    to[(k + 1) * to_step] = sum - factor * odd;
  } else {
    to[k * to_step] = sum;
  }
  constexpr int next = k + 1 + M::paired(k);
  if constexpr (next < M::kRows) evaluate<M, next>(from, step, to, to_step);
}

/// to[i] = sum over k of M(k, i) from[k], from row k on
template <class M, int k = 0, class Vector> MC_HD void interpolate(const Vector* from, Vector* to) {
  Vector sum = from[k], difference = sum;
  if constexpr (M::paired(k)) sum += from[k + 1], difference -= from[k + 1];
#pragma GCC unroll 8
  for (int i = 0; i < M::kSize; ++i) {
    if (M::at(k, i) == 0) continue;
    const Vector& term = i % 2 ? difference : sum;
    if (M::begins(k, i)) to[i] = float(M::at(k, i)) * term;
    else to[i] += float(M::at(k, i)) * term;
  }
  constexpr int next = k + 1 + M::paired(k);
  if constexpr (next < M::kRows) interpolate<M, next>(from, to);
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

/// Evaluate a square of vectors, whose rows are `row` apart; each value lies `point` floats behind the one before.
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

/// A square of vectors from its values at all points.
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
  template <int size, class Number> static MC_HD void sum(const Number* pixels, index_t row, float* to) {
    Vector sum{};
    for (int i = 0; i < size * size; ++i) sum += pixels[i / size * row + i % size];
    *reinterpret_cast<Unaligned*>(to) = sum;
  }
};

/// What follows a convolution: y = f(scale y + shift + addend), where f multiplies negative numbers by the channel's slope; the
/// addend is arranged as y. Null: not that.
struct Finish {
  const float *scale, *shift, *addend, *slopes;
};

/// Interpolate outputs (OfOut), or tiles (OfTile), which are added where they overlap.
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

/// The three computations, with kernels of r x r and vectors of `kLanes` floats.
template <int r, int kLanes> class Convolution {
 public:
  /// `lanes`: channels of the images lie in blocks of `kLanes`.
  Convolution(Threads threads, const ConvShape& s, bool lanes)
      : threads_{parts_of(threads, s.images * s.positions * s.outputs * s.k, kProductGrain), threads.pool}, s_(s), lanes_(lanes) {}

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
      evaluate<OfOut<r>>(room, room.all(), room.whole, from, dy, kernels(false), weights, room.memory(scratch, 0), db);
      room.each_part(threads_, scratch, [&](const Chunk& part, const Memory& at) {
        evaluate<OfOut<r>>(room, part, !room.whole, from, dy, kernels(false), weights, at, db);
        if (dw) learn(room, part, from, to, x, dw + first, db, at);
        if (dx) convolve<OfTile<r>>(room, part, from, to, Finish{}, dx, at);
      });
    }
  }

 private:
  static constexpr int kAll = OfTile<r>::kValues, kPanel = 2 * kLanes, taps = r * r;
  static constexpr float kZeros[kMaxTileRows] = {};

  // Floats of values of tiles, and of kernels, that are computed at a time: 1 MiB and 2 MiB were measured to be best, and at least
  // four tiles of a product.
  static constexpr index_t kTiles = 1 << 18, kKernels = 1 << 19;
  // A sum over channels (or, of the gradient of kernels, over tiles) is the sum of sums of so many: a longer one rounds larger
  // numbers more often, which would be most of the rounding error, and shorter ones were measured to take longer.
  static constexpr index_t kSummed = 48;

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
      // A vector more from tile to tile and from point to point: else all may fall into one set of the cache.
      const index_t row = width % 128 ? width : width + kLanes;
      v_at = {row, kPanel, length * row + kLanes};
      m_at = {kPanel, length * kPanel, group * length * kPanel + kLanes};
      u_at = {kPanel, from.count * kPanel, group * from.count * kPanel + kLanes};
    }
    index_t units_of_tiles() const { return ceil_div(tiles, rows); }
    index_t units() const { return whole ? panels : units_of_tiles(); }
    index_t at_a_time(index_t count) const { return ceil_div(count, ceil_div(count, std::max<index_t>(1, step))); }

    // With the sums of tiles; products read some more.
    index_t tile_floats() const { return (kAll + 1) * v_at.point + kMaxTileRows * v_at.row; }
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
                const float* w, const Memory& at, bool sums = false) const {
    if (tiles)
      each<Evaluate<M, kLanes>>(part.tiles * room.blocks, {from, room.v_at, part.tile, 0, room.blocks, x, at.v, sums});
    else if (w)
      each<EvaluateKernels<r, kLanes>>(2 * part.panels * kernels.rows, {kernels, room.u_at, part.first_block, w, at.u});
  }

  /// y from the values in v.
  template <class To>
  void convolve(const Room& room, const Chunk& part, const Images& from, const Images& to, const Finish& finish, float* y,
                const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.u;
    const Tile<float> tile = tile_for<float>(room.tiles);
    const index_t summed = ceil_div(from.count, ceil_div(from.count, kSummed));
    each_product(part.panels, [&](index_t k, index_t p) {
      for (index_t c = 0; c < from.count; c += summed)
        for (index_t t = 0; t < part.tiles; t += tile.rows)
          tile.product(std::min(summed, from.count - c), v + k * room.v_at.point + t * room.v_at.row + c, room.v_at.row, 1,
                       u + k * room.u_at.point + p * room.u_at.panel + c * kPanel, c ? nullptr : kZeros,
                       m + k * room.m_at.point + p * room.m_at.panel + t * kPanel, kPanel,
                       int(std::min<index_t>(tile.rows, part.tiles - t)));
    });
    const Interpolate<To, kLanes> interpolation{to, room.m_at, part.tile, part.tile + part.tiles, part.first_block, part.blocks,
                                                m, finish, y};
    each(interpolation.count(), interpolation);
  }

  /// Add to the gradients of weights and bias, from the values of outputs (`from`) in v and the image x.
  void learn(const Room& room, const Chunk& part, const Images& from, const Images& to, const float* x, float* dw, float* db,
             const Memory& at) const {
    float *const v = at.v, *const m = at.m, *const u = at.du;
    const Tile<float> tile = tile_for<float>(from.count);
    if (part.blocks % 2) fill(threads_, kAll * room.m_at.point, 0.f, m);  // half a panel without channels
    each<Evaluate<OfTile<r>, kLanes>>(part.tiles * part.blocks,
                                      {to, room.m_at, part.tile, part.first_block, part.blocks, x, m, false});
    each_product(part.panels, [&](index_t k, index_t p) {
      const float *const values = v + k * room.v_at.point, *const pixels = m + k * room.m_at.point + p * room.m_at.panel;
      for (index_t t = 0; t < part.tiles; t += kSummed) {
        const index_t summed = std::min(kSummed, part.tiles - t);
        for (index_t c = 0; c < from.count; c += tile.rows) {
          const int rows = int(std::min<index_t>(tile.rows, from.count - c));
          float* const to = u + k * room.u_at.point + p * room.u_at.panel + c * kPanel;
          tile.product(summed, values + t * room.v_at.row + c, 1, room.v_at.row, pixels + t * kPanel,
                       part.tile + t ? nullptr : kZeros, to, kPanel, rows);
        }
      }
      if (db && !part.panel && !p && !k) {
        const float* const sums = v + kAll * room.v_at.point;
        std::vector<float> total(size_t(from.count));
        for (index_t t = 0; t < part.tiles; ++t)
          for (index_t c = 0; c < from.count; ++c) total[size_t(c)] += sums[t * room.v_at.row + c];
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
  if (w.num_axes != 2 || w.kernel[0] != w.kernel[1] || (w.kernel[0] != 3 && w.kernel[0] != 5))
    return "a kernel other than 3x3 or 5x5";
  for (int a = 0; a < 2; ++a)
    if (w.stride[a] != 1 || w.dilation[a] != 1) return "a stride or a dilation";
  return nullptr;
}

/// Whether it takes less time than the multiplications of the convolution itself, by what was measured before evaluating and
/// interpolating took a third less time: for a tile it takes as long as its product with 36 more channels or outputs, for a
/// kernel as 52 more tiles; a product of many tiles takes a fifth longer than direct convolution takes for as many
/// multiplications.
inline bool is_faster(const ConvShape& s) {
  const double points = s.window.kernel[0] == 3 ? OfTile<3>::kValues : OfTile<5>::kValues;
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
