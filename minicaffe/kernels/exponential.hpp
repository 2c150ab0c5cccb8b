// The exponential function and tanh of floats, written so that a compiler can vectorise a loop over them: those of the C library
// are a call for each element. NVRTC uses the device's own.
#pragma once
#include "minicaffe/kernels/config.hpp"
#ifndef __CUDACC_RTC__
#include <cmath>
#include <cstring>
#endif

namespace mc {

template <class T> MC_HD T vector_exp(T x) { return exp_(x); }
template <class T> MC_HD T vector_tanh(T x) { return tanh_(x); }

#ifndef __CUDACC_RTC__
/// x = n ln 2 + r with |r| at most ln 2 / 2: return n, and set `rest` to e^r - 1 by Taylor's series up to r^7.
MC_HD int reduced_exp(float x, float& rest) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 2^23: rounds to an integer, which the lowest bits hold
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;    // ln 2 in two parts, the first exact in 10 bits
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  rest = p * r * r + r;
  unsigned bits;
  std::memcpy(&bits, &shifted, 4);
  return int(bits - 0x4B400000u);  // defined for NaN, too, unlike int(n)
}
/// 2^n, for a normal result
MC_HD float power_of_two(int n) {
  const unsigned bits = (unsigned(n) + 127u) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return power;
}

/// e^x for x <= 88 within 2 units in the last place. Below -87 the result is at most e^-87 and shrinks to 0; NaN stays NaN.
MC_HD float vector_exp(float x) {
  float rest;
  const int n = reduced_exp(x < -104.0f ? -104.0f : x, rest), half = n / 2;  // written so that NaN passes
  // 2^n as the product of two powers, since 2^n itself may be below the smallest normal number.
  return (rest + 1.0f) * power_of_two(half) * power_of_two(n - half);
}

/// u / (u + 2) with u = e^2x - 1, within 3 units in the last place; NaN and -0 stay. From |x| = 10 on it is 1 in float.
MC_HD float vector_tanh(float x) {
  float rest;
  const float twice = x < -10.0f ? -20.0f : x > 10.0f ? 20.0f : 2.0f * x;
  const float power = power_of_two(reduced_exp(twice, rest)), u = power * rest + (power - 1.0f);
  return std::copysign(u / (u + 2.0f), x);
}
#endif

}  // namespace mc
