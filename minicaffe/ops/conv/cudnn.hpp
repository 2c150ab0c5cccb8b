// Convolution by plans of cuDNN's graph interface (cuda/cudnn.hpp), which engine_cudnn.pyx measures and chooses.
//
// A product of images x, weights w and columns y is an operation graph. cuDNN's heuristic lists engines for it and how to set them.
// Those whose arithmetic is not allowed are left out; each of the others makes a plan, if it can.
//
// The bias is part of the graph of the forward product, and the graph adds a gradient of weights (beta 1) where there is something
// to add to, if there are engines for that. Behind them in the list are those of the product alone, after which a kernel of ours
// adds, so that measuring compares both. For an H100 cuDNN 9.28 lists the same engines with beta 1 as with beta 0, except those
// that it compiles at run time.
#pragma once
#include <memory>
#include "minicaffe/cuda/cudnn.hpp"
#include "minicaffe/kernels/pointwise.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/conv/shape.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

namespace mc {
namespace cuda {

enum CudnnProduct { kForward = 0, kBackwardData = 1, kBackwardWeights = 2 };  // x, w -> y    w, y -> x    x, y -> w
enum CudnnUid : int64_t { kX = 1, kW, kY, kBias, kUnbiased };  // of a graph's tensors; kUnbiased, y without bias, is virtual
constexpr int kMaxMeasuredPlans = 8, kMaxNotes = 32;  // plans of each graph that are measured; more notes than an engine has

/// A product and its arrays. The bias is null or has a value for each channel of x or y, which then is the result. With
/// `dtype` BF16 images, columns and weights are Bf16; a bias and a gradient of weights are floats. `add` is for a gradient of
/// weights alone.
struct CudnnArguments {
  int product, dtype, layout;  // kNchw or kNhwc
  void *x, *w, *y;
  const void* bias;
  bool add;
  int64_t alignment;   // of all arrays, in bytes, at most the 16 that faster plans need
  bool trial = false;  // a measurement: a gradient of weights that is added to is written apart (CudnnPlans::bytes)

  CudnnArguments() = default;
  CudnnArguments(int product, int dtype, int layout, void* x, void* w, void* y, const void* bias, bool add)
      : product(product), dtype(dtype), layout(layout), x(x), w(w), y(y), bias(bias), add(add) {
    alignment = (size_t(x) | size_t(w) | size_t(y) | size_t(bias)) % 16 ? int64_t(item_size(dtype)) : 16;
  }
};

/// A plan of cuDNN for a product, as far as it was made.
struct CudnnPlan {
  CudnnNode settings, plan;  // an engine's configuration as the heuristic lists it; the execution plan, null until it is needed
  bool whole;                // its graph has all: the bias; or a gradient of weights in its own type, and what that is added to
  int64_t workspace;         // bytes
  CudnnFailure failed;       // why it is not used; the call is null if it may be
};
/// The plans of a product of one shape; they are never freed.
struct CudnnPlans {
  std::vector<CudnnPlan> all;  // in the heuristic's order
  int chosen = -1;
  bool tunes;                  // whether they may be measured
  index_t gradient;            // bytes of a gradient of weights that our kernel adds or converts after the product, else 0
  std::string place, none;     // the key of the choice in the cache on disk; why none of `all` can be used, if that is so
  CudnnFailure refused = {nullptr, 0};  // why `all` is empty, if it is

  /// Memory for a plan: a gradient apart, which our kernel adds or which is for trial, and behind it the workspace.
  index_t bytes(const CudnnPlan& plan, bool trial) const { return (plan.whole && !trial ? 0 : gradient) + plan.workspace; }
};

/// Elements of the largest tensor, for the limit in with_cudnn; 0 if there is nothing to compute.
inline index_t cudnn_count(const ConvShape& s) {
  index_t image = s.images * s.channels * s.pixels, columns = s.images * s.outputs * s.positions;
  return image && columns ? std::max({image, columns, s.outputs * s.k}) : 0;
}

/// cuDNN's number of a type of kernels/types.hpp.
inline int cudnn_type(int dtype) {
  return dtype == BF16 ? nv::DATA_BFLOAT16 : dtype == DOUBLE ? nv::DATA_DOUBLE : nv::DATA_FLOAT;
}
/// The type of sums, biases and gradients of weights.
inline int cudnn_real(int dtype) { return dtype == BF16 ? FLOAT : dtype; }

/// A tensor descriptor for `sizes`: images, channels, and pixels along each axis. Only here the layout decides the strides.
inline CudnnNode cudnn_array(const Cudnn& cudnn, const CudnnArguments& of, int64_t uid, int dtype,
                             const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = of.layout == kNhwc ? sizes[1] : 1;
  for (size_t a = sizes.size() - 1; a > 1; --a) strides[a] = step, step *= sizes[a];
  strides[0] = of.layout == kNhwc ? step : step * sizes[1], strides[1] = of.layout == kNhwc ? 1 : step;
  CudnnNode node(cudnn, nv::BACKEND_TENSOR_DESCRIPTOR);
  node.put(nv::ATTR_TENSOR_DATA_TYPE, nv::TYPE_DATA_TYPE, cudnn_type(dtype)).put(nv::ATTR_TENSOR_UNIQUE_ID, uid);
  node.put(nv::ATTR_TENSOR_DIMENSIONS, sizes).put(nv::ATTR_TENSOR_STRIDES, strides);
  node.put(nv::ATTR_TENSOR_BYTE_ALIGNMENT, std::max<int64_t>(of.alignment, item_size(dtype)));  // cuDNN refuses less
  if (uid == kUnbiased) node.put(nv::ATTR_TENSOR_IS_VIRTUAL, nv::TYPE_BOOLEAN, true);
  return std::move(node.finalize());
}

/// The operation graph of a product; if `whole`, with the bias, or the gradient of weights that it adds to.
inline CudnnNode cudnn_graph(const Cudnn& cudnn, const ConvShape& s, const CudnnArguments& of, bool whole) {
  const Window& w = s.window;
  const int axes = std::max(2, w.num_axes), from = axes - w.num_axes;  // along one axis: images of height 1
  std::vector<int64_t> image = {s.images, s.channels}, columns = {s.images, s.outputs}, weights = {s.outputs, s.group_channels},
                       biases = {1, s.outputs}, pads(axes, 0), strides(axes, 1), dilations(axes, 1);
  for (auto* sizes : {&image, &columns, &weights, &biases}) sizes->resize(axes + 2, 1);
  for (int a = 0, to = from; a < w.num_axes; ++a, ++to) {
    image[2 + to] = w.in[a], columns[2 + to] = w.out[a], weights[2 + to] = w.kernel[a];
    pads[to] = w.pad[a], strides[to] = w.stride[a], dilations[to] = w.dilation[a];
  }
  CudnnNode convolution(cudnn, nv::BACKEND_CONVOLUTION_DESCRIPTOR);
  const int real = cudnn_real(of.dtype), compute = cudnn_type(real), factor = real == DOUBLE ? nv::TYPE_DOUBLE : nv::TYPE_FLOAT;
  convolution.put(nv::ATTR_CONVOLUTION_COMP_TYPE, nv::TYPE_DATA_TYPE, compute).put(nv::ATTR_CONVOLUTION_SPATIAL_DIMS, axes);
  convolution.put(nv::ATTR_CONVOLUTION_CONV_MODE, nv::TYPE_CONVOLUTION_MODE, int(nv::CROSS_CORRELATION));
  convolution.put(nv::ATTR_CONVOLUTION_DILATIONS, dilations).put(nv::ATTR_CONVOLUTION_FILTER_STRIDES, strides);
  convolution.put(nv::ATTR_CONVOLUTION_PRE_PADDINGS, pads).put(nv::ATTR_CONVOLUTION_POST_PADDINGS, pads).finalize();

  static const int kKinds[] = {nv::BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                               nv::BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                               nv::BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
  const bool biased = whole && of.bias;
  const CudnnNode x = cudnn_array(cudnn, of, kX, of.dtype, image),
                  weight = cudnn_array(cudnn, of, kW, whole && of.product == kBackwardWeights ? real : of.dtype, weights);
  const CudnnNode y = biased ? cudnn_array(cudnn, of, kUnbiased, real, columns) : cudnn_array(cudnn, of, kY, of.dtype, columns);
  CudnnNode product(cudnn, kKinds[of.product]), add;
  int attribute = nv::ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA + 6 * of.product;  // then beta, convolution, weights, image, columns
  product.put(attribute++, factor, 1, cudnn_factor(real, true));
  product.put(attribute++, factor, 1, cudnn_factor(real, whole && of.add));
  const CudnnNode* nodes[] = {&convolution, &weight, &x, &y};
  for (const CudnnNode* node : nodes) product.put(attribute++, *node);
  std::vector<void*> operations = {product.finalize().get()};
  if (biased) {
    CudnnNode addition(cudnn, nv::BACKEND_POINTWISE_DESCRIPTOR);
    addition.put(nv::ATTR_POINTWISE_MODE, nv::TYPE_POINTWISE_MODE, int(nv::POINTWISE_ADD));
    addition.put(nv::ATTR_POINTWISE_MATH_PREC, nv::TYPE_DATA_TYPE, compute).finalize();
    add = CudnnNode(cudnn, nv::BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    add.put(nv::ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, addition).put(nv::ATTR_OPERATION_POINTWISE_XDESC, y);
    add.put(nv::ATTR_OPERATION_POINTWISE_BDESC, cudnn_array(cudnn, of, kBias, real, biases));
    add.put(nv::ATTR_OPERATION_POINTWISE_YDESC, cudnn_array(cudnn, of, kY, of.dtype, columns));
    operations.push_back(add.finalize().get());
  }
  CudnnNode graph(cudnn, nv::BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.put(nv::ATTR_OPERATIONGRAPH_HANDLE, nv::TYPE_HANDLE, cudnn.handle);
  graph.put(nv::ATTR_OPERATIONGRAPH_OPS, nv::TYPE_BACKEND_DESCRIPTOR, int64_t(operations.size()), operations.data());
  return std::move(graph.finalize());
}

/// Append the engines that the heuristic lists for the product, as plans yet to be made; those of mode FALLBACK if there are none.
inline void append_cudnn_plans(const Cudnn& cudnn, const ConvShape& s, const CudnnArguments& of, bool whole, CudnnPlans& plans) {
  const size_t before = plans.all.size();
  for (int mode : {nv::HEUR_MODE_INSTANT, nv::HEUR_MODE_FALLBACK}) {
    if (plans.all.size() > before) return;
    try {
      const CudnnNode graph = cudnn_graph(cudnn, s, of, whole);
      CudnnNode heuristic(cudnn, nv::BACKEND_ENGINEHEUR_DESCRIPTOR);
      heuristic.put(nv::ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).put(nv::ATTR_ENGINEHEUR_MODE, nv::TYPE_HEUR_MODE, mode).finalize();
      const int64_t count = heuristic.read(nv::ATTR_ENGINEHEUR_RESULTS, nv::TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
      for (CudnnNode& settings : heuristic.read_nodes(nv::ATTR_ENGINEHEUR_RESULTS, nv::BACKEND_ENGINECFG_DESCRIPTOR, count)) {
        int notes[kMaxNotes];
        const int* end = notes + settings.read_node(nv::ATTR_ENGINECFG_ENGINE, nv::BACKEND_ENGINE_DESCRIPTOR).read(
            nv::ATTR_ENGINE_NUMERICAL_NOTE, nv::TYPE_NUMERICAL_NOTE, kMaxNotes, notes);
        auto noted = [&](int note) { return std::find<const int*>(notes, end, note) != end; };
        if (noted(nv::NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) || (cudnn.deterministic && noted(nv::NUMERICAL_NOTE_NONDETERMINISTIC)) ||
            (of.dtype == FLOAT && !cudnn.tf32 && noted(nv::NUMERICAL_NOTE_TENSOR_CORE)))
          continue;
        plans.all.push_back({std::move(settings), CudnnNode(), whole, 0, {nullptr, 0}});
      }
    } catch (const CudnnFailure& stop) {
      if (!whole && !cudnn_refuses(stop.status)) throw;  // if the whole graph fails, the product alone is tried next
      plans.refused = stop;
    }
  }
}

/// Make the plan unless that was done; return whether it can be used: it could be made, and its workspace is within the limit.
inline bool make_cudnn_plan(const Cudnn& cudnn, CudnnPlan& plan) {
  if (plan.failed.call || plan.plan.get()) return !plan.failed.call;
  try {
    CudnnNode made(cudnn, nv::BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made.put(nv::ATTR_EXECUTION_PLAN_HANDLE, nv::TYPE_HANDLE, cudnn.handle);
    made.put(nv::ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan.settings).finalize();
    made.read(nv::ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, nv::TYPE_INT64, 1, &plan.workspace);
    if (plan.workspace > cudnn.workspace_limit) throw CudnnFailure{"convolution: no plan within the workspace limit", kRefused};
    plan.plan = std::move(made);
  } catch (const CudnnFailure& stop) {
    plan.failed = stop;
  }
  return !plan.failed.call;
}

/// All that the plans of a product depend on: the key in Cudnn::plans.
inline CudnnKey cudnn_key(const Cudnn& cudnn, const ConvShape& s, const CudnnArguments& of) {
  const Window& w = s.window;
  CudnnKey key = {of.product, of.dtype, of.layout, of.bias || of.add, of.alignment, cudnn.tf32 && of.dtype == FLOAT,
                  w.num_axes, s.images, s.channels, s.outputs, s.groups};
  for (int a = 0; a < std::min(3, w.num_axes); ++a) {
    const index_t numbers[] = {w.in[a], w.kernel[a], w.pad[a], w.stride[a], w.dilation[a]};
    std::copy(numbers, numbers + 5, &key[11 + 5 * a]);
  }
  return key;
}

/// Return the plans of a product, and set the number of the chosen one, or -1, and the bytes that it needs; null if the stream has
/// failed. Throws the reason if there are none: a refusal is kept for this shape, another failure is not.
inline CudnnPlans* cudnn_plans(const Context& on, const ConvShape& s, const CudnnArguments& of, int* chosen, index_t* bytes) {
  const Window& w = s.window;
  CudnnPlans* plans = nullptr;
  with_cudnn(on, cudnn_count(s), [&](Cudnn& cudnn) {
    if (w.num_axes > 3) throw CudnnFailure{"convolution along more than 3 axes", kRefused};
    for (int a = 0; a < w.num_axes; ++a) {
      // The size that cuDNN computes for the output; Caffe's differs, being 1, where the window is larger than the image.
      index_t room = index_t(w.in[a]) + 2 * w.pad[a] - index_t(w.dilation[a]) * (w.kernel[a] - 1) - 1;
      if (room < 0 || room / w.stride[a] + 1 != w.out[a])
        throw CudnnFailure{"convolution windows larger than the padded image", kRefused};
    }
    const CudnnKey key = cudnn_key(cudnn, s, of);
    auto found = cudnn.plans.find(key);
    if (found == cudnn.plans.end()) {
      auto made = std::make_unique<CudnnPlans>();
      const bool depthwise = s.groups > 1 && s.group_channels == 1;  // a bias in the graph costs seven times the product there
      const bool apart = of.product == kBackwardWeights && (of.add || of.dtype == BF16);
      if (apart || (of.product == kForward && of.bias && !depthwise)) append_cudnn_plans(cudnn, s, of, true, *made);
      append_cudnn_plans(cudnn, s, of, false, *made);
      if (!made->refused.call)
        made->refused = {cudnn.deterministic ? "convolution: no plan that repeats its results" : "convolution: no plan", kRefused};
      made->tunes = cudnn.tunes;
      made->gradient = apart ? round_up(s.outputs * s.k * item_size(cudnn_real(of.dtype)), 256) : 0;
      made->place = std::string("convolution by ") + cudnn.place + ":";
      for (index_t number : key) made->place += " " + std::to_string(number);
      found = cudnn.plans.emplace(key, made.release()).first;
    }
    if (found->second->all.empty()) throw found->second->refused;
    plans = found->second, *chosen = plans->chosen;
    if (*chosen >= 0) *bytes = plans->bytes(plans->all[size_t(*chosen)], false);
  });
  return plans;
}

/// Choose plan `wanted` if it can be used, else the first that can, unless one is chosen already; return its number and set the
/// bytes that it needs. If none can, it throws a refusal, whatever the reason, so that engine CAFFE computes.
inline int cudnn_choose(const Context& on, CudnnPlans& plans, int wanted, index_t* bytes) {
  with_cudnn(on, 0, [&](Cudnn& cudnn) {
    auto fits = [&](int i) { return i >= 0 && i < int(plans.all.size()) && make_cudnn_plan(cudnn, plans.all[size_t(i)]); };
    if (!fits(plans.chosen)) {  // else another thread was first, and a graph may have recorded its plan
      for (int i = 0; !fits(wanted) && i < int(plans.all.size()); ++i) wanted = i;
      if (!fits(wanted)) {
        plans.chosen = -1;
        if (plans.none.empty()) plans.none = cudnn_text(cudnn, plans.all[0].failed);
        throw CudnnFailure{plans.none.c_str(), kRefused};
      }
      plans.chosen = wanted;
      for (CudnnPlan& plan : plans.all)
        if (&plan != &plans.all[size_t(wanted)] && !plan.failed.call) plan.plan = CudnnNode();
    }
    wanted = plans.chosen, *bytes = plans.bytes(plans.all[size_t(wanted)], false);
  });
  return wanted;
}

/// The text that identifies plan i in the cache on disk: its position in the list, and its engine, -1 if the plan cannot be used.
inline std::string cudnn_name(const Context& on, CudnnPlans& plans, int i) {
  int64_t engine = -1;
  with_cudnn(on, 0, [&](Cudnn& cudnn) {
    if (i < 0 || i >= int(plans.all.size()) || !make_cudnn_plan(cudnn, plans.all[size_t(i)])) return;
    const CudnnNode node = plans.all[size_t(i)].settings.read_node(nv::ATTR_ENGINECFG_ENGINE, nv::BACKEND_ENGINE_DESCRIPTOR);
    node.read(nv::ATTR_ENGINE_GLOBAL_INDEX, nv::TYPE_INT64, 1, &engine);
  });
  return std::to_string(i) + ": engine " + std::to_string(engine);
}

/// Return the numbers of the plans to measure, of each graph the first that can be used; set the bytes that suffice for each.
inline std::vector<int> cudnn_candidates(const Context& on, CudnnPlans& plans, index_t* bytes) {
  std::vector<int> fitting;
  with_cudnn(on, 0, [&](Cudnn& cudnn) {
    int counts[2] = {0, 0};
    for (CudnnPlan& plan : plans.all) {
      if (counts[plan.whole] == kMaxMeasuredPlans || !make_cudnn_plan(cudnn, plan)) continue;
      ++counts[plan.whole], *bytes = std::max(*bytes, plans.bytes(plan, true));
      fitting.push_back(int(&plan - plans.all.data()));
    }
  });
  return fitting;
}

/// Compute by plan i, with `memory` of CudnnPlans::bytes, and add by our own kernels where its graph does not. Return "", or why
/// the plan failed; then it is not used again.
inline std::string cudnn_run(const Context& on, const ConvShape& s, const CudnnArguments& of, CudnnPlans& plans, int i,
                             void* memory) {
  CudnnPlan& plan = plans.all[size_t(i)];
  std::string why;
  with_cudnn(on, 0, [&](Cudnn& cudnn) {
    if (make_cudnn_plan(cudnn, plan)) try {
      const index_t apart = plans.bytes(plan, of.trial) - plan.workspace;  // bytes of a gradient before the workspace, or 0
      std::vector<int64_t> uids = {kX, kW, kY};
      const void* arrays[] = {of.x, apart ? memory : of.w, of.y, of.bias};
      if (plan.whole && of.bias) uids.push_back(kBias);
      void* workspace = plan.workspace ? static_cast<char*>(memory) + apart : nullptr;
      CudnnNode pack(cudnn, nv::BACKEND_VARIANT_PACK_DESCRIPTOR);
      pack.put(nv::ATTR_VARIANT_PACK_UNIQUE_IDS, uids).put(nv::ATTR_VARIANT_PACK_WORKSPACE, nv::TYPE_VOID_PTR, workspace);
      pack.put(nv::ATTR_VARIANT_PACK_DATA_POINTERS, nv::TYPE_VOID_PTR, int64_t(uids.size()), arrays).finalize();
      MC_CUDNN(cudnn, cudnnBackendExecute, cudnn.handle, plan.plan.get(), pack.get());
    } catch (const CudnnFailure& stop) {
      plan.failed = stop;
    }
    if (plan.failed.call) why = cudnn_text(cudnn, plan.failed);
  }, "cudnnBackendExecute");
  if (plan.whole || !why.empty() || on.stream->failed || !(of.bias || plans.gradient)) return why;
  const bool columns = of.product == kForward, last = of.layout == kNhwc;
  void* to = columns ? of.y : of.product == kBackwardData ? of.x : of.trial ? memory : of.w;
  const index_t plane = columns ? s.positions : s.pixels;
  const Channels channels(s.images * (last ? plane : 1), columns ? s.outputs : s.channels, last ? 1 : plane);
  if (of.product == kBackwardWeights && !of.add)
    for_each(on, s.outputs * s.k, Convert<Bf16, float>{static_cast<const Bf16*>(memory), static_cast<float*>(to)});
  else if (of.product == kBackwardWeights && of.dtype == BF16)
    for_each(on, s.outputs * s.k, AddConverted<Bf16, float>{static_cast<const Bf16*>(memory), static_cast<float*>(to)});
  else if (of.product == kBackwardWeights) map2<Axpy>(on, of.dtype, s.outputs * s.k, memory, to, to, 1.0);
  else if (of.bias && of.dtype == BF16)
    broadcast(*on.stream, channels, ShiftBy<float>{static_cast<const float*>(of.bias)}, static_cast<Bf16*>(to),
              static_cast<Bf16*>(nullptr), static_cast<const Bf16*>(to));
  else if (of.bias) broadcast1<ShiftBy>(on, of.dtype, channels, to, to, nullptr, of.bias);
  return why;
}

/// The sum of dy over each channel, rows of channels of Bf16, to the gradient of its bias, a float; added if `add`.
inline void cudnn_bias_bf16(const Context& on, index_t rows, index_t channels, const void* dy, void* bias, bool add) {
  const TermOf<Same<float>, Bf16, 1> term{{static_cast<const Bf16*>(dy)}};
  channel_sums(*on.stream, Channels(rows, channels, 1), term, 1.0, add, static_cast<float*>(bias));
}

}  // namespace cuda
}  // namespace mc
