// Softmax on the device. The tensor is [outer, channels, inner]; a thread takes one position of outer x inner where channels
// are few or neighbouring threads read neighbouring positions, else a block does.
//
// The exponentials are computed twice, which costs less than to store them and read them back.
#pragma once
#include "minicaffe/ops/sums/kernel.hpp"

namespace mc {

/// Where the channels of a position are.
struct SoftmaxShape {
  index_t channels, inner;
  MC_HD index_t start(index_t position) const { return position / inner * channels * inner + position % inner; }
};

/// y = exp(x - max) / sum along the channels of one position; y may be x.
template <class T> struct SoftmaxAt {
  SoftmaxShape shape;
  const T* x;
  T* y;
  MC_HD void operator()(index_t position) const {
    index_t start = shape.start(position), step = shape.inner, end = start + shape.channels * step;
    T top = x[start], sum = T(0);
    for (index_t i = start + step; i < end; i += step) top = max_(top, x[i]);
    for (index_t i = start; i < end; i += step) sum += exp_(x[i] - top);
    for (index_t i = start; i < end; i += step) y[i] = exp_(x[i] - top) / sum;
  }
};

/// dx = y (dy - sum of dy y along the channels); dx may be dy.
template <class T> struct SoftmaxBackwardAt {
  SoftmaxShape shape;
  const T *y, *dy;
  T* dx;
  MC_HD void operator()(index_t position) const {
    index_t start = shape.start(position), step = shape.inner, end = start + shape.channels * step;
    T dot = T(0);
    for (index_t i = start; i < end; i += step) dot += dy[i] * y[i];
    for (index_t i = start; i < end; i += step) dx[i] = y[i] * (dy[i] - dot);
  }
};

/// The same by a block for each position.
template <class T> struct SoftmaxBlocks {
  static constexpr int kThreads = kSumThreads;
  static constexpr bool kBarriers = true;
  struct Shared {
    BlockRoom<T> top;
    BlockRoom<double> sum;
  };
  SoftmaxShape shape;
  const T* x;
  T* y;
  MC_DEVICE void operator()(const Thread& t, Shared& room) const {
    const index_t start = shape.start(t.block()), step = shape.inner;
    const T *from = x + start;
    T *to = y + start, top = from[0], part = T(0);  // from the first element, so that a row of -inf is 0/0 as on the CPU
    for (index_t c = t.thread(); c < shape.channels; c += kThreads) top = max_(top, from[c * step]);
    top = combine(t, room.top, top, Larger());
    for (index_t c = t.thread(); c < shape.channels; c += kThreads) part += exp_(from[c * step] - top);
    const T sum = T(combine(t, room.sum, double(part), Plus()));
    for (index_t c = t.thread(); c < shape.channels; c += kThreads) to[c * step] = exp_(from[c * step] - top) / sum;
  }
};

template <class T> struct SoftmaxBackwardBlocks {
  static constexpr int kThreads = kSumThreads;
  static constexpr bool kBarriers = true;
  using Shared = BlockRoom<double>;
  SoftmaxShape shape;
  const T *y, *dy;
  T* dx;
  MC_DEVICE void operator()(const Thread& t, Shared& room) const {
    const index_t start = shape.start(t.block()), step = shape.inner;
    T part = T(0);
    for (index_t c = t.thread(); c < shape.channels; c += kThreads) part += dy[start + c * step] * y[start + c * step];
    const T dot = T(combine(t, room, double(part), Plus()));
    for (index_t c = t.thread(); c < shape.channels; c += kThreads) {
      index_t i = start + c * step;
      dx[i] = y[i] * (dy[i] - dot);
    }
  }
};

}  // namespace mc
