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

/// Unless `centered` the mean counts as 0. Its array is there all the same, here and below: where no lane of a vector wants it, loading
/// from a null pointer costs a processor hundreds of cycles.
template <class T> struct StandardizeBy {
  const T *mean, *factor;
  bool centered;
  MC_HD Standardize<T> at(index_t k) const { return {centered ? mean[k] : T(0), factor[k]}; }
};

template <class T> struct SquaredDifferenceBy {
  const T *x, *mean;
  MC_HD SquaredDifferenceTerm<T> at(index_t k) const { return {x, mean[k]}; }
};

/// `normalized`: v is y, otherwise x.
template <class T> struct CenteredDotBy {
  const T *v, *dy, *mean;
  bool normalized;
  MC_HD CenteredDotTerm<T> at(index_t k) const { return {v, dy, normalized ? T(0) : mean[k]}; }
};

template <class T> struct StandardizeBackwardBy {
  const T *mean_dy, *mean_dy_v, *mean, *factor;
  bool normalized;
  MC_HD StandardizeBackward<T> at(index_t k) const {
    T v_factor = normalized ? T(1) : factor[k];
    return {mean_dy[k], mean_dy_v[k] * v_factor, normalized ? T(0) : mean[k], v_factor, factor[k]};
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
