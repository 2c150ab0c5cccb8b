// Inner product by oneDNN from bf16 arrays (onednn/weighted.hpp): the bottom and its gradient in one of its layouts or in the one
// that it likes best, the top in plain float32, the top's gradient and the weights rounded, the weights' gradient in float32.
#pragma once
#include "minicaffe/onednn/weighted.hpp"

namespace mc {
namespace onednn {

class Inner : public Weighted {
 public:
  /// For a bottom of these dimensions, arranged as `image` unless that is null. Refuses by std::runtime_error.
  void make(const Library* on, const std::vector<int64_t>& dims, const Array* image, int64_t outputs, int threads) {
    std::vector<int64_t> weights = dims;
    weights[0] = outputs;
    start(on, threads, image ? *image : Array::any(on, dims, kBf16), Array::any(on, weights, kBf16), Array::plain(on, weights),
          Array::plain(on, {dims[0], outputs}));
    any_x_ = x;
    back_y_ = any_y_ = Array::any(on, {dims[0], outputs}, kBf16, kRowMajor);
  }

 private:
  int create_forward(void** made, const void* x, const void* w, const void* b, const void* y,
                     const void* attributes) const override {
    return on_->call.inner_product_forward_primitive_desc_create(made, on_->engine, kTraining, x, w, b, y, attributes);
  }
  int create_backward_data(void** made, const void* dx, const void* w, const void* dy) const override {
    return on_->call.inner_product_backward_data_primitive_desc_create(made, on_->engine, dx, w, dy, forward_.get(), nullptr);
  }
  int create_backward_weights(void** made, const void* x, const void* dw, const void* db, const void* dy) const override {
    return on_->call.inner_product_backward_weights_primitive_desc_create(made, on_->engine, x, dw, db, dy, forward_.get(),
                                                                         nullptr);
  }
};

}  // namespace onednn
}  // namespace mc
