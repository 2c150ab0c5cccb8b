// Accuracy and ArgMax: who comes first among the classes.
#pragma once
#include "minicaffe/ops/ranking/cpu.hpp"
#include "minicaffe/ops/ranking/kernel.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {

/// out[0] = the number of positions that are right, divided by `of`
inline void count_correct(const Context& on, int dtype, const Labels& s, index_t top_k, const void* score, const void* label,
                          double of, void* out) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto to = static_cast<T*>(out);
    sum_to(on, s.outer * s.inner, CorrectTerm<T>{s, static_cast<const T*>(score), static_cast<const T*>(label), top_k}, 1.0, false,
           to);
    map(on, 1, Divided<T>{T(of)}, static_cast<const T*>(to), to);  // a division, since 17 / 40 is not 17 (1 / 40)
  });
}

/// As cpu::top_of_each.
inline void top_of_each(const Context& on, int dtype, index_t outer, index_t n, index_t inner, index_t top_k, index_t stride,
                        const void* x, void* index, void* value) {
  if (!on.stream) return cpu::top_of_each(on.threads, dtype, outer, n, inner, top_k, stride, x, index, value);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, outer * inner,
             TopOfEach<T>{n, inner, top_k, stride, static_cast<const T*>(x), static_cast<T*>(index), static_cast<T*>(value)});
  });
}

}  // namespace mc
