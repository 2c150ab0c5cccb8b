// The table of the element types of blobs; dispatch, sizes, NumPy's names and Python's numbers are generated from it.
//
// A row: name and number (minicaffe.blob.Dtype), the type in memory, the type of computations, the accumulator type of sums,
// NumPy's name. Layers compute on MC_COMPUTED_TYPES; blobs of the other MC_TYPES only store values. MC_LAYOUT_TYPES occur only in
// layouts of engines (memory/layout.pyx).
#pragma once
#include "minicaffe/kernels/config.hpp"

#define MC_COMPUTED_TYPES(ROW)                     \
  ROW(FLOAT, 0, float, float, double, "float32")   \
  ROW(DOUBLE, 1, double, double, double, "float64")
#define MC_TYPES(ROW) MC_COMPUTED_TYPES(ROW) ROW(INT, 2, int, int, long long, "int32")
#define MC_LAYOUT_TYPES(ROW) ROW(BF16, 3, Bf16, float, double, "bfloat16")

namespace mc {

#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) NAME = NUMBER,
enum Dtype { MC_TYPES(MC_ROW) MC_LAYOUT_TYPES(MC_ROW) };
#undef MC_ROW

/// The upper half of a float. A storage type only: computations use float.
struct Bf16 {
  unsigned short bits;
  Bf16() = default;
  MC_HD Bf16(float x) {  // rounds to nearest, ties to even
    const Both both = {x};
    bits = x != x ? both.bits >> 16 | 64 : (both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16;
  }
  MC_HD operator float() const {
    Both both;
    both.bits = unsigned(bits) << 16;
    return both.value;
  }

 private:
  union Both {
    float value;
    unsigned bits;
  };
};

template <class T> struct Element;  // of a type in memory: the type of computations, and of sums
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) \
  template <> struct Element<STORED> {                     \
    using Compute = COMPUTED;                              \
    using Sum = SUM;                                       \
  };
MC_TYPES(MC_ROW) MC_LAYOUT_TYPES(MC_ROW)
#undef MC_ROW

#ifndef __CUDACC_RTC__
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) sizeof(STORED),
constexpr unsigned kItemSizes[] = {MC_TYPES(MC_ROW) MC_LAYOUT_TYPES(MC_ROW)};
#undef MC_ROW
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) NUMPY,
constexpr const char* kNumpyNames[] = {MC_TYPES(MC_ROW)};
#undef MC_ROW
constexpr int kTypes = sizeof(kNumpyNames) / sizeof(kNumpyNames[0]);  // of blobs

/// Bytes of an element.
constexpr long long item_size(int dtype) { return kItemSizes[dtype]; }
constexpr const char* numpy_name(int dtype) { return kNumpyNames[dtype]; }

/// Whether layers compute on this type.
constexpr bool is_computed(int dtype) {
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) || dtype == NUMBER
  return false MC_COMPUTED_TYPES(MC_ROW);
#undef MC_ROW
}

/// Return work(T()) with the type T of `dtype`, one that layers compute on; `work` uses only the type of its argument.
template <class Work> auto dispatch(int dtype, const Work& work) {
  switch (dtype) {
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) \
  case NUMBER: return work(STORED());
    MC_COMPUTED_TYPES(MC_ROW)
#undef MC_ROW
  }
  __builtin_trap();  // layers and blobs have rejected other types
}

/// As dispatch, for arrays that may be in an engine's layout, so that T may also be Bf16.
template <class Work> auto dispatch_layout(int dtype, const Work& work) {
  switch (dtype) {
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) \
  case NUMBER: return work(STORED());
    MC_LAYOUT_TYPES(MC_ROW)
#undef MC_ROW
  }
  return dispatch(dtype, work);
}
#endif

}  // namespace mc
