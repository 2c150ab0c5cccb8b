// Random initial values (kernels/random.hpp) on the CPU, for the fillers. The first element has counter `start`.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/kernels/random.hpp"

namespace mc {

constexpr index_t kRandomCost = 16;  // the time of one Philox call, in additions

/// y = U[lo, hi)
template <class T> void fill_uniform(cpu::Threads threads, index_t n, u64 seed, u64 start, double lo, double hi, T* y) {
  cpu::for_each(threads, n, FillUniform<T>{{seed}, start, T(lo), T(hi), y}, kRandomCost);
}

/// y = N(mean, std)
template <class T> void fill_gaussian(cpu::Threads threads, index_t n, u64 seed, u64 start, double mean, double std, T* y) {
  cpu::for_each(threads, n, FillGaussian<T>{{seed}, start, T(mean), T(std), y}, kRandomCost);
}

/// Each element of y is kept with probability p, and set to 0 otherwise.
template <class T> void keep_some(cpu::Threads threads, index_t n, u64 seed, u64 start, double p, T* y) {
  cpu::for_each(threads, n, KeepWithProbability<T>{{seed}, start, p, y}, kRandomCost);
}

}  // namespace mc
