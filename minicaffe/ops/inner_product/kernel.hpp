// Rounding the weights and the bias of an inner product, for its products of Bf16.
#pragma once
#include "minicaffe/kernels/types.hpp"

namespace mc {

/// y = a (the weights, `count` values), and from y[at] on b (the bias), rounded. Index i < count is of a, i - count of b.
struct RoundBoth {
  index_t count, at;
  const float *a, *b;
  Bf16* y;
  MC_HD void operator()(index_t i) const {
    if (i < count) y[i] = Bf16(a[i]);
    else y[at + i - count] = Bf16(b[i - count]);
  }
};

}  // namespace mc
