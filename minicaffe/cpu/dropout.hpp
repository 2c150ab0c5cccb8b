// Dropout on the CPU: whole blocks of 64 elements in vector registers, what is left over one by one.
#pragma once
#include "minicaffe/cpu/typed.hpp"
#include "minicaffe/kernels/dropout.hpp"

namespace mc {
namespace cpu {

template <class T> struct DropoutBlock {
  Dropout<T> one;
  index_t count;
  MC_HD void operator()(index_t block) const {
    index_t begin = block * kDropBlock;
    if (begin + kDropBlock > count) {
      for (index_t i = begin; i < count; ++i) one(i);
      return;
    }
    // Philox::operator() with its four words as rows of lanes and the loop over rounds outside.
    u32 c0[kDropLanes], c1[kDropLanes], c2[kDropLanes], c3[kDropLanes];
    u64 counter = one.start + u64(block) * kDropLanes;
    for (int k = 0; k < kDropLanes; ++k) {
      c0[k] = u32(counter + u64(k));
      c1[k] = u32((counter + u64(k)) >> 32);
      c2[k] = c3[k] = 0;
    }
    u32 k0 = u32(one.random.seed), k1 = u32(one.random.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int k = 0; k < kDropLanes; ++k) {
        u64 p0 = u64(0xD2511F53u) * c0[k], p1 = u64(0xCD9E8D57u) * c2[k];
        c0[k] = u32(p1 >> 32) ^ c1[k] ^ k0;
        c1[k] = u32(p1);
        c2[k] = u32(p0 >> 32) ^ c3[k] ^ k1;
        c3[k] = u32(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const u32* words[4] = {c0, c1, c2, c3};
    for (int word = 0; word < 4; ++word) {
      const T* x = one.x + begin + word * kDropLanes;
      T* y = one.y + begin + word * kDropLanes;
#pragma GCC ivdep
      for (int k = 0; k < kDropLanes; ++k) y[k] = words[word][k] >= one.threshold ? x[k] * one.scale : T(0);
    }
  }
};

inline void dropout(int threads, int dtype, index_t n, u64 seed, u64 start, u32 threshold, double scale, const void* x,
                    void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    Dropout<T> one{Philox{seed}, start, threshold, T(scale), static_cast<const T*>(x), static_cast<T*>(y)};
    for_each(threads, (n + kDropBlock - 1) / kDropBlock, DropoutBlock<T>{one, n}, 2 * kDropBlock);
  });
}

}  // namespace cpu
}  // namespace mc
