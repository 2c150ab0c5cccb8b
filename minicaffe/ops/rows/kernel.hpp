// Picking rows of a matrix by indices, and adding rows back: one element a time, for the grid of a device.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// y[m] = x[index[m]], or with `back` y[index[m]] = x[m], for rows of `row` 4-byte words
struct RowCopy {
  const int* index;
  index_t row;
  bool back;
  const unsigned *x;
  unsigned *y;
  MC_HD void operator()(index_t i) const {
    index_t m = i / row, j = i - m * row, far = index[m] * row + j;
    if (back) y[far] = x[i];
    else y[i] = x[far];
  }
};

/// Column j: y[index[m]][j] += x[m][j] for all m in order, so that the sum does not depend on the device.
template <class T> struct AddRows {
  index_t n, columns;
  const int* index;
  const T* x;
  T* y;
  MC_HD void operator()(index_t j) const {
    for (index_t m = 0; m < n; ++m) y[index[m] * columns + j] += x[m * columns + j];
  }
};

}  // namespace mc
