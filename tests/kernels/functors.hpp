// Functors and kernels of the tests, which NVRTC compiles as well.
#pragma once
#include "minicaffe/kernels/grid.hpp"

template <class T> struct Weighted {
  T a, b, c;
  MC_HD T operator()(T x) const { return a * x; }
  MC_HD T operator()(T x, T y) const { return a * x + b * y; }
  MC_HD T operator()(T x, T y, T z) const { return a * x + b * y + c * z; }
};

/// y[i] = the value of the thread across the block; wrong in one of the two orders if a thread does not wait for it.
template <bool waits> struct Across {
  static constexpr int kThreads = 64;
  static constexpr bool kBarriers = true;
  struct Shared {
    int value[kThreads];
  };
  int* y;
  MC_DEVICE void operator()(const mc::Thread& t, Shared& room) const {
    room.value[t.thread()] = int(t.thread());
    if (waits) t.barrier();
    y[t.thread()] = room.value[kThreads - 1 - t.thread()];
  }
};
