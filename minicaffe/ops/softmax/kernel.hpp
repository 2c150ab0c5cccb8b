// Softmax along the channels of [outer, channels, inner], on CPU and device. The formula is ops/softmax/plain.hpp; both teams of
// the CPU take a 20th of its time: RowTeam if inner is 1, otherwise NeighbourTeam.
//
// The formulas are written once, for a team: it finds maximum or sum of term(element) over the channels of a position, or of
// kPositions neighbouring ones at once (out[position]), and calls f(element, position) for each element; fill_and_sum stores f in y
// and sums it. Teams: a thread with neighbouring positions, a thread with the lanes of vector registers (CPU), the threads of a
// block (device). SumTerm<T>{x}(i) is x[i].
#pragma once
#include "minicaffe/kernels/exponential.hpp"
#include "minicaffe/loops/sums/kernel.hpp"
#ifdef __CUDACC_RTC__
#define MC_LAMBDA
#else
#include "minicaffe/device/typed.hpp"
#define MC_LAMBDA __attribute__((always_inline))
#endif

namespace mc {

/// y = exp(x - max) / sum; y may be x.
template <class T> struct SoftmaxForward {
  const T* x;
  T* y;
  template <class Team> MC_HD void run(const Team& team) const {
    const T* from = x;  // a local copy, which no store can change
    T *to = y, top[Team::kPositions], sum[Team::kPositions];
    team.largest(SumTerm<T>{from}, top);
    team.fill_and_sum(to, [&](index_t i, int k) MC_LAMBDA { return vector_exp(from[i] - top[k]); }, sum);
    team.each([&](index_t i, int k) MC_LAMBDA { to[i] = to[i] / sum[k]; });
  }
};

/// dx = y (dy - sum of dy y); dx may be dy.
template <class T> struct SoftmaxBackward {
  const T *y, *dy;
  T* dx;
  template <class Team> MC_HD void run(const Team& team) const {
    const T *top = y, *from = dy;
    T *to = dx, dot[Team::kPositions];
    team.sum(DotTerm<T>{from, top}, dot);
    team.each([&](index_t i, int k) MC_LAMBDA { to[i] = top[i] * (from[i] - dot[k]); });
  }
};

// ---- the teams, and what runs one for each item. A maximum begins with the first element, so that a row of -inf is 0/0.

/// One thread with n neighbouring positions of inner, at most kWidth, whose first element is `start`.
template <int kWidth> struct NeighbourTeam {
  static constexpr int kPositions = kWidth;
  index_t start, channels, inner;
  int n;
  template <class F> MC_HD void each(const F& f) const {
    for (index_t c = 0, at = start; c < channels; ++c, at += inner)
      MC_IVDEP for (int k = 0; k < n; ++k) f(at + k, k);
  }
  template <class T, class Term> MC_HD void largest(const Term& term, T* out) const {
    for (int k = 0; k < n; ++k) out[k] = term(start + k);
    each([&](index_t i, int k) MC_LAMBDA { out[k] = max_(out[k], term(i)); });
  }
  template <class T, class Term> MC_HD void sum(const Term& term, T* out) const {
    for (int k = 0; k < n; ++k) out[k] = T(0);
    each([&](index_t i, int k) MC_LAMBDA { out[k] += term(i); });
  }
  template <class T, class F> MC_HD void fill_and_sum(T* y, const F& f, T* out) const {
    for (int k = 0; k < n; ++k) out[k] = T(0);
    each([&](index_t i, int k) MC_LAMBDA { out[k] += y[i] = f(i, k); });
  }
};

/// F for piece `item`: up to kWidth neighbouring positions.
// e.g. ByNeighbours<SoftmaxForward<T>, 1>
template <class F, int kWidth> struct ByNeighbours {
  F f;
  index_t channels, inner, pieces;  // pieces to an outer position
  MC_HD void operator()(index_t item) const {
    index_t outer = item / pieces, begin = (item - outer * pieces) * kWidth;
    f.run(NeighbourTeam<kWidth>{outer * channels * inner + begin, channels, inner, int(min_<index_t>(kWidth, inner - begin))});
  }
};

/// One thread with a row of contiguous channels, in the lanes of vector registers.
struct RowTeam {
  static constexpr int kPositions = 1;
  index_t begin, end;
  template <class F> MC_HD void each(const F& f) const {
    MC_IVDEP for (index_t i = begin; i < end; ++i) f(i, 0);
  }
  template <class T, class Term> MC_HD void largest(const Term& term, T* out) const {
    T lane[kSumLanes];
    for (int k = 0; k < kSumLanes; ++k) lane[k] = term(begin);
    index_t i = begin;
    for (; i + kSumLanes <= end; i += kSumLanes)
      for (int k = 0; k < kSumLanes; ++k) lane[k] = max_(lane[k], term(i + k));
    for (; i < end; ++i) lane[0] = max_(lane[0], term(i));
    *out = lane[0];
    for (int k = 1; k < kSumLanes; ++k) *out = max_(*out, lane[k]);
  }
  template <class T, class Term> MC_HD void sum(const Term& term, T* out) const { *out = block_sum<T>(term, begin, end); }
  template <class T, class F> MC_HD void fill_and_sum(T* y, const F& f, T* out) const {
    each([&](index_t i, int k) MC_LAMBDA { y[i] = f(i, k); });
    sum(SumTerm<T>{y}, out);
  }
};

// e.g. ByRow<SoftmaxForward<T>>
template <class F> struct ByRow {
  F f;
  index_t channels;
  MC_HD void operator()(index_t row) const { f.run(RowTeam{row * channels, (row + 1) * channels}); }
};

/// The threads of a block with one position; sums between threads are in double.
struct BlockTeam {
  static constexpr int kPositions = 1;
  const Thread& t;
  BlockScratch<double>& scratch;
  index_t start, channels, inner;
  template <class F> MC_DEVICE void each(const F& f) const {
    for (index_t c = t.thread(); c < channels; c += kSumThreads) f(start + c * inner, 0);
  }
  template <class T, class Term> MC_DEVICE void largest(const Term& term, T* out) const {
    T part = term(start);
    each([&](index_t i, int) { part = max_(part, term(i)); });
    *out = T(combine(t, scratch, double(part), Max()));
  }
  template <class T, class Term> MC_DEVICE void sum(const Term& term, T* out) const {
    T part = T(0);
    each([&](index_t i, int) { part += term(i); });
    *out = T(combine(t, scratch, double(part), Plus()));
  }
  template <class T, class F> MC_DEVICE void fill_and_sum(T* y, const F& f, T* out) const {
    each([&](index_t i, int k) { y[i] = f(i, k); });
    sum(SumTerm<T>{y}, out);
  }
};

template <class F> struct ByBlock {
  static constexpr int kThreads = kSumThreads;
  static constexpr bool kBarriers = true;
  using Shared = BlockScratch<double>;
  F f;
  index_t channels, inner;
  MC_DEVICE void operator()(const Thread& t, Shared& scratch) const {
    index_t outer = t.block() / inner;
    f.run(BlockTeam{t, scratch, outer * channels * inner + t.block() - outer * inner, channels, inner});
  }
};

#ifndef __CUDACC_RTC__
constexpr index_t kSoftmaxWidth = 128;  // neighbouring positions that a thread of the CPU takes at once

/// f.run(team) for every position of outer x inner, by the team that suits the shape; `cost` of one element, as in for_each.
template <class F>
void for_each_softmax(const Context& on, index_t outer, index_t channels, index_t inner, const F& f, index_t cost) {
  const index_t positions = outer * inner, pieces = (inner + kSoftmaxWidth - 1) / kSoftmaxWidth;
  if (positions * channels == 0) return;
  if (!on.stream && inner == 1)
    cpu::for_each(on.threads, outer, ByRow<F>{f, channels}, cost * channels);
  else if (!on.stream)
    cpu::for_each(on.threads, outer * pieces, ByNeighbours<F, kSoftmaxWidth>{f, channels, inner, pieces},
                  cost * channels * min_(inner, kSoftmaxWidth));
  // The channels of a position would keep one thread busy for long. Where inner is more than 1 the reads of a block lie apart, so
  // that it pays only if there are too few positions for a thread each.
  else if (channels > 32 && (inner == 1 || positions < 2048))
    cuda::launch(*on.stream, ByBlock<F>{f, channels, inner}, unsigned(positions));
  else
    cuda::for_each(*on.stream, positions, ByNeighbours<F, 1>{f, channels, inner, inner});
}

template <class T> void softmax_forward(const Context& on, index_t outer, index_t channels, index_t inner, const T* x, T* y) {
  for_each_softmax(on, outer, channels, inner, SoftmaxForward<T>{x, y}, 10);
}

template <class T>
void softmax_backward(const Context& on, index_t outer, index_t channels, index_t inner, const T* y, const T* dy, T* dx) {
  for_each_softmax(on, outer, channels, inner, SoftmaxBackward<T>{y, dy, dx}, 2);
}
#endif

}  // namespace mc
