// Element-wise functors with a parameter for each channel (ops/broadcast/kernel.hpp) on a grid of blocks, 16 bytes at a time.
#pragma once
#include "minicaffe/ops/broadcast/kernel.hpp"
#include "minicaffe/kernels/divider.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

/// The channel of element i of [outer, channels, inner].
struct ChannelIndex {
  IntDivider<unsigned> inner, channels;
  index_t wide_inner, wide_channels;  // not 0: there are 2^31 elements and more, so divide by these
  MC_HD index_t operator()(index_t i) const {
    if (wide_inner) return i / wide_inner % wide_channels;
    unsigned row = inner.quotient(unsigned(i));
    return row - channels.quotient(row) * channels.divisor;
  }
};

MC_HD ChannelIndex channel_index(index_t outer, index_t channels, index_t inner) {
  ChannelIndex index = {{1, 1, 0}, {1, 1, 0}, 0, 0};
  if (outer * channels * inner < 2147483648ll) {
    set_divisor(index.inner, inner);
    set_divisor(index.channels, channels);
  } else {
    index.wide_inner = inner;
    index.wide_channels = channels;
  }
  return index;
}

/// y = f.at(k)(x); `kept`, unless null, receives x, or y if `keep_result`.
template <class F, class T> struct Broadcast1 {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  F f;
  ChannelIndex channel;
  index_t n;
  const T* x;
  T *y, *kept;
  bool keep_result;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    walk_packs(t, n, Pack<T>::kSize, aligned16(x) && aligned16(y) && aligned16(kept), *this);
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> from = reinterpret_cast<const Pack<T>*>(x)[i], to;
    for (int k = 0; k < Pack<T>::kSize; ++k) to.value[k] = f.at(channel(i * Pack<T>::kSize + k))(from.value[k]);
    reinterpret_cast<Pack<T>*>(y)[i] = to;
    if (kept) reinterpret_cast<Pack<T>*>(kept)[i] = keep_result ? to : from;
  }
  MC_DEVICE void map(index_t i) const {
    T from = x[i], to = f.at(channel(i))(from);
    y[i] = to;
    if (kept) kept[i] = keep_result ? to : from;
  }
};

/// y = f.at(k)(a, b)
template <class F, class T> struct Broadcast2 {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  F f;
  ChannelIndex channel;
  index_t n;
  const T *a, *b;
  T* y;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    walk_packs(t, n, Pack<T>::kSize, aligned16(a) && aligned16(b) && aligned16(y), *this);
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> left = reinterpret_cast<const Pack<T>*>(a)[i], right = reinterpret_cast<const Pack<T>*>(b)[i], to;
    for (int k = 0; k < Pack<T>::kSize; ++k)
      to.value[k] = f.at(channel(i * Pack<T>::kSize + k))(left.value[k], right.value[k]);
    reinterpret_cast<Pack<T>*>(y)[i] = to;
  }
  MC_DEVICE void map(index_t i) const { y[i] = f.at(channel(i))(a[i], b[i]); }
};

}  // namespace mc
