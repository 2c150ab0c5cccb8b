// One step of an LSTM from its gates (Caffe lstm_unit_layer.cpp; Hochreiter and Schmidhuber 1997). Index i is one of N D cells.
//
// The gates of a row are side by side, D of each: input, forget, output, update (i, f, o, g).
#pragma once
#include "minicaffe/ops/activation/kernel.hpp"

namespace mc {

/// c = f c_prev + i g, h = o tanh(c), with f = cont sigmoid(gate): 0 at the start of a sequence, whatever the gate holds.
template <class T> struct LstmForward {
  index_t size;  // D
  const T *c_prev, *gates, *cont;
  T *acts, *c, *h;  // acts: the four gates after their functions, which backward reads
  MC_HD void operator()(index_t k) const {
    const index_t row = k / size, at = row * 3 * size + k;  // 4 D row + (k - D row)
    const T i = sigmoid_(gates[at]);
    const T f = cont[row] == T(0) ? T(0) : cont[row] * sigmoid_(gates[at + size]);
    const T o = sigmoid_(gates[at + 2 * size]), g = tanh_(gates[at + 3 * size]);
    acts[at] = i, acts[at + size] = f, acts[at + 2 * size] = o, acts[at + 3 * size] = g;
    const T cell = f * c_prev[k] + i * g;
    c[k] = cell;
    h[k] = o * tanh_(cell);
  }
};

template <class T> struct LstmBackward {
  index_t size;
  const T *c_prev, *acts, *c, *dc, *dh;
  T *dc_prev, *dgates;
  MC_HD void operator()(index_t k) const {
    const index_t row = k / size, at = row * 3 * size + k;
    const T i = acts[at], f = acts[at + size], o = acts[at + 2 * size], g = acts[at + 3 * size];
    const T squashed = tanh_(c[k]);
    const T q = dc[k] + dh[k] * o * (T(1) - squashed * squashed);
    dc_prev[k] = q * f;
    dgates[at] = q * g * i * (T(1) - i);
    dgates[at + size] = q * c_prev[k] * f * (T(1) - f);
    dgates[at + 2 * size] = dh[k] * squashed * o * (T(1) - o);
    dgates[at + 3 * size] = q * i * (T(1) - g * g);
  }
};

}  // namespace mc
