// Convolution and deconvolution by oneDNN (engines/onednn/weighted.hpp).
#pragma once
#include "minicaffe/engines/onednn/weighted.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace onednn {

/// Whether oneDNN was measured to be faster than engine CAFFE: not where more than a quarter of its blocks of 16 channels is
/// padding. Up to four input channels, as in a first layer, are read without blocks. A deconvolution into few channels, or channel
/// by channel, takes up to ten times as long as by engine CAFFE.
inline bool is_faster(const ConvShape& s, bool transposed) {
  const auto fills = [](index_t channels) { return 3 * round_up(channels, 16) <= 4 * channels; };
  if (s.group_channels == 1 && s.groups == s.outputs) return !transposed && fills(s.outputs);  // depthwise
  return fills(s.outputs / s.groups) && ((!transposed && s.groups == 1 && s.channels <= 4) || fills(s.group_channels));
}

/// Whether images one by one, as `fuse` with `apart` computes them, take about as long as all at once: each has enough work.
inline bool is_fast_per_image(const ConvShape& s, int threads) {
  return s.images == 1 || s.positions * s.outputs * s.k >= (index_t(1) << 18) * threads;
}

/// A convolution or deconvolution as Weighted, for which the create_ methods describe its steps; and forward with an epilogue.
class Conv : public Weighted {
 public:
  /// With primitives for at most `threads` threads; all arrays are float32, or with `bf16` images and weights are bf16. If
  /// `transposed`, x is the column side of `s` and y the image side. Refuses by std::runtime_error.
  void make(const Library* on, const ConvShape& s, bool transposed, int threads, bool bf16) {
    const Window& window = s.window;
    const int type = bf16 ? kBf16 : kFloat;
    transposed_ = transposed, algorithm_ = transposed ? kDirectTransposed : kDirect;
    std::vector<int64_t> image = {s.images, s.channels}, columns = {s.images, s.outputs}, weights;
    std::vector<int64_t>&x_dims = transposed ? columns : image, &y_dims = transposed ? image : columns;
    if (s.groups > 1) weights.push_back(s.groups);
    const int swapped = transposed ? int(weights.size()) : -1;  // Caffe has the channels of the column side first
    weights.push_back(y_dims[1] / s.groups), weights.push_back(x_dims[1] / s.groups);
    for (int a = 0; a < window.num_axes; ++a) {
      image.push_back(window.in[a]), columns.push_back(window.out[a]), weights.push_back(window.kernel[a]);
      strides_[a] = window.stride[a], dilates_[a] = window.dilation[a] - 1, pads_[a] = window.pad[a];
    }
    // Of depthwise convolutions oneDNN would choose blocks of channels; with AMX all others in bf16 have channels last.
    depthwise_ = s.group_channels == 1 && s.groups == s.outputs && !transposed;
    const int tag = bf16 && depthwise_ && window.num_axes == 2 && on->has_amx() ? kChannelsLast : kAnyTag;
    start(on, cpu::parts_of(threads, s.images * s.positions * s.outputs * s.k, kRegion * cpu::kProductGrain),
          Array::any(on, x_dims, type, tag), Array::any(on, weights, type), Array::plain(on, weights, swapped),
          Array::any(on, y_dims, type, tag));
    if (tag != kAnyTag)  // for gradients of which oneDNN has no depthwise implementation with channels last
      any_x_ = Array::any(on, x_dims, type, kBlocksOf16), any_y_ = Array::any(on, y_dims, type, kBlocksOf16);
  }

  /// Make forward with the epilogue `slopes(y + addend)`, each part optional; `slopes` is their number: 0, 1, or one a channel.
  /// `apart`: images of y lie apart, in a blob of more channels, and are computed one by one. False if oneDNN does not support it.
  bool fuse(bool adds, int64_t slopes, bool apart) {
    if (fused_step_ && adds == adds_ && slopes == slopes_ && apart == apart_) return true;
    on_->use_threads(threads_);
    const std::vector<int64_t> dims = y.dims();
    std::vector<int64_t> of_slopes(dims.size(), 1);
    if (slopes > 1) of_slopes[1] = dims[1];
    Attributes after(on_);
    if (adds) after.add(y);
    if (slopes) after.rectify(slopes > 1);
    const Array from = apart ? x.first() : x, to = apart ? y.first() : y;
    void* description = nullptr;
    if (create_forward(&description, from.get(), w.get(), bias().get(), to.get(), after.get()) != kSuccess) return false;
    const Description made(on_, description);
    if (made.slow()) return false;
    fused_step_ = forward_step(made, from, to);
    if (adds) fused_step_.takes(kPostOp | kOperand, y);
    if (slopes) fused_step_.takes(kPostOp * (adds ? 2 : 1) | kWeights, Array::plain(on_, of_slopes));
    adds_ = adds, slopes_ = slopes, apart_ = apart;
    return true;
  }
  size_t fused_scratch() const { return fused_step_.scratch(); }  // bytes
  /// Forward as made by the last `fuse`; with `apart` the images of y are `pitch` bytes from each other.
  void forward_fused(const void* x_at, const void* w_at, const void* b_at, void* y_at, int64_t pitch, const void* addend,
                     const float* slopes, void* scratch) {
    const int64_t steps = apart_ ? y.dims()[0] : 1, step = int64_t(x.bytes()) / steps;
    for (int64_t i = 0; i < steps; ++i)
      fused_step_.run(threads_, scratch, {static_cast<const char*>(x_at) + i * step, w_at, b_at ? b_at : no_bias_.data(),
                                          static_cast<char*>(y_at) + i * pitch, adds_ ? addend : slopes, slopes});
  }

 private:
  int create_forward(void** made, const void* x, const void* w, const void* b, const void* y,
                     const void* attributes) const override {
    return (transposed_ ? on_->call.deconvolution_forward_primitive_desc_create
                        : on_->call.convolution_forward_primitive_desc_create)(
        made, on_->engine, kTraining, algorithm_, x, w, b, y, strides_, dilates_, pads_, pads_, attributes);
  }
  int create_backward_data(void** made, const void* dx, const void* w, const void* dy) const override {
    return (transposed_ ? on_->call.deconvolution_backward_data_primitive_desc_create
                        : on_->call.convolution_backward_data_primitive_desc_create)(
        made, on_->engine, algorithm_, dx, w, dy, strides_, dilates_, pads_, pads_, forward_.get(), on_->attributes);
  }
  int create_backward_weights(void** made, const void* x, const void* dw, const void* db, const void* dy) const override {
    return (transposed_ ? on_->call.deconvolution_backward_weights_primitive_desc_create
                        : on_->call.convolution_backward_weights_primitive_desc_create)(
        made, on_->engine, algorithm_, x, dw, db, dy, strides_, dilates_, pads_, pads_, forward_.get(), on_->attributes);
  }

  bool transposed_ = false;
  int algorithm_ = kDirect;
  Dims strides_, dilates_, pads_;
  PrimitiveCall fused_step_;
  bool adds_ = false, apart_ = false;  // what the fused step does: the arguments of `fuse`
  int64_t slopes_ = 0;
};

}  // namespace onednn
}  // namespace mc
