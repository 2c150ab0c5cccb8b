// Convolution by cuDNN (cuda/cudnn.hpp): which algorithm is the fastest is measured once for each shape and product.
#pragma once
#include <algorithm>
#include "minicaffe/ops/conv/shape.hpp"
#include "minicaffe/cuda/cudnn.hpp"

namespace mc {
namespace cuda {

/// Of operands a and b, with the result c:
///   kForward: image, weights -> columns    kBackwardData: weights, columns -> image    kBackwardWeights: image, columns -> weights
enum CudnnProduct { kForward = 0, kBackwardData = 1, kBackwardWeights = 2 };
constexpr int kCrossCorrelation = 1, kDefaultMath = 0, kFmaMath = 3, kDeterministic = 1;  // kDefaultMath allows TF32
constexpr int kAlgorithms = 16;  // as many as are asked for; cuDNN has at most 8 for a product, some with two kinds of arithmetic

/// How a product of one shape is computed.
struct CudnnPlan {
  void *a, *b, *c, *convolution;  // descriptors; each plan has its own of the convolution, which holds the kind of arithmetic
  bool tf32;                      // whether factors may be rounded to TF32; otherwise FMA alone computes
  size_t trial_bytes;             // of a gradient of weights, which trials must not write to since it is added to
  int algorithm;
  size_t workspace;               // bytes
  bool chosen;
  CudnnStop refused;              // why; the call is null if it is not
};

/// The calls of one product.
struct CudnnProductCalls {
  decltype(CudnnCalls::cudnnGetConvolutionForwardAlgorithm_v7) advise;
  decltype(CudnnCalls::cudnnFindConvolutionForwardAlgorithmEx) measure;
  decltype(CudnnCalls::cudnnGetConvolutionForwardWorkspaceSize) workspace;
  decltype(CudnnCalls::cudnnConvolutionForward) run;
  const char *advise_name, *measure_name, *run_name;
};
inline CudnnProductCalls cudnn_calls_of(const CudnnCalls& call, int product) {
#define MC_CUDNN_PRODUCT_CALLS(kind)                                                                                       \
  CudnnProductCalls {                                                                                                      \
    call.cudnnGetConvolution##kind##Algorithm_v7, call.cudnnFindConvolution##kind##AlgorithmEx,                            \
        call.cudnnGetConvolution##kind##WorkspaceSize, call.cudnnConvolution##kind,                                        \
        "cudnnGetConvolution" #kind "Algorithm_v7", "cudnnFindConvolution" #kind "AlgorithmEx", "cudnnConvolution" #kind   \
  }
  if (product == kForward) return MC_CUDNN_PRODUCT_CALLS(Forward);
  if (product == kBackwardData) return MC_CUDNN_PRODUCT_CALLS(BackwardData);
  return MC_CUDNN_PRODUCT_CALLS(BackwardFilter);
#undef MC_CUDNN_PRODUCT_CALLS
}

/// A refusal counts for good.
inline void cudnn_check_plan(CudnnPlan& plan, int status, const char* call) {
  if (cudnn_refuses(status)) plan.refused = {call, status};
  cudnn_check(status, call);
}

/// Elements of the largest tensor.
inline index_t cudnn_count(const ConvShape& s) {
  index_t image = s.images * s.channels * s.pixels, columns = s.images * s.outputs * s.positions;
  return image && columns ? std::max({image, columns, s.outputs * s.k}) : 0;
}

/// The plan of a product, with its descriptors but perhaps no algorithm yet.
inline CudnnPlan& cudnn_plan(Cudnn& cudnn, int dtype, const ConvShape& s, int product) {
  const Window& w = s.window;
  if (w.num_axes > 3) throw CudnnStop{"convolution along more than 3 axes", kRefused};
  const int axes = std::max(2, w.num_axes), from = axes - w.num_axes;  // along one axis: images of height 1
  std::array<index_t, 5> image = {s.images, s.channels, 1, 1, 1}, columns = {s.images, s.outputs, 1, 1, 1},
                         weights = {s.outputs, s.group_channels, 1, 1, 1};
  int pad[3] = {0, 0, 0}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
  const bool tf32 = cudnn.tf32 && dtype == FLOAT;
  CudnnKey key = {product, dtype, tf32, w.num_axes, s.images, s.channels, s.outputs, s.groups};
  for (int a = 0; a < w.num_axes; ++a) {
    image[2 + from + a] = w.in[a], columns[2 + from + a] = w.out[a], weights[2 + from + a] = w.kernel[a];
    pad[from + a] = w.pad[a], stride[from + a] = w.stride[a], dilation[from + a] = w.dilation[a];
    // The size that cuDNN computes for the output; Caffe's differs, being 1, where the window is larger than the image.
    index_t room = index_t(w.in[a]) + 2 * w.pad[a] - index_t(w.dilation[a]) * (w.kernel[a] - 1) - 1;
    if (room < 0 || room / w.stride[a] + 1 != w.out[a])
      throw CudnnStop{"convolution windows larger than the padded image", kRefused};
    const index_t numbers[] = {w.in[a], w.kernel[a], w.pad[a], w.stride[a], w.dilation[a]};
    std::copy(numbers, numbers + 5, &key[8 + 5 * a]);
  }
  const auto found = cudnn.plans.find(key);
  if (found != cudnn.plans.end()) return *found->second;
  CudnnPlan plan = {};
  plan.tf32 = tf32;
  void* x = cudnn_tensor(cudnn, dtype, image, axes + 2);
  void* y = cudnn_tensor(cudnn, dtype, columns, axes + 2);
  void* filter = cudnn_tensor(cudnn, dtype, weights, axes + 2, true);
  plan.a = product == kBackwardData ? filter : x;
  plan.b = product == kForward ? filter : y;
  plan.c = product == kForward ? y : product == kBackwardData ? x : filter;
  size_t weight_bytes = size_t(s.outputs * s.k * item_size(dtype));
  plan.trial_bytes = product == kBackwardWeights ? (weight_bytes + 255) / 256 * 256 : 0;  // the workspace lies behind it
  MC_CUDNN(cudnn, cudnnCreateConvolutionDescriptor, &plan.convolution);
  MC_CUDNN(cudnn, cudnnSetConvolutionNdDescriptor, plan.convolution, axes, pad, stride, dilation, kCrossCorrelation, dtype);
  MC_CUDNN(cudnn, cudnnSetConvolutionGroupCount, plan.convolution, int(s.groups));
  MC_CUDNN(cudnn, cudnnSetConvolutionMathType, plan.convolution, tf32 ? kDefaultMath : kFmaMath);
  return *(cudnn.plans[key] = new CudnnPlan(plan));
}

/// Take the first algorithm that works, fits into `room` bytes, and repeats its results if that is asked for.
inline void cudnn_choose(Cudnn& cudnn, CudnnPlan& plan, const CudnnProductCalls& calls, const CudnnPerf* found, int count,
                         size_t room) {
  for (int i = 0; i < count; ++i) {
    if (found[i].status || (cudnn.deterministic && found[i].determinism != kDeterministic)) continue;
    if (!plan.tf32 && found[i].math != kFmaMath && found[i].math != kDefaultMath) continue;  // measured on tensor cores
    if (plan.tf32) MC_CUDNN(cudnn, cudnnSetConvolutionMathType, plan.convolution, found[i].math);
    size_t bytes = 0;
    if (calls.workspace(cudnn.handle, plan.a, plan.b, plan.convolution, plan.c, found[i].algorithm, &bytes) || bytes > room)
      continue;
    plan.algorithm = found[i].algorithm, plan.workspace = bytes, plan.chosen = true;
    return;
  }
  cudnn_check_plan(plan, kRefused, cudnn.deterministic ? "convolution: no deterministic algorithm within the workspace limit"
                                                       : "convolution: no algorithm within the workspace limit");
}

/// Memory for a product, in bytes.
struct CudnnRoom {
  index_t workspace;  // of the chosen algorithm; -1 if there is none
  index_t trial;      // for measuring the algorithms, which is still to be done; -1 if there is nothing to measure
};

inline CudnnRoom cudnn_room(const Context& on, int dtype, const ConvShape& s, int product) {
  CudnnRoom room = {-1, -1};
  with_cudnn(on, cudnn_count(s), [&](Cudnn& cudnn) {
    CudnnPlan& plan = cudnn_plan(cudnn, dtype, s, product);
    if (plan.refused.call) throw plan.refused;
    if (!plan.chosen) {
      const CudnnProductCalls calls = cudnn_calls_of(cudnn.call, product);
      CudnnPerf found[kAlgorithms];
      int count = 0;
      cudnn_check_plan(plan, calls.advise(cudnn.handle, plan.a, plan.b, plan.convolution, plan.c, kAlgorithms, &count, found),
                       calls.advise_name);
      if (on.stream->rate) {  // a graph is recorded, so that nothing can be measured: the advice must do
        cudnn_choose(cudnn, plan, calls, found, count, cudnn.workspace_limit);
      } else {
        size_t most = 0;
        for (int i = 0; i < count; ++i)
          if (!found[i].status && found[i].memory <= cudnn.workspace_limit) most = std::max(most, found[i].memory);
        room.trial = index_t(plan.trial_bytes + most);
      }
    }
    if (plan.chosen) room.workspace = index_t(plan.workspace);
  });
  return room;
}

/// Measure the algorithms of a product and choose one. `trial` has room.trial bytes; c is overwritten, except for a gradient of
/// weights.
inline void cudnn_measure(const Context& on, int dtype, const ConvShape& s, int product, const void* a,
                          const void* b, void* c, void* trial, index_t trial_bytes) {
  with_cudnn(on, cudnn_count(s), [&](Cudnn& cudnn) {
    CudnnPlan& plan = cudnn_plan(cudnn, dtype, s, product);
    const CudnnProductCalls calls = cudnn_calls_of(cudnn.call, product);
    const size_t room = size_t(trial_bytes) - plan.trial_bytes;
    CudnnPerf found[kAlgorithms];
    int count = 0;
    cudnn_check_plan(plan, calls.measure(cudnn.handle, plan.a, a, plan.b, b, plan.convolution, plan.c,
                                         plan.trial_bytes ? trial : c, kAlgorithms, &count, found,
                                         static_cast<char*>(trial) + plan.trial_bytes, room), calls.measure_name);
    cudnn_choose(cudnn, plan, calls, found, count, room);
  });
}

/// c = the product of a and b, or c += for the gradient of weights. `workspace` has room.workspace bytes, which are not -1.
inline void cudnn_convolve(const Context& on, int dtype, const ConvShape& s, int product, const void* a,
                           const void* b, void* c, void* workspace) {
  with_cudnn(on, cudnn_count(s), [&](Cudnn& cudnn) {
    CudnnPlan& plan = cudnn_plan(cudnn, dtype, s, product);
    const CudnnProductCalls calls = cudnn_calls_of(cudnn.call, product);
    cudnn_check_plan(plan, calls.run(cudnn.handle, cudnn_factor(dtype, true), plan.a, a, plan.b, b, plan.convolution,
                                     plan.algorithm, workspace, plan.workspace, cudnn_factor(dtype, product == kBackwardWeights),
                                     plan.c, c), calls.run_name);
  });
}

}  // namespace cuda
}  // namespace mc
