// The losses: sums of the terms in ops/loss/kernel.hpp, out[0] = coeff times the sum, and their gradients.
#pragma once
#include "minicaffe/ops/loss/labels.hpp"
#include "minicaffe/ops/sums/caffe.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {

inline void log_loss(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double floor, double coeff,
                     void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, s.outer * s.inner,
           LogLossTerm<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), T(floor)}, coeff, false,
           static_cast<T*>(out));
  });
}

inline void softmax_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                                  void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto prob = static_cast<const T*>(p);
    auto to = static_cast<T*>(dx);
    map(on, s.outer * s.classes * s.inner, Scaled<T>{T(scale)}, prob, to);
    for_each(on, s.outer * s.inner, SoftmaxLossBackward<T>{s, prob, static_cast<const T*>(label), T(scale), to}, 8);
  });
}

inline void log_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                              double floor, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto to = static_cast<T*>(dx);
    fill(on, s.outer * s.classes * s.inner, T(0), to);
    for_each(on, s.outer * s.inner,
             LogLossBackward<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), T(scale), T(floor), to}, 8);
  });
}

inline void infogain(const Context& on, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                     double floor, double coeff, void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, s.outer * s.inner,
           InfogainTerm<T>{s, static_cast<const T*>(p), static_cast<const T*>(label),
                           static_cast<const T*>(h), T(floor)}, coeff, false,
           static_cast<T*>(out));
  });
}

inline void infogain_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, const void* h,
                              double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, s.outer * s.inner,
             InfogainBackward<T>{s, static_cast<const T*>(p), static_cast<const T*>(label), static_cast<const T*>(h),
                                 T(scale), static_cast<T*>(dx)}, 4 * s.classes + 1);
  });
}

inline void hinge(const Context& on, int dtype, const Labels& s, const void* x, const void* label, bool squared, double coeff,
                     void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, s.outer * s.classes,
           HingeTerm<T>{s, static_cast<const T*>(x), static_cast<const T*>(label), squared}, coeff, false,
           static_cast<T*>(out));
  });
}

inline void hinge_backward(const Context& on, int dtype, const Labels& s, const void* x, const void* label, bool squared,
                           double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    HingeTerm<T> term{s, static_cast<const T*>(x), static_cast<const T*>(label), squared};
    for_each(on, s.outer * s.classes, HingeBackward<T>{term, T(scale), static_cast<T*>(dx)}, 4);
  });
}

inline void squared_distance(const Context& on, int dtype, index_t n, const void* a, const void* b, double coeff,
                     void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, n, SquaredDistanceTerm<T>{static_cast<const T*>(a), static_cast<const T*>(b)}, coeff, false,
           static_cast<T*>(out));
  });
}

inline void sigmoid_loss(const Context& on, int dtype, index_t n, int ignore, const void* x, const void* t, double coeff,
                     void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, n, SigmoidLossTerm<T>{ignore, static_cast<const T*>(x), static_cast<const T*>(t)}, coeff, false,
           static_cast<T*>(out));
  });
}

inline void sigmoid_loss_backward(const Context& on, int dtype, index_t n, int ignore, const void* x, const void* t, double scale,
                                  void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n,
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

inline void contrastive(const Context& on, int dtype, const Pairs& s, const void* a, const void* b, const void* similar, double coeff,
                     void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    sum_to(on, s.count, contrastive_term<T>(s, a, b, similar), coeff, false,
           static_cast<T*>(out));
  });
}

inline void contrastive_backward(const Context& on, int dtype, const Pairs& s, const void* a, const void* b, const void* similar,
                                 double scale, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, s.count, ContrastiveBackward<T>{contrastive_term<T>(s, a, b, similar), T(scale), static_cast<T*>(dx)},
             3 * s.width + 1);
  });
}

}  // namespace mc
