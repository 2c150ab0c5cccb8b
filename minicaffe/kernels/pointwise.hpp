// Functors over one index that apply an element-wise functor to one, two or three contiguous tensors.
//
// In place is allowed: an output may be one of the inputs, element for element.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// y[i] = f(x[i])
// e.g. Map1<Scaled<T>, T>
template <class F, class T> struct Map1 {
  F f;
  const T* x;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = f(x[i]); }
};

/// y[i] = f(a[i], b[i])
// e.g. Map2<Axpy<T>, T>
template <class F, class T> struct Map2 {
  F f;
  const T *a, *b;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = f(a[i], b[i]); }
};

/// y[i] = f(a[i], b[i], c[i])
// e.g. Map3<TripleSum<T>, T>
template <class F, class T> struct Map3 {
  F f;
  const T *a, *b, *c;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = f(a[i], b[i], c[i]); }
};

/// y[i] = value
template <class T> struct Fill {
  T value;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = value; }
};

/// x
template <class T> struct Same {
  MC_HD T operator()(T x) const { return x; }
};

/// a x
template <class T> struct Scaled {
  T a;
  MC_HD T operator()(T x) const { return a * x; }
};

/// x / d
template <class T> struct Divided {
  T d;
  MC_HD T operator()(T x) const { return x / d; }
};

/// y + a x, called as f(x, y)
template <class T> struct Axpy {
  T a;
  MC_HD T operator()(T x, T y) const { return y + a * x; }
};

/// a x + b y, called as f(x, y)
template <class T> struct Axpby {
  T a, b;
  MC_HD T operator()(T x, T y) const { return a * x + b * y; }
};

/// w - step: what Blob::Update does to a parameter with its diff.
template <class T> struct Minus {
  MC_HD T operator()(T w, T step) const { return w - step; }
};

}  // namespace mc
