// The update of many parameters in one launch: most are so small that launches would cost more than the work.
#pragma once
#include "minicaffe/kernels/grid.hpp"
#include "minicaffe/ops/update/kernel.hpp"

namespace mc {

constexpr int kTensors = 48;         // so that all fits into the 4 KiB of a launch's parameters
constexpr int kUpdateChunk = 2048;   // elements that one block takes

/// One parameter: weight, gradient, histories, and what is particular to it.
template <class T> struct Tensor {
  T *w, *g, *h, *h2;
  index_t count;
  T rate, l2, l1;
};

/// Each block takes one chunk of one tensor. `rate`, unless null, is a factor of every rate that lies on the device, where it
/// can change while a captured graph of launches stays as it is.
template <class Rule, class T> struct UpdateAll {
  static constexpr int kThreads = 256;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  Tensor<T> tensor[kTensors];
  int first_chunk[kTensors + 1];
  int tensors;
  Rule rule;
  T scale;
  const double* rate;

  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    int low = 0, high = tensors;  // the tensor of this chunk: first_chunk[low] <= block < first_chunk[high]
    while (high - low > 1) {
      int middle = (low + high) / 2;
      if (first_chunk[middle] <= int(t.block())) low = middle;
      else high = middle;
    }
    const Tensor<T> p = tensor[low];
    Rule mine = rule;
    mine.rate = rate ? T(double(p.rate) * *rate) : p.rate;
    const Update<Rule, T> update{{scale, p.l2, p.l1}, mine, p.w, p.g, p.h, p.h2};
    index_t begin = index_t(int(t.block()) - first_chunk[low]) * kUpdateChunk;
    index_t end = min_(begin + kUpdateChunk, p.count);
    for (index_t i = begin + t.thread(); i < end; i += t.threads()) update(i);
  }
};

}  // namespace mc
