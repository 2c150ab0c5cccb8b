// Element-wise functors on contiguous tensors, 16 bytes at a time if every tensor starts on a 16-byte boundary.
#pragma once
#include "minicaffe/kernels/grid.hpp"
#include "minicaffe/kernels/pointwise.hpp"

namespace mc {

constexpr int kVectorThreads = 256;

/// The elements of one 16-byte access.
template <class T> struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};

/// kCount values that are read or written at once.
template <class T, int kCount> struct alignas(kCount * sizeof(T)) Few {
  T value[kCount];
  MC_HD T& operator[](index_t i) { return value[i]; }
  MC_HD const T& operator[](index_t i) const { return value[i]; }
};

MC_HD bool aligned16(const void* p) { return (reinterpret_cast<unsigned long long>(p) & 15) == 0; }

/// The loop of all kernels over packs of `size` elements: k.pack(i) for whole packs in a grid-stride loop, then k.map(i) for the
/// remaining elements of n; for all of them unless the arrays are `aligned` to 16 bytes.
template <class K> MC_DEVICE void walk_packs(const Thread& t, index_t n, index_t size, bool aligned, const K& k) {
  index_t packs = aligned ? n / size : 0;
  for (index_t i = t.index(); i < packs; i += t.total()) k.pack(i);
  for (index_t i = packs * size + t.index(); i < n; i += t.total()) k.map(i);
}

/// y[i] = f(x[0][i], ...) of N inputs
template <class F, class T, int N> struct Vector {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  Map<F, T, N> map;
  index_t n;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    bool aligned = aligned16(map.y);
    for (int k = 0; k < N; ++k) aligned = aligned && aligned16(map.x[k]);
    walk_packs(t, n, Pack<T>::kSize, aligned, *this);
  }
  /// Elements i * kSize and the following of one 16-byte access (walk_packs).
  MC_DEVICE void pack(index_t i) const {
    Pack<T> x[N], y;
    for (int k = 0; k < N; ++k) x[k] = reinterpret_cast<const Pack<T>*>(map.x[k])[i];
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      T value[N];
      for (int k = 0; k < N; ++k) value[k] = x[k].value[j];
      y.value[j] = apply_(map.f, value);
    }
    reinterpret_cast<Pack<T>*>(map.y)[i] = y;
  }
};

}  // namespace mc
