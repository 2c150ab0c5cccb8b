// Picking rows of a matrix by indices, and adding rows back; for element types known at run time.
#pragma once
#include "minicaffe/ops/rows/kernel.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {
namespace cpu {

/// out = the n values of x, on the host, as integers. Returns the position of the first that is no integer of 0..limit-1, or -1.
template <class T> index_t read_indices(index_t n, const T* x, index_t limit, int* out) {
  for (index_t i = 0; i < n; ++i) {
    if (!(x[i] >= T(0) && x[i] < T(limit))) return i;  // true for NaN as well
    out[i] = int(x[i]);
    if (T(out[i]) != x[i]) return i;
  }
  return -1;
}

}  // namespace cpu

/// y[m] = x[index[m]], or with `back` y[index[m]] = x[m], for n rows of `bytes`, a multiple of 4; index is in the context's memory.
inline void copy_rows(const Context& on, index_t n, const int* index, index_t bytes, bool back, const void* x, void* y) {
  if (on.stream)
    return for_each(on, n * (bytes / 4),
                    RowCopy{index, bytes / 4, back, static_cast<const unsigned*>(x), static_cast<unsigned*>(y)});
  auto from = static_cast<const char*>(x);
  auto to = static_cast<char*>(y);
  parallel(on.threads, n, 4 * cpu::kGrain / std::max<index_t>(1, bytes), [&](int, index_t b, index_t e) {
    for (index_t m = b; m < e; ++m)
      std::memcpy(to + (back ? index[m] : m) * bytes, from + (back ? m : index[m]) * bytes, size_t(bytes));
  });
}

/// y[index[m]] += x[m] for rows of `columns` values. Threads share the columns, so each sum keeps the order of m.
template <class T> void add_rows(const Context& on, index_t n, const int* index, index_t columns, const T* x, T* y) {
  if (on.stream) return for_each(on, columns, AddRows<T>{n, columns, index, x, y});
  parallel(on.threads, columns, std::max<index_t>(1, cpu::kGrain / std::max<index_t>(1, n)), [&](int, index_t b, index_t e) {
    for (index_t m = 0; m < n; ++m) {
      T* to = y + index[m] * columns;
      cpu::range(Map<Axpy<T>, T, 2>{{T(1)}, {x + m * columns, to}, to}, b, e);
    }
  });
}

}  // namespace mc
