// Local response normalisation on CPU or device.
#pragma once
#include "minicaffe/ops/lrn/cpu.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

using LrnShape = cpu::LrnShape;

inline LrnWindow window_of(const LrnShape& s) { return {s.rows, s.width, s.half_rows, s.half_columns}; }
inline index_t items_of(const LrnShape& s) { return s.groups * s.width * window_of(s).chunks(); }

/// y = x s^-beta. The device leaves s in `scale`, of the shape of x, for backward; the CPU does not touch it.
inline void lrn_forward(const Context& on, int dtype, const LrnShape& s, const void* x, void* y, void* scale) {
  if (!on.stream) return cpu::lrn_forward(on.threads, dtype, s, x, y);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    cpu::with_power<T>(s, [&](auto power) {
      cuda::for_each(*on.stream, items_of(s),
                     LrnForwardAt<T, decltype(power)>{window_of(s), power, T(s.k), T(s.alpha), static_cast<const T*>(x),
                                                      static_cast<T*>(y), static_cast<T*>(scale)});
    });
  });
}

/// The device reads y and what forward left in `scale`; the CPU works in `scratch`, s.rows x s.block elements for each thread.
inline void lrn_backward(const Context& on, int dtype, const LrnShape& s, const void* x, const void* y, const void* scale,
                         const void* dy, void* dx, void* scratch) {
  if (!on.stream) return cpu::lrn_backward(on.threads, dtype, s, x, dy, dx, scratch);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    cpu::with_power<T>(s, [&](auto power) {
      LrnRatioTerm<T> ratio{static_cast<const T*>(y), static_cast<const T*>(scale), static_cast<const T*>(dy)};
      cuda::for_each(*on.stream, items_of(s),
                     LrnBackwardAt<T, decltype(power)>{window_of(s), power, T(2) * T(s.alpha) * T(s.beta),
                                                       static_cast<const T*>(x), ratio, static_cast<T*>(dx)});
    });
  });
}

}  // namespace mc
