// Normalisation by mean and variance (BatchNorm, MVN), fused with a Scale (gamma, beta) and a ReLU layer after it. A blob is viewed
// as outer x channels x inner; every channel has its own parameters. z is the result before the ReLU, dz its gradient.
#pragma once
#include "minicaffe/ops/activation/kernel.hpp"
#include "minicaffe/loops/sums/kernel.hpp"
#include "minicaffe/kernels/types.hpp"

namespace mc {

/// y = relu(z) with z = (x - mean) scale + shift for one channel: scale = gamma / deviation, shift = beta. `slope` is the ReLU's
/// for negative z; 1 leaves z as it is.
template <class T> struct Standardize {
  T mean, scale, shift, slope;
  MC_HD T z(T x) const { return (x - mean) * scale + shift; }
  MC_HD T operator()(T x) const { return ReluForward<T>{slope}(z(x)); }
  MC_HD T dz(T x, T dy) const { return ReluBackward<T>{slope}(z(x), dy); }
};

/// dx = (dz - mean_dz - (x - mean) dot) scale, where dot is the mean of dz (x - mean), times the squared factor.
template <class T> struct StandardizeBackward {
  Standardize<T> of;
  T mean_dz, dot;
  MC_HD T operator()(T x, T dy) const {
    T by_x = dot == T{} ? T{} : (x - of.mean) * dot;  // x may be infinite
    return (of.dz(x, dy) - mean_dz - by_x) * of.scale;
  }
};

/// dz, or dz (x - mean) if `by_x`, of element i: the terms whose sums over a channel backward needs
template <class T> struct StandardizeTerm {
  Standardize<T> of;
  const T *x, *dy;
  bool by_x;
  MC_HD T operator()(index_t i) const { return of.dz(x[i], dy[i]) * (by_x ? x[i] - of.mean : T(1)); }
};

/// The formula of the deviation: BatchNorm sqrt(var + eps), MVN sqrt(var) + eps, or 1 for subtracting the mean only.
enum class Deviation : int { kEpsInside, kEpsOutside, kNone };

template <class T> MC_HD T deviation_factor(Deviation rule, T variance, T eps) {  // 1 / deviation
  return rule == Deviation::kEpsInside    ? T(1) / sqrt_(variance + eps)
         : rule == Deviation::kEpsOutside ? T(1) / (sqrt_(variance) + eps)
                                          : T(1);
}

// ---- the same for channel k: loops over channels call `at(k)`, or `lanes<V>(k)` for as many channels as V, a vector of the CPU,
// has numbers (device/bf16.hpp). Unused arrays have valid addresses, too: a masked load from a null pointer, with no active lane,
// costs a processor hundreds of cycles.

/// Standardize with the parameters of channel k: forward, and the terms of backward.
template <class T> struct StandardizeBy {
  const T *mean, *scale, *shift;
  T slope;
  MC_HD Standardize<T> at(index_t k) const { return {mean[k], scale[k], shift[k], slope}; }
  MC_HD StandardizeBy from(index_t k) const { return {mean + k, scale + k, shift + k, slope}; }  // for channels k, k + 1, ...
  template <class V> MC_HD Standardize<V> lanes(index_t k) const {
    return {get_lanes<V>(mean + k), get_lanes<V>(scale + k), get_lanes<V>(shift + k), V{} + slope};
  }
};

/// Both terms at once, dz and dz (x - mean), for channel_sums of a device.
template <class T> struct StandardizeTerms {
  Standardize<T> of;
  MC_HD Two<T> operator()(T x, T dy) const {
    const T dz = of.dz(x, dy);
    return {dz, dz * (x - of.mean)};
  }
};
template <class T> struct StandardizeTermsBy {
  StandardizeBy<T> of;
  MC_HD StandardizeTerms<T> at(index_t k) const { return {of.at(k)}; }
};

/// An element x as count, mean, squares and pivot of itself: sums of these give mean and variance (loops/sums/kernel.hpp).
template <class T> struct MomentTerms {
  T pivot;
  MC_HD MeanSquares<T> operator()(T x) const { return {T(1), x, T(0), pivot}; }
};
/// MomentTerms for each channel, on a device. The pivot, about which numbers are summed, is the channel's first element, unless it
/// is not finite: then 0, so that the mean of a channel with one infinity is infinite.
template <class T> struct MomentTermsBy {
  using C = typename Element<T>::Compute;
  const T* x;
  index_t inner, lanes, count;  // count: elements of a channel
  MC_HD C pivot(index_t k) const {
    const C first = count ? C(x[first_of_channel(k, lanes, inner)]) : C(0);
    return first - first == C(0) ? first : C(0);
  }
  MC_HD MomentTerms<C> at(index_t k) const { return {pivot(k)}; }
};

/// dx with the parameters and sums of channel k.
template <class T> struct StandardizeBackwardBy {
  StandardizeBy<T> of;
  const T *mean_dz, *dot;
  MC_HD StandardizeBackward<T> at(index_t k) const { return {of.at(k), mean_dz[k], dot[k]}; }
  template <class V> MC_HD StandardizeBackward<V> lanes(index_t k) const {
    return {of.template lanes<V>(k), get_lanes<V>(mean_dz + k), get_lanes<V>(dot + k)};
  }
};

/// The factor 1 / deviation; scale and shift from it and from gamma and beta of a Scale layer, if present.
template <class T> struct StandardizeFactors {
  Deviation rule;
  T eps;
  bool scaled, shifted;
  const T *variance, *gamma, *beta;
  T *factor, *scale, *shift;
  MC_HD void operator()(index_t k) const {
    factor[k] = deviation_factor(rule, rule == Deviation::kNone ? T(0) : variance[k], eps);
    scale[k] = scaled ? factor[k] * gamma[k] : factor[k];
    shift[k] = shifted ? beta[k] : T(0);
  }
  MC_HD StandardizeFactors from(index_t k) const {  // for channels k, k + 1, ...
    return {rule, eps, scaled, shifted, variance + k, gamma + k, beta + k, factor + k, scale + k, shift + k};
  }
};

/// Mean and variance from the sums of MomentTermsBy, for channel_sums of a device; then the factors, if `factored`.
template <class T> struct StoreMoments {
  using C = typename Element<T>::Compute;
  MomentTermsBy<T> of;
  C *mean, *variance;
  bool factored;
  StandardizeFactors<C> factors;
  MC_HD void operator()(index_t k, const Two<double>& sum) const {
    const double per = 1 / double(max_<index_t>(1, of.count));
    mean[k] = C(double(of.pivot(k)) + sum.first * per);
    variance[k] = C((sum.second - sum.first * sum.first * per) * per);
    if (factored) factors(k);
  }
};

/// The running sums of BatchNorm (Caffe's blobs 0, 1 and 2), which its layer updates after forward: sum = fraction sum + the
/// batch's value, the variance times `unbiased` = count / (count - 1). Channel 0 also updates their weight.
template <class T> struct RunningSums {
  T fraction, unbiased;
  const T *mean, *variance;
  T *means, *variances, *weight;
  MC_HD void operator()(index_t k) const {
    means[k] = mean[k] + fraction * means[k];
    variances[k] = unbiased * variance[k] + fraction * variances[k];
    if (k == 0) weight[0] = weight[0] * fraction + T(1);
  }
};

/// From the sums of dz and dz (x - mean), in `sum` and `dot`: add to the gradients of gamma and beta, or overwrite them; replace
/// the sums by the terms that StandardizeBackward subtracts. `per` is 1 / count; `by_x`: whether the variance has a gradient.
template <class T> struct StandardizeGradients {
  bool given, by_x, add_gamma, add_beta;
  T per;
  const T* factor;
  T *sum, *dot, *gamma, *beta;
  MC_HD void operator()(index_t k) const {
    gamma[k] = (add_gamma ? gamma[k] : T(0)) + dot[k] * factor[k];
    beta[k] = (add_beta ? beta[k] : T(0)) + sum[k];
    sum[k] = given ? T(0) : sum[k] * per;
    dot[k] = by_x ? dot[k] * per * factor[k] * factor[k] : T(0);
  }
  MC_HD void operator()(index_t k, const Two<double>& sums) const {  // called by channel_sums of a device
    sum[k] = T(sums.first), dot[k] = T(sums.second);
    (*this)(k);
  }
};

}  // namespace mc
