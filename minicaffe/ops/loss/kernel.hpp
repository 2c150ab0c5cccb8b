// Terms of the losses, one per element, row or position, and their gradients. `scale` of a gradient is the loss weight
// divided by the loss's divisor. Predictions of the classifying losses are [outer, classes, inner] with one label for each of
// the outer x inner positions.
#pragma once
#include "minicaffe/ops/activation/kernel.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {

constexpr int kNoLabel = -2147483647 - 1;

/// A label, truncated to an integer as in Caffe; kNoLabel for NaN and values outside int. The layer has rejected fractions before.
template <class T> MC_HD int label_(T value) {
  return value > T(-2147483648.0) && value < T(2147483648.0) ? int(value) : kNoLabel;
}

struct Labels {
  index_t outer, classes, inner;
  int ignore;  // Caffe's ignore_label; kNoLabel: none is ignored
};

/// The class of position i, or -1 if it is ignored or outside the classes (which the layer has rejected before).
template <class T> MC_HD index_t class_at(const Labels& s, const T* label, index_t i) {
  int l = label_(label[i]);
  return l != s.ignore && l >= 0 && l < s.classes ? l : -1;
}
MC_HD index_t element_of(const Labels& s, index_t i, index_t c) {  // the prediction of class c at position i
  return (i / s.inner * s.classes + c) * s.inner + i % s.inner;
}

template <class T> MC_HD T log_term(T p, T floor) { return -log_(max_(p, floor)); }

/// -log(max(p of the label, floor))
template <class T> struct LogLossTerm {
  Labels s;
  const T *p, *label;
  T floor;
  MC_HD T operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    return c < 0 ? T(0) : log_term(p[element_of(s, i, c)], floor);
  }
};

/// Change dx = scale p to scale (p - onehot(label)) at position i, or to 0 if it is ignored; p is the output of a softmax.
template <class T> struct SoftmaxLossBackward {
  Labels s;
  const T *p, *label;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    if (c >= 0) {
      index_t at = element_of(s, i, c);
      dx[at] = scale * (p[at] - T(1));
    } else {
      for (c = 0; c < s.classes; ++c) dx[element_of(s, i, c)] = T(0);
    }
  }
};

/// Set the only element of position i that is not 0 in the gradient of the logarithmic loss of given probabilities; dx is 0 before.
template <class T> struct LogLossBackward {
  Labels s;
  const T *p, *label;
  T scale, floor;
  T* dx;
  MC_HD void operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    if (c >= 0) dx[element_of(s, i, c)] = -scale / max_(p[element_of(s, i, c)], floor);
  }
};

/// -sum over l of H[label, l] log(max(p_l, floor)); h is the infogain matrix H, classes x classes.
template <class T> struct InfogainTerm {
  Labels s;
  const T *p, *label, *h;
  T floor;
  MC_HD T operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    T sum = 0;
    if (c >= 0)
      for (index_t l = 0; l < s.classes; ++l) sum -= h[c * s.classes + l] * log_(max_(p[element_of(s, i, l)], floor));
    return sum;
  }
};
/// dx_l = scale (p_l sum of H[label] - H[label, l]), 0 at ignored positions: the gradient of the input of the softmax that gives p.
template <class T> struct InfogainBackward {
  Labels s;
  const T *p, *label, *h;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    T sum = 0;
    if (c >= 0)
      for (index_t l = 0; l < s.classes; ++l) sum += h[c * s.classes + l];
    for (index_t l = 0; l < s.classes; ++l) {
      index_t at = element_of(s, i, l);
      dx[at] = c < 0 ? T(0) : scale * (p[at] * sum - h[c * s.classes + l]);
    }
  }
};

/// The margin of element i: max(0, 1 - x) for the true class, max(0, 1 + x) for the others; squared for L2. NaN stays NaN.
template <class T> struct HingeTerm {
  Labels s;  // inner is 1
  const T *x, *label;
  bool squared;
  MC_HD T margin(index_t i) const {
    bool mine = class_at(s, label, i / s.classes) == i % s.classes;
    return max_(T(1) + (mine ? -x[i] : x[i]), T(0));
  }
  MC_HD T operator()(index_t i) const {
    T m = margin(i);
    return squared ? m * m : m;
  }
};
template <class T> struct HingeBackward {
  HingeTerm<T> term;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    bool mine = class_at(term.s, term.label, i / term.s.classes) == i % term.s.classes;
    T m = term.margin(i);
    T slope = term.squared ? T(2) * m : sign_(m);
    dx[i] = scale * (mine ? -slope : slope);
  }
};

/// (a - b)^2
template <class T> struct SquaredDistanceTerm {
  const T *a, *b;
  MC_HD T operator()(index_t i) const { return (a[i] - b[i]) * (a[i] - b[i]); }
};
/// scale (a - b), called as f(a, b)
template <class T> struct ScaledDifference {
  T scale;
  MC_HD T operator()(T a, T b) const { return scale * (a - b); }
};

/// The logistic loss -t log(s) - (1 - t) log(1 - s) with s = sigmoid(x), for a target t, without overflow.
template <class T> MC_HD T logistic_term(T x, T t) { return max_(x, T(0)) - x * t + log_(T(1) + exp_(-abs_(x))); }

/// The same of each element, 0 where t is ignored.
template <class T> struct SigmoidLossTerm {
  int ignore;
  const T *x, *t;
  MC_HD T operator()(index_t i) const {
    return ignore != kNoLabel && label_(t[i]) == ignore ? T(0) : logistic_term(x[i], t[i]);
  }
};
/// The gradient of element i of x, 0 where t is ignored.
template <class T> struct SigmoidLossBackward {
  int ignore;
  const T *x, *t;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    bool out = ignore != kNoLabel && label_(t[i]) == ignore;
    dx[i] = out ? T(0) : scale * (sigmoid_(x[i]) - t[i]);
  }
};

/// The smooth L1 loss (Girshick, "Fast R-CNN", 2015; Huber, 1964): sigma2 d^2 / 2 where |d| < 1 / sigma2, else
/// |d| - 1 / (2 sigma2), for d = inside (a - b), times outside; a null pointer means weights 1.
template <class T> struct SmoothL1Term {
  const T *a, *b, *inside, *outside;
  T sigma2;
  MC_HD T weight(const T* w, index_t i) const { return w ? w[i] : T(1); }
  MC_HD T difference(index_t i) const { return weight(inside, i) * (a[i] - b[i]); }
  MC_HD T operator()(index_t i) const {
    T d = difference(i), size = abs_(d);
    return weight(outside, i) * (size < T(1) / sigma2 ? T(0.5) * sigma2 * d * d : size - T(0.5) / sigma2);
  }
};

/// scale outside inside g(d), g(d) = sigma2 d where |d| < 1 / sigma2, else its sign
template <class T> struct SmoothL1Backward {
  SmoothL1Term<T> term;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    T weight = term.weight(term.inside, i) * term.weight(term.outside, i), d = term.difference(i);
    dx[i] = scale * weight * (abs_(d) < T(1) / term.sigma2 ? term.sigma2 * d : d != d ? d : sign_(d));
  }
};

/// The contrastive loss of pair i (Hadsell, Chopra, LeCun, 2006), twice it: d^2 for a similar pair, else max(margin - d, 0)^2,
/// or max(margin - d^2, 0) in the legacy form; d is the distance of rows a_i and b_i.
template <class T> struct ContrastiveTerm {
  index_t width;             // elements of a row
  const T *a, *b, *similar;  // similar: a label for each pair, not 0 if it is similar
  T margin;
  bool legacy;
  MC_HD T squared_distance(index_t i) const {
    return block_sum<T>(SquaredDistanceTerm<T>{a, b}, i * width, (i + 1) * width);
  }
  MC_HD bool alike(index_t i) const { return label_(similar[i]) != 0; }
  MC_HD T operator()(index_t i) const {
    T d2 = squared_distance(i);
    if (alike(i)) return d2;
    T gap = max_(margin - (legacy ? d2 : sqrt_(d2)), T(0));
    return legacy ? gap : gap * gap;
  }
};
/// Row i of the gradient of a (scale > 0) or of b (scale < 0).
template <class T> struct ContrastiveBackward {
  ContrastiveTerm<T> term;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    T factor = scale;
    if (!term.alike(i)) {
      T d2 = term.squared_distance(i), d = sqrt_(d2);
      T gap = term.margin - (term.legacy ? d2 : d);
      // 1e-4 keeps the direction of coinciding rows finite (Caffe contrastive_loss_layer.cpp).
      factor = gap > T(0) ? (term.legacy ? -scale : -scale * gap / (d + T(1e-4))) : T(0);
    }
    for (index_t at = i * term.width; at < (i + 1) * term.width; ++at) dx[at] = factor * (term.a[at] - term.b[at]);
  }
};

}  // namespace mc
