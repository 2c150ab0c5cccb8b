// One step of an LSTM for element types known at run time (ops/lstm/kernel.hpp).
#pragma once
#include "minicaffe/ops/lstm/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

constexpr index_t kLstmCost = 100;  // five exponentials a cell, in units of one element-wise operation

/// Shapes: c_prev, c, h (n, size); gates, acts (n, 4 size); cont (n).
inline void lstm_forward(const Context& on, int dtype, index_t n, index_t size, const void* c_prev, const void* gates,
                         const void* cont, void* acts, void* c, void* h) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n * size,
             LstmForward<T>{size, static_cast<const T*>(c_prev), static_cast<const T*>(gates), static_cast<const T*>(cont),
                            static_cast<T*>(acts), static_cast<T*>(c), static_cast<T*>(h)},
             kLstmCost);
  });
}

inline void lstm_backward(const Context& on, int dtype, index_t n, index_t size, const void* c_prev, const void* acts,
                          const void* c, const void* dc, const void* dh, void* dc_prev, void* dgates) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n * size,
             LstmBackward<T>{size, static_cast<const T*>(c_prev), static_cast<const T*>(acts), static_cast<const T*>(c),
                             static_cast<const T*>(dc), static_cast<const T*>(dh), static_cast<T*>(dc_prev),
                             static_cast<T*>(dgates)},
             kLstmCost);
  });
}

}  // namespace mc
