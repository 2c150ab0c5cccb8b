// Dropout (ops/dropout/kernel.hpp): vector registers on the CPU, four elements a thread on a device.
#pragma once
#include "minicaffe/ops/dropout/kernel.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {
namespace cpu {

/// Whole blocks of 64 elements in vector registers, what is left over one by one.
template <class T> struct DropoutBlock {
  Dropout<T> one;  // the same for one element
  index_t count;   // elements of the array
  MC_HD void operator()(index_t block) const {
    index_t begin = block * kDropBlock;
    if (begin + kDropBlock > count) {
      for (index_t i = begin; i < count; ++i) one(i);
      return;
    }
    // Philox::operator() with each of its four words as a row of lanes, widened to what a product of two words needs.
    u64 c0[kDropLanes], c1[kDropLanes], c2[kDropLanes], c3[kDropLanes];
    const u64 counter = one.start + u64(block) * kDropLanes, low = 0xFFFFFFFFu;
    for (int k = 0; k < kDropLanes; ++k) {
      c0[k] = (counter + u64(k)) & low;
      c1[k] = (counter + u64(k)) >> 32;
      c2[k] = c3[k] = 0;
    }
    u64 k0 = one.random.seed & low, k1 = one.random.seed >> 32;
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1
      for (int k = 0; k < kDropLanes; ++k) {
        u64 p0 = u64(0xD2511F53u) * c0[k], p1 = u64(0xCD9E8D57u) * c2[k];
        c0[k] = (p1 >> 32) ^ c1[k] ^ k0;
        c1[k] = p1 & low;
        c2[k] = (p0 >> 32) ^ c3[k] ^ k1;
        c3[k] = p0 & low;
      }
      k0 = (k0 + 0x9E3779B9u) & low;
      k1 = (k1 + 0xBB67AE85u) & low;
    }
    keep(c0, begin);
    keep(c1, begin + kDropLanes);
    keep(c2, begin + 2 * kDropLanes);
    keep(c3, begin + 3 * kDropLanes);
  }

  /// Elements from `begin` on: each is kept if its random word is large enough.
  MC_HD void keep(const u64* words, index_t begin) const {
    const T* x = one.x + begin;
    T* y = one.y + begin;
    const u64 threshold = one.threshold;
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int k = 0; k < kDropLanes; ++k) {
      T scaled = x[k] * one.scale;  // computed for all lanes, so that the choice is a blend and no branch
      y[k] = words[k] >= threshold ? scaled : T(0);
    }
  }
};

}  // namespace cpu

/// y = x times the mask of `seed` and `start`: data in forward, with a new `start`, and gradients in backward, with the same one.
/// `channels` and `pixels` are those of images with channels last, on a device; channels is 0 for plain order.
inline void dropout(const Context& on, int dtype, index_t n, index_t channels, index_t pixels, u64 seed, u64 start, u32 threshold,
                    double scale, const void* x, void* y) {
  const index_t blocks = (n + kDropBlock - 1) / kDropBlock;
  dispatch_layout(dtype, [&](auto type) {
    using T = decltype(type);
    Dropout<T> one{Philox{seed}, start, on.stream ? on.stream->drawn : nullptr, threshold, typename Element<T>::Compute(scale),
                   static_cast<const T*>(x), static_cast<T*>(y)};
    if (channels) return for_each(on, n, DropoutChannelsLast<T>{one, channels, pixels});
    if (on.stream) return for_each(on, blocks * kDropLanes, DropoutLane<T>{one, n});
    if constexpr (!std::is_same_v<T, Bf16>)  // of which the CPU draws no masks
      cpu::for_each(on.threads, blocks, cpu::DropoutBlock<T>{one, n}, 2 * kDropBlock);
  });
}

}  // namespace mc
