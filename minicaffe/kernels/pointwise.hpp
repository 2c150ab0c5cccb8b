// Functors over one index that apply an element-wise functor to one, two or three contiguous tensors.
//
// In place is allowed: an output may be one of the inputs, element for element. A line "e.g." names an instance of the template
// below it, which tests/test_kernels.py compiles.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// f of the N values of v
template <class F, class T> MC_HD T apply_(const F& f, const T (&v)[1]) { return f(v[0]); }
template <class F, class T> MC_HD T apply_(const F& f, const T (&v)[2]) { return f(v[0], v[1]); }
template <class F, class T> MC_HD T apply_(const F& f, const T (&v)[3]) { return f(v[0], v[1], v[2]); }

/// y[i] = f(x[0][i], ...) of N inputs
// e.g. Map<TripleSum<T>, T, 3>
template <class F, class T, int N> struct Map {
  F f;
  const T* x[N];
  T* y;
  MC_HD void operator()(index_t i) const {  // no loop over N: compilers would keep x in memory
    if constexpr (N == 1) y[i] = f(x[0][i]);
    else if constexpr (N == 2) y[i] = f(x[0][i], x[1][i]);
    else y[i] = f(x[0][i], x[1][i], x[2][i]);
  }
};

template <class T> struct Fill {
  T value;
  T* y;
  MC_HD void operator()(index_t i) const { y[i] = value; }
};

/// y[i] = x[i], rounded if Y is narrower
// e.g. Convert<T, T>
template <class X, class Y> struct Convert {
  const X* x;
  Y* y;
  MC_HD void operator()(index_t i) const { y[i] = Y(x[i]); }
};

// e.g. AddConverted<T, T>
template <class X, class Y> struct AddConverted {
  const X* x;
  Y* y;
  MC_HD void operator()(index_t i) const { y[i] += Y(x[i]); }
};

template <class T> struct Same {
  MC_HD T operator()(T x) const { return x; }
};

template <class T> struct Scaled {
  T a;
  MC_HD T operator()(T x) const { return a * x; }
};

template <class T> struct Divided {
  T d;
  MC_HD T operator()(T x) const { return x / d; }
};

/// y + a x, called as f(x, y)
template <class T> struct Axpy {
  T a;
  MC_HD T operator()(T x, T y) const { return y + a * x; }
};

/// w - step: the update of a parameter by its diff (Blob::Update).
template <class T> struct Minus {
  MC_HD T operator()(T w, T step) const { return w - step; }
};

}  // namespace mc
