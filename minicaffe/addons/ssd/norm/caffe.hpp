// SSD's Normalize on CPU or device (addons/ssd/norm/kernel.hpp).
#pragma once
#include "minicaffe/addons/ssd/norm/kernel.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {

constexpr int kUnitWidth = 64;  // elements of a row that the CPU takes at once

struct UnitShape {
  index_t outer, channels, inner;
  bool whole, shared;
  bool last;  // channels are last, on a device
  Pieces pieces(index_t row, index_t width) const { return {channels, inner, (row + width - 1) / width, whole, shared}; }
};

/// F<X, kWidth, kLast>{pieces, members...} for all pieces; `cost` of one element.
template <template <class, int, bool> class F, class X, class... M>
void each_piece(const Context& on, const UnitShape& u, index_t cost, M... members) {
  constexpr int kMost = Pack<X>::kSize;
  const index_t count = u.outer * u.channels * u.inner;
  if (u.last && u.channels % kMost == 0)
    return for_each(on, count / kMost, F<X, kMost, true>{u.pieces(u.channels, kMost), members...});
  if (u.last) return for_each(on, count, F<X, 1, true>{u.pieces(u.channels, 1), members...});
  if constexpr (cpu::kPlain<X>) {
    if (on.stream) return for_each(on, count, F<X, 1, false>{u.pieces(u.inner, 1), members...});
    const Pieces p = u.pieces(u.inner, kUnitWidth);
    for_each(on, u.outer * u.channels * p.per_row, F<X, kUnitWidth, false>{p, members...}, cost * kUnitWidth);
  }
}

/// out = the sums of a b s over all that one norm covers; `positions` is scratch for outer x inner values in plain order.
template <class X, class T>
void unit_dots(const Context& on, const UnitShape& u, const X* a, const X* b, const T* s, T* positions, T* out) {
  if (u.last) {
    const index_t norms = u.whole ? u.outer : u.outer * u.inner, elements = u.whole ? u.inner * u.channels : u.channels;
    const NormTerms<X> terms{{0, u.channels, u.shared, a, b, s}, elements};
    return cuda::channel_sums(*on.stream, Channels(1, norms, elements), terms, Arrays<T, 0>(), StoreSum<T>{1.0, false, out});
  }
  if constexpr (cpu::kPlain<X>) {
    auto to = u.whole ? positions : out;
    if (on.stream)
      for_each(on, u.outer * u.inner, PositionDots<T, 1>{u.pieces(u.inner, 1), a, b, s, to});
    else
      for_each(on, u.outer * u.pieces(u.inner, kUnitWidth).per_row,
               PositionDots<T, kUnitWidth>{u.pieces(u.inner, kUnitWidth), a, b, s, to}, u.channels * kUnitWidth);
    if (u.whole) channel_sums<T>(on, {1, u.outer, u.inner}, SumTerm<T>{positions}, 1.0, false, out);
  }
}

inline void unit_forward(const Context& on, int dtype, const UnitShape& u, double eps, const void* x, const void* s,
                         void* positions, void* norm, void* unit, void* y) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    auto from = static_cast<const X*>(x);
    auto scale = static_cast<const T*>(s);
    auto norms = static_cast<T*>(norm);
    unit_dots<X, T>(on, u, from, from, nullptr, static_cast<T*>(positions), norms);
    map(on, u.whole ? u.outer : u.outer * u.inner, RootOfSum<T>{T(eps)}, static_cast<const T*>(norms), norms);
    each_piece<UnitForward, X>(on, u, 1, from, static_cast<const T*>(norms), scale, static_cast<X*>(unit), static_cast<X*>(y));
  });
}

/// dx from dy; `dots` is scratch of the norm's size.
inline void unit_backward(const Context& on, int dtype, const UnitShape& u, const void* unit, const void* dy, const void* norm,
                          const void* s, void* positions, void* dots, void* dx) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    auto units = static_cast<const X*>(unit), from = static_cast<const X*>(dy);
    auto norms = static_cast<const T*>(norm), scale = static_cast<const T*>(s);
    auto sums = static_cast<T*>(dots);
    unit_dots<X, T>(on, u, units, from, scale, static_cast<T*>(positions), sums);
    each_piece<UnitBackward, X>(on, u, 2, units, from, norms, static_cast<const T*>(sums), scale, static_cast<X*>(dx));
  });
}

/// The gradient of the scale: sums of unit dy, added if `add`.
inline void unit_scale_gradient(const Context& on, int dtype, const UnitShape& u, const void* unit, const void* dy, bool add,
                                void* ds) {
  const index_t rows = u.outer * u.inner;
  const Channels c = u.shared ? Channels(1, 1, rows * u.channels) : u.last ? Channels(rows, u.channels, 1)
                                                                           : Channels(u.outer, u.channels, u.inner);
  if (dtype != BF16) return channel_sums_typed<DotTerm>(on, dtype, c, 1.0, add, ds, unit, dy);
  const TermOf<Product<float>, Bf16, 2> term{{static_cast<const Bf16*>(unit), static_cast<const Bf16*>(dy)}};
  cuda::channel_sums(*on.stream, c, term, 1.0, add, static_cast<float*>(ds));
}

}  // namespace mc
