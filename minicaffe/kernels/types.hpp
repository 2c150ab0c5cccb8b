// The element types of blobs, a row each, from which dispatch, sizes, NumPy's names and the numbers that Python sees come.
//
// A row: name and number (minicaffe.blob.Dtype), the type in memory, the type that functors compute in, the type that sums are
// added up in, NumPy's name. Layers compute on the types of MC_COMPUTED_TYPES; blobs of the others only keep values.
#pragma once

#define MC_COMPUTED_TYPES(ROW)                     \
  ROW(FLOAT, 0, float, float, double, "float32")   \
  ROW(DOUBLE, 1, double, double, double, "float64")
#define MC_TYPES(ROW) MC_COMPUTED_TYPES(ROW) ROW(INT, 2, int, int, long long, "int32")

namespace mc {

#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) NAME = NUMBER,
enum Dtype { MC_TYPES(MC_ROW) };
#undef MC_ROW

template <class T> struct Element;
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) \
  template <> struct Element<STORED> {                     \
    using Compute = COMPUTED;                              \
    using Sum = SUM;                                       \
  };
MC_TYPES(MC_ROW)
#undef MC_ROW

#ifndef __CUDACC_RTC__
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) sizeof(STORED),
constexpr unsigned kItemSizes[] = {MC_TYPES(MC_ROW)};
#undef MC_ROW
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) NUMPY,
constexpr const char* kNumpyNames[] = {MC_TYPES(MC_ROW)};
#undef MC_ROW
constexpr int kTypes = sizeof(kItemSizes) / sizeof(kItemSizes[0]);

/// Bytes of an element.
constexpr long long item_size(int dtype) { return kItemSizes[dtype]; }
constexpr const char* numpy_name(int dtype) { return kNumpyNames[dtype]; }

/// Whether layers compute on that type.
constexpr bool is_computed(int dtype) {
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) || dtype == NUMBER
  return false MC_COMPUTED_TYPES(MC_ROW);
#undef MC_ROW
}

/// work(T()) with the T that dtype stands for, one that layers compute on; the argument only carries the type.
template <class Work> auto dispatch(int dtype, const Work& work) {
  switch (dtype) {
#define MC_ROW(NAME, NUMBER, STORED, COMPUTED, SUM, NUMPY) \
  case NUMBER: return work(STORED());
    MC_COMPUTED_TYPES(MC_ROW)
#undef MC_ROW
  }
  __builtin_trap();  // layers and blobs have refused any other
}
#endif

}  // namespace mc
