// LRN across channels by cuDNN (cuda/cudnn.hpp).
#pragma once
#include <cstring>
#include "minicaffe/cuda/cudnn.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {
namespace cuda {

/// The descriptor of an LRN; throws if cuDNN refuses it. cuDNN divides alpha by the window's size itself; bounds: cudnn_ops.h.
inline void* cudnn_lrn(Cudnn& cudnn, const LrnShape& s) {
  const index_t n = 2 * s.half_rows + 1;
  if (s.half_columns) throw CudnnFailure{"LRN within a channel", kRefused};
  if (n > 16 || !(s.beta >= 0.01) || !(s.k >= 1e-5))
    throw CudnnFailure{"LRN with local_size above 16, beta below 0.01 or k below 1e-5", kRefused};
  const double numbers[] = {s.alpha * double(n), s.beta, s.k};
  CudnnKey key = {kLrn, n};
  std::memcpy(&key[2], numbers, sizeof(numbers));
  return cudnn_descriptor(cudnn, key, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreateLRNDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetLRNDescriptor, *made, unsigned(n), numbers[0], numbers[1], numbers[2]);
  });
}

/// y = x s^-beta across channels; throws why cuDNN does not compute it.
inline void cudnn_lrn_forward(const Context& on, int dtype, const LrnShape& s, const void* x, void* y) {
  with_cudnn(on, s.groups * s.rows * s.width, [&](Cudnn& cudnn) {
    void* lrn = cudnn_lrn(cudnn, s);
    void* tensor = cudnn_tensor(cudnn, dtype, {s.groups, s.rows, 1, s.width});
    MC_CUDNN(cudnn, cudnnLRNCrossChannelForward, cudnn.handle, lrn, kAcrossChannels, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  }, "cudnnLRNCrossChannelForward");
}

inline void cudnn_lrn_backward(const Context& on, int dtype, const LrnShape& s, const void* x, const void* y,
                               const void* dy, void* dx) {  // dx, overwritten, also from the x and y of forward
  with_cudnn(on, s.groups * s.rows * s.width, [&](Cudnn& cudnn) {
    void* lrn = cudnn_lrn(cudnn, s);
    void* tensor = cudnn_tensor(cudnn, dtype, {s.groups, s.rows, 1, s.width});
    MC_CUDNN(cudnn, cudnnLRNCrossChannelBackward, cudnn.handle, lrn, kAcrossChannels, cudnn_factor(dtype, true), tensor, y,
             tensor, dy, tensor, x, cudnn_factor(dtype, false), tensor, dx);
  }, "cudnnLRNCrossChannelBackward");
}

}  // namespace cuda
}  // namespace mc
