// Array: the elements of a blob, float32 or float64, for the plain loops (ops/*/plain.hpp). They are read as doubles.
#pragma once
#include "minicaffe/kernels/types.hpp"

namespace mc::plain {

/// Float or double elements at one address, which a plain loop indexes as if they were doubles; null is false.
class Array {
  void* data;
  bool wide;  // elements are doubles, else floats

 public:
  Array(const void* data, int dtype) : data(const_cast<void*>(data)), wide(dtype == DOUBLE) {}
  Array(const float* data) : Array(data, FLOAT) {}
  Array(const double* data) : Array(data, DOUBLE) {}
  explicit operator bool() const { return data; }

  /// An element that is read and written as a double.
  struct Element {
    const Array& of;
    index_t i;
    operator double() const { return of.wide ? static_cast<double*>(of.data)[i] : static_cast<float*>(of.data)[i]; }
    void operator=(double value) const {
      if (of.wide) static_cast<double*>(of.data)[i] = value;
      else static_cast<float*>(of.data)[i] = float(value);
    }
    void operator+=(double value) const { *this = *this + value; }
  };
  Element operator[](index_t i) const { return {*this, i}; }
};

}  // namespace mc::plain
