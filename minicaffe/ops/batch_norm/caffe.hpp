// BatchNorm and MVN on CPU or device. The CPU takes a channel through all steps while it is in the cache (ops/batch_norm/cpu.hpp);
// the device takes all channels through one step at a time, so that a few large channels fill it as well.
#pragma once
#include "minicaffe/ops/batch_norm/cpu.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"

namespace mc {

/// y = (x - mean) factor for each channel of [outer, channels, inner]. Unless `given`, mean and variance are computed first,
/// the variance not if rule is kNone. `kept`, unless null, receives a copy of y. `rule` is a Deviation.
inline void normalize_forward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, int rule, bool given,
                              double eps, const void* x, void* y, void* kept, void* mean, void* variance, void* factor) {
  if (!on.stream)
    return cpu::normalize_forward(on.threads, dtype, outer, channels, inner, rule, given, eps, x, y, kept, mean, variance, factor);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(x);
    auto means = static_cast<T*>(mean), variances = static_cast<T*>(variance), factors = static_cast<T*>(factor);
    double per = 1.0 / double(std::max<index_t>(1, outer * inner));
    if (!given) {
      cuda::channel_sums(*on.stream, outer, channels, inner, EveryChannel<SumTerm<T>>{{from}}, per, false, means);
      if (Deviation(rule) != Deviation::kNone)
        cuda::channel_sums(*on.stream, outer, channels, inner, SquaredDifferenceBy<T>{from, means}, per, false, variances);
    }
    cuda::for_each(*on.stream, channels, DeviationFactor<T>{Deviation(rule), T(eps), variances, factors});
    cuda::broadcast_unary(*on.stream, outer, channels, inner, StandardizeBy<T>{means, factors}, from, static_cast<T*>(y),
                          static_cast<T*>(kept), true);
  });
}

/// dx from dy. v is y if `normalized`, else x. With `given` mean and variance have no gradient; with `mean_only` only the mean
/// was subtracted. The device works in `scratch`, 2 x channels values; the CPU does not touch it.
inline void normalize_backward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, bool given,
                               bool mean_only, bool normalized, const void* v, const void* dy, const void* mean,
                               const void* factor, void* dx, void* scratch) {
  if (!on.stream)
    return cpu::normalize_backward(on.threads, dtype, outer, channels, inner, given, mean_only, normalized, v, dy, mean, factor,
                                   dx);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto values = static_cast<const T*>(v), from = static_cast<const T*>(dy), factors = static_cast<const T*>(factor);
    auto means = normalized ? nullptr : static_cast<const T*>(mean);
    auto to = static_cast<T*>(dx), mean_dy = static_cast<T*>(scratch), mean_dy_v = mean_dy + channels;
    double per = 1.0 / double(std::max<index_t>(1, outer * inner));
    if (!given)
      cuda::channel_sums(*on.stream, outer, channels, inner, EveryChannel<SumTerm<T>>{{from}}, per, false, mean_dy);
    if (given || mean_only) {  // without v, which may be overwritten or infinite
      StandardizeBy<T> f{given ? nullptr : mean_dy, factors};
      return cuda::broadcast_unary(*on.stream, outer, channels, inner, f, from, to, static_cast<T*>(nullptr));
    }
    cuda::channel_sums(*on.stream, outer, channels, inner, CenteredDotBy<T>{values, from, means}, per, false, mean_dy_v);
    cuda::broadcast_binary(*on.stream, outer, channels, inner, StandardizeBackwardBy<T>{mean_dy, mean_dy_v, means, factors},
                           values, from, to);
  });
}

}  // namespace mc
