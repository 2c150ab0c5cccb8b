// Normalising by mean and variance (BatchNorm, MVN). A blob is seen as outer x channels x inner; every channel has a mean and
// a factor 1 / deviation of its own.
#pragma once
#include "minicaffe/kernels/broadcast.hpp"

namespace mc {

/// (x - mean) factor
template <class T> struct Standardize {
  T mean, factor;
  MC_HD T operator()(T x) const { return (x - mean) * factor; }
};

/// dx = (dy - mean_dy - y mean_dy_y) factor, with y = (v - shift) v_factor computed from what forward left, v.
template <class T> struct StandardizeBackward {
  T mean_dy, mean_dy_y, shift, v_factor, factor;
  MC_HD T operator()(T v, T dy) const { return (dy - mean_dy - (v - shift) * v_factor * mean_dy_y) * factor; }
};

/// dy (v - shift)
template <class T> struct CenteredDotTerm {
  const T *v, *dy;
  T shift;
  MC_HD T operator()(index_t i) const { return dy[i] * (v[i] - shift); }
};

/// What the deviation is: BatchNorm sqrt(var + eps), MVN sqrt(var) + eps, or 1 for subtracting the mean only.
enum class Deviation : int { kEpsInside, kEpsOutside, kNone };

template <class T> MC_HD T deviation_factor(Deviation rule, T variance, T eps) {
  return rule == Deviation::kEpsInside    ? T(1) / sqrt_(variance + eps)
         : rule == Deviation::kEpsOutside ? T(1) / (sqrt_(variance) + eps)
                                          : T(1);
}

}  // namespace mc
