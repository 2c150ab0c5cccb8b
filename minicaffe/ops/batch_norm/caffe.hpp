// BatchNorm and MVN. ops/batch_norm/plain.hpp, the formula, takes 30 to 50 times as long as vectors. Each step is done for all
// channels; in lanes on the CPU (a layout with blocks of channels), for as many as the caches hold. Sums do not depend on the
// number of threads. T are the elements as stored; computations are in Element<T>::Compute, float for Bf16.
#pragma once
#include "minicaffe/ops/batch_norm/kernel.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {

/// A normalisation, and its arrays of one value a channel. Forward computes mean and variance, unless they are `given`, the factor
/// 1 / deviation, and from gamma and beta, if they are not null, scale and shift. Backward reads mean, factor, scale and shift.
struct Standardization {
  int rule;  // a Deviation
  bool given;
  double eps, slope;  // of the ReLU; 1: none
  index_t elsewhere;  // number of values of a channel in other processes, which are included in the statistics
  void *mean, *variance, *factor, *scale, *shift;
  const void *gamma, *beta;

  template <class T> StandardizeFactors<T> factors() const {
    auto array = [&](const void* p) { return static_cast<const T*>(p ? p : variance); };  // a valid address (kernel.hpp)
    return {Deviation(rule), T(eps), gamma != nullptr, beta != nullptr, array(variance), array(gamma), array(beta),
            static_cast<T*>(factor), static_cast<T*>(scale), static_cast<T*>(shift)};
  }
  template <class T> StandardizeBy<T> by() const {
    return {static_cast<const T*>(mean), static_cast<const T*>(scale), static_cast<const T*>(shift), T(slope)};
  }
  bool by_x() const { return !given && Deviation(rule) != Deviation::kNone; }  // whether the variance has a gradient
  /// The array read as x: dy if dx does not depend on x, which may be overwritten or infinite then.
  const void* values(const void* x, const void* dy) const { return by_x() || slope != 1 ? x : dy; }
};

namespace cpu {

/// Mean and variance of a channel from those of its blocks, so that its elements are read from memory once: `add` for each block in
/// order, then `put`. Sums are about the mean of the first block (`about`), in double, so that cancellation is small.
struct Moments {
  double count = 0, about = 0, sum = 0, squares = 0;
  MC_HD void add(double n, double mean, double squares_about_it) {  // of a block of n elements
    if (count == 0) about = mean;
    const double d = mean - about;
    count += n, sum += n * d, squares += squares_about_it + n * d * d;
  }
  template <class T> MC_HD void put(T& mean, T& variance) const {
    const double per = 1 / max_(count, 1.0);
    mean = T(about + sum * per), variance = T((squares - sum * sum * per) * per);
  }
};

/// Mean and variance of channel k, in plain order.
template <class T> struct ChannelMoments {
  Channels c;
  const T* x;
  T *mean, *variance;
  MC_HD void operator()(index_t k) const {
    Moments all;
    for (index_t o = 0; o < c.outer; ++o)
      for (index_t b = (o * c.channels + k) * c.inner, end = b + c.inner, e; b < end; b = e) {
        e = min_(end, b + kSumBlock);
        const T m = block_sum<T>(SumTerm<T>{x}, b, e) / T(e - b);
        all.add(double(e - b), double(m), double(block_sum<T>(SquaredDifferenceTerm<T>{x, m}, b, e)));
      }
    all.put(mean[k], variance[k]);
  }
};

/// sums[two][channel]: of dz and dz (x - mean), of channel k, in plain order
template <class T> struct ChannelGradientSums {
  Channels c;
  StandardizeBy<T> by;
  const T *x, *dy;
  T* sums;
  MC_HD void operator()(index_t k) const {
    const Standardize<T> f = by.at(k);
    double sum = 0, dot = 0;
    for (index_t o = 0; o < c.outer; ++o)
      for (index_t b = (o * c.channels + k) * c.inner, end = b + c.inner, e; b < end; b = e) {
        e = min_(end, b + kSumBlock);
        sum += double(block_sum<T>(StandardizeTerm<T>{f, x, dy, false}, b, e));
        dot += double(block_sum<T>(StandardizeTerm<T>{f, x, dy, true}, b, e));
      }
    sums[k] = T(sum), sums[c.channels + k] = T(dot);
  }
};

constexpr index_t kLaneBlock = kSumBlock / kSumLanes;  // positions of a row in one block of a sum

/// The functor of lane_moments: Rows<kGroup>, which each_lane_row runs for each row of kGroup channels of an image.
template <class T> struct LaneMoments {
  using Compute = typename Element<T>::Compute;
  /// Mean, and sum of squares about it, of each block of kLaneBlock positions of a row; numbers[outer][block][two][channel]
  template <int kGroup> struct Rows {
    const T* x;
    Compute* numbers;

    MC_HD void walk(const Channels& c, const LaneRow<kGroup>& r, index_t count) const {
      Compute* to = numbers + r.outer * ((c.inner + kLaneBlock - 1) / kLaneBlock) * 2 * c.channels + r.first;
      for (index_t i = 0; i < c.inner; i += kLaneBlock, to += 2 * c.channels)
        block(c, x + r.at + i * c.lanes, min_(c.inner - i, kLaneBlock), count, to);
    }
    MC_HD void block(const Channels& c, const T* from, index_t n, index_t count, Compute* to) const {
      if constexpr (kVectors<T, kGroup>)  // Bf16, by vectors of 16 floats
        if (count == kGroup) {
          Lanes sum[2] = {}, mean = {};
          each_alternating(n, [&](index_t i, int which) MC_INLINE { sum[which] += get_lanes<Lanes>(from + i * c.lanes); });
          mean = (sum[0] + sum[1]) / float(n), sum[0] = sum[1] = Lanes{};
          each_alternating(n, [&](index_t i, int which) MC_INLINE {
            const Lanes d = get_lanes<Lanes>(from + i * c.lanes) - mean;
            sum[which] += d * d;
          });
          sum[0] += sum[1];
          std::memcpy(to, &mean, sizeof mean), std::memcpy(to + c.channels, &sum[0], sizeof mean);
          return;
        }
      Compute mean[kGroup] = {}, squares[kGroup] = {};
      for (index_t i = 0; i < n; ++i)
        for (index_t l = 0; l < count; ++l) mean[l] += from[i * c.lanes + l];
      for (index_t l = 0; l < count; ++l) mean[l] /= Compute(n);
      for (index_t i = 0; i < n; ++i)
        for (index_t l = 0; l < count; ++l) {
          const Compute d = from[i * c.lanes + l] - mean[l];
          squares[l] += d * d;
        }
      for (index_t l = 0; l < count; ++l) to[l] = mean[l], to[c.channels + l] = squares[l];
    }
  };
};

/// Mean and variance of channel k from the numbers of its blocks.
template <class T> struct JoinMoments {
  Channels c;
  const T* numbers;
  T *mean, *variance;
  MC_HD void operator()(index_t k) const {
    Moments all;
    const T* from = numbers + k;
    for (index_t o = 0; o < c.outer; ++o)
      for (index_t i = 0; i < c.inner; i += kLaneBlock, from += 2 * c.channels)
        all.add(double(min_(c.inner - i, kLaneBlock)), double(from[0]), double(from[c.channels]));
    all.put(mean[k], variance[k]);
  }
};

/// Mean and variance of channels in lanes: one pass over x, as ChannelMoments.
template <class T, class C> void lane_moments(Threads threads, const Channels& c, const T* x, C* mean, C* variance) {
  const index_t blocks = c.outer * ((c.inner + kLaneBlock - 1) / kLaneBlock);
  std::vector<C> numbers(size_t(blocks * 2 * c.channels));
  each_lane_row<T, LaneMoments<T>::template Rows>(threads, c, x, numbers.data());
  for_each(threads, c.channels, JoinMoments<C>{c, numbers.data(), mean, variance}, std::max<index_t>(1, blocks));
}

/// The functor of lane_gradients, as LaneMoments.
template <class T> struct LaneGradients {
  using Compute = typename Element<T>::Compute;
  /// The sums of dz and dz (x - mean) over each row: sums[outer][two][channel]
  template <int kGroup> struct Rows {
    StandardizeBy<Compute> by;
    const T *x, *dy;
    double* sums;

    MC_HD void walk(const Channels& c, const LaneRow<kGroup>& r, index_t count) const {
      double total[kGroup] = {}, total_dot[kGroup] = {};
      for (index_t i = 0; i < c.inner;) {
        Compute sum[kGroup] = {}, dot[kGroup] = {};
        const index_t begin = i;
        i = min_(c.inner, i + kLaneBlock);
        if constexpr (kVectors<T, kGroup>)  // Bf16, by vectors of 16 floats
          if (count == kGroup) {
            const Standardize<Lanes> f = by.template lanes<Lanes>(r.first);
            Lanes sums[2] = {}, dots[2] = {};
            each_alternating(i - begin, [&](index_t j, int which) MC_INLINE {
              const index_t at = r.at + (begin + j) * c.lanes;
              const Lanes value = get_lanes<Lanes>(x + at), dz = f.dz(value, get_lanes<Lanes>(dy + at));
              sums[which] += dz, dots[which] += dz * (value - f.mean);
            });
            sums[0] += sums[1], dots[0] += dots[1];
            std::memcpy(sum, &sums[0], sizeof sum), std::memcpy(dot, &dots[0], sizeof dot);
          }
        for (index_t j = begin; j < (kVectors<T, kGroup> && count == kGroup ? begin : i); ++j)
          for (index_t l = 0; l < count; ++l) {
            const index_t at = r.at + j * c.lanes + l;
            const Standardize<Compute> f = by.at(r.first + l);
            const Compute dz = f.dz(x[at], dy[at]);
            sum[l] += dz, dot[l] += dz * (x[at] - f.mean);
          }
        for (index_t l = 0; l < count; ++l) total[l] += double(sum[l]), total_dot[l] += double(dot[l]);
      }
      double* to = sums + r.outer * 2 * c.channels + r.first;
      for (index_t l = 0; l < count; ++l) to[l] = total[l], to[c.channels + l] = total_dot[l];
    }
  };
};

/// sums[two][channel]: of dz and dz (x - mean), for channels in lanes
template <class T, class C>
void lane_gradients(Threads threads, const Channels& c, const StandardizeBy<C>& by, const T* x, const T* dy, C* sums) {
  std::vector<double> rows(size_t(c.outer * 2 * c.channels));
  each_lane_row<T, LaneGradients<T>::template Rows>(threads, c, by, x, dy, rows.data());
  channel_sums<C>(threads, c.outer, 2 * c.channels, 1, SumTerm<double>{rows.data()}, 1.0, false, sums);
}

}  // namespace cpu

/// Return `c`, or on the CPU, for images of one pixel in plain order, the same array as one image whose pixels have all channels in
/// one block of lanes: then vectors go along the channels. Not for double.
template <class T> Channels side_by_side(const Context& on, const Channels& c) {
  const bool turn = !on.stream && c.lanes == 1 && c.inner == 1 && c.channels > 1 && cpu::kInLanes<T>;
  return turn ? Channels(1, c.channels, c.outer, c.channels) : c;
}

/// The mean and variance of the channels of x; then the factors, unless they are null.
template <class T, class C>
void moments(const Context& on, const Channels& c, const T* x, C* mean, C* variance,
             const StandardizeFactors<C>* factors = nullptr) {
  const index_t count = c.outer * c.inner;
  if (on.stream) {
    const MomentTermsBy<T> terms{x, c.inner, c.lanes, count};
    const StoreMoments<T> store{terms, mean, variance, factors != nullptr, factors ? *factors : StandardizeFactors<C>()};
    return cuda::channel_sums(*on.stream, c, terms, Arrays<T, 1>{x}, store);
  }
  if constexpr (cpu::kPlain<T>)
    if (c.lanes == 1)
      cpu::for_each(on.threads, c.channels, cpu::ChannelMoments<T>{c, x, mean, variance}, std::max<index_t>(1, count));
  if constexpr (cpu::kInLanes<T>)
    if (c.lanes > 1 || !cpu::kPlain<T>) cpu::lane_moments(on.threads, c, x, mean, variance);
  if (factors) for_each(on, c.channels, *factors);
}

/// The moments of this process alone, which it then combines with those of others (engine CAFFE with a group).
inline void standardize_moments(const Context& on, int dtype, const Channels& shape, const void* x, void* mean, void* variance) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    using C = typename Element<T>::Compute;
    moments(on, side_by_side<T>(on, shape), static_cast<const T*>(x), static_cast<C*>(mean), static_cast<C*>(variance));
  });
}

/// y from x. `kept`, unless null, receives a copy of x.
inline void standardize_forward(const Context& on, int dtype, const Channels& shape, const Standardization& s, const void* x,
                                void* y, void* kept) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    using C = typename Element<T>::Compute;
    const Channels c = side_by_side<T>(on, shape);
    auto from = static_cast<const T*>(x);
    auto to = static_cast<T*>(y), copy = static_cast<T*>(kept);
    auto mean = static_cast<C*>(s.mean), variance = static_cast<C*>(s.variance);
    auto work = [&](const Channels& part, index_t k, index_t at) {
      const auto factors = s.factors<C>().from(k);
      if (s.given)
        for_each(on, part.channels, factors);
      else
        moments(on, part, from + at, mean + k, variance + k, &factors);
      broadcast_unary(on, part, s.by<C>().from(k), from + at, to + at, copy ? copy + at : nullptr);
    };
    each_part(on, c, 2 * sizeof(T), work);
  });
}

/// The sums of dz and dz (x - mean) of each channel, and what `store` computes from them.
template <class T, class C>
void gradients(const Context& on, const Channels& c, const StandardizeBy<C>& by, const T* x, const T* dy,
               const StandardizeGradients<C>& store) {
  if (on.stream)
    return cuda::channel_sums(*on.stream, c, StandardizeTermsBy<C>{by}, Arrays<T, 2>{x, dy}, store);
  if constexpr (cpu::kPlain<T>)
    if (c.lanes == 1)
      cpu::for_each(on.threads, c.channels, cpu::ChannelGradientSums<T>{c, by, x, dy, store.sum},
                    std::max<index_t>(1, c.outer * c.inner));
  if constexpr (cpu::kInLanes<T>)
    if (c.lanes > 1 || !cpu::kPlain<T>) cpu::lane_gradients(on.threads, c, by, x, dy, store.sum);
  for_each(on, c.channels, store);
}

/// With `terms` the gradients of gamma and beta unless they are null, added if `add_gamma` and `add_beta`, and the terms that the
/// gradient of x subtracts: 2 x channels of the 4 x channels values of `scratch`. With `apply` dx from dy and these terms. Both at
/// once unless processes add their terms up in between.
inline void standardize_backward(const Context& on, int dtype, const Channels& shape, const Standardization& s, bool terms,
                                 bool apply, const void* x, const void* dy, void* dx, void* gamma, bool add_gamma, void* beta,
                                 bool add_beta, void* scratch) {
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    using C = typename Element<T>::Compute;
    const Channels c = side_by_side<T>(on, shape);
    auto kept = static_cast<const T*>(x), values = static_cast<const T*>(s.values(x, dy)), from = static_cast<const T*>(dy);
    auto to = static_cast<T*>(dx);
    auto factor = static_cast<const C*>(s.factor);
    auto scale = static_cast<C*>(gamma), shift = static_cast<C*>(beta), sum = static_cast<C*>(scratch);
    const index_t count = std::max<index_t>(1, c.outer * c.inner + s.elsewhere);
    const StandardizeBy<C> by = s.by<C>();
    auto work = [&](const Channels& part, index_t k, index_t at) {
      C *dot = sum + part.channels, *own = dot + part.channels;
      const StandardizeBy<C> f = by.from(k);
      if (terms) {
        const StandardizeGradients<C> store{s.given, s.by_x(), scale && add_gamma, shift && add_beta, C(1.0 / count), factor + k,
                                            sum, dot, scale ? scale + k : own, shift ? shift + k : own + part.channels};
        if (!s.given || scale || shift)
          gradients(on, part, f, kept + at, from + at, store);
        else
          for_each(on, part.channels, store);
      }
      if (apply) broadcast_binary(on, part, StandardizeBackwardBy<C>{f, sum, dot}, values + at, from + at, to + at);
    };
    if (terms && apply)
      each_part(on, c, 2 * sizeof(T), work);
    else
      work(c, 0, 0);
  });
}

}  // namespace mc
