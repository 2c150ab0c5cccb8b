// BatchNorm and MVN on CPU or device. A thread of the CPU takes a channel through all steps while it is in the cache, so that sums
// do not depend on the number of threads; the device takes all channels through one step at a time, so that a few large channels
// fill it as well.
#pragma once
#include "minicaffe/ops/batch_norm/kernel.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {
namespace cpu {

template <class T> struct StandardizeChannel {
  index_t outer, channels, inner;
  Deviation rule;
  bool given;  // mean and variance are given, else they are computed
  T eps;
  const T* x;
  T *y, *kept, *mean, *variance, *factor;  // kept may be null; the last three have one value a channel

  MC_HD void operator()(index_t c) const {
    if (!given) {
      double per = 1.0 / double(max_<index_t>(1, outer * inner));
      mean[c] = T(channel_sum<T>(SumTerm<T>{x}, outer, channels, inner, c) * per);
      if (rule != Deviation::kNone)
        variance[c] = T(channel_sum<T>(SquaredDifferenceTerm<T>{x, mean[c]}, outer, channels, inner, c) * per);
    }
    Standardize<T> f{mean[c], factor[c] = deviation_factor(rule, rule == Deviation::kNone ? T(0) : variance[c], eps)};
    for (index_t o = 0; o < outer; ++o) {
      index_t begin = (o * channels + c) * inner;
      const T* from = x + begin;
      T* to = y + begin;
#pragma GCC ivdep
      for (index_t i = 0; i < inner; ++i) to[i] = f(from[i]);
      if (!kept) continue;
      T* copy = kept + begin;
#pragma GCC ivdep
      for (index_t i = 0; i < inner; ++i) copy[i] = to[i];
    }
  }
};

template <class T> struct StandardizeChannelBackward {
  index_t outer, channels, inner;
  bool given;       // mean and variance were given, so that they have no gradient
  bool mean_only;   // only the mean was subtracted
  bool normalized;  // v is y, else it is x
  const T *v, *dy, *mean, *factor;
  T* dx;

  MC_HD void operator()(index_t c) const {
    StandardizeBackward<T> f{T(0), T(0), normalized ? T(0) : mean[c], normalized ? T(1) : factor[c], factor[c]};
    if (!given) {
      double sum = 0, dot = 0, per = 1.0 / double(max_<index_t>(1, outer * inner));
      SumTerm<T> sum_term{dy};
      CenteredDotTerm<T> dot_term{v, dy, f.shift};
      for (index_t o = 0; o < outer; ++o) {
        index_t begin = (o * channels + c) * inner, end = begin + inner;
        for (index_t b = begin; b < end; b += kSumBlock) {
          index_t e = min_(end, b + kSumBlock);
          sum += double(block_sum<T>(sum_term, b, e));
          if (!mean_only) dot += double(block_sum<T>(dot_term, b, e));
        }
      }
      f.mean_dy = T(sum * per);
      f.mean_dy_y = T(dot * per) * f.v_factor;
    }
    for (index_t o = 0; o < outer; ++o) {
      index_t begin = (o * channels + c) * inner;
      const T *value = v + begin, *from = dy + begin;
      T* to = dx + begin;
      if (given || mean_only) {  // without v, which may be overwritten or infinite
#pragma GCC ivdep
        for (index_t i = 0; i < inner; ++i) to[i] = (from[i] - f.mean_dy) * f.factor;
      } else {
#pragma GCC ivdep
        for (index_t i = 0; i < inner; ++i) to[i] = f(value[i], from[i]);
      }
    }
  }
};

}  // namespace cpu

/// y = (x - mean) factor for each channel. Unless `given`, mean and variance are computed first, the variance not if rule is kNone.
/// `kept`, unless null, receives a copy of y. `rule` is a Deviation.
inline void standardize_forward(const Context& on, int dtype, const Channels& c, int rule, bool given, double eps, const void* x,
                                void* y, void* kept, void* mean, void* variance, void* factor) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(x);
    auto to = static_cast<T*>(y), copy = static_cast<T*>(kept);
    auto means = static_cast<T*>(mean), variances = static_cast<T*>(variance), factors = static_cast<T*>(factor);
    const index_t count = std::max<index_t>(1, c.outer * c.inner);
    if (!on.stream && c.lanes == 1)
      return cpu::for_each(on.threads, c.channels,
                           cpu::StandardizeChannel<T>{c.outer, c.channels, c.inner, Deviation(rule), given, T(eps), from, to, copy,
                                                      means, variances, factors}, count);
    if (!given) {
      sums_by(on, c, EveryChannel<SumTerm<T>>{{from}}, 1.0 / count, false, means);
      if (Deviation(rule) != Deviation::kNone) sums_by(on, c, SquaredDifferenceBy<T>{from, means}, 1.0 / count, false, variances);
    }
    for_each(on, c.channels, DeviationFactor<T>{Deviation(rule), T(eps), variances, factors});
    StandardizeBy<T> f{means, factors, true};
    if (on.stream)
      cuda::broadcast_unary(*on.stream, c.outer, c.channels, c.inner, f, from, to, copy, true);
    else
      cpu::map_lanes<T>(on.threads, c, f, from, nullptr, to, copy, true);
  });
}

/// dx from dy. v is y if `normalized`, else x. With `given` mean and variance have no gradient; with `mean_only` only the mean
/// was subtracted. `scratch` has room for 2 x channels values.
inline void standardize_backward(const Context& on, int dtype, const Channels& c, bool given, bool mean_only, bool normalized,
                                 const void* v, const void* dy, const void* mean, const void* factor, void* dx, void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto values = static_cast<const T*>(v), from = static_cast<const T*>(dy), factors = static_cast<const T*>(factor);
    auto means = static_cast<const T*>(mean);
    auto to = static_cast<T*>(dx);
    const index_t count = std::max<index_t>(1, c.outer * c.inner);
    if (!on.stream && c.lanes == 1)
      return cpu::for_each(on.threads, c.channels,
                           cpu::StandardizeChannelBackward<T>{c.outer, c.channels, c.inner, given, mean_only, normalized, values, from,
                                                              means, factors, to}, count);
    T *mean_dy = static_cast<T*>(scratch), *mean_dy_v = mean_dy + c.channels;
    if (!given) sums_by(on, c, EveryChannel<SumTerm<T>>{{from}}, 1.0 / count, false, mean_dy);
    if (given || mean_only) {  // without v, which may be overwritten or infinite
      StandardizeBy<T> f{given ? means : mean_dy, factors, !given};
      return broadcast_unary(on, c, f, from, to, static_cast<T*>(nullptr));
    }
    sums_by(on, c, CenteredDotBy<T>{values, from, means, normalized}, 1.0 / count, false, mean_dy_v);
    broadcast_binary(on, c, StandardizeBackwardBy<T>{mean_dy, mean_dy_v, means, factors, normalized}, values, from, to);
  });
}

}  // namespace mc
