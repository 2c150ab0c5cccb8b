// The gradient of a blob that was repeated along an axis (ops/tile/kernel.hpp), for element types known at run time.
#pragma once
#include "minicaffe/ops/tile/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

inline void tile_backward(const Context& on, int dtype, index_t n, index_t inner, index_t tiles, const void* dy, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n, TileBackward<T>{inner, tiles, static_cast<const T*>(dy), static_cast<T*>(dx)}, tiles + 4);
  });
}

}  // namespace mc
