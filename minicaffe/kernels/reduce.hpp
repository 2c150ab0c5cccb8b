// Terms and block sums of the reductions. A sum is computed in blocks of kSumBlock elements, each in kSumLanes lanes, and the
// blocks are added in order: the result does not depend on the number of threads.
#pragma once
#include "minicaffe/kernels/pointwise.hpp"

namespace mc {

constexpr index_t kSumBlock = 4096;
constexpr int kSumLanes = 16;

/// The N arrays that a sum reads.
template <class T, int N> struct Arrays {
  const T* x[N];
};
template <class T> struct Arrays<T, 0> {};
/// The term of element i: f of element i of each array, or f(i) if there are no arrays.
template <class F, class T, int N> MC_HD auto value_at(const F& f, const Arrays<T, N>& of, index_t i) {
  if constexpr (N == 0) return f(i);
  else if constexpr (N == 1) return f(of.x[0][i]);
  else return f(of.x[0][i], of.x[1][i]);
}

/// A term, what element i adds to a sum: F of the elements. F has no members.
// e.g. TermOf<Same<T>, T, 1>
template <class F, class T, int N> struct TermOf {
  using Functor = F;
  Arrays<T, N> of;
  MC_HD auto operator()(index_t i) const { return value_at(F(), of, i); }
};

template <class T> struct Absolute {
  MC_HD T operator()(T x) const { return abs_(x); }
};
template <class T> struct Squared {
  MC_HD T operator()(T x) const { return x * x; }
};
template <class T> struct Product {
  MC_HD T operator()(T x, T y) const { return x * y; }
};
template <class T> using SumTerm = TermOf<Same<T>, T, 1>;
template <class T> using AbsTerm = TermOf<Absolute<T>, T, 1>;
template <class T> using SquareTerm = TermOf<Squared<T>, T, 1>;
template <class T> using DotTerm = TermOf<Product<T>, T, 2>;

template <class T> struct SquaredDifferenceTerm {
  const T* x;
  T mean;  // of the elements whose squared deviations are summed
  MC_HD T operator()(index_t i) const { return (x[i] - mean) * (x[i] - mean); }
};

/// The sum of term(i) for begin <= i < end in the type of the terms: of one block of a larger sum, or of a row of any length, whose
/// rounding grows with its length.
template <class T, class Term> MC_HD T block_sum(const Term& term, index_t begin, index_t end) {
  T lane[kSumLanes] = {};
  index_t i = begin;
  for (; i + kSumLanes <= end; i += kSumLanes)
    for (int k = 0; k < kSumLanes; ++k) lane[k] += term(i + k);
  for (int k = 0; i < end; ++i, ++k) lane[k] += term(i);
  for (int width = kSumLanes / 2; width; width /= 2)
    for (int k = 0; k < width; ++k) lane[k] += lane[k + width];
  return lane[0];
}

/// partial[block] = the sum of one block of `n` terms.
// e.g. BlockSums<T, SumTerm<T>>
template <class T, class Term> struct BlockSums {
  Term term;
  index_t n;
  double* partial;
  MC_HD void operator()(index_t block) const {
    index_t begin = block * kSumBlock;
    partial[block] = double(block_sum<T>(term, begin, min_(n, begin + kSumBlock)));
  }
};

}  // namespace mc
