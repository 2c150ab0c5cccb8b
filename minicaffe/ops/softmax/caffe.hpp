// Softmax along the channels of [outer, channels, inner] (ops/softmax/kernel.hpp), on CPU or device.
#pragma once
#include "minicaffe/ops/softmax/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

constexpr index_t kSoftmaxWidth = 128;  // neighbouring positions that a thread of the CPU takes at once

/// f for every position of outer x inner, by the team that suits the shape; `cost` of one element.
template <class F>
void for_each_softmax(const Context& on, index_t outer, index_t channels, index_t inner, const F& f, index_t cost) {
  const index_t positions = outer * inner, pieces = (inner + kSoftmaxWidth - 1) / kSoftmaxWidth;
  if (positions * channels == 0) return;
  if (!on.stream && inner == 1)
    cpu::for_each(on.threads, outer, ByRow<F>{f, channels}, cost * channels);
  else if (!on.stream)
    cpu::for_each(on.threads, outer * pieces, ByNeighbours<F, kSoftmaxWidth>{f, channels, inner, pieces},
                  cost * channels * min_(inner, kSoftmaxWidth));
  // The channels of a position would keep one thread busy for long. Where inner is more than 1 the reads of a block lie apart, so
  // that it pays only if there are too few positions for a thread each.
  else if (channels > 32 && (inner == 1 || positions < 2048))
    cuda::launch(*on.stream, ByBlock<F>{f, channels, inner}, unsigned(positions));
  else
    cuda::for_each(*on.stream, positions, ByNeighbours<F, 1>{f, channels, inner, inner});
}

/// y = exp(x - max) / sum; y may be x.
inline void softmax_forward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* x, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each_softmax(on, outer, channels, inner, SoftmaxForward<T>{static_cast<const T*>(x), static_cast<T*>(y)}, 10);
  });
}

/// dx = y (dy - sum of dy y); dx may be dy.
inline void softmax_backward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* y,
                             const void* dy, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each_softmax(on, outer, channels, inner,
                     SoftmaxBackward<T>{static_cast<const T*>(y), static_cast<const T*>(dy), static_cast<T*>(dx)}, 2);
  });
}

}  // namespace mc
