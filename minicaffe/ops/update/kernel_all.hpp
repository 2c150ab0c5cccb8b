// The update of many parameters in one launch, and zeros for their gradients: most are so small that launches would cost more than
// the work.
#pragma once
#include "minicaffe/kernels/vector.hpp"
#include "minicaffe/ops/update/kernel.hpp"

namespace mc {

constexpr int kTensors = 48;         // so that all fits into the 4 KiB of a launch's parameters
constexpr int kUpdateChunk = 2048;   // elements that one block takes

/// The tensor of a chunk, by bisection: first_chunk[tensor] <= chunk < first_chunk[tensor + 1].
MC_HD int tensor_of(const int* first_chunk, int tensors, int chunk) {
  int low = 0, high = tensors;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (first_chunk[middle] <= chunk) low = middle;
    else high = middle;
  }
  return low;
}

constexpr int kZeroTensors = 192;  // likewise
constexpr int kZeroChunk = 8192;   // words of 4 bytes

/// Zeros in all words of some tensors. Each block takes one chunk, kZeroChunk words of one tensor.
struct ZeroAll {
  static constexpr int kThreads = 256;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  unsigned* at[kZeroTensors];
  index_t words[kZeroTensors];
  int first_chunk[kZeroTensors + 1];
  int tensors;

  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    const int which = tensor_of(first_chunk, tensors, int(t.block()));
    const index_t begin = index_t(int(t.block()) - first_chunk[which]) * kZeroChunk;
    const index_t end = min_(begin + kZeroChunk, words[which]), packs = aligned16(at[which]) ? end / 4 : begin / 4;
    for (index_t i = begin / 4 + t.thread(); i < packs; i += t.threads())
      reinterpret_cast<Pack<unsigned>*>(at[which])[i] = Pack<unsigned>{};
    for (index_t i = packs * 4 + t.thread(); i < end; i += t.threads()) at[which][i] = 0;
  }
};

/// One parameter: weight, gradient, histories, and its own rates.
template <class T> struct Tensor {
  T *w, *g, *h, *h2;
  index_t count;
  T rate, l2, l1;
};

/// Each block takes one chunk of one tensor. `rate`, unless null, is a factor of every tensor's rate. It is on the device, where it
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
    const int which = tensor_of(first_chunk, tensors, int(t.block()));
    const Tensor<T> p = tensor[which];
    Rule mine = rule;
    mine.rate = rate ? T(double(p.rate) * *rate) : p.rate;
    const Update<Rule, T> update{{scale, p.l2, p.l1}, mine, p.w, p.g, p.h, p.h2};
    index_t begin = index_t(int(t.block()) - first_chunk[which]) * kUpdateChunk;
    index_t end = min_(begin + kUpdateChunk, p.count);
    for (index_t i = begin + t.thread(); i < end; i += t.threads()) update(i);
  }
};

}  // namespace mc
