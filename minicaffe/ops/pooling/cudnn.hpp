// AVE pooling by cuDNN (cuda/cudnn.hpp). MAX is left to engine CAFFE, as in Caffe: cuDNN keeps no mask, but finds the maximum again
// in tops that layers in place may have changed.
#pragma once
#include "minicaffe/cuda/cudnn.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {
namespace cuda {

/// AVE pooling. cuDNN divides by the whole window and rounds the number of windows down; where Caffe rounds up to one window
/// more, that one reaches beyond the padding and has a smaller area.
inline void* cudnn_pooling(Cudnn& cudnn, const PoolShape& s) {
  index_t rows = s.height + 2 * s.pad_h - s.kernel_h, columns = s.width + 2 * s.pad_w - s.kernel_w;
  if (rows < 0 || columns < 0 || rows / s.stride_h + 1 != s.out_height || columns / s.stride_w + 1 != s.out_width)
    throw CudnnStop{"pooling windows that reach beyond the padding", kRefused};
  CudnnKey key = {kPooling, s.kernel_h, s.kernel_w, s.pad_h, s.pad_w, s.stride_h, s.stride_w};
  return cudnn_descriptor(cudnn, key, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreatePoolingDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetPooling2dDescriptor, *made, kAverageWithPadding, kPropagateNan, int(s.kernel_h), int(s.kernel_w),
             int(s.pad_h), int(s.pad_w), int(s.stride_h), int(s.stride_w));
  });
}

inline void cudnn_mean_forward(const Context& on, int dtype, const PoolShape& s, index_t images, index_t channels,
                               const void* x, void* y) {
  with_cudnn(on, images * channels * s.height * s.width, [&](Cudnn& cudnn) {
    void* pooling = cudnn_pooling(cudnn, s);
    void* bottom = cudnn_tensor(cudnn, dtype, {images, channels, s.height, s.width});
    void* top = cudnn_tensor(cudnn, dtype, {images, channels, s.out_height, s.out_width});
    MC_CUDNN(cudnn, cudnnPoolingForward, cudnn.handle, pooling, cudnn_factor(dtype, true), bottom, x, cudnn_factor(dtype, false),
             top, y);
  });
}

/// AVE pooling does not read x and y, whose memory may serve other blobs by now; cuDNN takes pointers, so it gets dx and dy.
inline void cudnn_mean_backward(const Context& on, int dtype, const PoolShape& s, index_t images, index_t channels,
                                const void* dy, void* dx) {
  with_cudnn(on, images * channels * s.height * s.width, [&](Cudnn& cudnn) {
    void* pooling = cudnn_pooling(cudnn, s);
    void* bottom = cudnn_tensor(cudnn, dtype, {images, channels, s.height, s.width});
    void* top = cudnn_tensor(cudnn, dtype, {images, channels, s.out_height, s.out_width});
    MC_CUDNN(cudnn, cudnnPoolingBackward, cudnn.handle, pooling, cudnn_factor(dtype, true), top, dy, top, dy, bottom, dx,
             cudnn_factor(dtype, false), bottom, dx);
  });
}

}  // namespace cuda
}  // namespace mc
