// CUDA C++ for the host: what a kernel's source needs so that g++ makes the simulated device's kernels of it.
//
// Include it before the text, and append one MCSIM_KERNEL(f) per kernel; compile with
//   g++ -O2 -std=c++17 -shared -fPIC -I <where minicaffe/kernels/grid.hpp is found> text.cpp -o text.so
// and give the result of the exported `const mc::HostImage* mcsim_image()` to cuModuleLoadData. Each line also exports the
// mc::HostKernel as mcsim_kernel_f.
//
// __shared__ variables are one copy for all blocks, which run one after another, filled with 0xff before each block. Shared
// memory whose size is given at launch cannot keep its spelling: replace `extern __shared__ T name[];` by
// MCSIM_DYNAMIC_SHARED(T, name); (the regular expression extern\s+__shared__\s+(.+?)\s+(\w+)\s*\[\s*\]\s*; does it).
// Atomics are plain operations, since one thread runs at a time. Not here: warps (__shfl_sync, __syncwarp, votes), textures,
// half types, clusters, managed and device variables set by the host.
#pragma once
#include <cfloat>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>
#include <vector>

#include "minicaffe/kernels/grid.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("mcsim_shared")))
#define MCSIM_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(mcsim::dynamic_shared)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define MCSIM_VECTORS(base, name)                                                        \
  struct name##2 { base x, y; };                                                         \
  struct name##3 { base x, y, z; };                                                      \
  struct alignas(sizeof(base) * 4 < 16 ? sizeof(base) * 4 : 16) name##4 { base x, y, z, w; }; \
  inline name##2 make_##name##2(base x, base y) { return {x, y}; }                       \
  inline name##3 make_##name##3(base x, base y, base z) { return {x, y, z}; }            \
  inline name##4 make_##name##4(base x, base y, base z, base w) { return {x, y, z, w}; }
MCSIM_VECTORS(float, float)
MCSIM_VECTORS(double, double)
MCSIM_VECTORS(int, int)
MCSIM_VECTORS(unsigned char, uchar)
#undef MCSIM_VECTORS

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// The ends of the section of all __shared__ variables; the first byte makes sure that there is one.
extern char __start_mcsim_shared[] __attribute__((visibility("hidden")));
extern char __stop_mcsim_shared[] __attribute__((visibility("hidden")));
static char mcsim_shared_byte __attribute__((section("mcsim_shared"), used));
extern const mc::HostKernel* const __start_mcsim_kernels[] __attribute__((visibility("hidden"), weak));
extern const mc::HostKernel* const __stop_mcsim_kernels[] __attribute__((visibility("hidden"), weak));

// Unnamed: kernels of one name in two sources must stay apart, also where the linker would make templates' data one.
namespace mcsim {
namespace {

static mc::Thread* current;
static void* dynamic_shared;

/// From here on the calling code is this thread.
static inline void become(mc::Thread* t) {
  current = t;
  threadIdx = {t->thread_x, t->thread_y, t->thread_z};
  blockIdx = {t->block_x, t->block_y_, t->block_z_};
  blockDim = dim3(t->threads_x, t->threads_y, t->threads_z);
  gridDim = dim3(t->blocks_x, t->blocks_y, t->blocks_z);
}

static inline void barrier() {
  mc::Thread* self = current;
  self->wait(self);
  become(self);
}

/// `f` as the simulated device calls it: the function's own parameter list says what the arguments are.
template <auto f> struct Entry;
template <class... A, void (*f)(A...)> struct Entry<f> {
  static constexpr unsigned sizes[] = {sizeof(A)..., 0};
  static constexpr int count = sizeof...(A);
  static inline const void* (*const pointers[])() = {mc::pointers_in<A>..., nullptr};
  template <size_t... i> static void apply(void** arguments, std::index_sequence<i...>) {
    (void)arguments;
    f(*static_cast<A*>(arguments[i])...);
  }
  static void call(void** arguments, mc::Thread* thread, void* shared) {
    become(thread);
    dynamic_shared = shared;
    if (!threadIdx.x && !threadIdx.y && !threadIdx.z)  // the block's first thread is started before all others
      memset(__start_mcsim_shared, 0xff, size_t(__stop_mcsim_shared - __start_mcsim_shared));
    apply(arguments, std::index_sequence_for<A...>());
  }
};

}  // namespace
}  // namespace mcsim

#define MCSIM_KERNEL(f) MCSIM_KERNEL_AS(f, #f, f)

/// The same under another name, for a function in a namespace or of a template: MCSIM_KERNEL_AS(id, "mine::scale<float>",
/// mine::scale<float>).
#define MCSIM_KERNEL_AS(id, name, ...)                                                                                        \
  extern "C" __attribute__((visibility("default"))) const mc::HostKernel mcsim_kernel_##id;                                  \
  extern "C" const mc::HostKernel mcsim_kernel_##id = {name, mcsim::Entry<__VA_ARGS__>::call, mcsim::Entry<__VA_ARGS__>::sizes, \
      mcsim::Entry<__VA_ARGS__>::count, 0, 1024, 1, mcsim::Entry<__VA_ARGS__>::pointers};                                    \
  static const mc::HostKernel* const mcsim_listed_##id __attribute__((section("mcsim_kernels"), used)) = &mcsim_kernel_##id;

extern "C" __attribute__((visibility("default"), weak)) const mc::HostImage* mcsim_image() {
  static const std::vector<mc::HostKernel> kernels = [] {
    std::vector<mc::HostKernel> list;
    for (auto* k = __start_mcsim_kernels; k != __stop_mcsim_kernels; ++k) list.push_back(**k);
    return list;
  }();
  static const mc::HostImage image = {{'M', 'C', 'H', 'O', 'S', 'T', '1'}, kernels.data(), kernels.size()};
  return &image;
}

#define __syncthreads() mcsim::barrier()
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)

/// A cycle of the simulated device is a nanosecond (its CLOCK_RATE is 1 GHz).
inline long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// The old value, as in CUDA.
template <class T, class U> inline T atomicExch(T* p, U value) { T old = *p; *p = T(value); return old; }
template <class T, class U> inline T atomicAdd(T* p, U value) { return atomicExch(p, T(*p + T(value))); }
template <class T, class U> inline T atomicSub(T* p, U value) { return atomicExch(p, T(*p - T(value))); }
template <class T, class U> inline T atomicMax(T* p, U value) { return atomicExch(p, T(value) > *p ? T(value) : *p); }
template <class T, class U> inline T atomicMin(T* p, U value) { return atomicExch(p, T(value) < *p ? T(value) : *p); }
template <class T, class U> inline T atomicAnd(T* p, U value) { return atomicExch(p, T(*p & T(value))); }
template <class T, class U> inline T atomicOr(T* p, U value) { return atomicExch(p, T(*p | T(value))); }
template <class T, class U> inline T atomicXor(T* p, U value) { return atomicExch(p, T(*p ^ T(value))); }
template <class T, class U, class V> inline T atomicCAS(T* p, U compare, V value) {
  T old = *p;
  if (old == T(compare)) *p = T(value);
  return old;
}

template <class T, class U> inline std::common_type_t<T, U> min(T a, U b) { return b < a ? b : a; }
template <class T, class U> inline std::common_type_t<T, U> max(T a, U b) { return a < b ? b : a; }
template <class T> inline T __ldg(const T* p) { return *p; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
