// Sums over contiguous data on the CPU; the order of additions is fixed (kernels/reduce.hpp).
#pragma once
#include <vector>
#include "minicaffe/device/apply.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {
namespace cpu {

template <class T, class Term> double sum_terms(Threads threads, index_t n, const Term& term) {
  index_t blocks = (n + kSumBlock - 1) / kSumBlock;
  double small[64], total = 0;
  std::vector<double> large(blocks > 64 ? size_t(blocks) : 0);
  double* partial = blocks > 64 ? large.data() : small;
  for_each(threads, blocks, BlockSums<T, Term>{term, n, partial}, kSumBlock);
  for (index_t i = 0; i < blocks; ++i) total += partial[i];
  return total;
}

template <class T> double sum(Threads threads, index_t n, const T* x) { return sum_terms<T>(threads, n, SumTerm<T>{x}); }
template <class T> double asum(Threads threads, index_t n, const T* x) { return sum_terms<T>(threads, n, AbsTerm<T>{x}); }
template <class T> double sumsq(Threads threads, index_t n, const T* x) { return sum_terms<T>(threads, n, SquareTerm<T>{x}); }
template <class T> double dot(Threads threads, index_t n, const T* x, const T* y) {
  return sum_terms<T>(threads, n, DotTerm<T>{x, y});
}

}  // namespace cpu
}  // namespace mc
