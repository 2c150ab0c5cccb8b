// Dropout as a pure function of (seed, start, index): no mask is stored, backward draws it again.
//
// Element i takes word (i / 16) mod 4 of counter start + i / 64 * 16 + i mod 16, so that 16 counters side by side make the
// 64 numbers of a block in four vector-wide pieces.
#pragma once
#include "minicaffe/kernels/random.hpp"
#include "minicaffe/kernels/types.hpp"

namespace mc {

constexpr int kDropLanes = 16, kDropBlock = 4 * kDropLanes;

/// y = x scale where the random word is at least `threshold` = p 2^32, else 0. `drawn`, unless null, is added to `start`; it is on
/// the device, so that each replay of a CUDA graph draws new numbers.
template <class T> struct Dropout {
  Philox random;
  u64 start;
  const u64* drawn;
  u32 threshold;
  typename Element<T>::Compute scale;
  const T* x;
  T* y;
  MC_HD void draw(index_t counter, u32* bits) const { random(start + (drawn ? *drawn : 0) + u64(counter), bits); }
  MC_HD void write(u32 bits, index_t at) const { y[at] = bits >= threshold ? T(x[at] * scale) : T(0); }
  MC_HD void operator()(index_t i) const { element(i, i); }

  /// Element i of plain order, which is stored at `at`.
  MC_HD void element(index_t i, index_t at) const {
    u32 bits[4];
    draw(i / kDropBlock * kDropLanes + i % kDropLanes, bits);
    const index_t word = i / kDropLanes % 4;  // as an index it would put `bits` into the local memory of a GPU's thread
    write(word < 2 ? (word == 0 ? bits[0] : bits[1]) : (word == 2 ? bits[2] : bits[3]), at);
  }
};

/// The four elements that share counter i: one of each 16 in a block.
template <class T> struct DropoutLane {
  Dropout<T> one;
  index_t count;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    one.draw(i, bits);
    index_t at = i / kDropLanes * kDropBlock + i % kDropLanes;
    for (int k = 0; k < 4; ++k, at += kDropLanes)
      if (at < count) one.write(bits[k], at);
  }
};

/// An array with channels last: each element takes the number that it has in plain order.
template <class T> struct DropoutChannelsLast {
  Dropout<T> one;
  index_t channels, pixels;
  MC_HD void operator()(index_t at) const {
    const index_t row = at / channels, image = row / pixels;
    one.element((image * channels + at % channels) * pixels + row % pixels, at);
  }
};

}  // namespace mc
