// Engine CUDNN: cuDNN 9 through its descriptor interface, by pointers and declarations of our own (no header, no link).
//
// Every function returns whether the work is taken care of. False means that the caller computes with engine CAFFE: cuDNN is not
// asked for or not there, or refuses the case, which the log says once. An error is kept in the stream and counts as taken care
// of. MAX pooling is left to engine CAFFE, as in Caffe: cuDNN keeps no mask, but finds the maximum again in tops that layers in
// place may have changed. Data stays in Caffe's layout (NCHW).
//
// This file has what all layers need, and all but convolution (ops/conv/cudnn.hpp). Descriptors and chosen algorithms are kept
// for each shape as long as the process lives; they are small and on the host.
// Numbers and types are those of cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h; tests/cuda/test_cudnn.py compares them.
#pragma once
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include "minicaffe/cuda/libraries.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {
namespace cuda {

enum CudnnEngine { kEngineDefault = 0, kEngineCaffe = 1, kEngineCudnn = 2 };    // the field `engine` of layers
enum CudnnActivation { kSigmoid = 0, kRelu = 1, kTanh = 2 };                    // cudnnActivationMode_t
constexpr int kNchw = 0, kPropagateNan = 1, kAverageWithPadding = 1, kAccurate = 1, kOverChannels = 1,
              kAcrossChannels = 0, kSpatial = 1;
constexpr int kNotSupported = 3000, kNotSupportedEnd = 4000;  // a category of cudnnStatus_t
constexpr int kRefused = -1;                                  // in the place of a status: refused by ourselves

/// cudnnConvolutionFwdAlgoPerf_t and the two for the gradients, which are laid out alike.
struct CudnnPerf {
  int algorithm, status;
  float milliseconds;
  size_t memory;
  int determinism, math, reserved[3];
};

// The three products have the same arguments: of operands a and b, result c, each with its descriptor, in this order
//   forward: image, weights, columns    backward data: weights, columns, image    backward weights: image, columns, weights
#define MC_CUDNN_PRODUCT(X, name, get, find, workspace)                                                                       \
  X(find, void*, void*, const void*, void*, const void*, void*, void*, void*, int, int*, CudnnPerf*, void*, size_t)            \
  X(get, void*, void*, void*, void*, void*, int, int*, CudnnPerf*)                                                             \
  X(workspace, void*, void*, void*, void*, void*, int, size_t*)                                                                \
  X(name, void*, const void*, void*, const void*, void*, const void*, void*, int, void*, size_t, const void*, void*, void*)

/// Every call that is made: its name and arguments; all return a cudnnStatus_t. Descriptors and data are void*.
#define MC_CUDNN_CALLS(X)                                                                                                     \
  X(cudnnCreate, void**)                                                                                                      \
  X(cudnnSetStream, void*, void*)                                                                                             \
  X(cudnnCreateTensorDescriptor, void**)                                                                                      \
  X(cudnnSetTensorNdDescriptorEx, void*, int, int, int, const int*)                                                           \
  X(cudnnCreateFilterDescriptor, void**)                                                                                      \
  X(cudnnSetFilterNdDescriptor, void*, int, int, int, const int*)                                                             \
  X(cudnnCreateConvolutionDescriptor, void**)                                                                                 \
  X(cudnnSetConvolutionNdDescriptor, void*, int, const int*, const int*, const int*, int, int)                                \
  X(cudnnSetConvolutionGroupCount, void*, int)                                                                                \
  X(cudnnSetConvolutionMathType, void*, int)                                                                                  \
  MC_CUDNN_PRODUCT(X, cudnnConvolutionForward, cudnnGetConvolutionForwardAlgorithm_v7, cudnnFindConvolutionForwardAlgorithmEx, \
                   cudnnGetConvolutionForwardWorkspaceSize)                                                                   \
  MC_CUDNN_PRODUCT(X, cudnnConvolutionBackwardData, cudnnGetConvolutionBackwardDataAlgorithm_v7,                              \
                   cudnnFindConvolutionBackwardDataAlgorithmEx, cudnnGetConvolutionBackwardDataWorkspaceSize)                 \
  MC_CUDNN_PRODUCT(X, cudnnConvolutionBackwardFilter, cudnnGetConvolutionBackwardFilterAlgorithm_v7,                          \
                   cudnnFindConvolutionBackwardFilterAlgorithmEx, cudnnGetConvolutionBackwardFilterWorkspaceSize)             \
  X(cudnnCreatePoolingDescriptor, void**)                                                                                     \
  X(cudnnSetPooling2dDescriptor, void*, int, int, int, int, int, int, int, int)                                               \
  X(cudnnPoolingForward, void*, void*, const void*, void*, const void*, const void*, void*, void*)                            \
  X(cudnnPoolingBackward, void*, void*, const void*, void*, const void*, void*, const void*, void*, const void*, const void*, \
    void*, void*)                                                                                                             \
  X(cudnnCreateLRNDescriptor, void**)                                                                                         \
  X(cudnnSetLRNDescriptor, void*, unsigned, double, double, double)                                                           \
  X(cudnnLRNCrossChannelForward, void*, void*, int, const void*, void*, const void*, const void*, void*, void*)               \
  X(cudnnLRNCrossChannelBackward, void*, void*, int, const void*, void*, const void*, void*, const void*, void*, const void*, \
    const void*, void*, void*)                                                                                                \
  X(cudnnSoftmaxForward, void*, int, int, const void*, void*, const void*, const void*, void*, void*)                         \
  X(cudnnSoftmaxBackward, void*, int, int, const void*, void*, const void*, void*, const void*, const void*, void*, void*)    \
  X(cudnnBatchNormalizationForwardTraining, void*, int, const void*, const void*, void*, const void*, void*, void*, void*,    \
    const void*, const void*, double, void*, void*, double, void*, void*)                                                     \
  X(cudnnBatchNormalizationBackward, void*, int, const void*, const void*, const void*, const void*, void*, const void*,      \
    void*, const void*, void*, void*, void*, const void*, void*, void*, double, const void*, const void*)                     \
  X(cudnnCreateActivationDescriptor, void**)                                                                                  \
  X(cudnnSetActivationDescriptor, void*, int, int, double)                                                                    \
  X(cudnnActivationForward, void*, void*, const void*, void*, const void*, const void*, void*, void*)                         \
  X(cudnnActivationBackward, void*, void*, const void*, void*, const void*, void*, const void*, void*, const void*,           \
    const void*, void*, void*)

struct CudnnCalls {
#define MC_CUDNN_MEMBER(name, ...) int (*name)(__VA_ARGS__);
  MC_CUDNN_CALLS(MC_CUDNN_MEMBER)
#undef MC_CUDNN_MEMBER
};

/// The names of the calls, in the order of the pointers in CudnnCalls.
constexpr const char* kCudnnNames[] = {
#define MC_CUDNN_NAME(name, ...) #name,
    MC_CUDNN_CALLS(MC_CUDNN_NAME)
#undef MC_CUDNN_NAME
};
constexpr int kCudnnCalls = sizeof(kCudnnNames) / sizeof(*kCudnnNames);
static_assert(sizeof(CudnnCalls) == kCudnnCalls * sizeof(void*), "a pointer for each name");

using CudnnKey = std::array<index_t, 24>;

struct CudnnPlan;  // ops/conv/cudnn.hpp

struct Cudnn {
  void* handle;
  CudnnCalls call;
  int tf32, deterministic;        // whether float32 may be rounded to TF32; whether results must repeat
  size_t workspace_limit;         // bytes that an algorithm may ask for
  void (*fail)(Stream*, const char* call, int status);     // take the GIL
  void (*refuse)(Stream*, const char* what, int status);
  const char* refused;            // what the last refusal was about
  std::mutex mutex;               // a handle serves one thread at a time
  std::map<CudnnKey, void*> descriptors;
  std::map<CudnnKey, CudnnPlan*> plans;
};

/// Ends a sequence of calls. `status` is that of `call`, or kRefused and `call` says why.
struct CudnnStop {
  const char* call;
  int status;
};
inline bool cudnn_refuses(int status) {
  return status == kRefused || (status >= kNotSupported && status < kNotSupportedEnd);
}
inline void cudnn_check(int status, const char* call) {
  if (status) throw CudnnStop{call, status};
}
#define MC_CUDNN(cudnn, name, ...) ::mc::cuda::cudnn_check((cudnn).call.name(__VA_ARGS__), #name)

/// cuDNN for a layer whose engine is `engine`, opened when first asked for; null if it is not wanted or not there.
inline Cudnn* cudnn_for(const Context& on, int engine) {
  Libraries* libraries = on.stream ? on.stream->libraries : nullptr;
  if (!libraries || engine == kEngineCaffe || (engine == kEngineDefault && !*libraries->prefer_cudnn)) return nullptr;
  if (!libraries->cudnn && libraries->open_cudnn) libraries->cudnn = libraries->open_cudnn(on.stream);
  return libraries->cudnn;
}

/// work(cudnn) on `count` elements at most in one tensor; false if it is left to the caller.
template <class Work> bool with_cudnn(const Context& on, int engine, index_t count, const Work& work) {
  Cudnn* cudnn = count ? cudnn_for(on, engine) : nullptr;  // cuDNN takes no empty tensors
  if (on.stream && on.stream->failed) return true;
  if (!cudnn) return false;
  CudnnStop stop = {nullptr, 0};
  if (count > 0x7fffffff) stop = {"more than 2^31 - 1 elements", kRefused};
  else try {
    std::lock_guard<std::mutex> lock(cudnn->mutex);
    work(*cudnn);
  } catch (const CudnnStop& reason) {
    stop = reason;
  }
  // Without the lock: these wait for the GIL, whose holder may wait for the lock.
  bool refused = cudnn_refuses(stop.status);
  if (refused) cudnn->refuse(on.stream, cudnn->refused = stop.call, stop.status);
  else if (stop.status) cudnn->fail(on.stream, stop.call, stop.status);
  return !refused;
}

/// Why cuDNN did not compute what it was asked for last.
inline const char* cudnn_reason(const Context& on) {
  const Cudnn* cudnn = on.stream->libraries ? on.stream->libraries->cudnn : nullptr;
  return !cudnn ? "there is no cuDNN" : cudnn->refused ? cudnn->refused : "nothing to compute";
}

/// A factor of the kind that tensors of `dtype` take: 1 or 0, on the host. cudnnDataType_t 0 and 1 are float and double, as here.
inline const void* cudnn_factor(int dtype, bool one) {
  static const float floats[] = {0, 1};
  static const double doubles[] = {0, 1};
  return dtype ? static_cast<const void*>(doubles + one) : floats + one;
}

/// The descriptor that belongs to `key`; make(&descriptor) creates and sets it the first time.
template <class Make> void* cudnn_descriptor(Cudnn& cudnn, const CudnnKey& key, const Make& make) {
  auto found = cudnn.descriptors.find(key);
  if (found != cudnn.descriptors.end()) return found->second;
  void* descriptor = nullptr;
  make(&descriptor);
  return cudnn.descriptors[key] = descriptor;
}

enum CudnnKind { kTensor, kFilter, kPooling, kLrn, kActivation };  // the first number of a key

/// A dense tensor, or the weights of a convolution.
inline void* cudnn_tensor(Cudnn& cudnn, int dtype, std::array<index_t, 5> sizes, int axes = 4, bool filter = false) {
  CudnnKey key = {filter ? kFilter : kTensor, dtype, axes};
  int dims[5];
  for (int a = 0; a < axes; ++a) key[3 + a] = sizes[a], dims[a] = int(sizes[a]);
  return cudnn_descriptor(cudnn, key, [&](void** made) {
    if (filter) {
      MC_CUDNN(cudnn, cudnnCreateFilterDescriptor, made);
      MC_CUDNN(cudnn, cudnnSetFilterNdDescriptor, *made, dtype, kNchw, axes, dims);
    } else {
      MC_CUDNN(cudnn, cudnnCreateTensorDescriptor, made);
      MC_CUDNN(cudnn, cudnnSetTensorNdDescriptorEx, *made, kNchw, dtype, axes, dims);
    }
  });
}

// ---- pooling

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

inline bool cudnn_mean_forward(const Context& on, int engine, int dtype, const PoolShape& s, index_t images, index_t channels,
                               const void* x, void* y) {
  return with_cudnn(on, engine, images * channels * s.height * s.width, [&](Cudnn& cudnn) {
    void* pooling = cudnn_pooling(cudnn, s);
    void* bottom = cudnn_tensor(cudnn, dtype, {images, channels, s.height, s.width});
    void* top = cudnn_tensor(cudnn, dtype, {images, channels, s.out_height, s.out_width});
    MC_CUDNN(cudnn, cudnnPoolingForward, cudnn.handle, pooling, cudnn_factor(dtype, true), bottom, x, cudnn_factor(dtype, false),
             top, y);
  });
}

/// x and y are not read by AVE pooling, but cuDNN wants to see them.
inline bool cudnn_mean_backward(const Context& on, int engine, int dtype, const PoolShape& s, index_t images, index_t channels,
                                const void* x, const void* y, const void* dy, void* dx) {
  return with_cudnn(on, engine, images * channels * s.height * s.width, [&](Cudnn& cudnn) {
    void* pooling = cudnn_pooling(cudnn, s);
    void* bottom = cudnn_tensor(cudnn, dtype, {images, channels, s.height, s.width});
    void* top = cudnn_tensor(cudnn, dtype, {images, channels, s.out_height, s.out_width});
    MC_CUDNN(cudnn, cudnnPoolingBackward, cudnn.handle, pooling, cudnn_factor(dtype, true), top, y, top, dy, bottom, x,
             cudnn_factor(dtype, false), bottom, dx);
  });
}

// ---- LRN across channels; Shape is cpu::LrnShape

/// cuDNN divides alpha by the size of the window itself; its bounds are those of cudnn_ops.h.
template <class Shape> void* cudnn_lrn(Cudnn& cudnn, const Shape& s) {
  const index_t n = 2 * s.half_rows + 1;
  if (s.half_columns) throw CudnnStop{"LRN within a channel", kRefused};
  if (n > 16 || !(s.beta >= 0.01) || !(s.k >= 1e-5))
    throw CudnnStop{"LRN with local_size above 16, beta below 0.01 or k below 1e-5", kRefused};
  const double numbers[] = {s.alpha * double(n), s.beta, s.k};
  CudnnKey key = {kLrn, n};
  std::memcpy(&key[2], numbers, sizeof(numbers));
  return cudnn_descriptor(cudnn, key, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreateLRNDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetLRNDescriptor, *made, unsigned(n), numbers[0], numbers[1], numbers[2]);
  });
}

template <class Shape> bool cudnn_lrn_forward(const Context& on, int engine, int dtype, const Shape& s, const void* x, void* y) {
  return with_cudnn(on, engine, s.groups * s.rows * s.width, [&](Cudnn& cudnn) {
    void* lrn = cudnn_lrn(cudnn, s);
    void* tensor = cudnn_tensor(cudnn, dtype, {s.groups, s.rows, 1, s.width});
    MC_CUDNN(cudnn, cudnnLRNCrossChannelForward, cudnn.handle, lrn, kAcrossChannels, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  });
}

template <class Shape>
bool cudnn_lrn_backward(const Context& on, int engine, int dtype, const Shape& s, const void* x, const void* y, const void* dy,
                        void* dx) {
  return with_cudnn(on, engine, s.groups * s.rows * s.width, [&](Cudnn& cudnn) {
    void* lrn = cudnn_lrn(cudnn, s);
    void* tensor = cudnn_tensor(cudnn, dtype, {s.groups, s.rows, 1, s.width});
    MC_CUDNN(cudnn, cudnnLRNCrossChannelBackward, cudnn.handle, lrn, kAcrossChannels, cudnn_factor(dtype, true), tensor, y,
             tensor, dy, tensor, x, cudnn_factor(dtype, false), tensor, dx);
  });
}

// ---- softmax over the channels of [outer, channels, inner]

inline bool cudnn_softmax_forward(const Context& on, int engine, int dtype, index_t outer, index_t channels, index_t inner,
                                  const void* x, void* y) {
  return with_cudnn(on, engine, outer * channels * inner, [&](Cudnn& cudnn) {
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    MC_CUDNN(cudnn, cudnnSoftmaxForward, cudnn.handle, kAccurate, kOverChannels, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  });
}

inline bool cudnn_softmax_backward(const Context& on, int engine, int dtype, index_t outer, index_t channels, index_t inner,
                                   const void* y, const void* dy, void* dx) {
  return with_cudnn(on, engine, outer * channels * inner, [&](Cudnn& cudnn) {
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    MC_CUDNN(cudnn, cudnnSoftmaxBackward, cudnn.handle, kAccurate, kOverChannels, cudnn_factor(dtype, true), tensor, y, tensor,
             dy, cudnn_factor(dtype, false), tensor, dx);
  });
}

// ---- batch statistics of the channels of [outer, channels, inner]

/// y = (x - mean) factor. cuDNN scales and shifts as well, here by ones and zeros: values[0, channels), values[channels, 2 channels).
/// Its running averages, at rate 1, are the batch's own: `unbiased` is the variance that BatchNorm stores, `unused` the mean again.
inline bool cudnn_standardize_forward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, double eps,
                                      const void* x, const void* ones, const void* zeros, void* y, void* mean, void* unbiased,
                                      void* factor, void* unused) {
  return with_cudnn(on, kEngineDefault, outer * channels * inner, [&](Cudnn& cudnn) {
    if (outer * inner == 1) throw CudnnStop{"batch normalisation of single values", kRefused};
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    void* numbers = cudnn_tensor(cudnn, dtype, {1, channels, 1, 1});
    MC_CUDNN(cudnn, cudnnBatchNormalizationForwardTraining, cudnn.handle, kSpatial, cudnn_factor(dtype, true),
             cudnn_factor(dtype, false), tensor, x, tensor, y, numbers, ones, zeros, 1.0, unused, unbiased, eps, mean, factor);
  });
}

/// dx from dy, with the mean and factor of cudnn_standardize_forward; the gradients of ones and zeros go to `unused`, 2 x channels.
inline bool cudnn_standardize_backward(const Context& on, int dtype, index_t outer, index_t channels, index_t inner, double eps,
                                       const void* x, const void* ones, const void* dy, const void* mean, const void* factor,
                                       void* dx, void* unused) {
  return with_cudnn(on, kEngineDefault, outer * channels * inner, [&](Cudnn& cudnn) {
    if (outer * inner == 1) throw CudnnStop{"batch normalisation of single values", kRefused};
    void* tensor = cudnn_tensor(cudnn, dtype, {outer, channels, inner, 1});
    void* numbers = cudnn_tensor(cudnn, dtype, {1, channels, 1, 1});
    void* zeros = static_cast<char*>(unused) + channels * (dtype ? sizeof(double) : sizeof(float));
    const void *one = cudnn_factor(dtype, true), *zero = cudnn_factor(dtype, false);
    MC_CUDNN(cudnn, cudnnBatchNormalizationBackward, cudnn.handle, kSpatial, one, zero, one, zero, tensor, x, tensor, dy, tensor,
             dx, numbers, ones, unused, zeros, eps, mean, factor);
  });
}

// ---- activations: kRelu without a slope, kSigmoid, kTanh

inline void* cudnn_activation(Cudnn& cudnn, int mode) {
  return cudnn_descriptor(cudnn, {kActivation, mode}, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreateActivationDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetActivationDescriptor, *made, mode, kPropagateNan, 0.0);
  });
}

inline bool cudnn_activation_forward(const Context& on, int engine, int dtype, int mode, index_t n, const void* x, void* y) {
  return with_cudnn(on, engine, n, [&](Cudnn& cudnn) {
    void* activation = cudnn_activation(cudnn, mode);
    void* tensor = cudnn_tensor(cudnn, dtype, {1, 1, 1, n});
    MC_CUDNN(cudnn, cudnnActivationForward, cudnn.handle, activation, cudnn_factor(dtype, true), tensor, x,
             cudnn_factor(dtype, false), tensor, y);
  });
}

inline bool cudnn_activation_backward(const Context& on, int engine, int dtype, int mode, index_t n, const void* x, const void* y,
                                      const void* dy, void* dx) {
  return with_cudnn(on, engine, n, [&](Cudnn& cudnn) {
    void* activation = cudnn_activation(cudnn, mode);
    void* tensor = cudnn_tensor(cudnn, dtype, {1, 1, 1, n});
    MC_CUDNN(cudnn, cudnnActivationBackward, cudnn.handle, activation, cudnn_factor(dtype, true), tensor, y, tensor, dy, tensor,
             x, cudnn_factor(dtype, false), tensor, dx);
  });
}

}  // namespace cuda
}  // namespace mc
