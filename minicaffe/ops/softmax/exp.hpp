// An exponential that the compiler can vectorise; the one of the C library is a call per element.
#pragma once
#include <cstring>
#include "minicaffe/kernels/config.hpp"

namespace mc {
namespace cpu {

/// e^x for x <= 88, within 2 units in the last place: 2^n e^r with r = x - n ln 2 and Taylor's series of e^r up to r^7.
/// Below -87 the result is at most e^-87 and shrinks to 0; NaN stays NaN.
MC_HD float fast_exp(float x) {
  float clamped = x < -104.0f ? -104.0f : x;  // written so that NaN passes
  float n = clamped * 1.44269504f;
  n = (n + 12582912.0f) - 12582912.0f;  // 1.5 2^23: rounds to an integer
  float r = clamped - n * 0.693359375f;  // ln 2 in two parts, the first exact in 10 bits
  r = r + n * 2.12194440e-4f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n as the product of two powers, since 2^n itself may be below the smallest normal number.
  int half = int(n) / 2, rest = int(n) - half;
  int first_bits = (half + 127) << 23, second_bits = (rest + 127) << 23;
  float first, second;
  std::memcpy(&first, &first_bits, 4);
  std::memcpy(&second, &second_bits, 4);
  return p * first * second;
}
MC_HD double fast_exp(double x) { return exp_(x); }

}  // namespace cpu
}  // namespace mc
