// Dropout: vector registers on the CPU, four elements a thread on a device (ops/dropout/kernel.hpp).
#pragma once
#include "minicaffe/ops/dropout/cpu.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {

inline void dropout(const Context& on, int dtype, index_t n, u64 seed, u64 start, u32 threshold, double scale, const void* x,
                    void* y) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    Dropout<T> one{Philox{seed}, start, threshold, T(scale), static_cast<const T*>(x), static_cast<T*>(y)};
    if (on.stream)
      for_each(on, (n + kDropBlock - 1) / kDropBlock * kDropLanes, DropoutLane<T>{one, n, on.stream->drawn});
    else
      cpu::dropout(on.threads, n, one);
  });
}

}  // namespace mc
