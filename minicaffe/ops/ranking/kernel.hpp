// The classes with the highest scores.
#pragma once
#include "minicaffe/ops/loss/kernel.hpp"

namespace mc {

/// Whether position i counts as right: fewer than `top_k` other classes score at least as high as the true one, whose score is
/// a number. 1 or 0, and 0 if it is ignored.
template <class T> struct CorrectTerm {
  Labels s;
  const T *score, *label;
  index_t top_k;
  MC_HD T operator()(index_t i) const {
    index_t c = class_at(s, label, i);
    if (c < 0) return T(0);
    T mine = score[element_of(s, i, c)];
    index_t better = 0;
    for (index_t l = 0; l < s.classes; ++l) better += l != c && score[element_of(s, i, l)] >= mine;
    return T(mine == mine && better < top_k);
  }
};

/// As top_of_each (ops/ranking/caffe.hpp), for position i of outer x inner, without sorting: each further one is found by another
/// walk, which is fast if top_k is small.
template <class T> struct TopOfEach {
  index_t n, inner, top_k, stride;
  const T* x;
  T *index, *value;
  /// Whether element a, of value x_a, comes before element b.
  static MC_HD bool before(T x_a, index_t a, T x_b, index_t b) {
    bool a_nan = x_a != x_a, b_nan = x_b != x_b;
    if (a_nan || b_nan) return a_nan == b_nan ? a > b : b_nan;
    return x_a != x_b ? x_a > x_b : a > b;
  }
  MC_HD void operator()(index_t i) const {
    index_t o = i / inner, at = i - o * inner, last = -1;
    const T* from = x + o * n * inner + at;
    auto first = [&](index_t a, index_t b) { return before(from[a * inner], a, from[b * inner], b); };
    for (index_t k = 0; k < top_k; ++k) {
      index_t best = -1;
      for (index_t c = 0; c < n; ++c)
        if ((last < 0 || first(last, c)) && (best < 0 || first(c, best))) best = c;
      index_t to = (o * stride + k) * inner + at;
      if (index) index[to] = T(best);
      if (value) value[to] = from[best * inner];
      last = best;
    }
  }
};

}  // namespace mc
