// Loops for an element type known only at run time: for Cython layers, with a dtype of kernels/types.hpp.
//
// A .pyx file declares an instance once, as
//   void relu_forward "mc::map1<mc::ReluForward>"(const Context& on, int dtype, long long n, const void* x, void* y, double slope)
// and the trailing arguments become the members of the functor. A missing one is a compile error.
#pragma once
#include <utility>
#include "minicaffe/device/context.hpp"

namespace mc {

/// A void pointer becomes a pointer to T; `member`, of a functor over T, also converts a double to T. Others stay as they are.
template <class T> const T* typed_pointer(const void* const& p) { return static_cast<const T*>(p); }
template <class T> T* typed_pointer(void* const& p) { return static_cast<T*>(p); }
template <class T, class P> const P& typed_pointer(const P& other) { return other; }
template <class T> const T* member(const void* p) { return static_cast<const T*>(p); }
template <class T> T* member(void* p) { return static_cast<T*>(p); }
template <class T> T member(double x) { return T(x); }
template <class T, class P> const P& member(const P& other) { return other; }

/// A function template over the element type T as a function of (dtype, arguments...), whose void pointers become pointers to T:
///   void softmax_forward "MC_TYPED(mc::softmax_forward)"(int dtype, const Context&, ..., const void* x, void* y)
#define MC_TYPED(function) mc::typed([](const auto&... arguments) { return function(arguments...); })
template <class Function> auto typed(const Function& function) {
  return [=](int dtype, const auto&... arguments) {
    return dispatch(dtype, [&](auto type) { return function(typed_pointer<decltype(type)>(arguments)...); });
  };
}

/// As MC_TYPED, for plain loops: a function of (dtype, Context, arguments...) that computes nothing in a dry run (threads.pyx).
#define MC_PLAIN(function) mc::unless_dry(MC_TYPED(function))
template <class Function> auto unless_dry(const Function& function) {
  return [=](int dtype, const Context& on, const auto&... arguments) {
    if (!on.threads.pool || !on.threads.pool->dry()) function(dtype, arguments...);
  };
}

/// A guess for one more member: it converts to any type. lacks_member gives true if F can be initialized with P and this.
struct AnyMember {
  template <class P> operator P() const;
};
template <class F, class... P> auto lacks_member(int) -> decltype(F{std::declval<P>()..., AnyMember()}, std::true_type());
template <class F, class... P> std::false_type lacks_member(long);

/// A functor with these members; a compile error if it has more, which would be 0.
template <class F, class... P> F make(const P&... members) {
  static_assert(!decltype(lacks_member<F, P...>(0))::value, "a member of this functor is not given");
  return F{members...};
}

/// A function of (x..., y), up to three inputs and the output: y[i] = F(x[i]...) with the members of F. Arrays may be Bf16; F
/// then computes on float.
template <template <class> class F, class... P> auto mapping(const Context& on, int dtype, index_t n, P... members) {
  return [=](auto... arrays) {
    dispatch_layout(dtype, [&](auto type) {
      using T = decltype(type);
      using C = typename Element<T>::Compute;
      map(on, n, make<F<C>>(member<C>(members)...), member<T>(arrays)...);
    });
  };
}
template <template <class> class F, class... P>
void map1(const Context& on, int dtype, index_t n, const void* x, void* y, P... members) {
  mapping<F>(on, dtype, n, members...)(x, y);
}
template <template <class> class F, class... P>
void map2(const Context& on, int dtype, index_t n, const void* a, const void* b, void* y, P... members) {
  mapping<F>(on, dtype, n, members...)(a, b, y);
}
template <template <class> class F, class... P>
void map3(const Context& on, int dtype, index_t n, const void* a, const void* b, const void* c, void* y, P... members) {
  mapping<F>(on, dtype, n, members...)(a, b, c, y);
}

/// F(i) for 0 <= i < n; `cost` as in for_each.
template <template <class> class F, class... P>
void each_typed(const Context& on, int dtype, index_t n, index_t cost, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_each(on, n, make<F<T>>(member<T>(members)...), cost);
  });
}

inline void fill_typed(const Context& on, int dtype, index_t n, double value, void* y) {
  dispatch(dtype, [&](auto type) { fill(on, n, decltype(type)(value), static_cast<decltype(type)*>(y)); });
}

inline void copy_typed(const Context& on, int dtype, index_t n, const void* x, void* y) {
  if (x != y) map1<Same>(on, dtype, n, x, y);
}

}  // namespace mc
