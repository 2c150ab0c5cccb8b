// BatchNorm and MVN on the CPU: a thread takes whole channels, so that the passes over a channel after the first find it in the
// cache, and sums do not depend on the number of threads.
#pragma once
#include "minicaffe/ops/broadcast/cpu.hpp"
#include "minicaffe/ops/batch_norm/kernel.hpp"

namespace mc {
namespace cpu {

template <class T> struct NormalizeForward {
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

template <class T> struct NormalizeBackward {
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

template <class T>
void normalize_forward_of(Threads threads, index_t outer, index_t channels, index_t inner, int rule, bool given, double eps,
                          const void* x, void* y, void* kept, void* mean, void* variance, void* factor) {
  for_each(threads, channels,
           NormalizeForward<T>{outer, channels, inner, Deviation(rule), given, T(eps), static_cast<const T*>(x),
                               static_cast<T*>(y), static_cast<T*>(kept), static_cast<T*>(mean), static_cast<T*>(variance),
                               static_cast<T*>(factor)},
           std::max<index_t>(1, outer * inner));
}

inline void normalize_forward(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, int rule, bool given,
                              double eps, const void* x, void* y, void* kept, void* mean, void* variance, void* factor) {
  (dtype == 0 ? normalize_forward_of<float> : normalize_forward_of<double>)(threads, outer, channels, inner, rule, given, eps, x,
                                                                            y, kept, mean, variance, factor);
}

template <class T>
void normalize_backward_of(Threads threads, index_t outer, index_t channels, index_t inner, bool given, bool mean_only,
                           bool normalized, const void* v, const void* dy, const void* mean, const void* factor, void* dx) {
  for_each(threads, channels,
           NormalizeBackward<T>{outer, channels, inner, given, mean_only, normalized, static_cast<const T*>(v),
                                static_cast<const T*>(dy), static_cast<const T*>(mean), static_cast<const T*>(factor),
                                static_cast<T*>(dx)},
           std::max<index_t>(1, outer * inner));
}

inline void normalize_backward(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, bool given, bool mean_only,
                               bool normalized, const void* v, const void* dy, const void* mean, const void* factor, void* dx) {
  (dtype == 0 ? normalize_backward_of<float> : normalize_backward_of<double>)(threads, outer, channels, inner, given, mean_only,
                                                                              normalized, v, dy, mean, factor, dx);
}

}  // namespace cpu
}  // namespace mc
