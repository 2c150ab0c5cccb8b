// Accuracy and ArgMax: the classes with the highest scores.
#pragma once
#include <utility>
#include "minicaffe/ops/loss/caffe.hpp"
#include "minicaffe/ops/ranking/kernel.hpp"

namespace mc {

/// out[0] = the number of positions that are right (CorrectTerm), divided by `of`, the number of labels that are not ignored.
inline void count_correct(const Context& on, int dtype, const Labels& s, index_t top_k, const void* score, const void* label,
                          double of, void* out) {
  sum_typed<CorrectTerm>(on, dtype, s.outer * s.inner, 1.0, out, s, score, label, top_k);
  map1<Divided>(on, dtype, 1, out, out, of);  // a division, since 17 / 40 is not 17 (1 / 40)
}

/// The top_k largest of [outer, n, inner] along the middle axis in falling order, the larger index first among equals.
/// The index of the k-th of (o, i) is written to index[(o * stride + k) * inner + i], its value likewise; either array may be null.
template <class T> void top_of_each(const Context& on, index_t outer, index_t n, index_t inner, index_t top_k, index_t stride,
                                    const T* x, T* index, T* value) {
  if (on.stream) return for_each(on, outer * inner, TopOfEach<T>{n, inner, top_k, stride, x, index, value});
  parallel(on.threads, outer * inner, std::max<index_t>(1, cpu::kGrain / (8 * n + 1)), [&](int, index_t begin, index_t end) {
    std::vector<std::pair<T, index_t>> order(static_cast<size_t>(n));
    for (index_t at = begin; at < end; ++at) {
      index_t o = at / inner, i = at % inner;
      for (index_t c = 0; c < n; ++c) order[size_t(c)] = {x[(o * n + c) * inner + i], c};
      // NaN would break the order that partial_sort needs, so it goes last.
      std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [](const auto& a, const auto& b) {
        return TopOfEach<T>::before(a.first, a.second, b.first, b.second);
      });
      for (index_t k = 0; k < top_k; ++k) {
        index_t to = (o * stride + k) * inner + i;
        if (index) index[to] = T(order[size_t(k)].second);
        if (value) value[to] = order[size_t(k)].first;
      }
    }
  });
}

}  // namespace mc
