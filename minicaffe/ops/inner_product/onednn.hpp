// Inner product by oneDNN from bf16 arrays (weighted.hpp): the bottom, its gradient and that of the top as rows, the top in
// float32, the weights rounded, their gradient in float32. Bottoms of images in lanes are made rows first: for them oneDNN would
// arrange the weights so that rounding them, in each iteration, took four times as long as the products.
#pragma once
#include "minicaffe/engines/onednn/weighted.hpp"

namespace mc {
namespace onednn {

/// The inner product in bf16 as Weighted, which calls the create_ methods to describe the steps for oneDNN.
class Inner : public Weighted {
 public:
  /// Make forward for x (rows, inputs), weights (outputs, inputs), and `threads` threads at most. Refuses by std::runtime_error.
  void make(const Library* on, int64_t rows, int64_t inputs, int64_t outputs, int threads) {
    start(on, cpu::parts_of(threads, rows * inputs * outputs, kRegion * cpu::kProductGrain), Array::any(on, {rows, inputs}, kBf16),
          Array::any(on, {outputs, inputs}, kBf16), Array::plain(on, {outputs, inputs}), Array::plain(on, {rows, outputs}));
    any_x_ = x;  // the gradients use forward's layout of x, and rows for that of y, also where `best` lets oneDNN choose
    back_y_ = any_y_ = Array::any(on, {rows, outputs}, kBf16, kRowMajor);
  }

 private:
  int create_forward(void** made, const void* x, const void* w, const void* b, const void* y,
                     const void* attributes) const override {
    return on_->call.inner_product_forward_primitive_desc_create(made, on_->engine, kTraining, x, w, b, y, attributes);
  }
  int create_backward_data(void** made, const void* dx, const void* w, const void* dy) const override {
    return on_->call.inner_product_backward_data_primitive_desc_create(made, on_->engine, dx, w, dy, forward_.get(),
                                                                       on_->attributes);
  }
  int create_backward_weights(void** made, const void* x, const void* dw, const void* db, const void* dy) const override {
    return on_->call.inner_product_backward_weights_primitive_desc_create(made, on_->engine, x, dw, db, dy, forward_.get(),
                                                                         on_->attributes);
  }
};

}  // namespace onednn
}  // namespace mc
