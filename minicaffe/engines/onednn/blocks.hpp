// Reorder from oneDNN's layout of the gradient of weights to that of the parameter. oneDNN's own reorder takes up to ten times as
// long if the number of inputs is a large power of two: it alternates writes to addresses a multiple of 4096 bytes apart.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace onednn {

/// Row `row` of from_blocks, 16 outputs: x has blocks of places x 16 inputs x 16 outputs, y is outputs x inputs x places.
template <bool kAdd> struct FromBlocks {
  const float* x;
  float* y;
  index_t inputs, places;

  MC_HD void operator()(index_t row) const {
    for (index_t i = 0; i < inputs; i += 16)
      for (index_t output = 0; output < 16; ++output) {
        const float* from = x + (row * inputs + i) * places * 16 + output;
        float* to = y + ((row * 16 + output) * inputs + i) * places;
        if (places == 1)
          for (index_t k = 0; k < 16; ++k) set(to[k], from[k * 16]);
        else
          for (index_t place = 0; place < places; ++place)
            for (index_t k = 0; k < 16; ++k) set(to[k * places + place], from[(place * 16 + k) * 16]);
      }
  }
  static MC_HD void set(float& to, float value) { to = kAdd ? to + value : value; }
};

/// y = x, or y += x with `add`: x the gradient of weights in oneDNN's blocks, y in plain order. Outputs and inputs are multiples of
/// 16, places those of the kernel.
inline void from_blocks(cpu::Threads threads, index_t outputs, index_t inputs, index_t places, bool add, const float* x, float* y) {
  const index_t cost = 16 * inputs * places;
  if (add)
    cpu::for_each(threads, outputs / 16, FromBlocks<true>{x, y, inputs, places}, cost);
  else
    cpu::for_each(threads, outputs / 16, FromBlocks<false>{x, y, inputs, places}, cost);
}

}  // namespace onednn
}  // namespace mc
