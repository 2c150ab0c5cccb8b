// Sums over each channel of [outer, channels, inner], in an order that depends on the shape alone: not on the number of threads,
// the device, or which block ends first.
//
// On a grid each thread adds elements of a channel at a constant stride. It loads kRows elements at a time, so that loads overlap,
// adds these in their own type, and then to a double. The values of a block's threads are added through its shared memory. If
// there are too few channels to fill a device, several blocks share a channel and write partial sums, which a second launch adds.
// The term of an element may be a pair of numbers, so that one pass computes two sums. A functor, `done`, processes the sum of
// each channel.
//
// `f.at(k)` is the functor that computes the term of an element of channel k from its N arrays (kernels/reduce.hpp): it may have
// parameters of the channel, such as its mean. `Wide` is the type of the sums: double, or a pair of double.
#pragma once
#include "minicaffe/kernels/reduce.hpp"
#include "minicaffe/kernels/vector.hpp"

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
constexpr int kSumColumns = 32;  // at most so many packs of neighbouring channels in a block, if inner is 1

template <class T> struct BlockScratch {
  T value[kSumThreads], partial[kSumGroup];  // shared memory of `combine`
};

struct Plus {
  template <class T> MC_HD T operator()(T a, T b) const { return a + b; }
};
struct Max {
  template <class T> MC_HD T operator()(T a, T b) const { return max_(a, b); }
};

/// Combine one value of each of the block's kSumThreads threads in a fixed order; all threads get the result. Two barriers suffice
/// for consecutive calls: a thread that writes `value` again has passed the second barrier, before which all threads have read it.
template <class T, class Op> MC_DEVICE T combine(const Thread& t, BlockScratch<T>& scratch, T value, const Op& op) {
  unsigned me = t.thread();
  scratch.value[me] = value;
  t.barrier();
  if (me < kSumGroup) {
    T sum = scratch.value[me];
    for (unsigned i = me + kSumGroup; i < kSumThreads; i += kSumGroup) sum = op(sum, scratch.value[i]);
    scratch.partial[me] = sum;
  }
  t.barrier();
  T all = scratch.partial[0];
  for (int i = 1; i < kSumGroup; ++i) all = op(all, scratch.partial[i]);
  return all;
}

/// The functor f for every channel, where a term has no parameters of the channel.
template <class F> struct EveryChannel {
  F f;
  MC_HD F at(index_t) const { return f; }
};

/// Two sums that are computed in one pass.
template <class T> struct Two {
  T first, second;
  MC_HD Two operator+(const Two& o) const { return {first + o.first, second + o.second}; }
};

/// Count, mean, and sum of squares about the mean of some numbers. The sum of two requires equal counts (Chan, Golub, LeVeque:
/// "Updating formulae and a pairwise algorithm for computing sample variances", 1979). `pivot` is a number near the mean: sums of
/// many of these are about it, so that cancellation is small.
template <class T> struct MeanSquares {
  T count, mean, squares, pivot;
  MC_HD MeanSquares operator+(const MeanSquares& o) const {
    const T d = o.mean - mean;
    return {count + o.count, (mean + o.mean) * T(0.5), squares + o.squares + d * d * (count * T(0.5)), pivot};
  }
};

// Accumulators of the values of one thread: doubles; for MeanSquares the sum and the sum of squares about the pivot.
MC_HD double widen(float x) { return x; }
MC_HD double widen(double x) { return x; }
template <class T> MC_HD Two<double> widen(const Two<T>& x) { return {double(x.first), double(x.second)}; }
template <class T> MC_HD Two<double> widen(const MeanSquares<T>& x) {
  const double d = double(x.mean) - double(x.pivot), sum = double(x.count) * d;
  return {sum, double(x.squares) + sum * d};
}
template <class F, class T, int N> MC_HD auto wide_value(const F& f, const Arrays<T, N>& of) {  // only its type is used: Wide
  return widen(value_at(f.at(0), of, 0));
}
template <class F, class T, int N>
using Wide = decltype(wide_value(*static_cast<const F*>(nullptr), *static_cast<const Arrays<T, N>*>(nullptr)));

// Functors `done`, called with a channel and its sum by the thread that has the sum.

/// out[k] = coeff times the sum, added if `add`
template <class T> struct StoreSum {
  double coeff;
  bool add;
  T* out;
  MC_HD void operator()(index_t k, double sum) const { out[k] = T((add ? double(out[k]) : 0.0) + coeff * sum); }
};
/// Partial sums, out[channel][part], where several blocks share a channel.
template <class T> struct StorePart {
  T* out;
  MC_HD void operator()(index_t at, const T& sum) const { out[at] = sum; }
};

/// The offset of the first element of channel k, where blocks of `lanes` neighbouring channels have `inner` rows each.
MC_HD index_t first_of_channel(index_t k, index_t lanes, index_t inner) {
  return lanes == 1 ? k * inner : k < lanes ? k : k / lanes * lanes * inner + k % lanes;
}

/// The elements of a channel of [outer, channels, inner] for one thread, without a division in the loop.
struct ChannelWalk {
  index_t at, rest, inner;  // rest: the position in the row of `inner`
  index_t step, step_rest;  // from one element to the next, as if the row did not end
  index_t skip;             // from the end of a row to the channel's next one
  /// The present element; then step to the next one of this thread.
  MC_HD index_t next() {
    index_t now = at;
    at += step;
    rest += step_rest;
    if (rest >= inner) rest -= inner, at += skip;
    return now;
  }
};

/// Call done(k * parts + part, sum) with the sum of the terms f.at(k) over the elements of channel k that block (k, part) reads.
template <class F, class T, int N, class Done> struct SumChannels {
  static constexpr int kThreads = kSumThreads;
  static constexpr bool kBarriers = true;
  using Total = Wide<F, T, N>;
  using Shared = BlockScratch<Total>;
  F f;
  Arrays<T, N> of;
  index_t channels, inner, count;  // count: elements of a channel
  index_t step_rows, step_rest;    // (parts * kThreads) / inner and its remainder
  unsigned parts;                  // blocks for a channel, the grid's y
  Done done;

  MC_DEVICE void operator()(const Thread& t, Shared& scratch) const {
    const index_t k = t.block(), stride = index_t(parts) * kThreads;
    const unsigned first = t.block_y() * kThreads + t.thread();
    const index_t row = inner > first ? 0 : first / unsigned(inner), rest = first - row * inner;
    ChannelWalk walk{(row * channels + k) * inner + rest, rest,      inner,
                     step_rows * channels * inner + step_rest, step_rest, (channels - 1) * inner};
    const auto term = f.at(k);
    Total total = {};
    index_t i = first;
    for (; i + 3 * stride < count; i += 4 * stride) {
      auto a = value_at(term, of, walk.next());
      auto b = value_at(term, of, walk.next());
      auto c = value_at(term, of, walk.next());
      auto d = value_at(term, of, walk.next());
      total = total + widen((a + b) + (c + d));
    }
    for (; i < count; i += stride) total = total + widen(value_at(term, of, walk.next()));
    total = combine(t, scratch, total, Plus());
    if (t.thread() == 0) done(k * parts + t.block_y(), total);
  }
};

/// The same if inner is 1, or for blocks of rows of `width` channels, such as images with channels last. A thread adds as many
/// neighbouring channels as 16 bytes contain. It loads them at once if all rows are aligned to 16 bytes; otherwise one by one,
/// with the same order of additions.
template <class F, class T, int N, class Done> struct SumColumns {
  static constexpr int kThreads = kSumThreads;
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kRows = N * kSize > 8 ? 2 : 4;  // loads that overlap; more need too many registers
  using Total = Wide<F, T, N>;
  static constexpr int kBlocks = sizeof(Total) * kSize > 64 ? 1 : 2;  // two leave 128 registers, too few for eight pairs of doubles
  static constexpr bool kBarriers = true;
  struct Shared {
    Total value[kSize][kThreads];
  };
  F f;
  Arrays<T, N> of;
  index_t channels, width, count;  // width: channels of a row, all of them or fewer
  unsigned parts, columns;  // columns: packs of a block, a power of two
  Done done;

  MC_DEVICE void operator()(const Thread& t, Shared& scratch) const {
    const unsigned me = t.thread(), column = me % columns, lane = me / columns, lanes = kThreads / columns;
    const index_t k = (index_t(t.block()) * columns + column) * kSize, first = index_t(t.block_y()) * lanes + lane;
    Total total[kSize] = {};
    if (k < channels) {
      if (width % kSize == 0 && aligned16(of.x[0]) && aligned16(of.x[N - 1]))
        add<true>(k, first, index_t(parts) * lanes, total);
      else
        add<false>(k, first, index_t(parts) * lanes, total);
    }
    for (int j = 0; j < kSize; ++j) scratch.value[j][me] = total[j];
    for (unsigned half = lanes / 2; half; half /= 2) {
      t.barrier();
      if (lane < half)
        for (int j = 0; j < kSize; ++j) scratch.value[j][me] = total[j] = total[j] + scratch.value[j][me + half * columns];
    }
    for (int j = 0; j < kSize && lane == 0 && k + j < channels; ++j) done((k + j) * parts + t.block_y(), total[j]);
  }
  /// Add the terms of kSize channels from k on, of rows i, i + stride ..., to `total`; kWhole: all loads are of 16 bytes. A channel
  /// has `count` rows at a distance of `width`. kRows terms are added in their own type, with one conversion to double: the sum of
  /// so few loses hardly more than the rounding of a term.
  template <bool kWhole> MC_DEVICE void add(index_t k, index_t i, index_t stride, Total (&total)[kSize]) const {
    const index_t first = first_of_channel(k, width, count);
    decltype(f.at(0)) term[kSize];
    for (int j = 0; j < kSize; ++j) term[j] = f.at(min_(k + j, channels - 1));
    for (; i + (kRows - 1) * stride < count; i += kRows * stride) {
      Pack<T> x[kRows][N];
      for (int r = 0; r < kRows; ++r) load<kWhole>(x[r], k, first, i + r * stride);
      for (int j = 0; j < kSize; ++j) {
        auto sum = value(term[j], x[0], j) + value(term[j], x[1], j);
        if constexpr (kRows == 4) sum = sum + (value(term[j], x[2], j) + value(term[j], x[3], j));
        total[j] = total[j] + widen(sum);
      }
    }
    for (; i < count; i += stride) {
      Pack<T> x[N];
      load<kWhole>(x, k, first, i);
      for (int j = 0; j < kSize; ++j) total[j] = total[j] + widen(value(term[j], x, j));
    }
  }
  /// Load kSize channels of row i, from channel k, which begins at `first`; zeros after the last channel.
  template <bool kWhole> MC_DEVICE void load(Pack<T> (&to)[N], index_t k, index_t first, index_t i) const {
    for (int n = 0; n < N; ++n) {
      const T* row = of.x[n] + i * width;
      if constexpr (kWhole) to[n] = *reinterpret_cast<const Pack<T>*>(row + first);
      else
        for (int j = 0; j < kSize; ++j) to[n].value[j] = k + j < channels ? row[first_of_channel(k + j, width, count)] : T();
    }
  }
  /// The term of channel j of the packs x.
  template <class Term> MC_DEVICE static auto value(const Term& term, const Pack<T> (&x)[N], int j) {
    if constexpr (N == 1) return term(x[0].value[j]);
    else return term(x[0].value[j], x[1].value[j]);
  }
};

}  // namespace mc
