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

/// F<T, kWidth>{pieces, members...} for all pieces of `rows` rows; `cost` of one element.
template <template <class, int> class F, class T, class... M>
void each_piece(const Context& on, const UnitShape& u, index_t rows, index_t cost, M... members) {
  if (on.stream) return for_each(on, rows * u.inner, F<T, 1>{u.pieces<1>(), members...});
  const Pieces p = u.pieces<kUnitWidth>();
  for_each(on, rows * p.per_row, F<T, kUnitWidth>{p, members...}, cost * kUnitWidth);
}

/// out = the sums of a b s over all that one norm covers; `positions` is scratch for outer x inner values.
template <class T>
void unit_dots(const Context& on, const UnitShape& u, const T* a, const T* b, const T* s, T* positions, T* out) {
  each_piece<PositionDots, T>(on, u, u.outer, u.channels, a, b, s, u.whole ? positions : out);
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
    each_piece<UnitForward, T>(on, u, u.outer * u.channels, 1, from, norms, scale, units, to);
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
    each_piece<UnitBackward, T>(on, u, u.outer * u.channels, 2, units, from, norms, sums, scale, to);
  });
}

}  // namespace mc
