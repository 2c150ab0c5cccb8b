// Element-wise functors on contiguous tensors, 16 bytes at a time where every tensor starts on a 16-byte boundary.
#pragma once
#include "minicaffe/kernels/grid.hpp"
#include "minicaffe/kernels/pointwise.hpp"

namespace mc {

constexpr int kVectorThreads = 256;

/// As many elements as one 16-byte access moves.
template <class T> struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};

MC_HD bool aligned16(const void* p) { return (reinterpret_cast<unsigned long long>(p) & 15) == 0; }

/// What the three kernels below share: whole packs in strides of the grid, then the elements that are left over.
template <class K> MC_DEVICE void walk_packs(const Thread& t, index_t n, index_t size, bool aligned, const K& k) {
  index_t packs = aligned ? n / size : 0;
  for (index_t i = t.index(); i < packs; i += t.total()) k.pack(i);
  for (index_t i = packs * size + t.index(); i < n; i += t.total()) k.map(i);
}

/// y[i] = f(x[i])
template <class F, class T> struct Vector1 {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  Map1<F, T> map;
  index_t n;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    walk_packs(t, n, Pack<T>::kSize, aligned16(map.x) && aligned16(map.y), *this);
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> x = reinterpret_cast<const Pack<T>*>(map.x)[i], y;
    for (int k = 0; k < Pack<T>::kSize; ++k) y.value[k] = map.f(x.value[k]);
    reinterpret_cast<Pack<T>*>(map.y)[i] = y;
  }
};

/// y[i] = f(a[i], b[i])
template <class F, class T> struct Vector2 {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  Map2<F, T> map;
  index_t n;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    walk_packs(t, n, Pack<T>::kSize, aligned16(map.a) && aligned16(map.b) && aligned16(map.y), *this);
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> a = reinterpret_cast<const Pack<T>*>(map.a)[i], b = reinterpret_cast<const Pack<T>*>(map.b)[i], y;
    for (int k = 0; k < Pack<T>::kSize; ++k) y.value[k] = map.f(a.value[k], b.value[k]);
    reinterpret_cast<Pack<T>*>(map.y)[i] = y;
  }
};

/// y[i] = f(a[i], b[i], c[i])
template <class F, class T> struct Vector3 {
  static constexpr int kThreads = kVectorThreads;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  Map3<F, T> map;
  index_t n;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    walk_packs(t, n, Pack<T>::kSize, aligned16(map.a) && aligned16(map.b) && aligned16(map.c) && aligned16(map.y), *this);
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> a = reinterpret_cast<const Pack<T>*>(map.a)[i], b = reinterpret_cast<const Pack<T>*>(map.b)[i],
            c = reinterpret_cast<const Pack<T>*>(map.c)[i], y;
    for (int k = 0; k < Pack<T>::kSize; ++k) y.value[k] = map.f(a.value[k], b.value[k], c.value[k]);
    reinterpret_cast<Pack<T>*>(map.y)[i] = y;
  }
};

}  // namespace mc
