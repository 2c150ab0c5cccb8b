// Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). Random number i of a sequence is a pure function of (seed, i): it does not depend on the device, the number of threads,
// or whether the run was resumed.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

using u32 = unsigned int;
using u64 = unsigned long long;

/// The generator; it has no state except its key, `seed`.
struct Philox {
  u64 seed;
  /// Four independent 32-bit numbers for counter `i`, written to out[0..3].
  MC_HD void operator()(u64 i, u32 out[4]) const {
    u32 c0 = u32(i), c1 = u32(i >> 32), c2 = 0, c3 = 0;
    u32 k0 = u32(seed), k1 = u32(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      u64 p0 = u64(0xD2511F53u) * c0, p1 = u64(0xCD9E8D57u) * c2;
      c0 = u32(p1 >> 32) ^ c1 ^ k0;
      c1 = u32(p1);
      c2 = u32(p0 >> 32) ^ c3 ^ k1;
      c3 = u32(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
  }
};

/// Uniform in [0, 1) with 24 random bits.
MC_HD double uniform_(u32 bits) { return double(bits >> 8) * (1.0 / 16777216.0); }

// The functors below fill arrays: element i has counter start + i; `start` is the first of the counters that the generator reserved
// for the array. So each element is computed alone; the rest of its four numbers is not used.

/// y[i] = lo + (hi - lo) U[0, 1)
template <class T> struct FillUniform {
  Philox random;
  u64 start;
  T lo, hi;
  T* y;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    random(start + u64(i), bits);
    y[i] = T(double(lo) + (double(hi) - double(lo)) * uniform_(bits[0]));
  }
};

/// y[i] = mean + std N(0, 1), by the Box-Muller transform.
template <class T> struct FillGaussian {
  Philox random;
  u64 start;
  T mean, std;
  T* y;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    random(start + u64(i), bits);
    double radius = sqrt_(-2.0 * log_(1.0 - uniform_(bits[0])));
    y[i] = T(double(mean) + double(std) * radius * cos_(6.283185307179586 * uniform_(bits[1])));
  }
};

/// y[i] stays with probability p, else it becomes 0: sparse weights of a filler.
template <class T> struct KeepWithProbability {
  Philox random;
  u64 start;
  double p;
  T* y;
  MC_HD void operator()(index_t i) const {
    u32 bits[4];
    random(start + u64(i), bits);
    y[i] = uniform_(bits[0]) < p ? y[i] : T(0);
  }
};

}  // namespace mc
