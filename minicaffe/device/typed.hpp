// Loops for callers that know their element type only at run time: Cython layers, where dtype is 0 for float, 1 for double.
//
// A .pyx file names an instance once, as
//   void relu_forward "mc::map1<mc::ReluForward>"(const Context& on, int dtype, long long n, const void* x, void* y, double slope)
// and the trailing arguments become the members of the functor.
#pragma once
#include "minicaffe/device/context.hpp"

namespace mc {

template <template <class> class F, class... P>
void map1(const Context& on, int dtype, index_t n, const void* x, void* y, P... members) {
  if (dtype == 0)
    map(on, n, F<float>{float(members)...}, static_cast<const float*>(x), static_cast<float*>(y));
  else
    map(on, n, F<double>{double(members)...}, static_cast<const double*>(x), static_cast<double*>(y));
}

template <template <class> class F, class... P>
void map2(const Context& on, int dtype, index_t n, const void* a, const void* b, void* y, P... members) {
  if (dtype == 0)
    map(on, n, F<float>{float(members)...}, static_cast<const float*>(a), static_cast<const float*>(b),
        static_cast<float*>(y));
  else
    map(on, n, F<double>{double(members)...}, static_cast<const double*>(a), static_cast<const double*>(b),
        static_cast<double*>(y));
}

template <template <class> class F, class... P>
void map3(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* c, void* y, P... members) {
  if (dtype == 0)
    map(on, n, F<float>{float(members)...}, static_cast<const float*>(a), static_cast<const float*>(b),
        static_cast<const float*>(c), static_cast<float*>(y));
  else
    map(on, n, F<double>{double(members)...}, static_cast<const double*>(a), static_cast<const double*>(b),
        static_cast<const double*>(c), static_cast<double*>(y));
}

inline void fill_typed(const Context& on, int dtype, index_t n, double value, void* y) {
  if (dtype == 0)
    fill(on, n, float(value), static_cast<float*>(y));
  else
    fill(on, n, value, static_cast<double*>(y));
}

inline void copy_typed(const Context& on, int dtype, index_t n, const void* x, void* y) {
  if (x == y) return;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    map(on, n, Same<T>{}, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

}  // namespace mc
