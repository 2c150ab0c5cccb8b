// The fused parameter update (kernels/update.hpp) for callers that know the element type at run time, as in typed.hpp.
#pragma once
#include "minicaffe/cpu/apply.hpp"
#include "minicaffe/kernels/update.hpp"

namespace mc {
namespace cpu {

/// One parameter; `members` are those of the rule. `h2` is `h` for rules with one history.
template <template <class> class Rule, class T, class... P>
void update_as(int threads, index_t n, double scale, double l2, double l1, void* w, void* g, void* h, void* h2, P... members) {
  Regularized<T> regularized{T(scale), T(l2), T(l1)};
  Rule<T> rule{T(members)...};
  for_each(threads, n, Update<Rule<T>, T>{regularized, rule, static_cast<T*>(w), static_cast<T*>(g), static_cast<T*>(h),
                                          static_cast<T*>(h2)});
}

template <template <class> class Rule, class... P>
void update(int threads, int dtype, index_t n, double scale, double l2, double l1, void* w, void* g, void* h, void* h2,
            P... members) {
  if (dtype == 0)
    update_as<Rule, float>(threads, n, scale, l2, l1, w, g, h, h2, members...);
  else
    update_as<Rule, double>(threads, n, scale, l2, l1, w, g, h, h2, members...);
}

}  // namespace cpu
}  // namespace mc
