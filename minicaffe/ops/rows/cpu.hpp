// Picking rows of a matrix by indices, and adding rows back; for element types known at run time.
#pragma once
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

/// out = the n values of x as integers. Returns the position of the first that is not in 0..limit-1, or -1 if all are.
template <class T> index_t read_indices_of(index_t n, const T* x, index_t limit, int* out) {
  for (index_t i = 0; i < n; ++i) {
    if (!(x[i] > T(-1) && x[i] < T(limit))) return i;  // true for NaN as well
    out[i] = int(x[i]);
  }
  return -1;
}
inline index_t read_indices(int dtype, index_t n, const void* x, index_t limit, int* out) {
  return dtype == 0 ? read_indices_of(n, static_cast<const float*>(x), limit, out)
                    : read_indices_of(n, static_cast<const double*>(x), limit, out);
}

/// y[m] = x[index[m]] for rows of `bytes`
inline void gather_rows(Threads threads, index_t n, const int* index, index_t bytes, const void* x, void* y) {
  parallel(threads, n, 4 * kGrain / std::max<index_t>(1, bytes), [&](int, index_t b, index_t e) {
    for (index_t m = b; m < e; ++m)
      std::memcpy(static_cast<char*>(y) + m * bytes, static_cast<const char*>(x) + index[m] * bytes, size_t(bytes));
  });
}

/// y[index[m]] = x[m]
inline void scatter_rows(Threads threads, index_t n, const int* index, index_t bytes, const void* x, void* y) {
  parallel(threads, n, 4 * kGrain / std::max<index_t>(1, bytes), [&](int, index_t b, index_t e) {
    for (index_t m = b; m < e; ++m)
      std::memcpy(static_cast<char*>(y) + index[m] * bytes, static_cast<const char*>(x) + m * bytes, size_t(bytes));
  });
}

/// y[index[m]] += x[m] for rows of `columns` values. Threads share the columns, so each sum keeps the order of m.
template <class T> void add_rows_of(Threads threads, index_t n, const int* index, index_t columns, const void* x, void* y) {
  parallel(threads, columns, std::max<index_t>(1, kGrain / std::max<index_t>(1, n)), [&](int, index_t b, index_t e) {
    for (index_t m = 0; m < n; ++m) {
      const T* from = static_cast<const T*>(x) + m * columns;
      T* to = static_cast<T*>(y) + index[m] * columns;
      range(Map2<Axpy<T>, T>{{T(1)}, from, to, to}, b, e);
    }
  });
}
inline void add_rows(Threads threads, int dtype, index_t n, const int* index, index_t columns, const void* x, void* y) {
  (dtype == 0 ? add_rows_of<float> : add_rows_of<double>)(threads, n, index, columns, x, y);
}

}  // namespace cpu
}  // namespace mc
