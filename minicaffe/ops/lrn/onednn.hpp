// LRN across channels by oneDNN, of an image in one of its layouts.
#pragma once
#include "minicaffe/onednn/dnnl.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {
namespace onednn {

class Lrn {
 public:
  Array x;  // and y

  /// For an image arranged as `image`, on `threads` threads. Refuses by std::runtime_error.
  void make(const Library* on, const LrnShape& s, const Array& image, int threads) {
    on_ = on, threads_ = threads, x = image;
    size_ = 2 * s.half_rows + 1;
    alpha_ = float(s.alpha * double(size_)), beta_ = float(s.beta), k_ = float(s.k);
    forward_ = describe(on, threads, "lrn_forward", on->call.lrn_forward_primitive_desc_create, kTraining, kLrnAcross, x.get(),
                        x.get(), size_, alpha_, beta_, k_);
    if (forward_.slow()) throw std::runtime_error("an LRN for which oneDNN has only its slow reference");
    workspace_ = forward_.array(kAskWorkspace);
    forward_step_ = Step(on, forward_);
    forward_step_.takes(kSource, x).takes(kTop, x).takes(kWorkspace, workspace_);
  }

  /// Bytes of what forward keeps for backward.
  size_t workspace() const { return workspace_.bytes(); }
  size_t forward_scratch() const { return forward_step_.scratch(); }
  void forward(const void* x_at, void* y_at, void* workspace, void* scratch) {
    forward_step_.run(threads_, scratch, {x_at, y_at, workspace});
  }

  void make_backward() {
    if (!backward_step_) {
      Step step(on_, describe(on_, threads_, "lrn_backward", on_->call.lrn_backward_primitive_desc_create, kLrnAcross, x.get(),
                              x.get(), x.get(), size_, alpha_, beta_, k_, forward_.get()));
      step.takes(kSource, x).takes(kTopDiff, x).takes(kWorkspace, workspace_).takes(kSourceDiff, x);
      backward_step_ = std::move(step);
    }
  }
  size_t backward_scratch() const { return backward_step_.scratch(); }
  void backward(const void* x_at, const void* dy_at, const void* workspace, void* dx_at, void* scratch) {
    backward_step_.run(threads_, scratch, {x_at, dy_at, workspace, dx_at});
  }

 private:
  const Library* on_ = nullptr;
  int threads_ = 1;
  int64_t size_ = 0;
  float alpha_ = 0, beta_ = 0, k_ = 0;
  Description forward_;
  Array workspace_;
  Step forward_step_, backward_step_;
};

}  // namespace onednn
}  // namespace mc
