// Softmax over the channels of [outer, channels, inner] by cuDNN (cuda/cudnn.hpp).
#pragma once
#include "minicaffe/cuda/cudnn.hpp"

namespace mc {
namespace cuda {

inline void cudnn_softmax_forward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner,
                                  const void* x, void* y) {
  with_cudnn(on, outer * channels * inner, [&](Cudnn& cudnn) {
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    MC_CUDNN(cudnn, cudnnSoftmaxForward, cudnn.handle, kAccurate, kOverChannels, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  });
}

inline void cudnn_softmax_backward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner,
                                   const void* y, const void* dy, void* dx) {
  with_cudnn(on, outer * channels * inner, [&](Cudnn& cudnn) {
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    MC_CUDNN(cudnn, cudnnSoftmaxBackward, cudnn.handle, kAccurate, kOverChannels, cudnn_factor(dtype, true), tensor, y, tensor,
             dy, cudnn_factor(dtype, false), tensor, dx);
  });
}

}  // namespace cuda
}  // namespace mc
