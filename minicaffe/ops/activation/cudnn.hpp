// Activations by cuDNN (cuda/cudnn.hpp): ReLU without a slope, Sigmoid, TanH.
#pragma once
#include "minicaffe/cuda/cudnn.hpp"

namespace mc {
namespace cuda {

enum CudnnActivation { kSigmoid = 0, kRelu = 1, kTanh = 2 };  // cudnnActivationMode_t

inline void* cudnn_activation(Cudnn& cudnn, int mode) {
  return cudnn_descriptor(cudnn, {kActivation, mode}, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreateActivationDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetActivationDescriptor, *made, mode, kPropagateNan, 0.0);
  });
}

inline void cudnn_activation_forward(const Context& on, int dtype, int mode, index_t n, const void* x, void* y) {
  with_cudnn(on, n, [&](Cudnn& cudnn) {
    void* activation = cudnn_activation(cudnn, mode);
    void* tensor = cudnn_tensor(cudnn, dtype, {1, 1, 1, n});
    MC_CUDNN(cudnn, cudnnActivationForward, cudnn.handle, activation, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  });
}

inline void cudnn_activation_backward(const Context& on, int dtype, int mode, index_t n, const void* x, const void* y,
                                      const void* dy, void* dx) {
  with_cudnn(on, n, [&](Cudnn& cudnn) {
    void* activation = cudnn_activation(cudnn, mode);
    void* tensor = cudnn_tensor(cudnn, dtype, {1, 1, 1, n});
    MC_CUDNN(cudnn, cudnnActivationBackward, cudnn.handle, activation, cudnn_factor(dtype, true), tensor, y, tensor, dy, tensor,
             x, cudnn_factor(dtype, false), tensor, dx);
  });
}

}  // namespace cuda
}  // namespace mc
