// Terms and block sums of the reductions. A sum is taken in blocks of kSumBlock elements, each in kSumLanes lanes, and the
// blocks are added in order: the result does not depend on the number of threads.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

constexpr index_t kSumBlock = 4096;
constexpr int kSumLanes = 16;

template <class T> struct SumTerm {
  const T* x;
  MC_HD T operator()(index_t i) const { return x[i]; }
};
template <class T> struct AbsTerm {
  const T* x;
  MC_HD T operator()(index_t i) const { return abs_(x[i]); }
};
template <class T> struct SquareTerm {
  const T* x;
  MC_HD T operator()(index_t i) const { return x[i] * x[i]; }
};
template <class T> struct DotTerm {
  const T *x, *y;
  MC_HD T operator()(index_t i) const { return x[i] * y[i]; }
};
template <class T> struct SquaredDifferenceTerm {
  const T* x;
  T mean;
  MC_HD T operator()(index_t i) const { return (x[i] - mean) * (x[i] - mean); }
};

/// The sum of term(i) for begin <= i < end, at most one block.
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
