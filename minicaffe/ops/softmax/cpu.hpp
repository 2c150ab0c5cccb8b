// Softmax on the CPU. The tensor is [outer, channels, inner]; a work item is one row of channels where inner is 1, else a
// block of neighbouring inner positions, whose channels are walked with vector loops over the block.
#pragma once
#include "minicaffe/ops/softmax/exp.hpp"
#include "minicaffe/device/apply.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {
namespace cpu {

constexpr index_t kSoftmaxBlock = 128;

/// y = exp(x - max) / sum along the channels; y may be x.
template <class T> struct SoftmaxRow {
  index_t channels;
  const T* x;
  T* y;
  MC_HD void operator()(index_t row) const {
    const T* from = x + row * channels;
    T* to = y + row * channels;
    T lane[kSumLanes];
    for (int k = 0; k < kSumLanes; ++k) lane[k] = from[0];
    index_t c = 0;
    for (; c + kSumLanes <= channels; c += kSumLanes)
      for (int k = 0; k < kSumLanes; ++k) lane[k] = max_(lane[k], from[c + k]);
    for (; c < channels; ++c) lane[0] = max_(lane[0], from[c]);
    T top = lane[0];
    for (int k = 1; k < kSumLanes; ++k) top = max_(top, lane[k]);
#pragma GCC ivdep
    for (index_t i = 0; i < channels; ++i) to[i] = fast_exp(from[i] - top);
    T sum = block_sum<T>(SumTerm<T>{to}, 0, channels);
#pragma GCC ivdep
    for (index_t i = 0; i < channels; ++i) to[i] = to[i] / sum;
  }
};

template <class T> struct SoftmaxBlock {
  index_t channels, inner, blocks;  // blocks to an outer position
  const T* x;
  T* y;
  MC_HD void operator()(index_t item) const {
    index_t first = item % blocks * kSoftmaxBlock, n = min_(kSoftmaxBlock, inner - first);
    const T* from = x + item / blocks * channels * inner + first;
    T* to = y + item / blocks * channels * inner + first;
    T top[kSoftmaxBlock], sum[kSoftmaxBlock];
    for (index_t i = 0; i < n; ++i) top[i] = from[i], sum[i] = T(0);
    for (index_t c = 1; c < channels; ++c)
      for (index_t i = 0; i < n; ++i) top[i] = max_(top[i], from[c * inner + i]);
    for (index_t c = 0; c < channels; ++c)
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) {
        T e = fast_exp(from[c * inner + i] - top[i]);
        to[c * inner + i] = e;
        sum[i] += e;
      }
    for (index_t c = 0; c < channels; ++c)
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) to[c * inner + i] = to[c * inner + i] / sum[i];
  }
};

/// dx = y (dy - sum of dy y along the channels); dx may be dy.
template <class T> struct SoftmaxRowBackward {
  index_t channels;
  const T *y, *dy;
  T* dx;
  MC_HD void operator()(index_t row) const {
    index_t begin = row * channels, end = begin + channels;
    T dot = block_sum<T>(DotTerm<T>{dy, y}, begin, end);
#pragma GCC ivdep
    for (index_t i = begin; i < end; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
};

template <class T> struct SoftmaxBlockBackward {
  index_t channels, inner, blocks;
  const T *y, *dy;
  T* dx;
  MC_HD void operator()(index_t item) const {
    index_t first = item % blocks * kSoftmaxBlock, n = min_(kSoftmaxBlock, inner - first);
    index_t start = item / blocks * channels * inner + first;
    T dot[kSoftmaxBlock];
    for (index_t i = 0; i < n; ++i) dot[i] = T(0);
    for (index_t at = start, c = 0; c < channels; ++c, at += inner)
      for (index_t i = 0; i < n; ++i) dot[i] += dy[at + i] * y[at + i];
    for (index_t at = start, c = 0; c < channels; ++c, at += inner)
#pragma GCC ivdep
      for (index_t i = 0; i < n; ++i) dx[at + i] = y[at + i] * (dy[at + i] - dot[i]);
  }
};

inline void softmax_forward(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, const void* x, void* y) {
  if (outer * channels * inner == 0) return;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(x);
    auto to = static_cast<T*>(y);
    index_t blocks = (inner + kSoftmaxBlock - 1) / kSoftmaxBlock;
    if (inner == 1)
      for_each(threads, outer, SoftmaxRow<T>{channels, from, to}, 10 * channels);
    else
      for_each(threads, outer * blocks, SoftmaxBlock<T>{channels, inner, blocks, from, to},
               10 * channels * min_(inner, kSoftmaxBlock));
  });
}

inline void softmax_backward(Threads threads, int dtype, index_t outer, index_t channels, index_t inner, const void* y,
                             const void* dy, void* dx) {
  if (outer * channels * inner == 0) return;
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto top = static_cast<const T*>(y), top_diff = static_cast<const T*>(dy);
    auto to = static_cast<T*>(dx);
    index_t blocks = (inner + kSoftmaxBlock - 1) / kSoftmaxBlock;
    if (inner == 1)
      for_each(threads, outer, SoftmaxRowBackward<T>{channels, top, top_diff, to}, 2 * channels);
    else
      for_each(threads, outer * blocks, SoftmaxBlockBackward<T>{channels, inner, blocks, top, top_diff, to},
               2 * channels * min_(inner, kSoftmaxBlock));
  });
}

}  // namespace cpu
}  // namespace mc
