// Loops for callers that know their element type only at run time: Cython layers, where dtype is 0 for float, 1 for double.
//
// A .pyx file names an instance once, as
//   void relu_forward "mc::cpu::map1<mc::ReluForward>"(int threads, int dtype, long long n, const void* x, void* y, double slope)
// and the trailing arguments become the members of the functor.
#pragma once
#include "minicaffe/cpu/apply.hpp"

namespace mc {
namespace cpu {

/// work(T()) with T = float for dtype 0, double otherwise; the argument only carries the type.
template <class Work> auto dispatch(int dtype, const Work& work) { return dtype == 0 ? work(float()) : work(double()); }

template <template <class> class F, class... P>
void map1(int threads, int dtype, index_t n, const void* x, void* y, P... members) {
  if (dtype == 0)
    map(threads, n, F<float>{float(members)...}, static_cast<const float*>(x), static_cast<float*>(y));
  else
    map(threads, n, F<double>{double(members)...}, static_cast<const double*>(x), static_cast<double*>(y));
}

template <template <class> class F, class... P>
void map2(int threads, int dtype, index_t n, const void* a, const void* b, void* y, P... members) {
  if (dtype == 0)
    map(threads, n, F<float>{float(members)...}, static_cast<const float*>(a), static_cast<const float*>(b),
        static_cast<float*>(y));
  else
    map(threads, n, F<double>{double(members)...}, static_cast<const double*>(a), static_cast<const double*>(b),
        static_cast<double*>(y));
}

template <template <class> class F, class... P>
void map3(int threads, int dtype, index_t n, const void* a, const void* b, const void* c, void* y, P... members) {
  if (dtype == 0)
    map(threads, n, F<float>{float(members)...}, static_cast<const float*>(a), static_cast<const float*>(b),
        static_cast<const float*>(c), static_cast<float*>(y));
  else
    map(threads, n, F<double>{double(members)...}, static_cast<const double*>(a), static_cast<const double*>(b),
        static_cast<const double*>(c), static_cast<double*>(y));
}

inline void fill_typed(int threads, int dtype, index_t n, double value, void* y) {
  if (dtype == 0)
    fill(threads, n, float(value), static_cast<float*>(y));
  else
    fill(threads, n, value, static_cast<double*>(y));
}

inline void copy_typed(int threads, int dtype, index_t n, const void* x, void* y) {
  index_t size = dtype == 0 ? 4 : 8;
  copy(threads, n * size, static_cast<const char*>(x), static_cast<char*>(y));
}

}  // namespace cpu
}  // namespace mc
