// SSD's Normalize on CPU or device (ops/normalize/kernel.hpp).
#pragma once
#include "minicaffe/ops/normalize/kernel.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {

constexpr int kUnitWidth = 64;  // elements of a row that the CPU takes at once

struct UnitShape {
  index_t outer, channels, inner;
  bool whole, shared;
  template <int kWidth> Pieces pieces() const { return {channels, inner, (inner + kWidth - 1) / kWidth, whole, shared}; }
};

/// out = the sums of a b s over all that one norm covers; `positions` is scratch for outer x inner values.
template <class T>
void unit_dots(const Context& on, const UnitShape& u, const T* a, const T* b, const T* s, T* positions, T* out) {
  T* to = u.whole ? positions : out;
  if (on.stream) {
    for_each(on, u.outer * u.inner, PositionDots<T, 1>{u.pieces<1>(), a, b, s, to});
  } else {
    Pieces p = u.pieces<kUnitWidth>();
    for_each(on, u.outer * p.per_row, PositionDots<T, kUnitWidth>{p, a, b, s, to}, u.channels * kUnitWidth);
  }
  if (u.whole) channel_sums<T>(on, {1, u.outer, u.inner}, SumTerm<T>{positions}, 1.0, false, out);
}

inline void unit_forward(const Context& on, int dtype, const UnitShape& u, double eps, const void* x, const void* s,
                         void* positions, void* norm, void* unit, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(x), scale = static_cast<const T*>(s);
    auto norms = static_cast<T*>(norm), units = static_cast<T*>(unit), to = static_cast<T*>(y);
    unit_dots<T>(on, u, from, from, nullptr, static_cast<T*>(positions), norms);
    map(on, u.whole ? u.outer : u.outer * u.inner, RootOfSum<T>{T(eps)}, static_cast<const T*>(norms), norms);
    index_t rows = u.outer * u.channels;
    if (on.stream) return for_each(on, rows * u.inner, UnitForward<T, 1>{u.pieces<1>(), from, norms, scale, units, to});
    Pieces p = u.pieces<kUnitWidth>();
    for_each(on, rows * p.per_row, UnitForward<T, kUnitWidth>{p, from, norms, scale, units, to}, kUnitWidth);
  });
}

/// dx from dy; `dots` is scratch of the norm's size.
inline void unit_backward(const Context& on, int dtype, const UnitShape& u, const void* unit, const void* dy, const void* norm,
                          const void* s, void* positions, void* dots, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto units = static_cast<const T*>(unit), from = static_cast<const T*>(dy), scale = static_cast<const T*>(s);
    auto norms = static_cast<const T*>(norm);
    auto sums = static_cast<T*>(dots), to = static_cast<T*>(dx);
    unit_dots<T>(on, u, units, from, scale, static_cast<T*>(positions), sums);
    index_t rows = u.outer * u.channels;
    if (on.stream) return for_each(on, rows * u.inner, UnitBackward<T, 1>{u.pieces<1>(), units, from, norms, sums, scale, to});
    Pieces p = u.pieces<kUnitWidth>();
    for_each(on, rows * p.per_row, UnitBackward<T, kUnitWidth>{p, units, from, norms, sums, scale, to}, 2 * kUnitWidth);
  });
}

}  // namespace mc
