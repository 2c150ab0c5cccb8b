// Sums over each channel of [outer, channels, inner], in an order that depends on the shape alone: not on the number of threads,
// the device, or which block ends first.
//
// On a grid a thread adds up every so many elements of a channel in a double, four at a time so that four loads are under way; the
// values of a block's threads are added through its shared memory. Where there are too few channels to fill a device, several
// blocks share one and leave partial sums, which the same kernel adds up in a second launch.
#pragma once
#include "minicaffe/kernels/grid.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {

/// out[k] = the sum of term(i) over all elements i of channel k; the order of additions depends on the shape only.
// e.g. ChannelSums<T, SumTerm<T>>
template <class T, class Term> struct ChannelSums {
  Term term;
  index_t outer, channels, inner;
  double* out;
  MC_HD void operator()(index_t k) const {
    double total = 0;
    for (index_t o = 0; o < outer; ++o) {
      index_t begin = (o * channels + k) * inner, end = begin + inner;
      if (inner == 1) total += double(term(begin));
      else
        for (index_t b = begin; b < end; b += kSumBlock) total += double(block_sum<T>(term, b, min_(end, b + kSumBlock)));
    }
    out[k] = total;
  }
};

/// out[k] += term(begin + k): one row of outer when inner is 1.
// e.g. AddRow<SumTerm<T>>
template <class Term> struct AddRow {
  Term term;
  index_t begin;
  double* out;
  MC_HD void operator()(index_t k) const { out[k] += double(term(begin + k)); }
};

// ---- on a grid of blocks

constexpr int kSumThreads = 256;
constexpr int kSumGroup = 16;    // threads that combine 256 / 16 values each
constexpr int kSumColumns = 32;  // neighbouring channels of a block where a channel's elements lie apart

template <class T> struct BlockRoom {
  T value[kSumThreads], partial[kSumGroup];
};

struct Plus {
  template <class T> MC_HD T operator()(T a, T b) const { return a + b; }
};
struct Larger {
  template <class T> MC_HD T operator()(T a, T b) const { return max_(a, b); }
};

/// One value of each of the block's kSumThreads threads, combined in a fixed order, for all of them to read. Two barriers are
/// enough for one call after the other: whoever writes `value` again has passed the second, where the last reader was done.
template <class T, class Op> MC_DEVICE T combine(const Thread& t, BlockRoom<T>& room, T value, const Op& op) {
  unsigned me = t.thread();
  room.value[me] = value;
  t.barrier();
  if (me < kSumGroup) {
    T sum = room.value[me];
    for (unsigned i = me + kSumGroup; i < kSumThreads; i += kSumGroup) sum = op(sum, room.value[i]);
    room.partial[me] = sum;
  }
  t.barrier();
  T all = room.partial[0];
  for (int i = 1; i < kSumGroup; ++i) all = op(all, room.partial[i]);
  return all;
}

/// The same term for every channel; f.at(k) is that of channel k.
template <class Term> struct EveryChannel {
  Term term;
  MC_HD const Term& at(index_t) const { return term; }
};

/// The elements of a channel of [outer, channels, inner] that one thread meets, without a division in the loop.
struct ChannelWalk {
  index_t at, rest, inner;  // rest: the position in the row of `inner`
  index_t step, step_rest;  // from one element to the next, as if the row did not end
  index_t skip;             // from the end of a row to the channel's next one
  MC_HD index_t next() {
    index_t now = at;
    at += step;
    rest += step_rest;
    if (rest >= inner) rest -= inner, at += skip;
    return now;
  }
};

/// out[k][part] = coeff times the sum of f.at(k)(i) over what block (k, part) takes of channel k; added if `add`.
template <class F, class Out> struct SumChannels {
  static constexpr int kThreads = kSumThreads;
  static constexpr bool kBarriers = true;
  using Shared = BlockRoom<double>;
  F f;
  index_t channels, inner, count;  // count: elements of a channel
  index_t step_rows, step_rest;    // (parts * kThreads) / inner and its remainder
  unsigned parts;
  bool add;
  double coeff;
  Out* out;

  MC_DEVICE void operator()(const Thread& t, Shared& room) const {
    const index_t k = t.block(), stride = index_t(parts) * kThreads;
    const unsigned first = t.block_y() * kThreads + t.thread();
    const index_t row = inner > first ? 0 : first / unsigned(inner), rest = first - row * inner;
    ChannelWalk walk{(row * channels + k) * inner + rest, rest,      inner,
                     step_rows * channels * inner + step_rest, step_rest, (channels - 1) * inner};
    const auto term = f.at(k);
    double total = 0;
    index_t i = first;
    for (; i + 3 * stride < count; i += 4 * stride) {
      auto a = term(walk.next());
      auto b = term(walk.next());
      auto c = term(walk.next());
      auto d = term(walk.next());
      total += double((a + b) + (c + d));
    }
    for (; i < count; i += stride) total += double(term(walk.next()));
    total = combine(t, room, total, Plus());
    if (t.thread() == 0) {
      Out& to = out[k * parts + t.block_y()];
      to = Out((add ? double(to) : 0.0) + coeff * total);
    }
  }
};

/// The same where inner is 1: a block takes kSumColumns neighbouring channels, so that its reads are contiguous.
template <class F, class Out> struct SumColumns {
  static constexpr int kThreads = kSumThreads;
  static constexpr int kLanes = kThreads / kSumColumns;
  static constexpr bool kBarriers = true;
  struct Shared {
    double value[kLanes][kSumColumns];
  };
  F f;
  index_t channels, count;
  unsigned parts;
  bool add;
  double coeff;
  Out* out;

  MC_DEVICE void operator()(const Thread& t, Shared& room) const {
    const unsigned column = t.thread() % kSumColumns, lane = t.thread() / kSumColumns;
    const index_t k = index_t(t.block()) * kSumColumns + column, stride = index_t(parts) * kLanes;
    double total = 0;
    if (k < channels) {
      const auto term = f.at(k);
      index_t i = index_t(t.block_y()) * kLanes + lane;
      for (; i + 3 * stride < count; i += 4 * stride) {
        auto a = term(i * channels + k);
        auto b = term((i + stride) * channels + k);
        auto c = term((i + 2 * stride) * channels + k);
        auto d = term((i + 3 * stride) * channels + k);
        total += double((a + b) + (c + d));
      }
      for (; i < count; i += stride) total += double(term(i * channels + k));
    }
    room.value[lane][column] = total;
    t.barrier();
    if (lane == 0 && k < channels) {
      for (int l = 1; l < kLanes; ++l) total += room.value[l][column];
      Out& to = out[k * parts + t.block_y()];
      to = Out((add ? double(to) : 0.0) + coeff * total);
    }
  }
};

}  // namespace mc
