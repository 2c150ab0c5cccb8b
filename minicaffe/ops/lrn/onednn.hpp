// LRN across channels by oneDNN, of an image in one of its layouts.
#pragma once
#include "minicaffe/onednn/dnnl.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {
namespace onednn {

class Lrn : public WorkspacePrimitive {
 public:
  /// For an image arranged as `image`, on `threads` threads. Refuses by std::runtime_error.
  void make(const Library* on, const LrnShape& s, const Array& image, int threads) {
    on_ = on, threads_ = threads, x = image;
    size_ = 2 * s.half_rows + 1;
    alpha_ = float(s.alpha * double(size_)), beta_ = float(s.beta), k_ = float(s.k);
    start(describe(on, threads, "lrn_forward", on->call.lrn_forward_primitive_desc_create, kTraining, kLrnAcross, x.get(), x.get(),
                   size_, alpha_, beta_, k_), "an LRN", true);
  }

 private:
  PrimitiveCall new_backward() const override {
    PrimitiveCall step(on_, describe(on_, threads_, "lrn_backward", on_->call.lrn_backward_primitive_desc_create, kLrnAcross,
                                     x.get(), x.get(), x.get(), size_, alpha_, beta_, k_, forward_.get()));
    step.takes(kTopDiff, x).takes(kSourceDiff, x).takes(kWorkspace, workspace_).takes(kSource, x);
    return step;
  }

  int64_t size_ = 0;
  float alpha_ = 0, beta_ = 0, k_ = 0;
};

}  // namespace onednn
}  // namespace mc
