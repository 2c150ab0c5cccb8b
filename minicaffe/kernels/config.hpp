// The base of all kernel headers: one source for the host compiler and for NVRTC.
//
// No standard headers below minicaffe/kernels/ except here, because NVRTC has none. A functor marks its call operator
// MC_HD; its data members are the kernel's parameters and are passed by value. Code that runs only on the grid of a GPU
// (grid.hpp) is marked MC_DEVICE.
#pragma once

#ifdef __CUDACC_RTC__
#define MC_HD __host__ __device__ __forceinline__
#define MC_DEVICE __device__ __forceinline__
#define MC_STD
#define MC_IVDEP
#else
#include <cmath>
#include <cstring>
#include <utility>
#define MC_DEVICE inline __attribute__((always_inline))
// Forced inlining lets one functor be compiled for each instruction set by the loop that calls it (device/apply.hpp).
#define MC_HD inline __attribute__((always_inline))
#define MC_INLINE __attribute__((always_inline))  // for a lambda
#define MC_STD std::
#define MC_IVDEP _Pragma("GCC ivdep")  // no iteration of the loop that follows depends on another
#endif

namespace mc {

using index_t = long long;

// The initial value of every maximum is minus this, for double too (Caffe pooling_layer.cpp uses FLT_MAX for both).
constexpr float kFloatMax = 3.402823466e38f;
// The floor under a probability before its logarithm (Caffe softmax_loss_layer.cpp).
constexpr float kFloatMin = 1.17549435e-38f;

/// The number at x; or, with V a vector of the CPU, as many numbers as V has. device/bf16.hpp has overloads for Bf16.
template <class V, class T> MC_HD V get_lanes(const T* x) {
  if constexpr (sizeof(V) <= sizeof(double)) {
    return V(*x);
  } else {
    V all;
    memcpy(&all, x, sizeof all);
    return all;
  }
}
template <class T, class V> MC_HD void put_lanes(T* y, V x) { *y = T(x); }  // of one number

template <class T> MC_HD T exp_(T x) { return MC_STD exp(x); }
template <class T> MC_HD T log_(T x) { return MC_STD log(x); }
template <class T> MC_HD T sqrt_(T x) { return MC_STD sqrt(x); }
template <class T> MC_HD T pow_(T x, T y) { return MC_STD pow(x, y); }
template <class T> MC_HD T tanh_(T x) { return MC_STD tanh(x); }
template <class T> MC_HD T cos_(T x) { return MC_STD cos(x); }
template <class T> MC_HD T abs_(T x) { return x < T(0) ? -x : x; }
template <class T> MC_HD T sign_(T x) { return T((x > T(0)) - (x < T(0))); }
template <class T> MC_HD T min_(T a, T b) { return b < a ? b : a; }  // like max_ gives a if a or b is NaN
template <class T> MC_HD T max_(T a, T b) { return a < b ? b : a; }

}  // namespace mc
