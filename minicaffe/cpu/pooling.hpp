// Pooling on the CPU: the functors of kernels/pooling.hpp, with two shortcuts. Windows that lie wholly inside the image and
// have a usual size are computed for a row of outputs at a time in vector registers; a backward pass with enough planes
// for all threads adds each output's gradient to its window instead of searching the windows of each pixel. Both add in
// the order of the functors, so the results have the same bits.
#pragma once
#include "minicaffe/cpu/typed.hpp"
#include "minicaffe/kernels/pooling.hpp"

namespace mc {
namespace cpu {

template <int K, class T, class Op> MC_HD void take_row(Op& op, const T* x, int index) {
  op.take(x[0], index);
  op.take(x[1], index + 1);
  if constexpr (K > 2) op.take(x[2], index + 2);
}

/// A row of outputs with K x K windows at stride S (written out: the compiler must see straight code to vectorise it).
template <class T, class Op, int K, int S> struct PoolRow {
  PoolForward<T, Op> one;
  MC_HD void operator()(index_t row) const {
    const PoolShape& s = one.s;
    index_t ph = row % s.out_height, top = ph * S - s.pad_h, first = row * s.out_width;
    index_t begin = s.out_width, end = s.out_width;  // the outputs whose window is inside
    if (top >= 0 && top + K <= s.height && s.width + s.pad_w >= K) {
      begin = min_((s.pad_w + S - 1) / S, s.out_width);
      end = max_(begin, min_((s.width + s.pad_w - K) / S + 1, s.out_width));
    }
    for (index_t pw = 0; pw < begin; ++pw) one(first + pw);
    int width = int(s.width), at = int(top * s.width + begin * S - s.pad_w), n = int(end - begin);
    const T* x = one.x + row / s.out_height * s.height * s.width + at;
    T *y = one.y + first + begin, *mask = one.mask + first + begin;
#pragma GCC ivdep
    for (int i = 0; i < n; ++i) {
      Op op;
      take_row<K>(op, x + i * S, at + i * S);
      take_row<K>(op, x + i * S + width, at + i * S + width);
      if constexpr (K > 2) take_row<K>(op, x + i * S + 2 * width, at + i * S + 2 * width);
      op.put(i, T(K * K), y, mask);
    }
    for (index_t pw = end; pw < s.out_width; ++pw) one(first + pw);
  }
};

/// MAX, AVE or the TEST form of STOCHASTIC; `mask` is read by MAX only and may be null for the others.
template <template <class> class Op>
void pool_forward(int threads, int dtype, const PoolShape& s, index_t planes, const void* x, void* y, void* mask) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    PoolForward<T, Op<T>> one{s, static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(mask)};
    bool square = s.kernel_h == s.kernel_w && s.stride_h == s.stride_w;
    index_t k = square ? s.kernel_h : 0, stride = s.stride_h, rows = planes * s.out_height;
    index_t cost = s.kernel_h * s.kernel_w;
    if (k == 2 && stride == 2)
      for_each(threads, rows, PoolRow<T, Op<T>, 2, 2>{one}, cost * s.out_width);
    else if (k == 3 && stride == 2)
      for_each(threads, rows, PoolRow<T, Op<T>, 3, 2>{one}, cost * s.out_width);
    else if (k == 3 && stride == 1)
      for_each(threads, rows, PoolRow<T, Op<T>, 3, 1>{one}, cost * s.out_width);
    else
      for_each(threads, rows * s.out_width, one, cost);
  });
}

inline void stochastic_forward(int threads, int dtype, const PoolShape& s, index_t planes, u64 seed, u64 start,
                               const void* x, void* y, void* mask) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    StochasticForward<T> one{s, Philox{seed}, start, static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(mask)};
    for_each(threads, planes * s.out_height * s.out_width, one, 2 * s.kernel_h * s.kernel_w + 20);
  });
}

/// Adds each dy of one plane to the pixel its mask names; a mask outside the plane (-1: an empty window) is passed over.
template <class T> struct MaskScatter {
  index_t pixels, outputs;
  const T *dy, *mask;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    T* to = dx + plane * pixels;
    for (index_t i = 0; i < pixels; ++i) to[i] = T(0);
    for (index_t o = plane * outputs; o < (plane + 1) * outputs; ++o) {
      index_t at = index_t(mask[o]);
      if (at >= 0 && at < pixels) to[at] += dy[o];
    }
  }
};

template <class T> struct MeanScatter {
  PoolShape s;
  const T* dy;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    T* to = dx + plane * s.height * s.width;
    const T* from = dy + plane * s.out_height * s.out_width;
    for (index_t i = 0; i < s.height * s.width; ++i) to[i] = T(0);
    for (index_t ph = 0; ph < s.out_height; ++ph)
      for (index_t pw = 0; pw < s.out_width; ++pw) {
        PoolWindow window = pool_window(s, ph, pw);
        T share = from[ph * s.out_width + pw] / T(window.area);
        for (index_t h = window.top; h < window.bottom; ++h)
          for (index_t w = window.left; w < window.right; ++w) to[h * s.width + w] += share;
      }
  }
};

inline void mask_backward(int threads, int dtype, const PoolShape& s, index_t planes, const void* dy, const void* mask,
                          void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(dy), where = static_cast<const T*>(mask);
    index_t pixels = s.height * s.width;
    if (planes < threads)
      for_each(threads, planes * pixels, MaskBackward<T>{s, from, where, static_cast<T*>(dx)}, 16);
    else
      for_each(threads, planes, MaskScatter<T>{pixels, s.out_height * s.out_width, from, where, static_cast<T*>(dx)}, pixels);
  });
}

inline void mean_backward(int threads, int dtype, const PoolShape& s, index_t planes, const void* dy, void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    if (planes < threads)
      for_each(threads, planes * s.height * s.width, MeanBackward<T>{s, static_cast<const T*>(dy), static_cast<T*>(dx)}, 32);
    else
      for_each(threads, planes, MeanScatter<T>{s, static_cast<const T*>(dy), static_cast<T*>(dx)},
               s.height * s.width + s.out_height * s.out_width * s.kernel_h * s.kernel_w);
  });
}

}  // namespace cpu
}  // namespace mc
