// The losses on the CPU: sums of the terms in kernels/loss.hpp, in an order that does not depend on the threads.
#pragma once
#include "minicaffe/cpu/reduce.hpp"
#include "minicaffe/cpu/softmax.hpp"
#include "minicaffe/kernels/loss.hpp"

namespace mc {
namespace cpu {

/// Count the labels that are not `ignore` into *valid; return the index of the first one outside 0..classes-1, or -1.
inline index_t check_labels(int dtype, const Labels& s, const void* label, index_t* valid) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(label);
    *valid = 0;
    for (index_t i = 0; i < s.outer * s.inner; ++i) {
      int l = label_(value[i]);
      if (s.ignore != kNoLabel && l == s.ignore) continue;
      if (l < 0 || l >= s.classes) return i;
      ++*valid;
    }
    return -1;
  });
}

/// How many of `n` real-valued targets are not `ignore` when cut to an integer.
inline index_t count_targets(int dtype, index_t n, int ignore, const void* target) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(target);
    index_t valid = 0;
    for (index_t i = 0; i < n; ++i) valid += ignore == kNoLabel || label_(value[i]) != ignore;
    return valid;
  });
}

inline double log_loss(int threads, int dtype, const Labels& s, const void* p, const void* label, double floor) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, s.outer * s.inner,
                        LogLossTerm<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), T(floor)});
  });
}

inline void softmax_loss_backward(int threads, int dtype, const Labels& s, const void* p, const void* label, double scale,
                                  void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto prob = static_cast<const T*>(p);
    auto to = static_cast<T*>(dx);
    map(threads, s.outer * s.classes * s.inner, Scaled<T>{T(scale)}, prob, to);
    for_each(threads, s.outer * s.inner, SoftmaxLossBackward<T>{s, prob, static_cast<const T*>(label), T(scale), to}, 8);
  });
}

inline void log_loss_backward(int threads, int dtype, const Labels& s, const void* p, const void* label, double scale,
                              double floor, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto to = static_cast<T*>(dx);
    fill(threads, s.outer * s.classes * s.inner, T(0), to);
    for_each(threads, s.outer * s.inner,
             LogLossBackward<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), T(scale), T(floor), to}, 8);
  });
}

inline double infogain(int threads, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                       double floor) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, s.outer * s.inner,
                        InfogainTerm<T>{s, static_cast<const T*>(p), static_cast<const T*>(label),
                                        static_cast<const T*>(h), T(floor)});
  });
}

inline void infogain_backward(int threads, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                              double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(threads, s.outer * s.inner,
             InfogainBackward<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), static_cast<const T*>(h),
                                 T(scale), static_cast<T*>(dx)}, 4 * s.classes + 1);
  });
}

inline double hinge(int threads, int dtype, const Labels& s, const void* x, const void* label, bool squared) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, s.outer * s.classes,
                        HingeTerm<T>{s, static_cast<const T*>(x), static_cast<const T*>(label), squared});
  });
}

inline void hinge_backward(int threads, int dtype, const Labels& s, const void* x, const void* label, bool squared,
                           double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    HingeTerm<T> term{s, static_cast<const T*>(x), static_cast<const T*>(label), squared};
    for_each(threads, s.outer * s.classes, HingeBackward<T>{term, T(scale), static_cast<T*>(dx)}, 4);
  });
}

inline double squared_distance(int threads, int dtype, index_t n, const void* a, const void* b) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, n, SquaredDistanceTerm<T>{static_cast<const T*>(a), static_cast<const T*>(b)});
  });
}

inline double sigmoid_loss(int threads, int dtype, index_t n, int ignore, const void* x, const void* t) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, n, SigmoidLossTerm<T>{ignore, static_cast<const T*>(x), static_cast<const T*>(t)});
  });
}

inline void sigmoid_loss_backward(int threads, int dtype, index_t n, int ignore, const void* x, const void* t, double scale,
                                  void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(threads, n,
             SigmoidLossBackward<T>{ignore, static_cast<const T*>(x), static_cast<const T*>(t), T(scale),
                                    static_cast<T*>(dx)}, 10);
  });
}

struct Pairs {
  index_t count, width;
  double margin;
  bool legacy;
};

template <class T> ContrastiveTerm<T> contrastive_term(const Pairs& s, const void* a, const void* b, const void* similar) {
  return {s.width, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(similar), T(s.margin), s.legacy};
}

inline double contrastive(int threads, int dtype, const Pairs& s, const void* a, const void* b, const void* similar) {
  return dispatch(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return sum_terms<T>(threads, s.count, contrastive_term<T>(s, a, b, similar));
  });
}

inline void contrastive_backward(int threads, int dtype, const Pairs& s, const void* a, const void* b, const void* similar,
                                 double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(threads, s.count, ContrastiveBackward<T>{contrastive_term<T>(s, a, b, similar), T(scale), static_cast<T*>(dx)},
             3 * s.width + 1);
  });
}

}  // namespace cpu
}  // namespace mc
