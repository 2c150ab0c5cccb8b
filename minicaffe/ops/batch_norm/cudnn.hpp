// Batch statistics of the channels of [outer, channels, inner] by cuDNN (cuda/cudnn.hpp).
#pragma once
#include "minicaffe/cuda/cudnn.hpp"
#include "minicaffe/ops/lanes/caffe.hpp"

namespace mc {
namespace cuda {

/// y = (x - mean) factor. cuDNN scales and shifts as well, here by ones and zeros: values[0, channels), values[channels, 2 channels).
/// Its running averages, at rate 1, are the batch's own: `unbiased` is the variance that BatchNorm stores, `unused` the mean again.
inline void cudnn_standardize_forward(const Context& on, int dtype, const Channels& c, double eps, const void* x, const void* ones,
                                      const void* zeros, void* y, void* mean, void* unbiased, void* factor, void* unused) {
  with_cudnn(on, c.outer * c.channels * c.inner, [&](Cudnn& cudnn) {
    if (c.outer * c.inner == 1) throw CudnnStop{"batch normalisation of single values", kRefused};
    void* tensor = cudnn_tensor(cudnn, dtype, {c.outer, c.channels, c.inner, 1});
    void* numbers = cudnn_tensor(cudnn, dtype, {1, c.channels, 1, 1});
    MC_CUDNN(cudnn, cudnnBatchNormalizationForwardTraining, cudnn.handle, kSpatial, cudnn_factor(dtype, true),
             cudnn_factor(dtype, false), tensor, x, tensor, y, numbers, ones, zeros, 1.0, unused, unbiased, eps, mean, factor);
  });
}

/// dx from dy, with the mean and factor of cudnn_standardize_forward; the gradients of ones and zeros go to `unused`, 2 x channels.
inline void cudnn_standardize_backward(const Context& on, int dtype, const Channels& c, double eps, const void* x,
                                       const void* ones, const void* dy, const void* mean, const void* factor, void* dx,
                                       void* unused) {
  with_cudnn(on, c.outer * c.channels * c.inner, [&](Cudnn& cudnn) {
    if (c.outer * c.inner == 1) throw CudnnStop{"batch normalisation of single values", kRefused};
    void* tensor = cudnn_tensor(cudnn, dtype, {c.outer, c.channels, c.inner, 1});
    void* numbers = cudnn_tensor(cudnn, dtype, {1, c.channels, 1, 1});
    void* zeros = static_cast<char*>(unused) + c.channels * item_size(dtype);
    const void *one = cudnn_factor(dtype, true), *zero = cudnn_factor(dtype, false);
    MC_CUDNN(cudnn, cudnnBatchNormalizationBackward, cudnn.handle, kSpatial, one, zero, one, zero, tensor, x, tensor, dy, tensor,
             dx, numbers, ones, unused, zeros, eps, mean, factor);
  });
}

}  // namespace cuda
}  // namespace mc
