// The common part of convolution and inner product by oneDNN: y = x w + b in three steps, forward, gradient of x, gradient of
// weights and bias. oneDNN chooses the layouts of each step's arrays. The gradients use the layouts of forward unless oneDNN has
// only its slow reference for them, so that data and diffs pass from layer to layer without a reorder. Errors: std::runtime_error.
#pragma once
#include "minicaffe/engines/onednn/blocks.hpp"
#include "minicaffe/engines/onednn/dnnl.hpp"

namespace mc {
namespace onednn {

/// The three steps of an operation with weights, for OnednnWeightsPrimitive (primitives.pyx). A derived class (Conv, Inner in ops/)
/// calls `start`, and creates oneDNN's descriptions. Arrays are layouts; pointers (x_at and so on) are to values in them.
class Weighted {
 public:
  Array x, w, y;                // of forward
  Array dx, dy;                 // of the gradient of x
  Array weights_x, weights_dy;  // of x and the gradient of y, for the gradient of the weights
  Array gradient;               // of the weights: in their layout, or plain if they are rounded (bf16)
  Array plain_w;                // the parameter's own layout
  virtual ~Weighted() = default;

  size_t forward_scratch() const { return forward_step_.scratch(); }  // bytes for `scratch` of forward; so for each step
  /// y from x, w and b (null: none).
  void forward(const void* x_at, const void* w_at, const void* b_at, void* y_at, void* scratch) {
    forward_step_.run(threads_, scratch, {x_at, w_at, b_at ? b_at : no_bias_.data(), y_at});
  }

  /// Make the step of the gradient of x, at its first use; sets dx and dy.
  void make_backward_data() {
    on_->use_threads(threads_);
    const Description made = best([&](void** description, const Array& x_, const Array& dy_) {
      return create_backward_data(description, x_.get(), any_w_.get(), dy_.get());
    });
    dx = made.array(kQuerySourceDiff), data_w_ = made.array(kQueryWeights), dy = made.array(kQueryTopDiff);
    data_step_ = PrimitiveCall(on_, made);
    data_step_.takes(kWeights, data_w_).takes(kTopDiff, dy).takes(kSourceDiff, dx);
    if (!(data_w_ == w)) reorder_weights_.make(on_, threads_, data_reads_plain() ? plain_w : w, data_w_);
  }
  /// Whether w_at of backward_data are the weights in plain order: oneDNN has only slow conversions between layouts of bf16.
  bool data_reads_plain() const { return w.type() == kBf16 && !(data_w_ == w); }
  // Its scratch memory begins with the reordered weights, if a reorder is needed.
  size_t data_scratch() const { return reordered_weights_bytes() + data_step_.scratch(); }
  void backward_data(const void* w_at, const void* dy_at, void* dx_at, void* scratch) {
    if (reorder_weights_) reorder_weights_.run(threads_, w_at, scratch);
    data_step_.run(threads_, static_cast<char*>(scratch) + reordered_weights_bytes(),
                   {reorder_weights_ ? scratch : w_at, dy_at, dx_at});
  }

  /// Make the step of the gradient of the weights, and of the bias if `biased`, which takes another pass over the gradient of y.
  void make_backward_weights(bool biased) {
    on_->use_threads(threads_);
    const Array any_dw = Array::any(on_, w.dims(), kFloat);
    const Description made = best([&](void** description, const Array& x_, const Array& dy_) {
      return create_backward_weights(description, x_.get(), any_dw.get(), biased ? bias().get() : nullptr, dy_.get());
    });
    weights_x = made.array(kQuerySource), dw_ = made.array(kQueryWeightsDiff), weights_dy = made.array(kQueryTopDiff);
    weights_step_ = PrimitiveCall(on_, made);
    weights_step_.takes(kSource, weights_x).takes(kTopDiff, weights_dy).takes(kWeightsDiff, dw_);
    if (biased) weights_step_.takes(kBiasDiff, bias());
    gradient = w.type() == kBf16 ? plain_w : w;
    const std::vector<int64_t> dims = w.dims();
    blocks_ = dims.size() == 4 && dims[0] % 16 == 0 && dims[1] % 16 == 0 && gradient == Array::plain(on_, dims) &&
              dw_ == Array::any(on_, dims, kFloat, kBlocksOf16x16);
    if (!blocks_) add_.make(on_, threads_, dw_, gradient, true);
  }
  /// Whether the weights' gradient can be written directly if there is no previous gradient.
  bool overwrites() const { return blocks_ || dw_ == gradient; }
  // Its scratch memory begins with the gradient of the weights, from which it is added, and that of the bias.
  size_t weights_scratch() const { return gradients_bytes() + weights_step_.scratch(); }

  /// Add to the gradient of the weights, in the layout `gradient`, or overwrite it; and add to that of the bias unless null.
  void backward_weights(cpu::Threads threads, const void* x_at, const void* dy_at, bool overwrite, void* dw_at, void* db_at,
                        void* scratch) {
    float* const sums = static_cast<float*>(scratch) + dw_.bytes() / sizeof(float);
    const bool at_once = overwrite && !blocks_;
    weights_step_.run(threads_, static_cast<char*>(scratch) + gradients_bytes(), {x_at, dy_at, at_once ? dw_at : scratch, sums});
    if (blocks_) {
      const std::vector<int64_t> dims = w.dims();
      from_blocks(threads, dims[0], dims[1], dims[2] * dims[3], !overwrite, static_cast<float*>(scratch),
                  static_cast<float*>(dw_at));
    } else if (!overwrite) {
      add_.run(threads_, scratch, dw_at);
    }
    for (size_t i = 0; db_at && i < no_bias_.size(); ++i) static_cast<float*>(db_at)[i] += sums[i];
  }

 protected:
  // Of the derived class: create the primitive descriptor of a step for these layouts; return oneDNN's status.
  virtual int create_forward(void** made, const void* x, const void* w, const void* b, const void* y,
                             const void* attributes) const = 0;
  virtual int create_backward_data(void** made, const void* dx, const void* w, const void* dy) const = 0;
  virtual int create_backward_weights(void** made, const void* x, const void* dw, const void* db, const void* dy) const = 0;

  /// Make forward for these arrays; `plain` is the parameter's own layout. Throws std::runtime_error if oneDNN does not support it.
  void start(const Library* on, int threads, const Array& x_any, const Array& w_any, const Array& plain, const Array& y_any) {
    on_ = on, threads_ = threads, any_x_ = x_any, any_w_ = w_any, any_y_ = y_any, plain_w = plain;
    no_bias_.assign(size_t(y_any.dims()[1]), 0.f);
    on->use_threads(threads);
    void* description = nullptr;
    on->check(create_forward(&description, x_any.get(), w_any.get(), bias().get(), y_any.get(), on->attributes), "forward");
    forward_ = Description(on, description);
    if (forward_.slow()) throw std::runtime_error("a shape for which oneDNN has only its slow reference");
    x = forward_.array(kQuerySource), w = forward_.array(kQueryWeights), y = back_y_ = forward_.array(kQueryTop);
    forward_step_ = forward_step(forward_, x, y);
  }
  /// Forward from a description, for images in the layouts `from` and `to`: also that of Conv with an epilogue.
  PrimitiveCall forward_step(const Description& made, const Array& from, const Array& to) const {
    PrimitiveCall step(on_, made);
    step.takes(kSource, from).takes(kWeights, w).takes(kBias, bias()).takes(kTop, to);
    return step;
  }
  Array bias() const { return Array::plain(on_, {int64_t(no_bias_.size())}); }

  /// The result of create(x, y) for the layouts of forward, or for layouts of oneDNN's choice if that is the slow reference.
  template <class Create> Description best(const Create& create) const {
    void* made = nullptr;
    if (create(&made, x, back_y_) == kSuccess) {
      Description description(on_, made);
      if (!description.slow(depthwise_)) return description;
    }
    on_->check(create(&made, any_x_, any_y_), "backward");
    return Description(on_, made);
  }

  const Library* on_ = nullptr;
  int threads_ = 1;                       // of all primitives
  bool depthwise_ = false;                // whether this is a convolution of each channel with its own kernel
  Array any_x_, any_w_, any_y_, back_y_;  // `any`: of oneDNN's choice; back_y_: the preferred layout of the top's gradient
  Description forward_;
  PrimitiveCall forward_step_;
  std::vector<float> no_bias_;  // a zero for each output, in place of no bias

 private:
  size_t reordered_weights_bytes() const { return reorder_weights_ ? data_w_.bytes() : 0; }
  size_t gradients_bytes() const { return dw_.bytes() + no_bias_.size() * sizeof(float); }

  Array data_w_, dw_;    // oneDNN's layouts of the weights for the gradient of x, and of the weights' gradient
  bool blocks_ = false;  // whether from_blocks converts the gradient from dw_
  PrimitiveCall data_step_, weights_step_;
  Reorder reorder_weights_, add_;  // from w to data_w_, if they differ; from dw_, added to `gradient`
};

}  // namespace onednn
}  // namespace mc
