// Random initial values (kernels/random.hpp) on the CPU, for element types known at run time. The first element has
// counter `start`.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/kernels/random.hpp"

namespace mc {

constexpr index_t kRandomCost = 16;  // the time of one Philox call, in additions

/// y = U[lo, hi)
inline void fill_uniform(cpu::Threads threads, int dtype, index_t n, u64 seed, u64 start, double lo, double hi, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    cpu::for_each(threads, n, FillUniform<T>{{seed}, start, T(lo), T(hi), static_cast<T*>(y)}, kRandomCost);
  });
}

/// y = N(mean, std)
inline void fill_gaussian(cpu::Threads threads, int dtype, index_t n, u64 seed, u64 start, double mean, double std, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    cpu::for_each(threads, n, FillGaussian<T>{{seed}, start, T(mean), T(std), static_cast<T*>(y)}, kRandomCost);
  });
}

/// Each element of y is kept with probability p, and set to 0 otherwise.
inline void keep_some(cpu::Threads threads, int dtype, index_t n, u64 seed, u64 start, double p, void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    cpu::for_each(threads, n, KeepWithProbability<T>{{seed}, start, p, static_cast<T*>(y)}, kRandomCost);
  });
}

}  // namespace mc
