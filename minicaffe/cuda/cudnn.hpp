// Engine CUDNN: cuDNN 9 through its descriptor interface, by pointers and declarations of our own (no header, no link).
//
// A function throws std::runtime_error with the reason where there is no cuDNN, or where it refuses the case (ops/engine.pyx). An error
// is kept in the stream. Data stays in Caffe's layout (NCHW).
//
// This file has the calls and what all operations need; each operation's part is ops/<operation>/cudnn.hpp. Descriptors and chosen
// algorithms are kept for each shape as long as the process lives; they are small and on the host.
// Numbers and types are those of cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h; tests/cuda/test_cudnn.py compares them.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include "minicaffe/cuda/libraries.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {
namespace cuda {

constexpr int kNchw = 0, kAcrossChannels = 0, kSpatial = 1;
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
  X(cudnnCreateLRNDescriptor, void**)                                                                                         \
  X(cudnnSetLRNDescriptor, void*, unsigned, double, double, double)                                                           \
  X(cudnnLRNCrossChannelForward, void*, void*, int, const void*, void*, const void*, const void*, void*, void*)               \
  X(cudnnLRNCrossChannelBackward, void*, void*, int, const void*, void*, const void*, void*, const void*, void*, const void*, \
    const void*, void*, void*)                                                                                                \
  X(cudnnBatchNormalizationForwardTraining, void*, int, const void*, const void*, void*, const void*, void*, void*, void*,    \
    const void*, const void*, double, void*, void*, double, void*, void*)                                                     \
  X(cudnnBatchNormalizationBackward, void*, int, const void*, const void*, const void*, const void*, void*, const void*,      \
    void*, const void*, void*, void*, void*, const void*, void*, void*, double, const void*, const void*)

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
  int tf32, deterministic;        // whether the precision is tf32; whether results must repeat
  size_t workspace_limit;         // bytes that an algorithm may ask for
  void (*fail)(Stream*, const char* call, int status);     // take the GIL
  const char* (*status_name)(int status);
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

/// work(cudnn) on `count` elements at most in one tensor; opens cuDNN at the first use.
template <class Work> void with_cudnn(const Context& on, index_t count, const Work& work) {
  Libraries& libraries = *on.stream->libraries;
  if (!libraries.cudnn && !libraries.no_cudnn) libraries.open_cudnn(on.stream);
  if (on.stream->failed) return;
  if (!libraries.cudnn) throw std::runtime_error(libraries.no_cudnn);
  if (count > 0x7fffffff) throw std::runtime_error("more than 2^31 - 1 elements");
  Cudnn& cudnn = *libraries.cudnn;
  CudnnStop stop = {nullptr, 0};
  try {
    std::lock_guard<std::mutex> lock(cudnn.mutex);
    work(cudnn);
  } catch (const CudnnStop& reason) {
    stop = reason;
  }
  if (stop.status == kRefused) throw std::runtime_error(stop.call);
  if (cudnn_refuses(stop.status)) throw std::runtime_error(std::string(stop.call) + ": " + cudnn.status_name(stop.status));
  if (stop.status) cudnn.fail(on.stream, stop.call, stop.status);  // without the lock: its holder may wait for the GIL
}

/// A factor of the kind that tensors of `dtype` take: 1 or 0, on the host. cudnnDataType_t 0 and 1 are float and double, as here.
inline const void* cudnn_factor(int dtype, bool one) {
  static const float floats[] = {0, 1};
  static const double doubles[] = {0, 1};
  return dtype == DOUBLE ? static_cast<const void*>(doubles + one) : floats + one;
}

/// The descriptor that belongs to `key`; make(&descriptor) creates and sets it the first time.
template <class Make> void* cudnn_descriptor(Cudnn& cudnn, const CudnnKey& key, const Make& make) {
  auto found = cudnn.descriptors.find(key);
  if (found != cudnn.descriptors.end()) return found->second;
  void* descriptor = nullptr;
  make(&descriptor);
  return cudnn.descriptors[key] = descriptor;
}

enum CudnnKind { kTensor, kFilter, kLrn };  // the first number of a key

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

}  // namespace cuda
}  // namespace mc
