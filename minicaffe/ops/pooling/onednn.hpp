// Pooling by oneDNN, of an image in one of its layouts; the top takes the layout that it gives to that.
#pragma once
#include "minicaffe/onednn/dnnl.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {
namespace onednn {

class Pool : public WorkspacePrimitive {
 public:
  /// For an image arranged as `image`, on `threads` threads. Refuses by std::runtime_error.
  void make(const Library* on, const PoolShape& s, int64_t images, int64_t channels, bool max, const Array& image, int threads) {
    const int64_t in[] = {s.height, s.width}, out[] = {s.out_height, s.out_width}, pad[] = {s.pad_h, s.pad_w};
    on_ = on, threads_ = threads, x = image;
    kernel_[0] = s.kernel_h, kernel_[1] = s.kernel_w, strides_[0] = s.stride_h, strides_[1] = s.stride_w;
    std::vector<int64_t> y_dims = {images, channels};
    bool whole = true, padded = false;  // no window is cut off behind the padding; there is some
    for (int a = 0; a < 2; ++a) {
      y_dims.push_back(out[a]), left_[a] = pad[a], dilates_[a] = 0;
      right_[a] = (out[a] - 1) * strides_[a] + kernel_[a] - in[a] - pad[a];  // sizes are rounded up or down
      whole = whole && right_[a] <= pad[a], padded = padded || pad[a];
      if ((out[a] - 1) * strides_[a] - pad[a] >= in[a]) throw std::runtime_error("a pooling window outside the image");
    }
    // Caffe divides by the part of the window that lies in the padded image.
    if (!max && padded && !whole) throw std::runtime_error("AVE pooling with windows that reach beyond the padding");
    algorithm_ = max ? kMaxPooling : padded ? kMeanWithPadding : kMeanWithoutPadding;
    const Array any = Array::any(on, y_dims, image.type());
    start(describe(on, threads, "pooling_forward", on->call.pooling_forward_primitive_desc_create, kTraining, algorithm_, x.get(),
                   any.get(), strides_, kernel_, dilates_, left_, right_), "a pooling", max);
  }

 private:
  PrimitiveCall new_backward() const override {
    PrimitiveCall step(on_, describe(on_, threads_, "pooling_backward", on_->call.pooling_backward_primitive_desc_create,
                                     algorithm_, x.get(), y.get(), strides_, kernel_, dilates_, left_, right_, forward_.get()));
    step.takes(kTopDiff, y).takes(kSourceDiff, x);
    if (algorithm_ == kMaxPooling) step.takes(kWorkspace, workspace_);
    return step;
  }

  int algorithm_ = 0;
  Dims kernel_, strides_, dilates_, left_, right_;
};

}  // namespace onednn
}  // namespace mc
