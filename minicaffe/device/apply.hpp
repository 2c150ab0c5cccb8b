// The CPU loops: run a functor over the indices 0..n-1, on several threads, with the best instruction set of the machine.
//
// A functor is compiled three times (baseline, AVX2+FMA, AVX-512) inside the loop below, and one version is chosen at run
// time; builds stay portable without -march. Functors over double have the baseline only: float64 is for checking, and two more
// versions would double the build time. Functors over Bf16 have only a version for AVX-512 with AVX512_BF16, which precision bf16
// requires. MINICAFFE_ISA=baseline|avx2|avx512 lowers the choice, for tests.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include "minicaffe/device/threads.hpp"
#include "minicaffe/kernels/pointwise.hpp"
#include "minicaffe/kernels/types.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define MC_X86 1
#define MC_AVX2 __attribute__((target("avx2,fma")))
#define MC_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define MC_AVX512_BF16 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")))
#endif

namespace mc {

namespace cpu {

enum Isa { kBaseline, kAvx2, kAvx512 };

/// The best instruction set of the processor that MINICAFFE_ISA allows; `isa` calls it once.
inline Isa detect_isa() {
#ifdef MC_X86
  const char* requested = std::getenv("MINICAFFE_ISA");
  int limit = !requested                            ? kAvx512
              : !std::strcmp(requested, "baseline") ? kBaseline
              : !std::strcmp(requested, "avx2")     ? kAvx2
                                                    : kAvx512;
  if (limit >= kAvx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    return kAvx512;
  if (limit >= kAvx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
  return kBaseline;
}

__attribute__((noinline)) inline Isa isa() {
  static const Isa level = detect_isa();
  return level;
}

// The loop body writes only elements of its own index, so no iteration depends on another. With a local copy of the functor the
// compiler knows that no store changes its members; otherwise a member read in one branch only prevents vectorisation.
#define MC_RANGE(NAME, TARGET)                                                  \
  template <class F> TARGET void NAME(const F& f, index_t begin, index_t end) { \
    const F body = f;                                                           \
    MC_IVDEP for (index_t i = begin; i < end; ++i) body(i);                     \
  }
MC_RANGE(range_baseline, )
#ifdef MC_X86
MC_RANGE(range_avx2, MC_AVX2)
MC_RANGE(range_avx512, MC_AVX512)
MC_RANGE(range_bf16, MC_AVX512_BF16)
#endif

// Whether X, double or Bf16, is among the template arguments of a functor, or of functors inside it: by this `range` chooses the
// version. One specialisation for each form of template parameters.
template <class X, class F> struct uses : std::is_same<X, F> {};
template <class X, template <class...> class F, class... A>
struct uses<X, F<A...>> : std::bool_constant<(uses<X, A>::value || ...)> {};
template <class X, template <class, auto...> class F, class A, auto V, auto... W>
struct uses<X, F<A, V, W...>> : uses<X, A> {};
template <class X, template <class, class, auto...> class F, class A, class B, auto V, auto... W>
struct uses<X, F<A, B, V, W...>> : std::bool_constant<uses<X, A>::value || uses<X, B>::value> {};
template <class X, template <class, class, int, class> class F, class A, class B, int V, class C>
struct uses<X, F<A, B, V, C>> : std::bool_constant<uses<X, A>::value || uses<X, B>::value> {};

/// f(i) for begin <= i < end on the calling thread, by the version of the loop for f's element type and the processor.
template <class F> void range(const F& f, index_t begin, index_t end) {
#ifdef MC_X86
  if constexpr (uses<Bf16, F>::value) {
    return range_bf16(f, begin, end);
  } else if constexpr (!uses<double, F>::value) {
    if (isa() == kAvx512) return range_avx512(f, begin, end);
    if (isa() == kAvx2) return range_avx2(f, begin, end);
  }
#endif
  range_baseline(f, begin, end);
}

// Below this many elements a second thread costs more than it saves (about 10 microseconds of memory traffic).
constexpr index_t kGrain = 16384;
constexpr index_t kProductGrain = 100000;  // likewise for multiplications of a matrix product

/// The part of for_each that needs no template, as there are hundreds of functors: run(f, begin, end) for each part of 0..n-1.
__attribute__((noinline)) inline void for_parts(Threads threads, index_t n, index_t cost, const void* f,
                                                void (*run)(const void* f, index_t begin, index_t end)) {
  parallel(threads, n, std::max<index_t>(1, kGrain / cost), [=](int, index_t b, index_t e) { run(f, b, e); });
}

/// f(i) for 0 <= i < n; `cost` is the work of one index in units of one element-wise operation.
template <class F> void for_each(Threads threads, index_t n, const F& f, index_t cost = 1) {
  for_parts(threads, n, cost, &f, [](const void* f, index_t b, index_t e) { range(*static_cast<const F*>(f), b, e); });
}

/// y[i] = f(x[i], ...); `rest` are further inputs and, last, y.
template <class F, class T, class... Rest> void map(Threads threads, index_t n, const F& f, const T* x, Rest... rest) {
  for_each(threads, n, Map<F, T, sizeof...(Rest)>{f, x, rest...});
}

template <class T> void fill(Threads threads, index_t n, T value, T* y) { for_each(threads, n, Fill<T>{value, y}); }

template <class T> void copy(Threads threads, index_t n, const T* x, T* y) {
  if (x == y) return;
  parallel(threads, n, kGrain, [&](int, index_t b, index_t e) { std::memcpy(y + b, x + b, size_t(e - b) * sizeof(T)); });
}

}  // namespace cpu
}  // namespace mc
