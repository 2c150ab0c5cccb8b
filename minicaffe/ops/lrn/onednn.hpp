// LRN across channels by oneDNN, of an image in one of its layouts.
#pragma once
#include "minicaffe/engines/onednn/dnnl.hpp"
#include "minicaffe/ops/lrn/kernel.hpp"

namespace mc {
namespace onednn {

/// Make `made`: LRN of an image in layout `x`, also that of y, for at most `threads` threads. Refuses by std::runtime_error.
inline void make_lrn(WorkspacePrimitive& made, const Library* on, const LrnShape& s, const Array& x, int threads) {
  threads = cpu::parts_of(threads, 16 * s.groups * s.rows * s.width, kRegion * cpu::kGrain);
  const int64_t size = 2 * s.half_rows + 1;
  const float alpha = float(s.alpha * double(size)), beta = float(s.beta), k = float(s.k);
  made.backward_reads_x = true;
  Description forward = describe(on, threads, "lrn_forward", on->call.lrn_forward_primitive_desc_create, kTraining, kLrnAcross,
                                 x.get(), x.get(), size, alpha, beta, k);
  made.make(on, threads, "an LRN", x, std::move(forward), true, [=](const Description& forward, const Array& y) {
    return describe(on, threads, "lrn_backward", on->call.lrn_backward_primitive_desc_create, kLrnAcross, x.get(), y.get(), x.get(),
                    size, alpha, beta, k, forward.get());
  });
}

}  // namespace onednn
}  // namespace mc
