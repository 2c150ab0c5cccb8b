// Element-wise operations over several blobs of one shape: N inputs at a time, N known to the compiler. lanes<V>(i) computes
// element i, or, with a vector V (device/bf16.hpp), as many elements from i on.
#pragma once
#include "minicaffe/kernels/types.hpp"
#include "minicaffe/ops/activation/kernel.hpp"

namespace mc {

constexpr int kMaxInputs = 4;    // inputs that one pass reads; more take further passes
constexpr int kMaxInputsOfMaximum = 64;  // of a maximum, whose gradient needs all of them at once

/// y = c[0] x[0] + c[1] x[1] + ..., added from left to right
// e.g. WeightedSum<T, 3>
template <class T, int N> struct WeightedSum {
  using C = typename Element<T>::Compute;
  const T* x[N];
  C c[N];
  T* y;
  MC_HD void operator()(index_t i) const { lanes<C>(i); }
  template <class V> MC_HD V sum(index_t i) const {
    V sum = c[0] * get_lanes<V>(x[0] + i);  // without a loop, which compilers leave as it is for some N, and everything scalar
    if constexpr (N > 1) sum += c[1] * get_lanes<V>(x[1] + i);
    if constexpr (N > 2) sum += c[2] * get_lanes<V>(x[2] + i);
    if constexpr (N > 3) sum += c[3] * get_lanes<V>(x[3] + i);
    static_assert(N <= 4);
    return sum;
  }
  template <class V> MC_HD void lanes(index_t i) const { put_lanes(y + i, sum<V>(i)); }
};

/// y = max(c[0] x[0] + c[1] x[1] + ..., 0)
// e.g. RectifiedSum<T, 3>
template <class T, int N> struct RectifiedSum : WeightedSum<T, N> {
  MC_HD void operator()(index_t i) const { lanes<typename Element<T>::Compute>(i); }
  template <class V> MC_HD void lanes(index_t i) const { put_lanes(this->y + i, ReluForward<V>{}(this->template sum<V>(i))); }
};

/// y = x[0] x[1] ..., multiplied from left to right
// e.g. ProductOf<T, 3>
template <class T, int N> struct ProductOf {
  using C = typename Element<T>::Compute;
  const T* x[N];
  C c[N];  // not read: for combine_pass, which sets it
  T* y;
  MC_HD void operator()(index_t i) const { lanes<C>(i); }
  template <class V> MC_HD void lanes(index_t i) const {
    V product = get_lanes<V>(x[0] + i);
    for (int k = 1; k < N; ++k) product *= get_lanes<V>(x[k] + i);
    put_lanes(y + i, product);
  }
};

/// The largest value. Of the first two x[1] wins ties; a later one must be strictly larger (Caffe on the CPU).
template <class T> struct LargerOf {
  bool first;  // whether a and b are the first two
  MC_HD T operator()(T a, T b) const { return first ? (a > b ? a : b) : (b > a ? b : a); }
};

/// y = c[k] x for every output k
// e.g. Spread<T, 3>
template <class T, int N> struct Spread {
  using C = typename Element<T>::Compute;
  const T* x;
  C c[N];
  T* y[N];
  MC_HD void operator()(index_t i) const { lanes<C>(i); }
  template <class V> MC_HD void lanes(index_t i) const {
    const V value = get_lanes<V>(x + i);
    put_lanes(y[0] + i, c[0] * value);  // without a loop, as above
    if constexpr (N > 1) put_lanes(y[1] + i, c[1] * value);
    if constexpr (N > 2) put_lanes(y[2] + i, c[2] * value);
    if constexpr (N > 3) put_lanes(y[3] + i, c[3] * value);
    static_assert(N <= 4);
  }
};

/// dy y / x: the gradient of a product by the quotient rule, 0/0 where x is 0.
template <class T> struct QuotientGradient {
  MC_HD T operator()(T x, T y, T dy) const { return y / x * dy; }
};

/// dx = dy where `winner` is the index of the largest of n inputs, else 0.
template <class T> struct MaxBackward {
  const T* x[kMaxInputsOfMaximum];
  int n, winner;
  const T* dy;
  T* dx;
  MC_HD void operator()(index_t i) const {
    T best = x[0][i];
    int index = 0;
    for (int k = 1; k < n; ++k)
      if (k == 1 ? !(best > x[1][i]) : x[k][i] > best) best = x[k][i], index = k;
    dx[i] = index == winner ? dy[i] : T(0);
  }
};

}  // namespace mc
