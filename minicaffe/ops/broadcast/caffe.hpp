// Element-wise operations with a parameter for each channel (ops/broadcast/kernel.hpp), on CPU or device.
//
// The CPU walks over rows of `inner` elements that share a parameter, or, when inner is 1, over runs of neighbouring
// parameters, so that the innermost loop is contiguous in either case.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/broadcast/kernel.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {
namespace cpu {

/// Call, for all elements, row(k, i, n): n of them from i on with parameter k; or run(k, i, n): with parameters k, k + 1, ...
template <class Row, class Run>
void walk(Threads threads, const Channels& c, const Row& row, const Run& run) {
  const index_t outer = c.outer, channels = c.channels, inner = c.inner;
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

template <class F, class T, class... More>
void broadcast(Threads threads, const Channels& c, const F& f, T* y, T* kept, const T* x, More... more) {
  constexpr int kInputs = 1 + sizeof...(More);
  auto keep = [=](index_t i, index_t n) {
    if (kept) std::memcpy(kept + i, x + i, size_t(n) * sizeof(T));
  };
  walk(threads, c,
       [&](index_t k, index_t i, index_t n) {
         keep(i, n);
         range(Map<decltype(f.at(0)), T, kInputs>{f.at(k), x, more..., y}, i, i + n);
       },
       [&](index_t k, index_t i, index_t n) {
         keep(i, n);
         range(AtEach<F, T, kInputs>{f, i - k, x, more..., y}, k, k + n);
       });
}

}  // namespace cpu
namespace cuda {

template <class F, class T, class... More>
void broadcast(Stream& stream, const Channels& c, const F& f, T* y, T* kept, const T* x, More... more) {
  constexpr index_t kSize = Pack<T>::kSize;
  const index_t n = c.outer * c.channels * c.inner, row = (c.channels + kSize - 1) / kSize;
  if (n == 0) return;
  const bool one = c.channels == 1 || c.lanes == 1 && c.inner % kSize == 0;   // every pack is of one channel
  const bool rows = !one && c.lanes == 1 && c.inner == 1 && c.channels % kSize == 0 && n < 2147483648ll;
  auto run = [&](auto by_rows, unsigned blocks) {
    launch(stream, Broadcast<F, T, 1 + sizeof...(More), by_rows.value>{f, channel_index(c.outer, c.channels, c.inner, c.lanes),
                                                                       one, unsigned(row), n, x, more..., y, kept}, blocks);
  };
  if (!rows) return run(std::false_type(), blocks_for(stream, (n + 1) / 2, kVectorThreads));
  // Four packs or more to a thread, which first reads the parameters of its channels, and no more blocks than run at once; but a
  // thread for each pack of a row.
  const unsigned wanted = blocks_for(stream, n / (4 * kSize), kVectorThreads);
  const unsigned most = stream.multiprocessors * 2048 / kVectorThreads, least = (row + kVectorThreads - 1) / kVectorThreads;
  run(std::true_type(), std::max(std::min(wanted, most), least));
}

}  // namespace cuda

/// y = f.at(k)(x), or f.at(k)(x, more); `kept`, unless null, receives a copy of x, for the backward of a layer in place.
template <class F, class T, class... More>
void broadcast(const Context& on, const Channels& c, const F& f, T* y, T* kept, const T* x, More... more) {
  if (on.stream) {
    cuda::broadcast(*on.stream, c, f, y, kept, x, more...);
  } else if (c.lanes > 1 || !cpu::kPlain<T>) {
    cpu::map_lanes(on.threads, c, f, y, kept, x, more...);
  } else if constexpr (cpu::kPlain<T>) {
    cpu::broadcast(on.threads, c, f, y, kept, x, more...);
  }
}

template <class F, class T>
void broadcast_unary(const Context& on, const Channels& c, const F& f, const T* x, T* y, T* kept = nullptr) {
  broadcast(on, c, f, y, kept, x);
}
template <class F, class T>
void broadcast_binary(const Context& on, const Channels& c, const F& f, const T* a, const T* b, T* y) {
  broadcast(on, c, f, y, static_cast<T*>(nullptr), a, b);
}

// ---- for an element type known only at run time: `members` are those of the functor

/// y = F.at(k)(x), with the members of F; `kept` as in broadcast.
template <template <class> class F, class... P>
void broadcast1(const Context& on, int dtype, const Channels& c, const void* x, void* y, void* kept, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    broadcast_unary(on, c, make<F<T>>(member<T>(members)...), member<T>(x), member<T>(y), member<T>(kept));
  });
}

/// y = F.at(k)(a, b), with the members of F.
template <template <class> class F, class... P>
void broadcast2(const Context& on, int dtype, const Channels& c, const void* a, const void* b, void* y, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    broadcast_binary(on, c, make<F<T>>(member<T>(members)...), member<T>(a), member<T>(b), member<T>(y));
  });
}

// caffe.cpp compiles these once; the last arguments are the members of the functors.
#define MC_ARGUMENTS1 const Context&, int, const Channels&, const void*, void*, void*, const void*
#define MC_ARGUMENTS2 const Context&, int, const Channels&, const void*, const void*, void*, const void*
#define MC_BROADCASTS(EXTERN)                                                                            \
  EXTERN template void broadcast1<ScaleBy>(MC_ARGUMENTS1);                                               \
  EXTERN template void broadcast1<ScaleShift>(MC_ARGUMENTS1, const void*);                               \
  EXTERN template void broadcast1<ShiftBy>(MC_ARGUMENTS1);                                               \
  EXTERN template void broadcast1<PreluForward>(MC_ARGUMENTS1);                                          \
  EXTERN template void broadcast1<SumBackward>(MC_ARGUMENTS1, double);                                   \
  EXTERN template void broadcast1<AbsSumBackward>(MC_ARGUMENTS1, double);                                \
  EXTERN template void broadcast1<SquareSumBackward>(MC_ARGUMENTS1, double);                             \
  EXTERN template void broadcast2<PreluBackward>(MC_ARGUMENTS2);                                         \
  EXTERN template void channel_sums_typed<PreluTerm>(MC_CHANNEL_ARGUMENTS, const void*);
#ifdef MC_COMPILED_ONCE
MC_BROADCASTS(extern)
#endif

}  // namespace mc
