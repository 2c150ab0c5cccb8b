// Labels and targets are checked and counted on the host: what is wrong there is an error before anything is computed.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/ops/loss/kernel.hpp"

namespace mc {
namespace cpu {

/// Count the labels that are not `ignore` into *valid; return the index of the first one outside 0..classes-1, or -1.
inline index_t check_labels(int dtype, const Labels& s, const void* label, index_t* valid) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(label);
    *valid = 0;
    for (index_t i = 0; i < s.outer * s.inner; ++i) {
      int l = label_(value[i]);
      if (s.ignore != kNoLabel && l == s.ignore) continue;
      if (l < 0 || l >= s.classes) return i;
      ++*valid;
    }
    return -1;
  });
}

/// How many of `n` real-valued targets are not `ignore` when cut to an integer.
inline index_t count_targets(int dtype, index_t n, int ignore, const void* target) {
  return dispatch(dtype, [&](auto type) -> index_t {
    auto value = static_cast<const decltype(type)*>(target);
    index_t valid = 0;
    for (index_t i = 0; i < n; ++i) valid += ignore == kNoLabel || label_(value[i]) != ignore;
    return valid;
  });
}

}  // namespace cpu
}  // namespace mc
