// Element-wise activations and their gradients. Members are the layer's parameters. A backward functor takes what its
// formula reads, in the order x (bottom data), y (top data), dy (top diff), and returns the bottom diff. If a layer is in place,
// backward gets y as x: ReLU and ELU allow it if slope or alpha is at least 0: then y is above 0 exactly where x is.
#pragma once
#include "minicaffe/kernels/exponential.hpp"

namespace mc {

template <class T> MC_HD T sigmoid_(T x) { return T(0.5) * vector_tanh(T(0.5) * x) + T(0.5); }

/// y = max(x, 0) + slope min(x, 0). NaN stays NaN.
template <class T> struct ReluForward {
  T slope;
  MC_HD T operator()(T x) const { return max_(x, T{}) + slope * min_(x, T{}); }
};
template <class T> struct ReluBackward {
  T slope;
  MC_HD T operator()(T x, T dy) const { return x > T{} ? dy : slope * dy; }
};

/// ReLU with an upper bound, as ReLU6 and ReLUX of forks of Caffe have it; ReLUX's gradient has a slope of its own.
/// y = min(max(x, 0) + slope min(x, 0), bound). NaN stays NaN.
template <class T> struct ReluXForward {
  T slope, bound;
  MC_HD T operator()(T x) const { return min_(max_(x, T{}) + slope * min_(x, T{}), bound); }
};
/// `slope` is the gradient's. Takes x, or y if forward's slope is at least 0 and bound above 0: both are in one of three ranges.
template <class T> struct ReluXBackward {
  T slope, bound;
  MC_HD T operator()(T x, T dy) const { return x > T{} ? (x < bound ? dy : T{}) : slope * dy; }
};

/// y = 1 / (1 + exp(-x))
template <class T> struct SigmoidForward {
  MC_HD T operator()(T x) const { return sigmoid_(x); }
};
template <class T> struct SigmoidBackward {
  MC_HD T operator()(T y, T dy) const { return dy * y * (T(1) - y); }
};

template <class T> struct TanhForward {
  MC_HD T operator()(T x) const { return vector_tanh(x); }
};
template <class T> struct TanhBackward {
  MC_HD T operator()(T y, T dy) const { return dy * (T(1) - y * y); }
};

template <class T> struct AbsForward {
  MC_HD T operator()(T x) const { return abs_(x); }
};
template <class T> struct AbsBackward {
  MC_HD T operator()(T x, T dy) const { return dy * sign_(x); }
};

/// y = log(1 + exp(x)), written so that exp never overflows.
template <class T> struct BnllForward {
  MC_HD T operator()(T x) const { return x > T(0) ? x + log_(T(1) + exp_(-x)) : log_(T(1) + exp_(x)); }
};
template <class T> struct BnllBackward {
  MC_HD T operator()(T x, T dy) const {
    T e = exp_(min_(x, T(50)));  // Caffe's clamp: above it the quotient is 1
    return dy * e / (e + T(1));
  }
};

/// Clip to [lo, hi]; NaN stays NaN (Caffe: lo on the CPU, hi on the GPU).
template <class T> struct ClipForward {
  T lo, hi;
  MC_HD T operator()(T x) const { return x < lo ? lo : (x > hi ? hi : x); }
};
template <class T> struct ClipBackward {
  T lo, hi;
  MC_HD T operator()(T x, T dy) const { return x >= lo && x <= hi ? dy : T(0); }
};

template <class T> struct EluForward {
  T alpha;
  MC_HD T operator()(T x) const { return x > T(0) ? x : alpha * (exp_(x) - T(1)); }
};
template <class T> struct EluBackward {
  T alpha;
  MC_HD T operator()(T x, T y, T dy) const { return x > T(0) ? dy : dy * (y + alpha); }
};

/// y = outer exp(inner x): base^(shift + scale x) with inner = ln(base) scale and outer = base^shift
template <class T> struct ExpForward {
  T inner, outer;
  MC_HD T operator()(T x) const { return outer * exp_(inner * x); }
};
template <class T> struct ExpBackward {
  T inner;
  MC_HD T operator()(T y, T dy) const { return dy * y * inner; }
};

/// y = ln(scale x + shift) / ln(base), with per_base = 1 / ln(base)
template <class T> struct LogForward {
  T scale, shift, per_base;
  MC_HD T operator()(T x) const { return log_(scale * x + shift) * per_base; }
};
template <class T> struct LogBackward {
  T scale, shift, per_base;
  MC_HD T operator()(T x, T dy) const { return dy * (scale * per_base) / (scale * x + shift); }
};

/// y = (shift + scale x)^power
template <class T> struct PowerForward {
  T power, scale, shift;
  MC_HD T operator()(T x) const {
    T base = shift + scale * x;
    return power == T(1) ? base : power == T(2) ? base * base : power == T(0) ? T(1) : pow_(base, power);
  }
};
template <class T> struct PowerBackward {
  T power, scale, shift;
  MC_HD T operator()(T x, T y, T dy) const {
    T base = shift + scale * x;
    T slope = power * scale;
    if (slope == T(0)) return T(0);
    return dy * (power == T(1) ? scale : power == T(2) ? slope * base : slope * y / base);
  }
};

template <class T> struct SwishForward {
  T beta;
  MC_HD T operator()(T x) const { return x * sigmoid_(beta * x); }
};
/// Takes x and y, so SwishLayer copies x in forward if it is in place (Activation.saved_bottom).
template <class T> struct SwishBackward {
  T beta;
  MC_HD T operator()(T x, T y, T dy) const {
    T s = sigmoid_(beta * x);
    return dy * (beta * y + s * (T(1) - beta * y));
  }
};

template <class T> struct ThresholdForward {
  T threshold;
  MC_HD T operator()(T x) const { return T(x > threshold); }
};

}  // namespace mc
