// Convolution: im2col and GEMM. On the CPU they are one (ops/conv/cpu.hpp); on a device a group of images is unfolded into a column
// matrix in memory and multiplied in one batch. A deconvolution is the same with forward and backward exchanged.
#pragma once
#include "minicaffe/ops/conv/cpu.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"
#include "minicaffe/ops/gemm/caffe.hpp"
#include "minicaffe/ops/sums/caffe.hpp"

namespace mc {

using cpu::ConvShape;

inline void im2col(const Context& on, int dtype, index_t channels, const Window& w, const void* image, void* column) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const index_t n = channels * w.kernel_count() * w.out_count();
    auto from = static_cast<const T*>(image);
    auto to = static_cast<T*>(column);
    if (w.num_axes == 2) for_each(on, n, Im2col<T, 2>{w, from, to}, 16);
    else for_each(on, n, Im2col<T, 0>{w, from, to}, 16);
  });
}

inline void col2im(const Context& on, int dtype, index_t channels, const Window& w, const void* column, void* image) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const index_t n = channels * w.in_count(), cost = 16 * w.kernel_count();
    auto from = static_cast<const T*>(column);
    auto to = static_cast<T*>(image);
    if (w.num_axes == 2) for_each(on, n, Col2im<T, 2>{w, from, to}, cost);
    else for_each(on, n, Col2im<T, 0>{w, from, to}, cost);
  });
}

// The column matrix of as many images as fit into this many elements is in memory at once, of one image at least.
constexpr index_t kColumnElements = index_t(1) << 24;

/// Whether the column matrix is the image itself: kernels of one pixel that miss none.
inline bool columns_are_image(const ConvShape& s) {
  for (int a = 0; a < s.window.num_axes; ++a)
    if (s.window.kernel[a] != 1 || s.window.stride[a] != 1 || s.window.pad[a]) return false;
  return true;
}
inline index_t columns_of_image(const ConvShape& s) { return s.channels * s.taps * s.positions; }
inline index_t images_at_once(const ConvShape& s) {
  return std::max<index_t>(1, std::min(s.images, kColumnElements / std::max<index_t>(1, columns_of_image(s))));
}

/// How many elements of scratch memory the functions below need.
inline index_t conv_scratch(const Context& on, int dtype, const ConvShape& s) {
  if (on.stream) return columns_are_image(s) ? 0 : images_at_once(s) * columns_of_image(s);
  if (cpu::is_depthwise(s)) return cpu::depthwise_scratch(s, on.threads);
  return dispatch(dtype, [&](auto type) -> index_t {
    using T = decltype(type);
    return std::max({cpu::forward_scratch<T>(s, on.threads), cpu::backward_data_scratch<T>(s, on.threads),
                     cpu::backward_weights_scratch<T>(s, on.threads)});
  });
}

/// work(first image, images, their column matrix) for all images in turn.
template <class T, class Work> void each_column_matrix(const ConvShape& s, T* image, T* scratch, const Work& work) {
  const index_t most = images_at_once(s);
  for (index_t i = 0; i < s.images; i += most)
    work(i, std::min(most, s.images - i), columns_are_image(s) ? image + i * columns_of_image(s) : scratch);
}

/// y = W * x + bias; `bias` may be null.
inline void conv_forward(const Context& on, const cpu::Blas& blas, int dtype, const ConvShape& s, const void* x_, const void* weight,
                         const void* bias, void* y_, void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto x = static_cast<const T*>(x_), w = static_cast<const T*>(weight), b = static_cast<const T*>(bias);
    auto y = static_cast<T*>(y_);
    if (!on.stream) return cpu::conv_forward(s, on.threads, x, w, b, y, static_cast<T*>(scratch));
    each_column_matrix(s, const_cast<T*>(x), static_cast<T*>(scratch), [&](index_t first, index_t images, T* columns) {
      if (columns == scratch) im2col(on, dtype, images * s.channels, s.window, x + first * s.channels * s.pixels, columns);
      GemmBatches batches;
      batches.count = images, batches.b = columns_of_image(s), batches.c = s.outputs * s.positions;
      for (index_t g = 0; g < s.groups; ++g)
        gemm(on, blas, false, false, s.m, s.positions, s.k, T(1), w + g * s.m * s.k, s.k, columns + g * s.k * s.positions,
             s.positions, T(0), y + (first * s.outputs + g * s.m) * s.positions, s.positions, batches);
    });
    if (b) broadcast_unary(on, s.images, s.outputs, s.positions, ShiftBy<T>{b}, y, y, static_cast<T*>(nullptr));
  });
}

/// dx = the transposed convolution of dy, plus `bias` unless it is null.
inline void conv_backward_data(const Context& on, const cpu::Blas& blas, int dtype, const ConvShape& s, const void* dy_,
                               const void* weight, const void* bias, void* dx_, void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto dy = static_cast<const T*>(dy_), w = static_cast<const T*>(weight), b = static_cast<const T*>(bias);
    auto dx = static_cast<T*>(dx_);
    if (!on.stream) return cpu::conv_backward_data(s, on.threads, dy, w, b, dx, static_cast<T*>(scratch));
    each_column_matrix(s, dx, static_cast<T*>(scratch), [&](index_t first, index_t images, T* columns) {
      GemmBatches batches;
      batches.count = images, batches.b = s.outputs * s.positions, batches.c = columns_of_image(s);
      for (index_t g = 0; g < s.groups; ++g)
        gemm(on, blas, true, false, s.k, s.positions, s.m, T(1), w + g * s.m * s.k, s.k,
             dy + (first * s.outputs + g * s.m) * s.positions, s.positions, T(0), columns + g * s.k * s.positions, s.positions,
             batches);
      if (columns == scratch) col2im(on, dtype, images * s.channels, s.window, columns, dx + first * s.channels * s.pixels);
    });
    if (b) broadcast_unary(on, s.images, s.channels, s.pixels, ShiftBy<T>{b}, dx, dx, static_cast<T*>(nullptr));
  });
}

/// dweight += dy * im2col(x)^T, summed over the images.
inline void conv_backward_weights(const Context& on, const cpu::Blas& blas, int dtype, const ConvShape& s, const void* x_,
                                  const void* dy_, void* dweight_, void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto x = static_cast<const T*>(x_), dy = static_cast<const T*>(dy_);
    auto dweight = static_cast<T*>(dweight_);
    if (!on.stream) return cpu::conv_backward_weights(s, on.threads, x, dy, dweight, static_cast<T*>(scratch));
    each_column_matrix(s, const_cast<T*>(x), static_cast<T*>(scratch), [&](index_t first, index_t images, T* columns) {
      if (columns == scratch) im2col(on, dtype, images * s.channels, s.window, x + first * s.channels * s.pixels, columns);
      GemmBatches batches;
      batches.terms = images, batches.term_a = s.outputs * s.positions, batches.term_b = columns_of_image(s);
      for (index_t g = 0; g < s.groups; ++g)
        gemm(on, blas, false, true, s.m, s.k, s.positions, T(1), dy + (first * s.outputs + g * s.m) * s.positions, s.positions,
             columns + g * s.k * s.positions, s.positions, T(1), dweight + g * s.m * s.k, s.k, batches);
    });
  });
}

/// dbias[c] += the sum of plane c over all images.
inline void conv_backward_bias(const Context& on, int dtype, index_t images, index_t channels, index_t plane, const void* dy,
                               void* dbias) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    channel_sums(on, images, channels, plane, SumTerm<T>{static_cast<const T*>(dy)}, 1.0, true, static_cast<T*>(dbias));
  });
}

}  // namespace mc
