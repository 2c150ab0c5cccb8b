// Dropout as a pure function of (seed, start, index): no mask is stored, backward draws it again.
//
// Element i takes word (i / 16) mod 4 of counter start + i / 64 * 16 + i mod 16, so that 16 counters side by side make the
// 64 numbers of a block in four vector-wide pieces.
#pragma once
#include "minicaffe/kernels/random.hpp"
#include "minicaffe/kernels/types.hpp"

namespace mc {

constexpr int kDropLanes = 16, kDropBlock = 4 * kDropLanes;

/// y = x scale where the random word is at least `threshold` = p 2^32, else 0.
template <class T> struct Dropout {
  Philox random;
  u64 start;
  u32 threshold;
  typename Element<T>::Compute scale;
  const T* x;
  T* y;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    random(start + u64(i / kDropBlock * kDropLanes + i % kDropLanes), bits);
    y[i] = bits[i / kDropLanes % 4] >= threshold ? T(x[i] * scale) : T(0);
  }
};

/// The four elements that share counter i: one of each 16 in a block. `drawn`, unless null, is added to the start.
template <class T> struct DropoutLane {
  Dropout<T> one;
  index_t count;
  const u64* drawn;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    one.random(one.start + (drawn ? *drawn : 0) + u64(i), bits);
    index_t at = i / kDropLanes * kDropBlock + i % kDropLanes;
    for (int k = 0; k < 4; ++k, at += kDropLanes)
      if (at < count) one.y[at] = bits[k] >= one.threshold ? T(one.x[at] * one.scale) : T(0);
  }
};

}  // namespace mc
