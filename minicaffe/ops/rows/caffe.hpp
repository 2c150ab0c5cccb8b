// Picking rows of a matrix by indices, and adding rows back; for element types known at run time.
#pragma once
#include "minicaffe/ops/rows/cpu.hpp"
#include "minicaffe/ops/rows/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

/// y[m] = x[index[m]] for rows of `bytes`, a multiple of 4; index is in the memory of the context
inline void gather_rows(const Context& on, index_t n, const int* index, index_t bytes, const void* x, void* y) {
  if (!on.stream) return cpu::gather_rows(on.threads, n, index, bytes, x, y);
  for_each(on, n * (bytes / 4), RowCopy{index, bytes / 4, false, static_cast<const unsigned*>(x), static_cast<unsigned*>(y)});
}

/// y[index[m]] = x[m]
inline void scatter_rows(const Context& on, index_t n, const int* index, index_t bytes, const void* x, void* y) {
  if (!on.stream) return cpu::scatter_rows(on.threads, n, index, bytes, x, y);
  for_each(on, n * (bytes / 4), RowCopy{index, bytes / 4, true, static_cast<const unsigned*>(x), static_cast<unsigned*>(y)});
}

/// y[index[m]] += x[m] for rows of `columns` values
inline void add_rows(const Context& on, int dtype, index_t n, const int* index, index_t columns, const void* x, void* y) {
  if (!on.stream) return cpu::add_rows(on.threads, dtype, n, index, columns, x, y);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, columns, AddRows<T>{n, columns, index, static_cast<const T*>(x), static_cast<T*>(y)});
  });
}

}  // namespace mc
