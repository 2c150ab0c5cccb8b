// Inner product by oneDNN from bf16 arrays: the bottom and its gradient in one of its layouts or in the one that it likes best,
// the top in plain float32, the top's gradient and the weights rounded, the weights' gradient in float32.
#pragma once
#include "minicaffe/onednn/dnnl.hpp"

namespace mc {
namespace onednn {

class Inner {
 public:
  Array x, w, dy;  // x: of the bottom and its gradient

  /// For a bottom of these dimensions, arranged as `image` unless that is null. Refuses by std::runtime_error.
  void make(const Library* on, int axes, const int64_t* dims, const Array* image, int64_t outputs, int threads) {
    on_ = on, threads_ = threads, axes_ = axes;
    on->use_threads(threads);
    std::copy(dims, dims + axes, w_dims_);
    w_dims_[0] = y_dims_[1] = outputs, y_dims_[0] = dims[0];
    no_bias_.assign(size_t(outputs), 0.f);
    const Array any_x = image ? *image : Array::any(on, axes, dims, kBf16);
    void* description = nullptr;
    on->check(on->call.inner_product_forward_primitive_desc_create(&description, on->engine, kTraining, any_x.get(), any_w().get(),
                                                                   bias().get(), top().get(), nullptr),
              "inner_product_forward");
    forward_ = Description(on, description);
    if (forward_.slow()) throw std::runtime_error("an inner product for which oneDNN has only its slow reference");
    x = forward_.array(kAskSource), w = forward_.array(kAskWeights);
    dy = Array::any(on, 2, y_dims_, kBf16, kRowMajor);
    forward_step_ = Step(on, forward_);
    forward_step_.takes(kSource, x).takes(kWeights, w).takes(kBias, bias()).takes(kTop, top());
  }

  void forward(const void* x_at, const void* w_at, const void* b_at, void* y_at) {
    forward_step_.run(threads_, {x_at, w_at, b_at ? b_at : no_bias_.data(), y_at});
  }

  void make_backward_data() {
    if (data_step_) return;
    on_->use_threads(threads_);
    void* description = nullptr;
    on_->check(on_->call.inner_product_backward_data_primitive_desc_create(&description, on_->engine, x.get(), any_w().get(),
                                                                           dy.get(), forward_.get(), nullptr),
               "inner_product_backward_data");
    const Description made(on_, description);
    data_w_ = made.array(kAskWeights);
    if (!(data_w_ == w)) turn_.make(on_, threads_, w, data_w_);
    Step step(on_, made);
    step.takes(kWeights, data_w_).takes(kTopDiff, dy).takes(kSourceDiff, x);
    data_step_ = std::move(step);
  }
  /// Bytes of scratch memory for the weights in another arrangement; 0: they are taken as they are.
  size_t data_scratch() const { return turn_ ? data_w_.bytes() : 0; }

  void backward_data(const void* w_at, const void* dy_at, void* dx_at, void* scratch) {
    if (turn_) turn_.run(threads_, w_at, scratch);
    data_step_.run(threads_, {turn_ ? scratch : w_at, dy_at, dx_at});
  }

  void make_backward_weights() {
    if (weights_step_) return;
    on_->use_threads(threads_);
    void* description = nullptr;
    const Array any_dw = Array::any(on_, axes_, w_dims_, kFloat);
    on_->check(on_->call.inner_product_backward_weights_primitive_desc_create(&description, on_->engine, x.get(), any_dw.get(),
                                                                              bias().get(), dy.get(), forward_.get(), nullptr),
               "inner_product_backward_weights");
    const Description made(on_, description);
    dw_ = made.array(kAskWeightsDiff);
    add_.make(on_, threads_, dw_, Array::plain(on_, axes_, w_dims_), true);
    Step step(on_, made);
    step.takes(kSource, x).takes(kTopDiff, dy).takes(kWeightsDiff, dw_).takes(kBiasDiff, bias());
    weights_step_ = std::move(step);
  }
  size_t weights_scratch() const { return dw_.bytes() + size_t(y_dims_[1]) * sizeof(float); }

  /// Add to the plain gradients of weights and bias, which may be null.
  void backward_weights(const void* x_at, const void* dy_at, float* dw_at, float* db_at, float* scratch) {
    float* const sums = scratch + dw_.bytes() / sizeof(float);
    weights_step_.run(threads_, {x_at, dy_at, scratch, sums});
    add_.run(threads_, scratch, dw_at);
    for (int64_t i = 0; db_at && i < y_dims_[1]; ++i) db_at[i] += sums[i];
  }

 private:
  Array any_w() const { return Array::any(on_, axes_, w_dims_, kBf16); }
  Array bias() const { return Array::plain(on_, 1, y_dims_ + 1); }
  Array top() const { return Array::plain(on_, 2, y_dims_); }

  const Library* on_ = nullptr;
  int threads_ = 1, axes_ = 2;
  std::vector<float> no_bias_;
  Dims w_dims_, y_dims_;
  Description forward_;
  Array data_w_, dw_;
  Step forward_step_, data_step_, weights_step_;
  Reorder turn_, add_;
};

}  // namespace onednn
}  // namespace mc
