// Functors whose parameters are broadcast along axes. A blob is seen as outer x channels x inner, and parameter k belongs to
// the elements whose middle index is k: `f.at(k)` is the element-wise functor of that parameter.
#pragma once
#include "minicaffe/ops/activation/kernel.hpp"
#include "minicaffe/kernels/pointwise.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {

template <class T> struct Affine {
  T scale, shift;
  MC_HD T operator()(T x) const { return x * scale + shift; }
};
template <class T> struct Shifted {
  T shift;
  MC_HD T operator()(T x) const { return x + shift; }
};
template <class T> struct Constant {
  T value;
  MC_HD T operator()(T) const { return value; }
};
template <class T> struct SignTimes {
  T factor;
  MC_HD T operator()(T x) const { return factor * sign_(x); }
};

/// x s[k]
template <class T> struct ScaleBy {
  const T* s;
  MC_HD Scaled<T> at(index_t k) const { return {s[k]}; }
};
/// x s[k] + b[k]
template <class T> struct ScaleShift {
  const T *s, *b;
  MC_HD Affine<T> at(index_t k) const { return {s[k], b[k]}; }
};
/// x + b[k]
template <class T> struct ShiftBy {
  const T* b;
  MC_HD Shifted<T> at(index_t k) const { return {b[k]}; }
};

/// x / d[k], 0 where d[k] is 0
template <class T> struct DividedBy {
  const T* d;
  MC_HD Scaled<T> at(index_t k) const { return {d[k] == T(0) ? T(0) : T(1) / d[k]}; }
};

/// max(x, 0) + a[k] min(x, 0)
template <class T> struct PreluForward {
  const T* a;
  MC_HD ReluForward<T> at(index_t k) const { return {a[k]}; }
};
template <class T> struct PreluBackward {
  const T* a;
  MC_HD ReluBackward<T> at(index_t k) const { return {a[k]}; }
};
/// What one element adds to the gradient of a[k].
template <class T> struct PreluTerm {
  const T *x, *dy;
  MC_HD T operator()(index_t i) const {
    T product = x[i] * dy[i];  // loaded in any case, so that the loop has no branch
    return x[i] > T(0) ? T(0) : product;
  }
};

// Gradients of a sum, a sum of absolute values and a sum of squares over all elements of k, times `coeff`.
template <class T> struct SumBackward {
  const T* dy;
  T coeff;
  MC_HD Constant<T> at(index_t k) const { return {coeff * dy[k]}; }
};
template <class T> struct AbsSumBackward {
  const T* dy;
  T coeff;
  MC_HD SignTimes<T> at(index_t k) const { return {coeff * dy[k]}; }
};
template <class T> struct SquareSumBackward {
  const T* dy;
  T coeff;
  MC_HD Scaled<T> at(index_t k) const { return {T(2) * coeff * dy[k]}; }
};

/// y[k] = f.at(k)(x[k]): one row of outer when inner is 1.
// e.g. AtEach1<ScaleBy<T>, T>
template <class F, class T> struct AtEach1 {
  F f;
  const T* x;
  T* y;
  MC_HD void operator()(index_t k) const { y[k] = f.at(k)(x[k]); }
};
// e.g. AtEach2<PreluBackward<T>, T>
template <class F, class T> struct AtEach2 {
  F f;
  const T *a, *b;
  T* y;
  MC_HD void operator()(index_t k) const { y[k] = f.at(k)(a[k], b[k]); }
};

/// The sum of term(i) over all elements i of channel k; the order of additions depends on the shape only.
template <class T, class Term>
MC_HD double channel_sum(const Term& term, index_t outer, index_t channels, index_t inner, index_t k) {
  double total = 0;
  for (index_t o = 0; o < outer; ++o) {
    index_t begin = (o * channels + k) * inner, end = begin + inner;
    if (inner == 1) total += double(term(begin));
    else
      for (index_t b = begin; b < end; b += kSumBlock) total += double(block_sum<T>(term, b, min_(end, b + kSumBlock)));
  }
  return total;
}

// e.g. ChannelSums<T, SumTerm<T>>
template <class T, class Term> struct ChannelSums {
  Term term;
  index_t outer, channels, inner;
  double* out;
  MC_HD void operator()(index_t k) const { out[k] = channel_sum<T>(term, outer, channels, inner, k); }
};

/// out[k] += term(begin + k): one row of outer when inner is 1.
// e.g. AddRow<SumTerm<T>>
template <class Term> struct AddRow {
  Term term;
  index_t begin;
  double* out;
  MC_HD void operator()(index_t k) const { out[k] += double(term(begin + k)); }
};

}  // namespace mc
