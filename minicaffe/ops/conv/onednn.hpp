// Convolution by oneDNN: three steps, forward, gradient of the image, gradient of weights and bias, each with arrays in the
// arrangements that it likes best. The gradients keep those of forward where an implementation for them is not the slow reference,
// so that data and diffs go from layer to layer without a reorder.
#pragma once
#include "minicaffe/onednn/dnnl.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace onednn {

/// Whether oneDNN was measured to be faster than engine CAFFE: not where more than a quarter of its blocks of 16 channels is padding.
/// Up to four input channels, those of a first layer, it takes as they are.
inline bool pays(const ConvShape& s) {
  const auto fills = [](index_t channels) { return 3 * round_up(channels, 16) <= 4 * channels; };
  if (s.group_channels == 1 && s.groups == s.outputs) return fills(s.outputs);  // depthwise
  return fills(s.outputs / s.groups) && ((s.groups == 1 && s.channels <= 4) || fills(s.group_channels));
}

class Conv {
 public:
  Array x, w, y;            // of forward
  Array dx, data_w, dy;     // of the image's gradient
  Array weights_x, dw, weights_dy;
  Array gradient;           // of the weights: arranged as they are, or plain if they are rounded

  /// With primitives for as many threads as `threads` says; all arrays are float32, or with `bf16` images and weights are bf16.
  /// Refuses by std::runtime_error.
  void make(const Library* on, const ConvShape& s, int threads, bool bf16) {
    const Window& window = s.window;
    on_ = on, threads_ = threads, type_ = bf16 ? kBf16 : kFloat;
    on->use_threads(threads);
    axes_ = window.num_axes + 2;
    x_dims_[0] = y_dims_[0] = s.images, x_dims_[1] = s.channels, y_dims_[1] = b_dims_[0] = s.outputs;
    int i = 0;
    if (s.groups > 1) w_dims_[i++] = s.groups;
    w_dims_[i++] = s.outputs / s.groups, w_dims_[i++] = s.group_channels;
    for (int a = 0; a < window.num_axes; ++a) {
      x_dims_[a + 2] = window.in[a], y_dims_[a + 2] = window.out[a], w_dims_[i++] = window.kernel[a];
      strides_[a] = window.stride[a], dilates_[a] = window.dilation[a] - 1, pads_[a] = window.pad[a];
    }
    w_axes_ = i;
    no_bias_.assign(size_t(s.outputs), 0.f);
    const Array any_x = any(axes_, x_dims_), any_y = any(axes_, y_dims_);
    void* description = nullptr;
    on->check(on->call.convolution_forward_primitive_desc_create(&description, on->engine, kTraining, kDirect, any_x.get(),
                                                                 any(w_axes_, w_dims_).get(), plain_bias().get(), any_y.get(),
                                                                 strides_, dilates_, pads_, pads_, nullptr),
              "convolution_forward");
    forward_ = Description(on, description);
    if (forward_.slow()) throw std::runtime_error("a shape for which oneDNN has only its slow reference");
    x = forward_.array(kAskSource), w = forward_.array(kAskWeights), y = forward_.array(kAskTop);
    forward_step_ = Step(on, forward_);
    forward_step_.takes(kSource, x).takes(kWeights, w).takes(kBias, plain_bias()).takes(kTop, y);
  }

  void forward(const void* x_at, const void* w_at, const void* b_at, void* y_at) {
    forward_step_.run(threads_, {x_at, w_at, b_at ? b_at : no_bias_.data(), y_at});
  }

  /// Whether forward can go on to compute `slopes(scale y + shift)`, each for what is asked; `slopes` is how many there are.
  bool fuse(bool affine, int64_t slopes) {
    if (fused_step_ && affine == affine_ && slopes == slopes_) return true;
    on_->use_threads(threads_);
    Dims channels, one;
    for (int a = 0; a < axes_; ++a) channels[a] = one[a] = 1;
    channels[1] = y_dims_[1];
    const Array of_channels = Array::plain(on_, axes_, channels), of_slopes = Array::plain(on_, axes_, slopes > 1 ? channels : one);
    PostOps after(on_);
    if (affine) after.with(kMultiply, of_channels), after.with(kAdd, of_channels);
    if (slopes) after.rectify(slopes > 1);
    void* description = nullptr;
    if (on_->call.convolution_forward_primitive_desc_create(&description, on_->engine, kTraining, kDirect, x.get(), w.get(),
                                                            plain_bias().get(), y.get(), strides_, dilates_, pads_, pads_,
                                                            after.attributes()) != kSuccess)
      return false;
    const Description made(on_, description);
    if (made.slow()) return false;
    fused_step_ = Step(on_, made);
    fused_step_.takes(kSource, x).takes(kWeights, w).takes(kBias, plain_bias()).takes(kTop, y);
    int i = 0;
    if (affine) fused_step_.takes(kPostOp * ++i | kOperand, of_channels).takes(kPostOp * ++i | kOperand, of_channels);
    if (slopes) fused_step_.takes(kPostOp * ++i | kWeights, of_slopes);
    affine_ = affine, slopes_ = slopes;
    return true;
  }
  /// Forward as `fuse` was asked last.
  void forward_fused(const void* x_at, const void* w_at, const void* b_at, void* y_at, const float* scale, const float* shift,
                     const float* slopes) {
    const void* addresses[7] = {x_at, w_at, b_at ? b_at : no_bias_.data(), y_at};
    int i = 4;
    if (affine_) addresses[i++] = scale, addresses[i++] = shift;
    if (slopes_) addresses[i++] = slopes;
    fused_step_.run(threads_, addresses);
  }

  void make_backward_data() {
    if (data_step_) return;
    on_->use_threads(threads_);
    const Description made = best([&](const Array& x_, const Array& y_) {
      void* description = nullptr;
      const int status = on_->call.convolution_backward_data_primitive_desc_create(
          &description, on_->engine, kDirect, x_.get(), any(w_axes_, w_dims_).get(), y_.get(), strides_, dilates_, pads_, pads_,
          forward_.get(), nullptr);
      on_->check(status, "convolution_backward_data");
      return Description(on_, description);
    });
    dx = made.array(kAskSourceDiff), data_w = made.array(kAskWeights), dy = made.array(kAskTopDiff);
    Step step(on_, made);
    step.takes(kWeights, data_w).takes(kTopDiff, dy).takes(kSourceDiff, dx);
    if (!(data_w == w)) turn_.make(on_, threads_, w, data_w);
    data_step_ = std::move(step);
  }
  /// Bytes of scratch memory for the weights in another arrangement; 0: they are taken as they are.
  size_t data_scratch() const { return turn_ ? data_w.bytes() : 0; }

  void backward_data(const void* w_at, const void* dy_at, void* dx_at, void* scratch) {
    if (turn_) {
      turn_.run(threads_, w_at, scratch);
      w_at = scratch;
    }
    data_step_.run(threads_, {w_at, dy_at, dx_at});
  }

  void make_backward_weights() {
    if (weights_step_) return;
    on_->use_threads(threads_);
    const Array b = plain_bias(), any_dw = Array::any(on_, w_axes_, w_dims_, kFloat);
    const Description made = best([&](const Array& x_, const Array& y_) {
      void* description = nullptr;
      const int status = on_->call.convolution_backward_weights_primitive_desc_create(
          &description, on_->engine, kDirect, x_.get(), any_dw.get(), b.get(), y_.get(), strides_, dilates_, pads_, pads_,
          forward_.get(), nullptr);
      on_->check(status, "convolution_backward_weights");
      return Description(on_, description);
    });
    weights_x = made.array(kAskSource), dw = made.array(kAskWeightsDiff), weights_dy = made.array(kAskTopDiff);
    Step step(on_, made);
    step.takes(kSource, weights_x).takes(kTopDiff, weights_dy).takes(kWeightsDiff, dw).takes(kBiasDiff, b);
    gradient = type_ == kBf16 ? Array::plain(on_, w_axes_, w_dims_) : w;
    add_.make(on_, threads_, dw, gradient, true);
    same_ = dw == gradient;
    weights_step_ = std::move(step);
  }
  /// Whether the weights' gradient can be written at once where there is nothing to add to.
  bool overwrites() const { return same_; }
  size_t weights_scratch() const { return dw.bytes() + size_t(b_dims_[0]) * sizeof(float); }

  /// Add to the gradient of the weights, arranged as `gradient`, or overwrite it; and to that of the bias, which may be null.
  void backward_weights(const void* x_at, const void* dy_at, bool overwrite, float* dw_at, float* db_at, float* scratch) {
    float* const bias = scratch + dw.bytes() / sizeof(float);
    weights_step_.run(threads_, {x_at, dy_at, overwrite ? dw_at : scratch, bias});
    if (!overwrite) add_.run(threads_, scratch, dw_at);
    for (int64_t i = 0; db_at && i < b_dims_[0]; ++i) db_at[i] += bias[i];
  }

  int axes() const { return axes_; }
  int weight_axes() const { return w_axes_; }
  const int64_t* x_dims() const { return x_dims_; }
  const int64_t* w_dims() const { return w_dims_; }
  const int64_t* y_dims() const { return y_dims_; }

 private:
  Array any(int axes, const int64_t* dims) const { return Array::any(on_, axes, dims, type_); }
  Array plain_bias() const { return Array::plain(on_, 1, b_dims_); }

  /// What make(x, y) gives for the arrangements of forward, unless that is slow; then for those that it likes best.
  template <class Make> Description best(const Make& make) const {
    try {
      Description made = make(x, y);
      if (!made.slow()) return made;
    } catch (const std::runtime_error&) {
    }
    return make(any(axes_, x_dims_), any(axes_, y_dims_));
  }

  const Library* on_ = nullptr;
  int axes_ = 0, w_axes_ = 0, threads_ = 1, type_ = kFloat;
  bool same_ = false;
  std::vector<float> no_bias_;
  Dims x_dims_, w_dims_, y_dims_, b_dims_, strides_, dilates_, pads_;
  Description forward_;
  Step forward_step_, fused_step_, data_step_, weights_step_;
  bool affine_ = false;  // what the fused step does
  int64_t slopes_ = 0;
  Reorder turn_, add_;
};

}  // namespace onednn
}  // namespace mc
