// Vectors of 16 floats, loaded from Bf16 and stored as Bf16. Compilers do not vectorise these conversions, or use ten instructions
// for one. So loops over Bf16 compute on these vectors; functors are templates and accept them as they accept float.
#pragma once
#include "minicaffe/device/context.hpp"

namespace mc {

using Lanes = float __attribute__((vector_size(64)));
constexpr index_t kLanes = 16;

/// The number at x; or, with V = Lanes, the 16 numbers from there on, by the processor's own conversion.
template <class V> MC_HD V get_lanes(const Bf16* x) {
  if constexpr (sizeof(V) == sizeof(float)) {
    return *x;
  } else {
#ifdef MC_X86  // by the instruction set of range_bf16 (device/apply.hpp)
    unsigned __attribute__((vector_size(64))) bits;
    asm("vpmovzxwd %1, %0" : "=v"(bits) : "m"(*reinterpret_cast<const Bf16(*)[kLanes]>(x)));
    return (V)(bits << 16);
#else
    V all;
    for (int l = 0; l < kLanes; ++l) all[l] = x[l];
    return all;
#endif
  }
}
/// Store 16 numbers at y, rounded.
MC_HD void put_lanes(Bf16* y, Lanes x) {
#ifdef MC_X86
  unsigned short __attribute__((vector_size(32))) half;
  asm("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(x));
  std::memcpy(y, &half, sizeof half);
#else
  for (int l = 0; l < kLanes; ++l) y[l] = x[l];
#endif
}

/// add(i, 0) and add(i, 1) alternately for 0 <= i < n: `add` has two sums, as a single one would wait for each addition.
template <class Add> MC_HD void each_alternating(index_t n, const Add& add) {
  index_t i = 0;
  for (; i + 1 < n; i += 2) add(i, 0), add(i + 1, 1);
  if (i < n) add(i, 0);
}

/// A block of for_each_lane: f.lanes<Lanes>(i) for 16 elements from i on, f(i) for those of a last part. n: elements of the array.
/// T is Bf16 and is here for `uses` (device/apply.hpp), which finds by it the instruction set that Lanes need.
template <class F, class T> struct EachLanes {
  F f;
  index_t n;
  MC_HD void operator()(index_t block) const {
    index_t i = block * kLanes;
    if (i + kLanes <= n) return f.template lanes<Lanes>(i);
    for (; i < n; ++i) f(i);
  }
};

namespace cpu {

/// f(i) for 0 <= i < n, elements T, as for_each; for Bf16 16 at a time by f.lanes<Lanes>(i).
template <class T, class F> void for_each_lane(Threads threads, index_t n, const F& f, index_t cost) {
  if constexpr (std::is_same_v<T, Bf16>)
    for_each(threads, (n + kLanes - 1) / kLanes, EachLanes<F, T>{f, n}, cost * kLanes);
  else
    for_each(threads, n, f, cost);
}

}  // namespace cpu

/// f(i) for 0 <= i < n, elements T, on CPU or device; on the CPU as cpu::for_each_lane.
template <class T, class F> void for_each_lane(const Context& on, index_t n, const F& f, index_t cost) {
  if (on.stream) return cuda::for_each(*on.stream, n, f);
  cpu::for_each_lane<T>(on.threads, n, f, cost);
}

}  // namespace mc
