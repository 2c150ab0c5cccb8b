// Our own declarations of the part of oneDNN's C interface, version 3, that engine ONEDNN uses: no header of oneDNN is included
// and nothing is linked (library.pyx opens it). tests/engines/onednn/test_library.py compares them with oneDNN's headers.
//
// An Array owns a memory descriptor (shape and layout); a PrimitiveCall is one primitive with the memory objects of its arguments.
// An error is a std::runtime_error. Cython makes it a Refusal, after which another engine computes, or a DependencyError.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace onednn {

constexpr int kMaxAxes = 12;  // DNNL_MAX_NDIMS

struct DnnlVersion {  // dnnl_version_t
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
struct DnnlArgument {  // dnnl_exec_arg_t
  int index;     // such as kSource
  void* memory;  // a dnnl_memory_t
};

enum : int { kSuccess = 0, kCpu = 1, kInOrder = 1, kBf16 = 2, kFloat = 3, kAnyTag = 1, kRowMajor = 3 };  // kRowMajor: tag ab
enum : int { kBlocksOf16 = 78, kBlocksOf8 = 102 };  // tags nChw16c and nChw8c: blocks of channels are the last axis
enum : int { kChannelsLast = 22 };                  // tag nhwc: all channels are
enum : int { kBlocksOf16x16 = 79 };                 // tag ABcd16b16a: blocks of 16 x 16 of the first two axes
enum : unsigned { kSequential = 1, kOpenMp = 2 };  // runtimes
constexpr int kAdd = 0x1fff0;  // dnnl_binary_add
constexpr int kAmx = 0xfef;    // dnnl_cpu_isa_avx512_core_amx
constexpr int kUserScratchpad = 1;  // dnnl_scratchpad_mode_user
enum : int { kTraining = 64, kDirect = 1, kDirectTransposed = 10, kMaxPooling = 0x1ff, kMeanWithPadding = 0x2ff,
             kMeanWithoutPadding = 0x3ff, kLrnAcross = 0xaff };
// Queries of a primitive descriptor.
enum : int { kQueryImplementation = 8, kQuerySource = 129, kQuerySourceDiff, kQueryWeights, kQueryWeightsDiff, kQueryTop,
             kQueryTopDiff, kQueryWorkspace, kQueryScratch, kQueryAxes = 256, kQueryDims, kQueryType };
// The arguments of a primitive.
enum : int { kSource = 1, kTop = 17, kWeights = 33, kBias = 41, kWorkspace = 64, kScratch = 80, kSourceDiff = 129, kTopDiff = 145,
             kWeightsDiff = 161, kBiasDiff = 169 };
enum : int { kPostOp = 32768, kOperand = 2 };  // argument of post-op i: kPostOp (i + 1) | kOperand or kWeights
enum : int { kScales = 4096 };                  // scales of an argument: kScales | argument

using Dims = int64_t[kMaxAxes];

// X(name without dnnl_, return type, arguments)
#define MC_DNNL_CONVOLUTION(X, name) \
  X(name##_forward_primitive_desc_create, int, \
    (void** description, void* engine, int kind, int algorithm, const void* x, const void* w, const void* b, const void* y, \
     const int64_t* strides, const int64_t* dilates, const int64_t* left, const int64_t* right, const void* attributes)) \
  X(name##_backward_data_primitive_desc_create, int, \
    (void** description, void* engine, int algorithm, const void* dx, const void* w, const void* dy, const int64_t* strides, \
     const int64_t* dilates, const int64_t* left, const int64_t* right, const void* forward, const void* attributes)) \
  X(name##_backward_weights_primitive_desc_create, int, \
    (void** description, void* engine, int algorithm, const void* x, const void* dw, const void* db, const void* dy, \
     const int64_t* strides, const int64_t* dilates, const int64_t* left, const int64_t* right, const void* forward, \
     const void* attributes))
#define MC_DNNL_FUNCTIONS(X) \
  X(version, const DnnlVersion*, ()) \
  X(get_effective_cpu_isa, int, ()) \
  X(engine_create, int, (void** engine, int kind, size_t index)) \
  X(stream_create, int, (void** stream, void* engine, unsigned flags)) \
  X(memory_desc_create_with_strides, int, (void** md, int axes, const int64_t* dims, int type, const int64_t* strides)) \
  X(memory_desc_create_with_tag, int, (void** md, int axes, const int64_t* dims, int type, int tag)) \
  X(memory_desc_create_submemory, int, (void** md, const void* whole, const int64_t* dims, const int64_t* offsets)) \
  X(memory_desc_clone, int, (void** md, const void* source)) \
  X(memory_desc_destroy, int, (void* md)) \
  X(memory_desc_equal, int, (const void* a, const void* b)) \
  X(memory_desc_get_size, size_t, (const void* md)) \
  X(memory_desc_query, int, (const void* md, int what, void* result)) \
  X(memory_create, int, (void** memory, const void* md, void* engine, void* address)) \
  X(memory_set_data_handle, int, (void* memory, void* address)) \
  X(memory_destroy, int, (void* memory)) \
  X(primitive_attr_create, int, (void** attributes)) \
  X(primitive_attr_set_scratchpad_mode, int, (void* attributes, int mode)) \
  X(primitive_attr_set_post_ops, int, (void* attributes, const void* operations)) \
  X(primitive_attr_set_scales_mask, int, (void* attributes, int argument, int mask)) \
  X(primitive_attr_destroy, int, (void* attributes)) \
  X(post_ops_create, int, (void** operations)) \
  X(post_ops_append_sum, int, (void* operations, float scale, int32_t zero, int type)) \
  X(post_ops_append_binary, int, (void* operations, int algorithm, const void* operand)) \
  X(post_ops_append_prelu, int, (void* operations, int mask)) \
  X(post_ops_destroy, int, (void* operations)) \
  X(primitive_desc_query, int, (const void* description, int what, int index, void* result)) \
  X(primitive_desc_query_md, const void*, (const void* description, int what, int index)) \
  X(primitive_desc_destroy, int, (void* description)) \
  X(primitive_create, int, (void** primitive, const void* description)) \
  X(primitive_execute, int, (const void* primitive, void* stream, int count, const DnnlArgument* arguments)) \
  X(primitive_destroy, int, (void* primitive)) \
  X(reorder_primitive_desc_create, int, \
    (void** description, const void* from, void* from_engine, const void* to, void* to_engine, const void* attributes)) \
  MC_DNNL_CONVOLUTION(X, convolution) \
  MC_DNNL_CONVOLUTION(X, deconvolution) \
  X(inner_product_forward_primitive_desc_create, int, \
    (void** description, void* engine, int kind, const void* x, const void* w, const void* b, const void* y, \
     const void* attributes)) \
  X(inner_product_backward_data_primitive_desc_create, int, \
    (void** description, void* engine, const void* dx, const void* w, const void* dy, const void* forward, \
     const void* attributes)) \
  X(inner_product_backward_weights_primitive_desc_create, int, \
    (void** description, void* engine, const void* x, const void* dw, const void* db, const void* dy, const void* forward, \
     const void* attributes)) \
  X(pooling_forward_primitive_desc_create, int, \
    (void** description, void* engine, int kind, int algorithm, const void* x, const void* y, const int64_t* strides, \
     const int64_t* kernel, const int64_t* dilates, const int64_t* left, const int64_t* right, const void* attributes)) \
  X(pooling_backward_primitive_desc_create, int, \
    (void** description, void* engine, int algorithm, const void* dx, const void* dy, const int64_t* strides, \
     const int64_t* kernel, const int64_t* dilates, const int64_t* left, const int64_t* right, const void* forward, \
     const void* attributes)) \
  X(lrn_forward_primitive_desc_create, int, \
    (void** description, void* engine, int kind, int algorithm, const void* x, const void* y, int64_t size, float alpha, \
     float beta, float k, const void* attributes)) \
  X(lrn_backward_primitive_desc_create, int, \
    (void** description, void* engine, int algorithm, const void* dx, const void* dy, const void* x, int64_t size, float alpha, \
     float beta, float k, const void* forward, const void* attributes))

#define MC_DNNL_MEMBER(name, result, arguments) result(*name) arguments;
#define MC_DNNL_NAME(name, result, arguments) "dnnl_" #name,

struct Functions {  // pointers to the functions of `kNames`, in this order
  MC_DNNL_FUNCTIONS(MC_DNNL_MEMBER)
};
constexpr const char* kNames[] = {MC_DNNL_FUNCTIONS(MC_DNNL_NAME)};
constexpr int kFunctions = sizeof(kNames) / sizeof(*kNames);
static_assert(sizeof(Functions) == kFunctions * sizeof(void*), "one pointer for each name");

// The least work for a thread of a primitive, as a multiple of that for a part of our own loops: regions wait for all threads.
constexpr index_t kRegion = 4;  // with 10 MobileNet took 1.08 of its time for one picture, on 2 cores

/// Call a function of oneDNN, its name without dnnl_; throw std::runtime_error with the name if it fails.
#define MC_DNNL(on, name, ...) (on)->check((on)->call.name(__VA_ARGS__), #name)

/// The library that engines/onednn/library.pyx opened: one per process, never closed.
struct Library {
  Functions call;
  void* engine;              // dnnl_engine_t of the CPU
  void* stream;              // dnnl_stream_t; on the CPU primitive_execute returns when the primitive is done
  void* attributes;          // for a primitive without post-ops or scales
  void (*set_threads)(int);  // of the calling thread (openmp.hpp); null: the library has no threads
  int (*dry)();              // cpu::Pool's: whether the calling thread skips primitives

  /// Store the address of function i of `kNames`, for library.pyx.
  void set_function(int i, void* address) {
    std::memcpy(reinterpret_cast<char*>(&call) + size_t(i) * sizeof(void*), &address, sizeof address);
  }
  /// Make the members engine, stream and attributes, after all functions are stored.
  void start() {
    MC_DNNL(this, engine_create, &engine, kCpu, 0);
    MC_DNNL(this, stream_create, &stream, engine, kInOrder);
    attributes = new_attributes();
  }
  /// Attributes for a primitive whose scratch memory is an argument. By default oneDNN has a block of it for each thread, sized for
  /// the primitives *created* by this thread: another thread that runs one of them would overrun its own, smaller block.
  void* new_attributes() const {
    void* made;
    MC_DNNL(this, primitive_attr_create, &made);
    MC_DNNL(this, primitive_attr_set_scratchpad_mode, made, kUserScratchpad);
    return made;
  }
  /// Set the threads of the primitive that the calling thread makes or runs next: the same number for both.
  void use_threads(int threads) const {
    if (set_threads) set_threads(threads);
  }
  bool has_amx() const { return (call.get_effective_cpu_isa() & kAmx) == kAmx; }
  /// Throw std::runtime_error with the name of the function and the reason, if a call returned an error.
  static void check(int status, const char* what) {
    static const char* const kReasons[] = {"", "out of memory", "invalid arguments", "not implemented", "not implemented",
                                           "failed"};
    if (status != kSuccess)
      throw std::runtime_error(std::string("dnnl_") + what + ": " + (status > 0 && status < 6 ? kReasons[status] : "failed"));
  }
};

/// An object of oneDNN, destroyed with its last owner.
using Handle = std::shared_ptr<void>;

/// A shape and its layout.
class Array {
 public:
  Array() = default;
  /// Takes ownership of a memory descriptor; it is destroyed with the last copy of this Array.
  Array(const Library* on, void* md) : on_(on), md_(md, on->call.memory_desc_destroy) {}

  /// Row-major, last axis fastest, in float32; axis `swapped`, if given, is exchanged with the next one in memory.
  static Array plain(const Library* on, const std::vector<int64_t>& dims, int swapped = -1) {
    Dims strides;
    int64_t stride = 1;
    for (int i = int(dims.size()) - 1; i >= 0; --i) {
      const int axis = swapped < 0 || i < swapped || i > swapped + 1 ? i : 2 * swapped + 1 - i;
      strides[axis] = stride, stride *= dims[size_t(axis)];
    }
    void* md;
    MC_DNNL(on, memory_desc_create_with_strides, &md, int(dims.size()), dims.data(), kFloat, strides);
    return Array(on, md);
  }
  /// In the layout that the primitive will choose, or of another tag; `type` is kFloat or kBf16.
  static Array any(const Library* on, const std::vector<int64_t>& dims, int type, int tag = kAnyTag) {
    void* md;
    MC_DNNL(on, memory_desc_create_with_tag, &md, int(dims.size()), dims.data(), type, tag);
    return Array(on, md);
  }

  /// The layout of its first row, such as one image, within the whole.
  Array first() const {
    std::vector<int64_t> one = dims();
    one[0] = 1;
    const Dims offsets = {};
    void* md;
    MC_DNNL(on_, memory_desc_create_submemory, &md, get(), one.data(), offsets);
    return Array(on_, md);
  }

  const void* get() const { return md_.get(); }  // the memory descriptor, for functions of oneDNN
  size_t bytes() const { return md_ ? on_->call.memory_desc_get_size(get()) : 0; }
  int type() const {  // kFloat or kBf16
    int type = kFloat;
    MC_DNNL(on_, memory_desc_query, get(), kQueryType, &type);
    return type;
  }
  /// The sizes of the axes.
  std::vector<int64_t> dims() const {
    int axes = 0;
    const Dims* dims = nullptr;
    MC_DNNL(on_, memory_desc_query, get(), kQueryAxes, &axes);
    MC_DNNL(on_, memory_desc_query, get(), kQueryDims, &dims);
    return std::vector<int64_t>(*dims, *dims + axes);
  }
  bool operator==(const Array& other) const { return on_->call.memory_desc_equal(get(), other.get()) != 0; }

 private:
  const Library* on_ = nullptr;
  Handle md_;
};

/// A primitive descriptor: it has the layouts of the arguments, also those that oneDNN chose.
class Description {
 public:
  Description() = default;
  Description(const Library* on, void* description) : on_(on), description_(description, on->call.primitive_desc_destroy) {}

  const void* get() const { return description_.get(); }
  /// Whether oneDNN has only its slow reference implementation, or for a depthwise convolution one of AMX for full ones.
  bool slow(bool depthwise = false) const {
    const char* name = nullptr;
    MC_DNNL(on_, primitive_desc_query, get(), kQueryImplementation, 0, &name);
    return !name || !std::strncmp(name, "ref", 3) || std::strstr(name, "+ref") ||
           (depthwise && !std::strncmp(name, "brgconv", 7));
  }
  /// The layout of one argument, a number such as kQuerySource.
  Array array(int what) const {
    void* md;
    MC_DNNL(on_, memory_desc_clone, &md, on_->call.primitive_desc_query_md(get(), what, 0));
    return Array(on_, md);
  }

 private:
  const Library* on_ = nullptr;
  Handle description_;
};

/// The primitive descriptor from oneDNN's function `create`, of this name, with its arguments between engine and attributes.
template <class Create, class... A>
Description describe(const Library* on, int threads, const char* name, Create create, const A&... arguments) {
  void* description = nullptr;
  on->use_threads(threads);
  on->check(create(&description, on->engine, arguments..., on->attributes), name);
  return Description(on, description);
}

/// One primitive and one set of memory objects for its arguments: only one thread at a time may run it. Moved, not copied.
class PrimitiveCall {
 public:
  PrimitiveCall() = default;
  /// The primitive of a description, for which `takes` then names the arguments.
  PrimitiveCall(const Library* on, const Description& description) : on_(on) {
    void* primitive;
    MC_DNNL(on, primitive_create, &primitive, description.get());
    primitive_ = Handle(primitive, on->call.primitive_destroy);
    const Array scratch = description.array(kQueryScratch);
    scratch_ = scratch.bytes();
    if (scratch_) takes(kScratch, scratch);
  }
  PrimitiveCall(PrimitiveCall&&) = default;
  PrimitiveCall& operator=(PrimitiveCall&&) = default;

  /// The next argument of `run` is the array number `index` of the primitive, such as kSource, and has this layout.
  PrimitiveCall& takes(int index, const Array& array) {
    void* memory;
    MC_DNNL(on_, memory_create, &memory, array.get(), on_->engine, nullptr);
    memories_.emplace_back(memory, on_->call.memory_destroy);
    arguments_.push_back({index, memory});
    return *this;
  }
  explicit operator bool() const { return primitive_ != nullptr; }

  /// Bytes of scratch memory that `run` needs.
  size_t scratch() const { return scratch_; }
  /// Run with the arguments at `addresses`, in the order of the calls of `takes`; further ones are ignored. Not in a dry run.
  void run(int threads, void* scratch, std::initializer_list<const void*> addresses) {
    if (on_->dry()) return;
    const void* const* address = addresses.begin();
    for (const DnnlArgument& argument : arguments_)
      on_->call.memory_set_data_handle(argument.memory, argument.index == kScratch ? scratch : const_cast<void*>(*address++));
    on_->use_threads(threads);
    MC_DNNL(on_, primitive_execute, primitive_.get(), on_->stream, int(arguments_.size()), arguments_.data());
  }

 private:
  const Library* on_ = nullptr;
  Handle primitive_;
  size_t scratch_ = 0;
  std::vector<Handle> memories_;
  std::vector<DnnlArgument> arguments_;  // with these memories
};

/// An operation on an image whose forward keeps a workspace for backward: pooling and LRN.
class WorkspacePrimitive {
 public:
  Array x, y;                     // the bottom and the top, and their gradients; set by `make`
  bool backward_reads_x = false;  // whether `backward` takes x, too (LRN); set before `make`

  /// Make forward, which is on an image arranged as `image`, for make_pool and make_lrn (ops/). Backward is made at first use, from
  /// describe_backward(forward, y). `keeps`: whether there is a workspace; `name` is for the error if forward is slow().
  template <class Describe> void make(const Library* on, int threads, const char* name, const Array& image, Description&& forward,
                                      bool keeps, const Describe& describe_backward) {
    if (forward.slow()) throw std::runtime_error(std::string(name) + " for which oneDNN has only its slow reference");
    on_ = on, threads_ = threads, keeps_ = keeps, x = image, y = forward.array(kQueryTop);
    forward_step_ = PrimitiveCall(on, forward);
    forward_step_.takes(kSource, x).takes(kTop, y);
    if (keeps) forward_step_.takes(kWorkspace, workspace_ = forward.array(kQueryWorkspace));
    describe_backward_ = [=, top = y] { return describe_backward(forward, top); };
  }
  size_t workspace() const { return workspace_.bytes(); }             // for `kept` of forward and backward; 0: not needed
  size_t forward_scratch() const { return forward_step_.scratch(); }  // bytes for `scratch` of forward
  /// y from x; `kept`, of workspace() bytes, is written for backward. Both steps are given arguments that they may not take.
  void forward(const void* x_at, void* y_at, void* kept, void* scratch) {
    forward_step_.run(threads_, scratch, {x_at, y_at, kept});
  }
  /// Make the primitive of backward at its first use: a test never needs it.
  void make_backward() {
    if (backward_step_) return;
    PrimitiveCall step(on_, describe_backward_());
    step.takes(kTopDiff, y).takes(kSourceDiff, x);
    if (keeps_) step.takes(kWorkspace, workspace_);
    if (backward_reads_x) step.takes(kSource, x);
    backward_step_ = std::move(step);
  }
  size_t backward_scratch() const { return backward_step_.scratch(); }
  void backward(const void* dy_at, void* dx_at, const void* kept, const void* x_at, void* scratch) {
    backward_step_.run(threads_, scratch, {dy_at, dx_at, kept, x_at});
  }

 private:
  const Library* on_ = nullptr;
  int threads_ = 1;
  bool keeps_ = false;
  Array workspace_;
  std::function<Description()> describe_backward_;  // for make_backward
  PrimitiveCall forward_step_, backward_step_;
};

/// Attributes of a primitive: scales of an argument, and post-ops, which are applied in order to each element of the result before
/// it is stored. Needed only until the primitive is made; slopes and operands are arguments of its runs.
class Attributes {
 public:
  explicit Attributes(const Library* on) : on_(on), attributes_(on->new_attributes()) {
    MC_DNNL(on, post_ops_create, &operations_);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() { on_->call.post_ops_destroy(operations_), on_->call.primitive_attr_destroy(attributes_); }

  /// Add the previous contents of the result's memory.
  void sum() { MC_DNNL(on_, post_ops_append_sum, operations_, 1.f, 0, 0); }
  /// Add another array.
  void add(const Array& operand) {
    MC_DNNL(on_, post_ops_append_binary, operations_, kAdd, operand.get());
  }
  /// Multiply negative values by a slope, one for each channel or one for all.
  void rectify(bool channels) {
    MC_DNNL(on_, post_ops_append_prelu, operations_, channels ? 2 : 0);
  }
  /// Multiply an argument by a scale for each element of the axes whose bits are set in `mask`.
  void scale(int argument, int mask) {
    MC_DNNL(on_, primitive_attr_set_scales_mask, attributes_, argument, mask);
  }
  const void* get() {  // after the last post-op
    MC_DNNL(on_, primitive_attr_set_post_ops, attributes_, operations_);
    return attributes_;
  }

 private:
  const Library* on_;
  void *operations_ = nullptr, *attributes_;
};

/// y = x in another layout, or with `add` y += x. If `scales` is not 0, x is first multiplied by so many factors, one for each
/// element of its first axes: weights by the scale of their output, of a fused BatchNorm or Scale.
class Reorder {
 public:
  /// Make the primitive, for `run`; throws std::runtime_error.
  void make(const Library* on, int threads, const Array& from, const Array& to, bool add = false, int64_t scales = 0) {
    on_ = on, requested_ = threads, from_ = from, to_ = to, add_ = add, scales_ = scales;
    threads_ = cpu::parts_of(threads, index_t(to.bytes() / sizeof(float)), kRegion * cpu::kGrain);
    on->use_threads(threads_);
    void* description = nullptr;
    Attributes attributes(on);
    if (add) attributes.sum();
    int axes = 0;
    for (int64_t count = 1; count < scales; ++axes) count *= from.dims()[size_t(axes)];
    if (scales) attributes.scale(kSource, (1 << axes) - 1);
    MC_DNNL(on, reorder_primitive_desc_create, &description, from.get(), on->engine, to.get(), on->engine, attributes.get());
    step_ = PrimitiveCall(on, Description(on, description));
    step_.takes(kSource, from).takes(kTop, to);
    if (scales) step_.takes(kScales | kSource, Array::plain(on, {scales}));
    scratch_.resize(step_.scratch());
  }
  explicit operator bool() const { return bool(step_); }
  /// Convert x to y. A primitive has a fixed number of threads, so it is made again for another number than that of `make`.
  void run(int threads, const void* x, void* y, const float* scales = nullptr) {
    if (threads != requested_) make(on_, threads, from_, to_, add_, scales_);
    step_.run(threads_, scratch_.data(), {x, y, scales});
  }

 private:
  const Library* on_ = nullptr;
  int requested_ = 0, threads_ = 1;  // as given to `make`; of the primitive, fewer for small work
  Array from_, to_;
  bool add_ = false;
  int64_t scales_ = 0;
  PrimitiveCall step_;
  std::vector<char> scratch_;  // copies of scales, so it is small
};

}  // namespace onednn
}  // namespace mc
