// Data that are sent between processes in bf16: rounding gradients, adding two that arrived, and converting back.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {

/// y = x in another type, for `cpu::for_each`: a float is rounded to the nearest Bf16.
template <class From, class To> struct Converted {
  const From* x;
  To* y;
  void operator()(index_t i) const { y[i] = To(float(x[i])); }
};

/// y += x, computed in float and rounded to T.
template <class T> struct Added {
  const T* x;
  T* y;
  void operator()(index_t i) const { y[i] = T(float(x[i]) + float(y[i])); }
};

inline void to_bf16(cpu::Threads threads, index_t n, const void* x, void* y) {
  cpu::for_each(threads, n, Converted<float, Bf16>{static_cast<const float*>(x), static_cast<Bf16*>(y)});
}

inline void from_bf16(cpu::Threads threads, index_t n, const void* x, void* y) {
  cpu::for_each(threads, n, Converted<Bf16, float>{static_cast<const Bf16*>(x), static_cast<float*>(y)});
}

/// y += x on the calling thread alone: MPI calls it when data of another rank arrive.
inline void add_bf16(index_t n, const void* x, void* y) {
  cpu::range(Added<Bf16>{static_cast<const Bf16*>(x), static_cast<Bf16*>(y)}, 0, n);
}

}  // namespace mc
