// Copies between tensors of one shape whose elements lie in different orders, for element types known at run time.
#pragma once
#include "minicaffe/ops/strided/caffe.hpp"

namespace mc {

/// y = x, element for element; strides are in elements, one for each of `axes` axes.
inline void copy_strided(const Context& on, int dtype, int axes, const index_t* sizes, const void* x, const index_t* x_strides,
                         void* y, const index_t* y_strides) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const T* const from[1] = {static_cast<const T*>(x)};
    const index_t* const from_strides[1] = {x_strides};
    map_strided(on, axes, sizes, Same<T>{}, from, from_strides, static_cast<T*>(y), y_strides);
  });
}

}  // namespace mc
