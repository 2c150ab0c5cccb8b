// Normalising by mean and variance (BatchNorm, MVN). A blob is seen as outer x channels x inner; every channel has a mean and
// a factor 1 / deviation of its own.
#pragma once
#include "minicaffe/ops/broadcast/kernel.hpp"
#include "minicaffe/kernels/reduce.hpp"

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

// ---- the same for channel k, as the kernels of the device take it

/// A null mean is 0.
template <class T> struct StandardizeBy {
  const T *mean, *factor;
  MC_HD Standardize<T> at(index_t k) const { return {mean ? mean[k] : T(0), factor[k]}; }
};

template <class T> struct SquaredDifferenceBy {
  const T *x, *mean;
  MC_HD SquaredDifferenceTerm<T> at(index_t k) const { return {x, mean[k]}; }
};

/// A null mean: v is normalised already.
template <class T> struct CenteredDotBy {
  const T *v, *dy, *mean;
  MC_HD CenteredDotTerm<T> at(index_t k) const { return {v, dy, mean ? mean[k] : T(0)}; }
};

template <class T> struct StandardizeBackwardBy {
  const T *mean_dy, *mean_dy_v, *mean, *factor;
  MC_HD StandardizeBackward<T> at(index_t k) const {
    T v_factor = mean ? factor[k] : T(1);
    return {mean_dy[k], mean_dy_v[k] * v_factor, mean ? mean[k] : T(0), v_factor, factor[k]};
  }
};

template <class T> struct DeviationFactor {
  Deviation rule;
  T eps;
  const T* variance;
  T* factor;
  MC_HD void operator()(index_t k) const {
    factor[k] = deviation_factor(rule, rule == Deviation::kNone ? T(0) : variance[k], eps);
  }
};

}  // namespace mc
