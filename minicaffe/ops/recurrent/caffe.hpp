// The steps of an RNN or LSTM, and one step of an LSTM, for element types known at run time (ops/recurrent/kernel.hpp).
//
// The contribution of inputs and bias to the gates is computed before, for all steps at once. On the CPU each thread computes all
// steps of some sequences, so that threads synchronize only once; with fewer sequences than threads, all threads share each step.
// On a device a step is a product and two launches.
#pragma once
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"
#include "minicaffe/ops/recurrent/kernel.hpp"
#include "minicaffe/ops/recurrent/product.hpp"

namespace mc {

constexpr index_t kLstmCost = 16;  // five exponentials a cell, in units of one element-wise operation

/// One row of `f` for the CPU, f.at(row, column): f(index) does the same, with a division for each cell.
template <class F> struct OfRow {
  F f;
  index_t row;
  MC_HD void operator()(index_t column) const { f.at(row, column); }
};
/// f.at(row, column) for all cells: on the CPU row by row in vectors, on a device one thread a cell.
template <class F> void for_rows(const Context& on, index_t rows, index_t size, const F& f) {
  if (on.stream) return cuda::for_each(*on.stream, rows * size, f);
  cpu::parallel(on.threads, rows, cpu::kGrain / (kLstmCost * size + 1), [&](int, index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) cpu::range(OfRow<F>{f, row}, 0, size);
  });
}

/// One step of an LSTM for an element type known only at run time, for layer LSTMUnit: `members` are those of F after `size`.
template <template <class> class F, class... P>
void lstm_step(const Context& on, int dtype, index_t n, index_t size, P... members) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    for_rows(on, n, size, make<F<T>>(size, member<T>(members)...));
  });
}

/// Sizes and what both directions read: the weights (gates x size, size) of the states h, and cont (steps, n).
struct Recurrence {
  index_t steps, n, size, gates;  // T steps of N sequences, D outputs; gates of an output: 4 of an LSTM, 1 of an RNN
  const void *weight, *cont;
  void* packed;  // scratch memory of gates x size x (size + kMaxTileColumns) elements; null: the weights are not packed
  bool bf16;     // of float: factors are rounded to Bf16, where the weights are packed
};

namespace detail {

/// body(context, begin, end) for parts of the sequences, each on one thread; for all of them on a device, and where there are so
/// few that the threads do better to share each step's product.
template <class Body> void by_sequences(const Context& on, const Recurrence& r, const Body& body) {
  if (r.n > 0 && (on.stream || 2 * r.n <= on.threads.count)) return body(on, 0, r.n);
  const index_t grain = cpu::kProductGrain / (r.steps * r.gates * r.size * r.size + 1);
  cpu::parallel(on.threads, r.n, grain, [&](int, index_t begin, index_t end) { body(Context{{1, nullptr}, nullptr}, begin, end); });
}

/// The product of a step, for some of its rows: gates += kept weight^T in forward (`transpose`), dkept = dgates weight in backward.
template <class T> struct StepProduct {
  const cpu::Blas& blas;
  index_t n, k;  // columns of the result, of the left factor
  bool transpose, add;
  const T* weight;
  T* packed;                   // the weights in panels (PackPanels); null: `gemm` computes
  cpu::PackPairs<Bf16> pairs;  // its `packed` is null unless the precision is bf16

  StepProduct(const Context& on, const cpu::Blas& blas, const Recurrence& r, bool transpose)
      : blas(blas), n(transpose ? r.gates * r.size : r.size), k(transpose ? r.size : r.gates * r.size), transpose(transpose),
        add(transpose), weight(static_cast<const T*>(r.weight)), packed(static_cast<T*>(r.packed)),
        pairs{k, n, static_cast<const float*>(r.weight), transpose, r.bf16 ? static_cast<Bf16*>(r.packed) : nullptr} {
    if (pairs.packed)
      cpu::for_each(on.threads, pairs.blocks(n), pairs, pairs.kWide * k);
    else if (packed)
      cpu::for_few_rows<cpu::PackPanels, T>(on.threads, k, n, r.n, weight, transpose, packed);
  }
  void operator()(const Context& on, index_t rows, const T* a, T* c) const {
    if constexpr (std::is_same_v<T, float>)
      if (pairs.packed) {
        const index_t deep = pairs.even(k), blocks = pairs.blocks(n);
        std::vector<Bf16> rounded(size_t(rows * deep));
        for (index_t i = 0; i < rows; ++i)
          cpu::for_each_lane<Bf16>(on.threads, k, cpu::Rounded<Bf16>{a + i * k, rounded.data() + i * deep}, 1);
        return cpu::for_each(on.threads, blocks, cpu::PairsProduct<Bf16>{k, n, rows, rounded.data(), pairs.packed, c, add},
                             rows * pairs.kWide * k / 8);
      }
    if (packed) return cpu::for_few_rows<cpu::PackedProduct, T>(on.threads, k, n, rows, a, static_cast<const T*>(packed), c, add);
    gemm(on, blas, false, transpose, rows, n, k, T(1), a, k, weight, transpose ? k : n, add ? T(1) : T(0), c, n);
  }
};

/// For each step: kept = cont h of the step before, gates += kept weight^T, and cell(context, row, rows), which computes h.
/// A row is one sequence at one step; h0 (n, size) is the state before the first. Shapes: kept, h (steps, n, size).
template <class T, class Cell>
void steps_forward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* h0, T* gates, T* kept, const T* h,
                   const Cell& cell) {
  const StepProduct<T> product(on, blas, r, true);
  auto cont = static_cast<const T*>(r.cont);
  by_sequences(on, r, [&](const Context& part, index_t begin, index_t end) {
    for (index_t row = begin; row < r.steps * r.n; row += r.n) {
      const T* before = row < r.n ? h0 + row * r.size : h + (row - r.n) * r.size;
      broadcast_unary(part, {1, end - begin, r.size}, ScaleBy<T>{cont + row}, before, kept + row * r.size);
      product(part, end - begin, kept + row * r.size, gates + row * r.gates * r.size);
      cell(part, row, end - begin);
    }
  });
}

/// The steps in reverse: cell(context, row, rows, dh) computes these rows of dgates from dh, which is `dy`, the gradient of h from
/// outside, plus what the next step adds. `dkept` and `dh` are scratch memory of n x size.
template <class T, class Cell>
void steps_backward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* dy, const T* dgates, T* dkept, T* dh,
                    const Cell& cell) {
  const StepProduct<T> product(on, blas, r, false);
  auto cont = static_cast<const T*>(r.cont);
  by_sequences(on, r, [&](const Context& part, index_t begin, index_t end) {
    const index_t last = (r.steps - 1) * r.n + begin, at = begin * r.size;
    cell(part, last, end - begin, dy + last * r.size);
    for (index_t row = last - r.n; row >= 0; row -= r.n) {
      const index_t next = row + r.n;
      product(part, end - begin, dgates + next * r.gates * r.size, dkept + at);
      broadcast_binary(part, {1, end - begin, r.size}, AddKept<T>{cont + next}, dkept + at, dy + row * r.size, dh + at);
      cell(part, row, end - begin, dh + at);
    }
  });
}

}  // namespace detail

/// All steps of an RNN: h = tanh(gates + (cont h_prev) weight^T).
template <class T>
void rnn_steps_forward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* h0, T* gates, T* kept, T* h) {
  detail::steps_forward(on, blas, r, h0, gates, kept, h, [&](const Context& part, index_t row, index_t rows) {
    map(part, rows * r.size, TanhForward<T>{}, const_cast<const T*>(gates + row * r.size), h + row * r.size);
  });
}
/// `scratch` is of 2 x n x size elements.
template <class T>
void rnn_steps_backward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* h, const T* dy, T* dgates,
                        T* scratch) {
  detail::steps_backward(on, blas, r, dy, dgates, scratch, scratch + r.n * r.size,
                         [&](const Context& part, index_t row, index_t rows, const T* dh) {
                           map(part, rows * r.size, TanhBackward<T>{}, h + row * r.size, dh, dgates + row * r.size);
                         });
}

/// All steps of an LSTM. The gates become what their functions give; c is (steps, n, size), c0 (n, size).
template <class T>
void lstm_steps_forward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* h0, const T* c0, T* gates, T* kept,
                        T* c, T* h) {
  auto cont = static_cast<const T*>(r.cont);
  detail::steps_forward(on, blas, r, h0, gates, kept, h, [&](const Context& part, index_t row, index_t rows) {
    const index_t at = row * r.size;
    const T* before = row < r.n ? c0 + at : c + at - r.n * r.size;
    for_rows(part, rows, r.size, LstmForward<T>{r.size, before, gates + 4 * at, cont + row, gates + 4 * at, c + at, h + at});
  });
}
/// `scratch` is of 3 x n x size elements.
template <class T>
void lstm_steps_backward(const Context& on, const cpu::Blas& blas, const Recurrence& r, const T* c0, const T* acts, const T* c,
                         const T* dy, T* dgates, T* scratch) {
  T* dc = scratch + 2 * r.n * r.size;
  fill(on, r.n * r.size, T(0), dc);
  detail::steps_backward(on, blas, r, dy, dgates, scratch, scratch + r.n * r.size,
                         [&](const Context& part, index_t row, index_t rows, const T* dh) {
                           const index_t at = row * r.size, of = row % r.n * r.size;
                           const T* before = row < r.n ? c0 + at : c + at - r.n * r.size;
                           for_rows(part, rows, r.size, LstmBackward<T>{r.size, before, acts + 4 * at, c + at, dc + of, dh, dc + of,
                                                                        dgates + 4 * at});
                         });
}

}  // namespace mc
