// Engine CUDNN: cuDNN 9 by pointers and declarations of our own (no header, no link). Convolutions use its graph interface
// (cudnnBackend...), LRN its older one.
//
// A function of an operation throws std::runtime_error with the reason if there is no cuDNN, or if cuDNN does not support the case:
// then the next engine computes it (engines/engine.pyx). Any other error is stored in the stream.
//
// This file has the calls and the code that all operations share; that of one operation is in ops/<operation>/cudnn.hpp.
// Descriptors and plans are kept for each shape until the process ends.
// Numbers and types are those of cudnn_graph.h and cudnn_ops.h; tests/cuda/test_cudnn.py compares them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include "minicaffe/cuda/libraries.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {
namespace cuda {

constexpr int kNchw = 0, kNhwc = 1, kAcrossChannels = 0;
constexpr int kNotSupported = 3000, kNotSupportedEnd = 4000;  // a category of cudnnStatus_t
constexpr int kRefused = -1;                                  // used as a status: not supported by our code

/// Numbers of the graph interface, by NVIDIA's names without CUDNN_.
#define MC_CUDNN_NUMBERS(X)                                                                                                       \
  X(BACKEND_POINTWISE_DESCRIPTOR, 0) X(BACKEND_CONVOLUTION_DESCRIPTOR, 1) X(BACKEND_ENGINE_DESCRIPTOR, 2)                         \
  X(BACKEND_ENGINECFG_DESCRIPTOR, 3) X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4) X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                  \
  X(BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10) X(BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11)         \
  X(BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12) X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                     \
  X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15) X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16) X(BACKEND_TENSOR_DESCRIPTOR, 17)                \
  X(TYPE_HANDLE, 0) X(TYPE_DATA_TYPE, 1) X(TYPE_BOOLEAN, 2) X(TYPE_INT64, 3) X(TYPE_FLOAT, 4) X(TYPE_DOUBLE, 5)                   \
  X(TYPE_VOID_PTR, 6) X(TYPE_CONVOLUTION_MODE, 7) X(TYPE_HEUR_MODE, 8) X(TYPE_NUMERICAL_NOTE, 11) X(TYPE_POINTWISE_MODE, 14)      \
  X(TYPE_BACKEND_DESCRIPTOR, 15) X(ATTR_POINTWISE_MODE, 0) X(ATTR_POINTWISE_MATH_PREC, 1) X(ATTR_CONVOLUTION_COMP_TYPE, 100)      \
  X(ATTR_CONVOLUTION_CONV_MODE, 101) X(ATTR_CONVOLUTION_DILATIONS, 102) X(ATTR_CONVOLUTION_FILTER_STRIDES, 103)                   \
  X(ATTR_CONVOLUTION_POST_PADDINGS, 104) X(ATTR_CONVOLUTION_PRE_PADDINGS, 105) X(ATTR_CONVOLUTION_SPATIAL_DIMS, 106)              \
  X(ATTR_ENGINEHEUR_MODE, 200) X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201) X(ATTR_ENGINEHEUR_RESULTS, 202)                            \
  X(ATTR_ENGINECFG_ENGINE, 300) X(ATTR_EXECUTION_PLAN_HANDLE, 400) X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                      \
  X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402) X(ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)                                     \
  X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750) X(ATTR_OPERATION_POINTWISE_XDESC, 751) X(ATTR_OPERATION_POINTWISE_BDESC, 752)    \
  X(ATTR_OPERATION_POINTWISE_YDESC, 753) X(ATTR_OPERATIONGRAPH_HANDLE, 800) X(ATTR_OPERATIONGRAPH_OPS, 801)                       \
  X(ATTR_TENSOR_BYTE_ALIGNMENT, 900) X(ATTR_TENSOR_DATA_TYPE, 901) X(ATTR_TENSOR_DIMENSIONS, 902) X(ATTR_TENSOR_STRIDES, 903)     \
  X(ATTR_TENSOR_UNIQUE_ID, 906) X(ATTR_TENSOR_IS_VIRTUAL, 907) X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                              \
  X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001) X(ATTR_VARIANT_PACK_WORKSPACE, 1003) X(ATTR_ENGINE_GLOBAL_INDEX, 1301)                 \
  X(ATTR_ENGINE_NUMERICAL_NOTE, 1303) X(NUMERICAL_NOTE_TENSOR_CORE, 0) X(NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)                   \
  X(NUMERICAL_NOTE_NONDETERMINISTIC, 4) X(HEUR_MODE_INSTANT, 0) X(HEUR_MODE_FALLBACK, 2) X(POINTWISE_ADD, 0)                      \
  X(CROSS_CORRELATION, 1) X(DATA_FLOAT, 0) X(DATA_DOUBLE, 1) X(DATA_BFLOAT16, 9)

#define MC_CUDNN_NUMBER(name, number) name = number,
namespace nv {
enum Number : int { MC_CUDNN_NUMBERS(MC_CUDNN_NUMBER) };
}
#undef MC_CUDNN_NUMBER

/// The functions of cuDNN in use, with their arguments; all return a cudnnStatus_t. Descriptors and data are void*.
#define MC_CUDNN_CALLS(X)                                                                                                     \
  X(cudnnCreate, void**)                                                                                                      \
  X(cudnnSetStream, void*, void*)                                                                                             \
  X(cudnnCreateTensorDescriptor, void**)                                                                                      \
  X(cudnnSetTensorNdDescriptorEx, void*, int, int, int, const int*)                                                           \
  X(cudnnBackendCreateDescriptor, int, void**)                                                                                \
  X(cudnnBackendSetAttribute, void*, int, int, int64_t, const void*)                                                          \
  X(cudnnBackendGetAttribute, void*, int, int, int64_t, int64_t*, void*)                                                      \
  X(cudnnBackendFinalize, void*)                                                                                              \
  X(cudnnBackendExecute, void*, void*, void*)                                                                                 \
  X(cudnnBackendDestroyDescriptor, void*)                                                                                     \
  X(cudnnCreateLRNDescriptor, void**)                                                                                         \
  X(cudnnSetLRNDescriptor, void*, unsigned, double, double, double)                                                           \
  X(cudnnLRNCrossChannelForward, void*, void*, int, const void*, void*, const void*, const void*, void*, void*)               \
  X(cudnnLRNCrossChannelBackward, void*, void*, int, const void*, void*, const void*, void*, const void*, void*, const void*, \
    const void*, void*, void*)

struct CudnnCalls {  // a pointer to each of them
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

using CudnnKey = std::array<index_t, 28>;  // the numbers that a descriptor or plan depends on, then zeros

struct CudnnPlans;  // ops/conv/cudnn.hpp

/// cuDNN for the computing stream of one device: made by cuda/libraries.pyx at the first use, never freed.
struct Cudnn {
  void* handle;  // cudnnHandle_t
  CudnnCalls call;
  int tf32, deterministic, tunes; // whether the precision is tf32; whether results must repeat; whether plans may be measured
  int64_t workspace_limit;        // bytes that a plan may need
  const char* place;              // version, device and limit: a part of the key of a measured choice in the cache on disk
  void (*fail)(Stream*, const char* call, int status);     // stores the error in the stream; acquires the GIL
  const char* (*status_name)(int status);
  std::mutex mutex;               // a handle serves one thread at a time
  std::map<CudnnKey, void*> descriptors;
  std::map<CudnnKey, CudnnPlans*> plans;
};

/// Thrown to end a sequence of calls. `status` is that of `call`, or kRefused; then `call` is the reason.
struct CudnnFailure {
  const char* call;
  int status;
};
/// Whether a status says that the case is not supported, so that another engine computes it; any other one is an error.
inline bool cudnn_refuses(int status) {
  return status == kRefused || (status >= kNotSupported && status < kNotSupportedEnd);
}
inline void cudnn_check(int status, const char* call) {  // 0 is success
  if (status) throw CudnnFailure{call, status};
}
/// Call the function `name` of cuDNN; throw CudnnFailure unless it succeeds.
#define MC_CUDNN(cudnn, name, ...) ::mc::cuda::cudnn_check((cudnn).call.name(__VA_ARGS__), #name)

/// The failure as text for an error or a refusal.
inline std::string cudnn_text(const Cudnn& cudnn, const CudnnFailure& stop) {
  return stop.status == kRefused ? stop.call : std::string(stop.call) + ": " + cudnn.status_name(stop.status);
}

/// Do work(cudnn) under the mutex, with cuDNN opened at the first use; nothing if the stream has failed. Throws std::runtime_error
/// if cuDNN is missing or refuses. `count`: elements of the largest tensor. `call`: the call in `work` that computes, reported
/// while launches are recorded; null if none does.
template <class Work> void with_cudnn(const Context& on, index_t count, const Work& work, const char* call = nullptr) {
  Libraries& libraries = *on.stream->libraries;
  if (!libraries.cudnn && !libraries.no_cudnn) libraries.open_cudnn(on.stream);
  if (on.stream->failed) return;
  if (!libraries.cudnn) throw std::runtime_error(libraries.no_cudnn);
  if (count > 0x7fffffff) throw std::runtime_error("more than 2^31 - 1 elements");
  Cudnn& cudnn = *libraries.cudnn;
  CudnnFailure stop = {nullptr, 0};
  const bool watched = call && on.stream->recording;
  if (watched) libraries.watch(on.stream, nullptr);
  try {
    std::lock_guard<std::mutex> lock(cudnn.mutex);
    work(cudnn);
  } catch (const CudnnFailure& reason) {
    stop = reason;
  }
  if (cudnn_refuses(stop.status)) throw std::runtime_error(cudnn_text(cudnn, stop));
  if (watched && !stop.status) libraries.watch(on.stream, call);
  if (stop.status) cudnn.fail(on.stream, stop.call, stop.status);  // without the lock: its holder may wait for the GIL
}

/// Pointer to 1 or 0 on the host, in the type of alpha and beta for tensors of `dtype`. FLOAT and DOUBLE are 0 and 1, as in cuDNN.
inline const void* cudnn_factor(int dtype, bool one) {
  static const float floats[] = {0, 1};
  static const double doubles[] = {0, 1};
  return dtype == DOUBLE ? static_cast<const void*>(doubles + one) : floats + one;
}

/// The descriptor of the older interface that belongs to `key`; make(&descriptor) creates and sets it the first time.
template <class Make> void* cudnn_descriptor(Cudnn& cudnn, const CudnnKey& key, const Make& make) {
  auto found = cudnn.descriptors.find(key);
  if (found != cudnn.descriptors.end()) return found->second;
  void* descriptor = nullptr;
  make(&descriptor);
  return cudnn.descriptors[key] = descriptor;
}

enum CudnnKind { kTensor, kLrn };  // the first number of a key

/// The descriptor of a dense tensor of images, channels, rows and columns in Caffe's order (NCHW).
inline void* cudnn_tensor(Cudnn& cudnn, int dtype, const std::array<index_t, 4>& sizes) {
  CudnnKey key = {kTensor, dtype};
  int dims[4];
  for (int a = 0; a < 4; ++a) key[2 + a] = sizes[a], dims[a] = int(sizes[a]);
  return cudnn_descriptor(cudnn, key, [&](void** made) {
    MC_CUDNN(cudnn, cudnnCreateTensorDescriptor, made);
    MC_CUDNN(cudnn, cudnnSetTensorNdDescriptorEx, *made, kNchw, dtype, 4, dims);
  });
}

/// A descriptor of the graph interface, destroyed with this object: `put` attributes, finalize, then read it or put it in another.
/// `kind` is a nv::BACKEND_..._DESCRIPTOR, `attribute` a nv::ATTR_, `type` a nv::TYPE_. A call that fails throws CudnnFailure.
class CudnnNode {
 public:
  CudnnNode() = default;
  CudnnNode(const Cudnn& cudnn, int kind) : cudnn_(&cudnn) { MC_CUDNN(cudnn, cudnnBackendCreateDescriptor, kind, &node_); }
  CudnnNode(CudnnNode&& other) noexcept { *this = std::move(other); }
  CudnnNode& operator=(CudnnNode&& other) noexcept {
    std::swap(cudnn_, other.cudnn_), std::swap(node_, other.node_);
    return *this;
  }
  ~CudnnNode() {
    if (node_) cudnn_->call.cudnnBackendDestroyDescriptor(node_);
  }
  void* get() const { return node_; }

  CudnnNode& put(int attribute, int type, int64_t count, const void* values) {
    MC_CUDNN(*cudnn_, cudnnBackendSetAttribute, node_, attribute, type, count, values);
    return *this;
  }
  template <class T> CudnnNode& put(int attribute, int type, const T& value) { return put(attribute, type, 1, &value); }
  CudnnNode& put(int attribute, int64_t value) { return put(attribute, nv::TYPE_INT64, value); }
  CudnnNode& put(int attribute, const std::vector<int64_t>& values) {
    return put(attribute, nv::TYPE_INT64, int64_t(values.size()), values.data());
  }
  CudnnNode& put(int attribute, const CudnnNode& node) { return put(attribute, nv::TYPE_BACKEND_DESCRIPTOR, node.node_); }
  CudnnNode& finalize() {
    MC_CUDNN(*cudnn_, cudnnBackendFinalize, node_);
    return *this;
  }

  /// Read at most `count` values; return how many. With `count` 0 return how many there are. Nodes to be read must exist before.
  int64_t read(int attribute, int type, int64_t count, void* values) const {
    int64_t found = 0;
    MC_CUDNN(*cudnn_, cudnnBackendGetAttribute, node_, attribute, type, count, &found, values);
    return count ? std::min(found, count) : found;
  }
  /// The descriptor of `kind`, such as an engine, that is an attribute; read_nodes: at most `count` of them.
  CudnnNode read_node(int attribute, int kind) const {
    CudnnNode node(*cudnn_, kind);
    void* place = node.node_;
    read(attribute, nv::TYPE_BACKEND_DESCRIPTOR, 1, &place);
    return node;
  }
  std::vector<CudnnNode> read_nodes(int attribute, int kind, int64_t count) const {
    std::vector<CudnnNode> nodes;
    std::vector<void*> places;
    for (int64_t i = 0; i < count; ++i) nodes.emplace_back(*cudnn_, kind), places.push_back(nodes.back().node_);
    if (count) nodes.erase(nodes.begin() + read(attribute, nv::TYPE_BACKEND_DESCRIPTOR, count, places.data()), nodes.end());
    return nodes;
  }

 private:
  const Cudnn* cudnn_ = nullptr;
  void* node_ = nullptr;
};

}  // namespace cuda
}  // namespace mc
