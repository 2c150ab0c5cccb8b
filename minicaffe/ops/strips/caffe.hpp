// Copying strips and boxes: pieces of rows that lie at equal distances in two blobs. Only bytes move, always multiples of 4.
#pragma once
#include "minicaffe/ops/strips/cpu.hpp"
#include "minicaffe/ops/strips/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

/// As cpu::copy_strips.
inline void copy_strips(const Context& on, index_t rows, index_t strip, const void* x, index_t x_pitch, void* y, index_t y_pitch) {
  if (!on.stream) return cpu::copy_strips(on.threads, rows, strip, x, x_pitch, y, y_pitch);
  for_each(on, rows * (strip / 4),
           StripCopy{strip / 4, x_pitch / 4, y_pitch / 4, static_cast<const unsigned*>(x), static_cast<unsigned*>(y)});
}

/// As cpu::copy_box.
inline void copy_box(const Context& on, int axes, const index_t* size, const index_t* whole, const index_t* offset, bool back,
                     void* box, void* array) {
  if (!on.stream) return cpu::copy_box(on.threads, axes, size, whole, offset, back, box, array);
  BoxCopy copy = {axes, back, {}, {}, {}, static_cast<unsigned*>(box), static_cast<unsigned*>(array)};
  index_t count = 1;
  for (int a = 0; a < axes; ++a) {
    index_t unit = a + 1 == axes ? 4 : 1;
    copy.size[a] = size[a] / unit, copy.whole[a] = whole[a] / unit, copy.offset[a] = offset[a] / unit;
    count *= copy.size[a];
  }
  for_each(on, count, copy);
}

}  // namespace mc
