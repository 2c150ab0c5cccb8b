// Copying strips and boxes: pieces of rows that lie at equal distances in two blobs. Only bytes move, always multiples of 4.
#pragma once
#include "minicaffe/ops/strips/kernel.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {

/// Copy `rows` strips of `strip` bytes; the pitch is the distance in bytes between the starts of neighbouring strips.
inline void copy_strips(const Context& on, index_t rows, index_t strip, const void* x, index_t x_pitch, void* y, index_t y_pitch) {
  if (on.stream)
    return for_each(on, rows * (strip / 4),
                    StripCopy{strip / 4, x_pitch / 4, y_pitch / 4, static_cast<const unsigned*>(x), static_cast<unsigned*>(y)});
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(y);
  if (rows == 1 || (x_pitch == strip && y_pitch == strip)) return cpu::copy(on.threads, rows * strip, from, to);
  parallel(on.threads, rows, 4 * cpu::kGrain / std::max<index_t>(1, strip), [&](int, index_t b, index_t e) {
    for (index_t r = b; r < e; ++r) std::memcpy(to + r * y_pitch, from + r * x_pitch, size_t(strip));
  });
}

/// Copy the box of `size` that starts at `offset` in an array of shape `whole` to an array of shape `size`, or back.
/// The sizes of the last axis are in bytes.
inline void copy_box(const Context& on, int axes, const index_t* size, const index_t* whole, const index_t* offset, bool back,
                     void* box, void* array) {
  if (on.stream) {
    BoxCopy copy = {axes, back, {}, {}, {}, static_cast<unsigned*>(box), static_cast<unsigned*>(array)};
    index_t count = 1;
    for (int a = 0; a < axes; ++a) {
      index_t unit = a + 1 == axes ? 4 : 1;
      copy.size[a] = size[a] / unit, copy.whole[a] = whole[a] / unit, copy.offset[a] = offset[a] / unit;
      count *= copy.size[a];
    }
    return for_each(on, count, copy);
  }
  index_t rows = 1, strip = size[axes - 1];
  for (int a = 0; a + 1 < axes; ++a) rows *= size[a];
  parallel(on.threads, rows, 4 * cpu::kGrain / std::max<index_t>(1, strip), [&](int, index_t b, index_t e) {
    for (index_t r = b; r < e; ++r) {
      index_t rest = r, position = offset[axes - 1], pitch = whole[axes - 1];
      for (int a = axes - 2; a >= 0; --a) {
        position += (offset[a] + rest % size[a]) * pitch;
        rest /= size[a];
        pitch *= whole[a];
      }
      char *inside = static_cast<char*>(array) + position, *outside = static_cast<char*>(box) + r * strip;
      std::memcpy(back ? inside : outside, back ? outside : inside, size_t(strip));
    }
  });
}

}  // namespace mc
