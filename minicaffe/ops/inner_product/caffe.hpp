// The inner product layer by engine CAFFE: matrix products, the bias and its gradient. The formula is ops/inner_product/plain.hpp.
//
// Faster than BLAS: on the CPU few_rows.hpp, for up to 32 rows (at 16 BLAS takes 1.5 times as long); on a device
// cuBLASLt, with bias or ReLU (not measured).
//
// x is (M, K), y (M, N), the weights (N, K), or (K, N) if transposed.
#pragma once
#include <type_traits>
#include "minicaffe/cuda/cublaslt.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"
#include "minicaffe/ops/inner_product/few_rows.hpp"
#include "minicaffe/ops/inner_product/kernel.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {

/// The bias' gradient on the CPU: sums[j] += the sum over i of x[i][j], in the order of i, for a block of columns, row by row.
template <class T> struct ColumnSums {
  static constexpr index_t kWide = 64;
  index_t rows, n;
  const T* x;
  T* sums;
  MC_HD void operator()(index_t block) const {
    const index_t left = block * kWide, wide = min_(n - left, kWide);
    T sum[kWide] = {};
    const T* row = x + left;
    if (wide == kWide)
      for (index_t i = 0; i < rows; ++i, row += n)
        for (index_t j = 0; j < kWide; ++j) sum[j] += row[j];
    else
      for (index_t i = 0; i < rows; ++i, row += n)
        for (index_t j = 0; j < wide; ++j) sum[j] += row[j];
    for (index_t j = 0; j < wide; ++j) sums[left + j] += sum[j];
  }
};

inline int lt_epilogue(const void* bias, bool relu) {  // cuBLASLt's number for adding a bias, unless null, and a ReLU
  return relu || bias ? (relu ? cuda::lt::EPILOGUE_RELU : 0) | (bias ? cuda::lt::EPILOGUE_BIAS : 0) : cuda::lt::EPILOGUE_DEFAULT;
}

/// Describe for cuBLASLt the gradients of the weights, added if `add`, and of the bias, overwritten; `dbias` may be null. For
/// column-major matrices: dweight^T = x^T dy, or dy^T x if they are transposed; the bias' gradient is the sums of dy, B or A.
inline cuda::LtProduct lt_gradients(index_t m, index_t n, index_t k, bool transpose, const void* x, const void* dy, void* dweight,
                                    bool add, void* dbias) {
  using namespace cuda;
  const int sums = !dbias ? lt::EPILOGUE_DEFAULT : transpose ? lt::EPILOGUE_BGRADA : lt::EPILOGUE_BGRADB;
  LtProduct p = transpose ? LtProduct{false, true, n, k, m, dy, x, dbias, sums, dweight}
                          : LtProduct{false, true, k, n, m, x, dy, dbias, sums, dweight};
  p.beta = add ? 1 : 0;
  return p;
}

/// y = x W^T + bias; `bias` may be null. With `relu`, max(y, 0) where cuBLASLt computes that; returns whether it did.
template <class T>
bool inner_product_forward(const Context& on, const cpu::Blas& blas, index_t m, index_t n, index_t k, bool transpose, const T* x,
                           const T* weight, const T* bias, T* y, bool relu) {
  // Column-major: y^T = W x^T.
  if constexpr (std::is_same_v<T, float>)
    if ((bias || relu) && cuda::lt_product(on, {!transpose, false, n, m, k, weight, x, bias, lt_epilogue(bias, relu), y}))
      return relu;
  if (!on.stream && m <= cpu::kFewRows && k >= cpu::kLongRows * m && !transpose)
    return cpu::for_few_rows<cpu::FewDots, T>(on.threads, k, n, m, x, weight, bias, y), false;
  const bool ahead = bias && !on.stream;  // the CPU's product is added to the bias
  if (ahead)
    cpu::parallel(on.threads, m, cpu::kGrain / n, [&](int, index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) std::memcpy(y + i * n, bias, size_t(n) * sizeof(T));
    });
  gemm(on, blas, false, !transpose, m, n, k, T(1), x, k, weight, transpose ? n : k, ahead ? T(1) : T(0), y, n);
  if (bias && !ahead) broadcast_unary(on, {m, n, 1}, ShiftBy<T>{bias}, y, y);
  return false;
}

/// dweight += dy^T x (or x^T dy), dbias += column sums of dy, dx = dy W; each is left out if null. Without `add_weight`, and on a
/// device without `add_bias`, the gradient is overwritten.
template <class T>
void inner_product_backward(const Context& on, const cpu::Blas& blas, index_t m, index_t n, index_t k, bool transpose, const T* x,
                            const T* weight, const T* dy, T* dweight, bool add_weight, T* dbias, bool add_bias, T* dx) {
  const T keep = add_weight ? T(1) : T(0);
  if constexpr (std::is_same_v<T, float>)
    if (dweight && dbias && !add_bias &&
        cuda::lt_product(on, lt_gradients(m, n, k, transpose, x, dy, dweight, add_weight, dbias)))
      dweight = dbias = nullptr;
  if (dweight && transpose)
    gemm(on, blas, true, false, k, n, m, T(1), x, k, dy, n, keep, dweight, n);
  else if (dweight && !on.stream && m <= cpu::kFewRows)
    cpu::for_few_rows<cpu::FewProduct, T>(on.threads, k, n, m, index_t(1), n, dy, x, dweight, add_weight);
  else if (dweight)
    gemm(on, blas, true, false, n, k, m, T(1), dy, n, x, k, keep, dweight, k);
  if (dbias && on.stream) channel_sums(on, {m, n, 1}, SumTerm<T>{dy}, 1.0, add_bias, dbias);
  if (dbias && !on.stream)
    cpu::for_each(on.threads, (n + ColumnSums<T>::kWide - 1) / ColumnSums<T>::kWide, ColumnSums<T>{m, n, dy, dbias},
                  ColumnSums<T>::kWide * m + 1);
  if (dx && !on.stream && !transpose && m >= cpu::kFewestRows && m <= cpu::kFewRows)
    cpu::for_few_rows<cpu::FewProduct, T>(on.threads, k, m, n, n, index_t(1), dy, weight, dx, false);
  else if (dx)
    gemm(on, blas, false, transpose, m, k, n, T(1), dy, n, weight, transpose ? n : k, T(0), dx, k);
}

// ---- of Bf16 on a device, by cuBLASLt: x, y and their gradients. Weights and bias are rounded in each forward; their gradients
// are floats. With `trial` nothing is computed, and y or dx may be null. A function returns false if there is no algorithm.

/// The element at which the rounded bias begins behind the n x k weights: at a multiple of 256 bytes.
inline index_t rounded_bias(index_t n, index_t k) { return (n * k + 127) / 128 * 128; }
/// rounded = the weights, and from rounded_bias(n, k) on the bias, which may be null.
inline void round_parameters(const Context& on, index_t n, index_t k, const void* weight, const void* bias, void* rounded) {
  cuda::for_each(*on.stream, n * k + (bias ? n : 0), RoundBoth{n * k, rounded_bias(n, k), static_cast<const float*>(weight),
                                                 static_cast<const float*>(bias), static_cast<Bf16*>(rounded)});
}

inline bool inner_product_forward_bf16(const Context& on, index_t m, index_t n, index_t k, const void* x, const void* rounded,
                                       bool bias, void* y, bool relu, bool trial) {  // y = x W^T + bias, then ReLU if `relu`
  const void* shift = bias ? static_cast<const Bf16*>(rounded) + rounded_bias(n, k) : nullptr;
  return cuda::lt_product(on, {true, false, n, m, k, rounded, x, shift, lt_epilogue(shift, relu), y, cuda::lt::kBf16,
                               cuda::lt::kBf16}, trial);
}

inline bool inner_product_backward_bf16(const Context& on, index_t m, index_t n, index_t k, const void* rounded, const void* dy,
                                        void* dx, bool trial) {  // dx = dy W
  return cuda::lt_product(on, {false, false, k, m, n, rounded, dy, nullptr, cuda::lt::EPILOGUE_DEFAULT, dx, cuda::lt::kBf16,
                               cuda::lt::kBf16}, trial);
}

/// The gradients of weights and bias, each left out if null, added or overwritten; false if that of the weights is not computed.
inline bool inner_product_gradients_bf16(const Context& on, index_t m, index_t n, index_t k, const void* x, const void* dy,
                                         void* dweight, bool add_weight, void* dbias, bool add_bias) {
  auto product = [&](void* with) {
    cuda::LtProduct p = lt_gradients(m, n, k, false, x, dy, dweight, add_weight, with);
    p.input = cuda::lt::kBf16;
    return cuda::lt_product(on, p);
  };
  if (dweight && dbias && !add_bias && product(dbias)) return true;
  if (dbias) {
    const TermOf<Same<float>, Bf16, 1> term{{static_cast<const Bf16*>(dy)}};
    cuda::channel_sums(*on.stream, Channels(m, n, 1), term, 1.0, add_bias, static_cast<float*>(dbias));
  }
  return !dweight || product(nullptr);
}

}  // namespace mc
