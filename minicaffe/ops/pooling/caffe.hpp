// Pooling: whole planes in vector registers on the CPU (ops/pooling/cpu.hpp), one output or pixel a thread on a device
// (ops/pooling/kernel.hpp). `scratch` is for the CPU.
#pragma once
#include "minicaffe/ops/pooling/cpu.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

/// One output at a time, with any of the functors MaxOf, MeanOf, StochasticMean.
template <template <class> class Op>
void pool_outputs(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* x, void* y, void* mask) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    PoolForward<T, Op<T>> one{s, static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(mask)};
    for_each(on, planes * s.out_height * s.out_width, one, s.kernel_h * s.kernel_w);
  });
}

template <template <class> class Op>
void pool_forward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* x, void* y, void* mask,
                  void* scratch) {
  if (on.stream)
    pool_outputs<Op>(on, dtype, s, planes, x, y, mask);
  else
    cpu::pool_forward<Op>(on.threads, dtype, s, planes, x, y, mask, scratch);
}

inline void stochastic_forward(const Context& on, int dtype, const PoolShape& s, index_t planes, u64 seed, u64 start,
                               const void* x, void* y, void* mask) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    StochasticForward<T> one{s, Philox{seed}, start, on.stream ? on.stream->drawn : nullptr, static_cast<const T*>(x),
                             static_cast<T*>(y), static_cast<T*>(mask)};
    for_each(on, planes * s.out_height * s.out_width, one, 2 * s.kernel_h * s.kernel_w + 20);
  });
}

inline void mask_backward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* dy, const void* mask,
                          void* dx) {
  if (!on.stream) return cpu::mask_backward(on.threads, dtype, s, planes, dy, mask, dx);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, planes * s.height * s.width,
             MaskBackward<T>{s, static_cast<const T*>(dy), static_cast<const T*>(mask), static_cast<T*>(dx)});
  });
}

inline void mean_backward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* dy, void* dx,
                          void* scratch) {
  if (!on.stream) return cpu::mean_backward(on.threads, dtype, s, planes, dy, dx, scratch);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, planes * s.height * s.width, MeanBackward<T>{s, static_cast<const T*>(dy), static_cast<T*>(dx)});
  });
}

}  // namespace mc
