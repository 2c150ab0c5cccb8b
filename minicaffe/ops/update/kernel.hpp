// The update of a parameter: scale and regularise its gradient, apply the rule of a solver type, move the weight; one pass.
//
// A rule takes the regularised gradient and the histories of one element, renews the histories, and returns the step that is
// subtracted from the weight (Caffe's solvers/*.cpp). Its member `rate` is the learning rate times the parameter's lr_mult.
// Rules with one history ignore the second.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// scale g + l2 w + l1 sign(w): `scale` holds 1 / iter_size and the factor of clip_gradients; l2 or l1 is the weight decay.
template <class T> struct Regularized {
  T scale, l2, l1;
  MC_HD T operator()(T g, T w) const { return scale * g + l2 * w + l1 * sign_(w); }
};

/// h = momentum h + rate g; step = h
template <class T> struct SgdRule {
  T rate, momentum;
  MC_HD T operator()(T g, T& h, T&) const { return h = momentum * h + rate * g; }
};

/// The step from the point where momentum alone would lead (Nesterov 1983, as in Sutskever et al., ICML 2013).
template <class T> struct NesterovRule {
  T rate, momentum;
  MC_HD T operator()(T g, T& h, T&) const {
    T old = h;
    h = momentum * old + rate * g;
    return (T(1) + momentum) * h - momentum * old;
  }
};

/// h = h + g^2; step = rate g / (sqrt(h) + delta) (Duchi, Hazan, Singer: JMLR 12, 2011)
template <class T> struct AdaGradRule {
  T rate, delta;
  MC_HD T operator()(T g, T& h, T&) const {
    h = h + g * g;
    return rate * g / (sqrt_(h) + delta);
  }
};

/// h = decay h + (1 - decay) g^2; step as in AdaGrad (Tieleman, Hinton: RMSProp, COURSERA lecture 6.5, 2012)
template <class T> struct RmsPropRule {
  T rate, decay, delta;
  MC_HD T operator()(T g, T& h, T&) const {
    h = decay * h + (T(1) - decay) * g * g;
    return rate * g / (sqrt_(h) + delta);
  }
};

/// h is the mean of g^2, `steps` that of the squares of the steps before the rate (Zeiler: ADADELTA, arXiv 1212.5701).
template <class T> struct AdaDeltaRule {
  T rate, decay, delta;
  MC_HD T operator()(T g, T& h, T& steps) const {
    h = decay * h + (T(1) - decay) * g * g;
    T step = g * sqrt_((steps + delta) / (h + delta));
    steps = decay * steps + (T(1) - decay) * step * step;
    return rate * step;
  }
};

/// m and v are the means of g and g^2; `rate` holds the bias correction (Kingma, Ba: Adam, arXiv 1412.6980).
template <class T> struct AdamRule {
  T rate, beta1, beta2, delta;
  MC_HD T operator()(T g, T& m, T& v) const {
    m = beta1 * m + (T(1) - beta1) * g;
    v = beta2 * v + (T(1) - beta2) * g * g;
    return rate * m / (sqrt_(v) + delta);
  }
};

/// w[i] -= step, and g[i] = step, as in Caffe.
// e.g. Update<AdamRule<T>, T>
template <class Rule, class T> struct Update {
  Regularized<T> regularized;
  Rule rule;
  T *w, *g, *h, *h2;
  MC_HD void operator()(index_t i) const {
    T step = rule(regularized(g[i], w[i]), h[i], h2[i]);
    g[i] = step;
    w[i] -= step;
  }
};

}  // namespace mc
