// The smooth L1 loss, quadratic within 1 of the target and linear beyond (Girshick, "Fast R-CNN", 2015; Huber, 1964).
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// d^2 / 2 where |d| < 1, else |d| - 1/2, for d = w (a - b); a null w is 1.
template <class T> struct SmoothL1Term {
  const T *a, *b, *w;
  MC_HD T weight(index_t i) const { return w ? w[i] : T(1); }
  MC_HD T operator()(index_t i) const {
    T d = weight(i) * (a[i] - b[i]), size = abs_(d);
    return size < T(1) ? T(0.5) * d * d : size - T(0.5);
  }
};

/// scale w g(d), g(d) = d where |d| < 1, else its sign
template <class T> struct SmoothL1Backward {
  SmoothL1Term<T> term;
  T scale;
  T* dx;
  MC_HD void operator()(index_t i) const {
    T weight = term.weight(i), d = weight * (term.a[i] - term.b[i]);
    dx[i] = scale * weight * (abs_(d) < T(1) ? d : d != d ? d : sign_(d));
  }
};

}  // namespace mc
