// The losses: out[0] = coeff times the sum of the terms in ops/loss/kernel.hpp, and their gradients. Labels and targets are checked
// and counted on the host: what is wrong there is an error before anything is computed.
#pragma once
#include <cmath>

#include "minicaffe/ops/loss/kernel.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {
namespace cpu {

/// Count the labels that are not `ignore` into *valid; return the index of the first that is no integer of 0..classes-1, or -1.
inline index_t check_labels(int dtype, const Labels& s, const void* label, index_t* valid) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(label);
    *valid = 0;
    for (index_t i = 0; i < s.outer * s.inner; ++i) {
      int l = label_(value[i]);
      if (decltype(type)(l) != value[i]) return i;  // true for NaN as well
      if (s.ignore != kNoLabel && l == s.ignore) continue;
      if (l < 0 || l >= s.classes) return i;
      ++*valid;
    }
    return -1;
  });
}

/// Count the real-valued targets that are not `ignore` into *valid; return the index of the first that only becomes `ignore` when cut
/// to an integer, or -1.
inline index_t check_targets(int dtype, index_t n, int ignore, const void* target, index_t* valid) {
  return dispatch(dtype, [&](auto type) -> index_t {
    using T = decltype(type);
    auto value = static_cast<const T*>(target);
    *valid = n;
    if (ignore == kNoLabel) return -1;
    for (index_t i = 0; i < n; ++i) {
      if (label_(value[i]) != ignore) continue;
      if (value[i] != T(ignore)) return i;
      --*valid;
    }
    return -1;
  });
}

/// Return the index of the first of `n` values that is no integer, or -1.
inline index_t find_fraction(int dtype, index_t n, const void* x) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(x);
    for (index_t i = 0; i < n; ++i)
      if (!(std::floor(value[i]) == value[i])) return i;  // true for NaN as well
    return -1;
  });
}

}  // namespace cpu

inline void log_loss(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double floor, double coeff,
                     void* out) {
  sum_typed<LogLossTerm>(on, dtype, s.outer * s.inner, coeff, false, out, s, p, label, floor);
}

inline void softmax_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                                  void* dx) {
  map1<Scaled>(on, dtype, s.outer * s.classes * s.inner, p, dx, scale);
  each_typed<SoftmaxLossBackward>(on, dtype, s.outer * s.inner, 8, s, p, label, scale, dx);
}

inline void log_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                              double floor, void* dx) {
  fill_typed(on, dtype, s.outer * s.classes * s.inner, 0, dx);
  each_typed<LogLossBackward>(on, dtype, s.outer * s.inner, 8, s, p, label, scale, floor, dx);
}

inline void infogain(const Context& on, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                     double floor, double coeff, void* out) {
  sum_typed<InfogainTerm>(on, dtype, s.outer * s.inner, coeff, false, out, s, p, label, h, floor);
}

inline void infogain_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                              double scale, void* dx) {
  each_typed<InfogainBackward>(on, dtype, s.outer * s.inner, 4 * s.classes + 1, s, p, label, h, scale, dx);
}

inline void hinge(const Context& on, int dtype, const Labels& s, const void* x, const void* label, bool squared, double coeff,
                  void* out) {
  sum_typed<HingeTerm>(on, dtype, s.outer * s.classes, coeff, false, out, s, x, label, squared);
}

inline void hinge_backward(const Context& on, int dtype, const Labels& s, const void* x, const void* label, bool squared,
                           double scale, void* dx) {
  each_typed<HingeBackward>(on, dtype, s.outer * s.classes, 4, s, x, label, squared, scale, dx);
}

inline void squared_distance(const Context& on, int dtype, index_t n, const void* a, const void* b, double coeff, void* out) {
  sum_typed<SquaredDistanceTerm>(on, dtype, n, coeff, false, out, a, b);
}

inline void sigmoid_loss(const Context& on, int dtype, index_t n, int ignore, const void* x, const void* t, double coeff,
                         void* out) {
  sum_typed<SigmoidLossTerm>(on, dtype, n, coeff, false, out, ignore, x, t);
}

inline void sigmoid_loss_backward(const Context& on, int dtype, index_t n, int ignore, const void* x, const void* t, double scale,
                                  void* dx) {
  each_typed<SigmoidLossBackward>(on, dtype, n, 10, ignore, x, t, scale, dx);
}

inline void smooth_l1(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* w, double coeff,
                      void* out) {
  sum_typed<SmoothL1Term>(on, dtype, n, coeff, false, out, a, b, w);
}

inline void smooth_l1_backward(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* w, double scale,
                               void* dx) {
  each_typed<SmoothL1Backward>(on, dtype, n, 4, a, b, w, scale, dx);
}

struct Pairs {
  index_t count, width;
  double margin;
  bool legacy;
};

inline void contrastive(const Context& on, int dtype, const Pairs& s, const void* a, const void* b, const void* similar, double coeff,
                        void* out) {
  sum_typed<ContrastiveTerm>(on, dtype, s.count, coeff, false, out, s.width, a, b, similar, s.margin, s.legacy);
}

inline void contrastive_backward(const Context& on, int dtype, const Pairs& s, const void* a, const void* b, const void* similar,
                                 double scale, void* dx) {
  each_typed<ContrastiveBackward>(on, dtype, s.count, 3 * s.width + 1, s.width, a, b, similar, s.margin, s.legacy, scale, dx);
}

}  // namespace mc
