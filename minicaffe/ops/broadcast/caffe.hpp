// Element-wise operations with a parameter for each channel (ops/broadcast/kernel.hpp), on CPU or device.
#pragma once
#include "minicaffe/ops/broadcast/cpu.hpp"
#include "minicaffe/ops/broadcast/kernel_channels.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {
namespace cuda {

template <class F, class T>
void broadcast_unary(Stream& stream, index_t outer, index_t channels, index_t inner, const F& f, const T* x, T* y, T* kept,
                     bool keep_result = false) {
  index_t n = outer * channels * inner;
  if (n == 0) return;
  launch(stream, Broadcast1<F, T>{f, channel_index(outer, channels, inner), n, x, y, kept, keep_result},
         blocks_for(stream, (n + 1) / 2, kVectorThreads));
}

template <class F, class T>
void broadcast_binary(Stream& stream, index_t outer, index_t channels, index_t inner, const F& f, const T* a, const T* b, T* y) {
  index_t n = outer * channels * inner;
  if (n == 0) return;
  launch(stream, Broadcast2<F, T>{f, channel_index(outer, channels, inner), n, a, b, y},
         blocks_for(stream, (n + 1) / 2, kVectorThreads));
}

}  // namespace cuda

/// y = f.at(k)(x); `kept`, unless null, receives a copy of x, for layers that work in place.
template <class F, class T>
void broadcast_unary(const Context& on, index_t outer, index_t channels, index_t inner, const F& f, const T* x, T* y, T* kept) {
  if (on.stream)
    cuda::broadcast_unary(*on.stream, outer, channels, inner, f, x, y, kept);
  else
    cpu::broadcast_unary(on.threads, outer, channels, inner, f, x, y, kept);
}

/// y = f.at(k)(a, b)
template <class F, class T>
void broadcast_binary(const Context& on, index_t outer, index_t channels, index_t inner, const F& f, const T* a, const T* b,
                      T* y) {
  if (on.stream)
    cuda::broadcast_binary(*on.stream, outer, channels, inner, f, a, b, y);
  else
    cpu::broadcast_binary(on.threads, outer, channels, inner, f, a, b, y);
}

// ---- for callers that know the element type only at run time: `members` are those of the functor

template <template <class> class F, class... P>
void broadcast1(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* x, void* y, void* kept,
                P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    broadcast_unary(on, outer, channels, inner, F<T>{cpu::member<T>(members)...}, static_cast<const T*>(x), static_cast<T*>(y),
                    static_cast<T*>(kept));
  });
}

template <template <class> class F, class... P>
void broadcast2(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, const void* a, const void* b,
                void* y, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    broadcast_binary(on, outer, channels, inner, F<T>{cpu::member<T>(members)...}, static_cast<const T*>(a),
                     static_cast<const T*>(b), static_cast<T*>(y));
  });
}

}  // namespace mc
