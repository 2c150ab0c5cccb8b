// One step of an LSTM from its gates (Caffe lstm_unit_layer.cpp; Hochreiter and Schmidhuber 1997). Index i is one of N D cells.
//
// The gates of a row are side by side, D of each: input, forget, output, update (i, f, o, g).
#pragma once
#include "minicaffe/kernels/pointwise.hpp"
#include "minicaffe/ops/activation/kernel.hpp"

namespace mc {

/// c = f c_prev + i g, h = o tanh(c), with f = cont sigmoid(gate): 0 at the start of a sequence, whatever the gate holds. As in
/// Caffe, a NaN in c_prev stays even there, as 0 NaN is NaN.
template <class T> struct LstmForward {
  index_t size;  // D
  const T *c_prev, *gates, *cont;
  T *acts, *c, *h;  // acts: the four gates after their functions, which backward reads; may be `gates`
  MC_HD void operator()(index_t k) const { at(k / size, k % size); }
  MC_HD void at(index_t row, index_t column) const {
    const index_t k = row * size + column, at = 4 * row * size + column;
    const T i = sigmoid_(gates[at]), forget = sigmoid_(gates[at + size]);
    const T f = cont[row] == T(0) ? T(0) : cont[row] * forget;
    const T o = sigmoid_(gates[at + 2 * size]), g = vector_tanh(gates[at + 3 * size]);
    acts[at] = i, acts[at + size] = f, acts[at + 2 * size] = o, acts[at + 3 * size] = g;
    const T cell = f * c_prev[k] + i * g;
    c[k] = cell;
    h[k] = o * vector_tanh(cell);
  }
};

/// The gradients of the four gates and of c_prev, of one cell.
template <class T> struct LstmBackward {
  index_t size;
  const T *c_prev, *acts, *c, *dc, *dh;  // dc: the gradient that the next step gives to c
  T *dc_prev, *dgates;  // dc_prev may be dc
  MC_HD void operator()(index_t k) const { at(k / size, k % size); }
  MC_HD void at(index_t row, index_t column) const {
    const index_t k = row * size + column, at = 4 * row * size + column;
    const T i = acts[at], f = acts[at + size], o = acts[at + 2 * size], g = acts[at + 3 * size];
    const T squashed = vector_tanh(c[k]);
    const T q = dc[k] + dh[k] * o * (T(1) - squashed * squashed);
    dgates[at] = q * g * i * (T(1) - i);
    dgates[at + size] = q * c_prev[k] * f * (T(1) - f);
    dgates[at + 2 * size] = dh[k] * squashed * o * (T(1) - o);
    dgates[at + 3 * size] = q * i * (T(1) - g * g);
    dc_prev[k] = q * f;
  }
};

/// y + cont x: what the next step adds to the gradient of a state that it kept where `cont` is 1.
template <class T> struct AddKept {
  const T* cont;
  MC_HD Axpy<T> at(index_t row) const { return {cont[row]}; }
};

}  // namespace mc
