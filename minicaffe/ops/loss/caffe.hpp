// The losses: mc::sum_typed of a term of ops/loss/kernel.hpp, and mc::each_typed of its gradient, or the functions here. Labels and
// targets are checked and counted on the host, so that errors are found before computing; the counts are for normalization.
#pragma once
#include "minicaffe/ops/loss/kernel.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {
namespace cpu {

/// Count the labels that are not `ignore` into *valid; return the index of the first that is no integer of 0..classes-1, or -1.
template <class T> index_t check_labels(const Labels& s, const T* label, index_t* valid) {
  *valid = 0;
  for (index_t i = 0; i < s.outer * s.inner; ++i) {
    int l = label_(label[i]);
    if (T(l) != label[i]) return i;  // true for NaN as well
    if (s.ignore != kNoLabel && l == s.ignore) continue;
    if (l < 0 || l >= s.classes) return i;
    ++*valid;
  }
  return -1;
}

/// Count the real-valued targets that are not `ignore` into *valid; return the index of the first that only becomes `ignore` when
/// cut to an integer, or -1.
template <class T> index_t check_targets(index_t n, int ignore, const T* target, index_t* valid) {
  *valid = n;
  for (index_t i = 0; i < n && ignore != kNoLabel; ++i) {
    if (label_(target[i]) != ignore) continue;
    if (target[i] != T(ignore)) return i;
    --*valid;
  }
  return -1;
}

}  // namespace cpu

/// dx = scale (p - onehot(label)), 0 at ignored positions: the gradient of the softmax's input, of which p is the output.
inline void softmax_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                                  void* dx) {
  map1<Scaled>(on, dtype, s.outer * s.classes * s.inner, p, dx, scale);
  each_typed<SoftmaxLossBackward>(on, dtype, s.outer * s.inner, 8, s, p, label, scale, dx);
}

/// dx = -scale / max(p, floor) at the label, else 0: the gradient of given probabilities p.
inline void log_loss_backward(const Context& on, int dtype, const Labels& s, const void* p, const void* label, double scale,
                              double floor, void* dx) {
  fill_typed(on, dtype, s.outer * s.classes * s.inner, 0, dx);
  each_typed<LogLossBackward>(on, dtype, s.outer * s.inner, 8, s, p, label, scale, floor, dx);
}

}  // namespace mc
