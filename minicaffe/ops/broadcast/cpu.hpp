// CPU loops for parameters broadcast along axes (ops/broadcast/kernel.hpp): apply them, and sum over what they were spread to.
//
// Both walk over rows of `inner` elements that share a parameter, or, when inner is 1, over runs of neighbouring parameters,
// so that the innermost loop is contiguous in either case.
#pragma once
#include <vector>
#include "minicaffe/ops/sums/cpu.hpp"
#include "minicaffe/ops/broadcast/kernel.hpp"

namespace mc {
namespace cpu {

/// row(k, i, n): n elements from i on with parameter k; run(k, i, n): n elements from i on with parameters k, k + 1, ...
template <class Row, class Run>
void walk(Threads threads, index_t outer, index_t channels, index_t inner, const Row& row, const Run& run) {
  if (channels == 1) {
    parallel(threads, outer * inner, kGrain, [&](int, index_t b, index_t e) { row(0, b, e - b); });
  } else if (inner == 1) {
    parallel(threads, outer * channels, kGrain, [&](int, index_t b, index_t e) {
      for (index_t k = b % channels, n; b < e; b += n, k = 0) run(k, b, n = std::min(channels - k, e - b));
    });
  } else if (inner > 0) {
    parallel(threads, outer * channels, std::max<index_t>(1, kGrain / inner), [&](int, index_t b, index_t e) {
      for (index_t k = b % channels; b < e; ++b, k = k + 1 == channels ? 0 : k + 1) row(k, b * inner, inner);
    });
  }
}

/// y = f.at(k)(x); `kept`, unless null, receives a copy of x, for layers that work in place.
template <class F, class T>
void broadcast_unary(Threads threads, index_t outer, index_t channels, index_t inner, const F& f, const T* x, T* y, T* kept) {
  auto keep = [=](index_t i, index_t n) {
    if (kept) std::memcpy(kept + i, x + i, size_t(n) * sizeof(T));
  };
  walk(threads, outer, channels, inner,
       [&](index_t k, index_t i, index_t n) {
         keep(i, n);
         range(Map1<decltype(f.at(0)), T>{f.at(k), x + i, y + i}, 0, n);
       },
       [&](index_t k, index_t i, index_t n) {
         keep(i, n);
         range(AtEach1<F, T>{f, x + (i - k), y + (i - k)}, k, k + n);
       });
}

/// y = f.at(k)(a, b)
template <class F, class T>
void broadcast_binary(Threads threads, index_t outer, index_t channels, index_t inner, const F& f, const T* a, const T* b, T* y) {
  walk(threads, outer, channels, inner,
       [&](index_t k, index_t i, index_t n) {
         range(Map2<decltype(f.at(0)), T>{f.at(k), a + i, b + i, y + i}, 0, n);
       },
       [&](index_t k, index_t i, index_t n) {
         range(AtEach2<F, T>{f, a + (i - k), b + (i - k), y + (i - k)}, k, k + n);
       });
}

/// out[k] = coeff times the sum of term(i) over the elements of k, added to what is there if `add`.
template <class T, class Term>
void channel_sums(Threads threads, index_t outer, index_t channels, index_t inner, const Term& term, double coeff, bool add, T* out) {
  std::vector<double> sums(size_t(channels), 0.0);
  if (channels == 1)
    sums[0] = sum_terms<T>(threads, outer * inner, term);
  else if (inner == 1)
    parallel(threads, channels, std::max<index_t>(1, kGrain / std::max<index_t>(1, outer)), [&](int, index_t b, index_t e) {
      for (index_t o = 0; o < outer; ++o) range(AddRow<Term>{term, o * channels, sums.data()}, b, e);
    });
  else
    for_each(threads, channels, ChannelSums<T, Term>{term, outer, channels, inner, sums.data()},
             std::max<index_t>(1, outer * inner));
  for (index_t k = 0; k < channels; ++k) out[k] = T((add ? double(out[k]) : 0.0) + coeff * sums[size_t(k)]);
}

// ---- for callers that know the element type only at run time (see typed.hpp)

template <class T> const T* member(const void* p) { return static_cast<const T*>(p); }
template <class T> T member(double x) { return T(x); }

template <template <class> class F, class... P>
void broadcast1(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, const void* x, void* y, void* kept,
                P... members) {
  if (dtype == 0)
    broadcast_unary(threads, outer, channels, inner, F<float>{member<float>(members)...}, member<float>(x), static_cast<float*>(y),
              static_cast<float*>(kept));
  else
    broadcast_unary(threads, outer, channels, inner, F<double>{member<double>(members)...}, member<double>(x),
              static_cast<double*>(y), static_cast<double*>(kept));
}

template <template <class> class F, class... P>
void broadcast2(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, const void* a, const void* b, void* y,
                P... members) {
  if (dtype == 0)
    broadcast_binary(threads, outer, channels, inner, F<float>{member<float>(members)...}, member<float>(a), member<float>(b),
              static_cast<float*>(y));
  else
    broadcast_binary(threads, outer, channels, inner, F<double>{member<double>(members)...}, member<double>(a), member<double>(b),
              static_cast<double*>(y));
}

template <template <class> class Term, class... P>
void channel_sums_typed(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, double coeff, bool add, void* out,
                        P... members) {
  if (dtype == 0)
    channel_sums(threads, outer, channels, inner, Term<float>{member<float>(members)...}, coeff, add,
                 static_cast<float*>(out));
  else
    channel_sums(threads, outer, channels, inner, Term<double>{member<double>(members)...}, coeff, add,
                 static_cast<double*>(out));
}

}  // namespace cpu
}  // namespace mc
