// ReLU with an upper bound, as the types ReLU6 and ReLUX of forks of Caffe have it.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// y = min(max(x, 0) + slope min(x, 0), bound). NaN stays NaN.
template <class T> struct ReluXForward {
  T slope, bound;
  MC_HD T operator()(T x) const { return min_(max_(x, T{}) + slope * min_(x, T{}), bound); }
};
/// Takes x, or y if slope is at least 0 and bound above 0: then both lie in the same of the three ranges.
template <class T> struct ReluXBackward {
  T slope, bound;
  MC_HD T operator()(T x, T dy) const { return x > T{} ? (x < bound ? dy : T{}) : slope * dy; }
};

}  // namespace mc
