// Engine PLAIN: activations as their formulas, with parameters p in the order of the functor's members (ops/activation/kernel.hpp);
// ReLUX has slope, bound, and the gradient's slope. The faster way is in ops/activation/caffe.hpp.
#pragma once
#include <algorithm>
#include "minicaffe/ops/array.hpp"

namespace mc {

enum Function { kAbs, kBnll, kClip, kElu, kExp, kLog, kPower, kRelu, kReluX, kSigmoid, kSwish, kTanh, kThreshold };

namespace plain {

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// f(x)
inline double value(Function f, double x, const double* p) {
  switch (f) {
    case kAbs: return std::abs(x);
    case kBnll: return x > 0 ? x + std::log(1 + std::exp(-x)) : std::log(1 + std::exp(x));
    case kClip: return x < p[0] ? p[0] : x > p[1] ? p[1] : x;
    case kElu: return x > 0 ? x : p[0] * (std::exp(x) - 1);
    case kExp: return p[1] * std::exp(p[0] * x);
    case kLog: return std::log(p[0] * x + p[1]) * p[2];
    case kPower: return std::pow(p[2] + p[1] * x, p[0]);
    case kRelu: return x > 0 ? x : p[0] * x;
    case kReluX: return std::min(x > 0 ? x : p[0] * x, p[1]);
    case kSigmoid: return sigmoid(x);
    case kSwish: return x * sigmoid(p[0] * x);
    case kTanh: return std::tanh(x);
    case kThreshold: return x > p[0];
  }
  __builtin_unreachable();
}

/// f'(x), where y = f(x)
inline double derivative(Function f, double x, double y, const double* p) {
  switch (f) {
    case kAbs: return double(x > 0) - double(x < 0);
    case kBnll: return sigmoid(x);
    case kClip: return x >= p[0] && x <= p[1];
    case kElu: return x > 0 ? 1 : y + p[0];
    case kExp: return y * p[0];
    case kLog: return p[0] * p[2] / (p[0] * x + p[1]);
    case kPower: {
      const double base = p[2] + p[1] * x, slope = p[0] * p[1];
      if (p[0] == 1 || p[0] == 2) return slope * std::pow(base, p[0] - 1);
      return slope == 0 ? 0 : slope * y / base;  // not a power: NaN at base 0, as in Caffe
    }
    case kRelu: return x > 0 ? 1 : p[0];
    case kReluX: return x > 0 ? x < p[1] : p[2];
    case kSigmoid: return y * (1 - y);
    case kSwish: return p[0] * y + sigmoid(p[0] * x) * (1 - p[0] * y);
    case kTanh: return 1 - y * y;
    case kThreshold: return 0;
  }
  __builtin_unreachable();
}

inline void activation_forward(Function f, const double* p, index_t n, Array x, Array y) {
  for (index_t i = 0; i < n; ++i) y[i] = value(f, x[i], p);
}

/// dx = f'(x) dy. Of x and y, what the derivative does not read may be any array.
inline void activation_backward(Function f, const double* p, index_t n, Array x, Array y, Array dy, Array dx) {
  for (index_t i = 0; i < n; ++i) dx[i] = derivative(f, x[i], y[i], p) * dy[i];
}

}  // namespace plain
}  // namespace mc
