// Softmax along the channels of [outer, channels, inner], on CPU or device.
#pragma once
#include "minicaffe/ops/softmax/cpu.hpp"
#include "minicaffe/ops/softmax/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {
namespace cuda {

/// Whether a block should take a position: its channels would keep one thread busy for long. Where inner is more than 1 the
/// reads of a block lie apart, so that it pays only if there are too few positions for a thread each.
inline bool softmax_by_blocks(index_t outer, index_t channels, index_t inner) {
  return channels > 32 && (inner == 1 || outer * inner < 2048);
}

}  // namespace cuda

/// y = exp(x - max) / sum; y may be x.
inline void softmax_forward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* x, void* y) {
  if (!on.stream) return cpu::softmax_forward(on.threads, dtype, outer, channels, inner, x, y);
  if (outer * channels * inner == 0) return;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(x);
    auto to = static_cast<T*>(y);
    if (cuda::softmax_by_blocks(outer, channels, inner))
      cuda::launch(*on.stream, SoftmaxBlocks<T>{{channels, inner}, from, to}, unsigned(outer * inner));
    else
      cuda::for_each(*on.stream, outer * inner, SoftmaxAt<T>{{channels, inner}, from, to});
  });
}

/// dx = y (dy - sum of dy y); dx may be dy.
inline void softmax_backward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* y,
                             const void* dy, void* dx) {
  if (!on.stream) return cpu::softmax_backward(on.threads, dtype, outer, channels, inner, y, dy, dx);
  if (outer * channels * inner == 0) return;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto top = static_cast<const T*>(y), top_diff = static_cast<const T*>(dy);
    auto to = static_cast<T*>(dx);
    if (cuda::softmax_by_blocks(outer, channels, inner))
      cuda::launch(*on.stream, SoftmaxBackwardBlocks<T>{{channels, inner}, top, top_diff, to}, unsigned(outer * inner));
    else
      cuda::for_each(*on.stream, outer * inner, SoftmaxBackwardAt<T>{{channels, inner}, top, top_diff, to});
  });
}

}  // namespace mc
