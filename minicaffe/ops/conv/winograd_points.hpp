// Winograd's algorithm along one axis (winograd.hpp): the points, and the matrices that evaluate and interpolate there.
#pragma once
#include "minicaffe/kernels/config.hpp"

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
/// So one axis of 5x5 has the point i (`has_i`), a zero of x^2 + 1, in place of one pair (Barabasz and Gregg 2019), which gives
/// 6.9. A value at i is re + im i, and a product of two such values takes three multiplications: of re + t im for t = 2, -2 (rows
/// like a pair's) and 0.
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

enum Role { kTile, kKernel, kOutputs };  // what a matrix evaluates or interpolates

/// One matrix of an axis. Rows of a pair have equal entries in even columns, opposite ones in odd columns.
template <int r, bool has_i, Role role> struct Matrix {
  static constexpr int kSize = role == kTile ? r + kOut - 1 : role == kKernel ? r : kOut, kRows = Points<r, has_i>::kPoints;
  static constexpr double at(int k, int i) {  // row k: a point; column i: an element of the tile, kernel or outputs
    return role == kTile ? kPoints<r, has_i>.tile[k][i] : role == kKernel ? kPoints<r, has_i>.kernel[k][i]
                                                                            : kPoints<r, has_i>.out[k][i];
  }
  /// Whether rows k and k + 1 are a pair: of a number (or t) and its negative. `evaluate` computes both from the same two sums.
  static constexpr bool paired(int k) { return k % 2 && k < r + kOut - 3; }
  /// The even (parity 0) or odd column of the entry by which sum_columns divides row k; -1: all these are 0.
  static constexpr int unit(int k, int parity) {
    int found = -1;
    for (int i = parity; i < kSize; i += 2)
      if (at(k, i) != 0 && (role == kTile || found < 0)) found = i;
    return found;
  }
  /// Whether column i is 0 above row k, so that `interpolate` sets, and does not add to, result i there.
  static constexpr bool begins(int k, int i) {
    for (int j = 0; j < k; ++j)
      if (at(j, i) != 0) return false;
    return true;
  }
};

/// The matrices of both axes, for one role: a square of kSize x kSize numbers has kValues values.
template <int r, Role role> struct Square {
  typedef Matrix<r, false, role> Y;
  typedef Matrix<r, r == 5, role> X;
  static constexpr int kSize = Y::kSize, kValues = Y::kRows * X::kRows;
};
template <int r> using OfTile = Square<r, kTile>;
template <int r> using OfKernel = Square<r, kKernel>;
template <int r> using OfOut = Square<r, kOutputs>;

/// The sum over even or odd columns i of M(k, i) from[i * step], divided by M(k, unit): one multiplication less.
template <class Vector, class M, int k, int parity, class Number> MC_HD Vector sum_columns(const Number* from, index_t step) {
  constexpr int unit = M::unit(k, parity);
  Vector sum = from[unit * step];
#pragma GCC unroll 8
  for (int i = parity; i < M::kSize; i += 2)
    if (i != unit && M::at(k, i) != 0) sum += float(M::at(k, i) / M::at(k, unit)) * from[i * step];
  return sum;
}

/// to[k * to_step] = sum over i of M(k, i) from[i * step], from row k on
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

}  // namespace winograd
}  // namespace cpu
}  // namespace mc
