// Pooling by oneDNN, of an image in one of its layouts; the top takes the layout that it gives to that.
#pragma once
#include "minicaffe/engines/onednn/dnnl.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {
namespace onednn {

/// Make `made`: MAX or else AVE pooling of an image in layout `x`, for at most `threads` threads. Refuses by std::runtime_error.
inline void make_pool(WorkspacePrimitive& made, const Library* on, const PoolShape& s, bool max, const Array& x, int threads) {
  threads = cpu::parts_of(threads, s.outputs() * s.kernel_h * s.kernel_w, kRegion * cpu::kGrain);
  const int64_t in[] = {s.height, s.width}, out[] = {s.out_height, s.out_width};
  const Dims kernel = {s.kernel_h, s.kernel_w}, strides = {s.stride_h, s.stride_w}, dilates = {}, left = {s.pad_h, s.pad_w};
  Dims right = {};
  bool whole = true;  // no window reaches beyond the padding, which Caffe puts on both sides
  for (int a = 0; a < 2; ++a) {
    right[a] = (out[a] - 1) * strides[a] + kernel[a] - in[a] - left[a];  // sizes are rounded: it may exceed `left`, or be < 0
    whole = whole && right[a] <= left[a];
    if ((out[a] - 1) * strides[a] - left[a] >= in[a]) throw std::runtime_error("a pooling window outside the image");
  }
  const bool padded = s.pad_h || s.pad_w;
  // Caffe divides by the part of the window that lies in the padded image.
  if (!max && padded && !whole) throw std::runtime_error("AVE pooling with windows that reach beyond the padding");
  const int algorithm = max ? kMaxPooling : padded ? kMeanWithPadding : kMeanWithoutPadding;
  const Array any = Array::any(on, {s.images, s.channels, s.out_height, s.out_width}, x.type());
  Description forward = describe(on, threads, "pooling_forward", on->call.pooling_forward_primitive_desc_create, kTraining,
                                 algorithm, x.get(), any.get(), strides, kernel, dilates, left, right);
  made.make(on, threads, "a pooling", x, std::move(forward), max, [=](const Description& forward, const Array& y) {
    return describe(on, threads, "pooling_backward", on->call.pooling_backward_primitive_desc_create, algorithm, x.get(), y.get(),
                    strides, kernel, dilates, left, right, forward.get());
  });
}

}  // namespace onednn
}  // namespace mc
