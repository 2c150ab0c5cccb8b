// s^-beta, the damping of local response normalisation. The functor is chosen by beta, since a general power costs as much
// as the rest of the layer many times over.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

/// beta 0.75, the value of nearly every net: s^(3/4) = sqrt(s) sqrt(sqrt(s)).
template <class T> struct LrnThreeQuarters {
  MC_HD T operator()(T s) const {
    T root = sqrt_(s);
    return T(1) / (root * sqrt_(root));
  }
};

template <class T> struct LrnPower {
  T beta;
  MC_HD T operator()(T s) const { return pow_(s, -beta); }
};

}  // namespace mc
