// Copying strips: pieces of rows that lie at equal distances in two blobs. Only bytes move, so one function serves every type.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

constexpr index_t kGrainBytes = 4 * kGrain;

/// Copy `rows` strips of `strip` bytes; the pitch is the distance in bytes between the starts of neighbouring strips.
inline void copy_strips(Threads threads, index_t rows, index_t strip, const void* x, index_t x_pitch, void* y, index_t y_pitch) {
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(y);
  if (rows == 1 || (x_pitch == strip && y_pitch == strip)) return copy(threads, rows * strip, from, to);
  parallel(threads, rows, kGrainBytes / std::max<index_t>(1, strip), [&](int, index_t b, index_t e) {
    for (index_t r = b; r < e; ++r) std::memcpy(to + r * y_pitch, from + r * x_pitch, size_t(strip));
  });
}

/// Copy the box of `size` that starts at `offset` in an array of shape `whole` to an array of shape `size`, or back.
/// The sizes of the last axis are in bytes.
inline void copy_box(Threads threads, int axes, const index_t* size, const index_t* whole, const index_t* offset, bool back, void* box,
                     void* array) {
  index_t rows = 1, strip = size[axes - 1];
  for (int a = 0; a + 1 < axes; ++a) rows *= size[a];
  parallel(threads, rows, kGrainBytes / std::max<index_t>(1, strip), [&](int, index_t b, index_t e) {
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

}  // namespace cpu
}  // namespace mc
