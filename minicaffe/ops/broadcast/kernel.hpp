// Functors whose parameters are broadcast along axes. A blob is viewed as outer x channels x inner, and parameter k belongs to
// the elements whose middle index is k: `f.at(k)` is the element-wise functor of that parameter. On a device 16 bytes at a time.
#pragma once
#include "minicaffe/ops/activation/kernel.hpp"
#include "minicaffe/kernels/divider.hpp"
#include "minicaffe/kernels/reduce.hpp"
#include "minicaffe/kernels/types.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

template <class T> struct Affine {
  T scale, shift;
  MC_HD T operator()(T x) const { return x * scale + shift; }
};
template <class T> struct Shifted {
  T shift;
  MC_HD T operator()(T x) const { return x + shift; }
};
template <class T> struct Constant {
  T value;
  MC_HD T operator()(T) const { return value; }
};
template <class T> struct SignTimes {
  T factor;
  MC_HD T operator()(T x) const { return factor * sign_(x); }
};

/// x s[k]
template <class T> struct ScaleBy {
  const T* s;
  MC_HD Scaled<T> at(index_t k) const { return {s[k]}; }
};
/// x s[k] + b[k]
template <class T> struct ScaleShift {
  const T *s, *b;
  MC_HD Affine<T> at(index_t k) const { return {s[k], b[k]}; }
};
/// x + b[k]
template <class T> struct ShiftBy {
  const T* b;
  MC_HD Shifted<T> at(index_t k) const { return {b[k]}; }
};

/// x / d[k], 0 where d[k] is 0
template <class T> struct DividedBy {
  const T* d;
  MC_HD Scaled<T> at(index_t k) const { return {d[k] == T(0) ? T(0) : T(1) / d[k]}; }
};

/// max(x, 0) + a[k] min(x, 0)
template <class T> struct PreluForward {
  const T* a;
  MC_HD ReluForward<T> at(index_t k) const { return {a[k]}; }
};
template <class T> struct PreluBackward {
  const T* a;
  MC_HD ReluBackward<T> at(index_t k) const { return {a[k]}; }
};
/// The contribution of one element to the gradient of a[k].
template <class T> struct PreluGradient {
  MC_HD T operator()(T x, T dy) const {
    T product = x * dy;  // computed unconditionally, so that the loop has no branch
    return x > T(0) ? T(0) : product;
  }
};
template <class T> using PreluTerm = TermOf<PreluGradient<T>, T, 2>;

// Gradients of layer Reduction: of coeff times the sum of x, |x| or x^2 over the elements of k, a top element whose diff is dy[k].
template <class T> struct SumBackward {
  const T* dy;
  T coeff;
  MC_HD Constant<T> at(index_t k) const { return {coeff * dy[k]}; }
};
template <class T> struct AbsSumBackward {
  const T* dy;
  T coeff;
  MC_HD SignTimes<T> at(index_t k) const { return {coeff * dy[k]}; }
};
template <class T> struct SquareSumBackward {
  const T* dy;
  T coeff;
  MC_HD Scaled<T> at(index_t k) const { return {T(2) * coeff * dy[k]}; }
};

/// y[at + k] = f.at(k)(x[0][at + k], ...) of one or two inputs: a row of outer, which begins at element `at`, when inner is 1.
// e.g. AtEach<PreluBackward<T>, T, 2>
template <class F, class T, int N> struct AtEach {
  F f;
  index_t at;
  const T* x[N];
  T* y;
  MC_HD void operator()(index_t k) const {
    if constexpr (N == 1) y[at + k] = f.at(k)(x[0][at + k]);
    else y[at + k] = f.at(k)(x[0][at + k], x[1][at + k]);
  }
};

// ---- on a grid of blocks

/// The channel of element i of [outer, channels, inner], or of [channels / lanes, inner, lanes].
struct ChannelIndex {
  IntDivider<unsigned> block, channels, lanes;  // block: elements of one or of `lanes` channels that lie together
  index_t wide_block, wide_channels, wide_lanes;  // not 0: there are 2^31 elements and more, so divide by these
  MC_HD index_t operator()(index_t i) const {
    if (wide_lanes > 1) return i / wide_block * wide_lanes + i % wide_lanes;
    if (wide_block) return i / wide_block % wide_channels;
    const unsigned at = unsigned(i), row = block.quotient(at);
    if (lanes.divisor > 1) return row * lanes.divisor + at - lanes.quotient(at) * lanes.divisor;
    return row - channels.quotient(row) * channels.divisor;
  }
};

/// The ChannelIndex of a shape, by 32-bit divisions if all indices fit.
MC_HD ChannelIndex channel_index(index_t outer, index_t channels, index_t inner, index_t lanes = 1) {
  ChannelIndex index = {{1, 1, 0}, {1, 1, 0}, {1, 1, 0}, 0, 0, 0};
  if (outer * channels * inner < 2147483648ll) {
    set_divisor(index.block, inner * lanes);
    set_divisor(index.channels, channels);
    set_divisor(index.lanes, lanes);
  } else {
    index.wide_block = inner * lanes;
    index.wide_channels = channels;
    index.wide_lanes = lanes;
  }
  return index;
}

/// y = f.at(k)(x[0], ...) of one or two inputs; `kept`, unless null, receives x[0]. F computes on Element<T>::Compute.
/// With kRows inner is 1 and a row of channels is whole packs: a thread processes the same channels of several rows, with their
/// functors in registers. It is a separate kernel, as it needs more registers.
template <class F, class T, int N, bool kRows> struct Broadcast {
  static constexpr int kThreads = kVectorThreads;
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kBlocks = kRows ? 2 : 4;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  F f;
  ChannelIndex channel;
  bool one;      // a pack is of one channel
  unsigned row;  // packs of a row; with kRows there are as many threads or more
  index_t n;
  const T* x[N];
  T *y, *kept;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    const bool aligned = aligned16(x[0]) && aligned16(x[N - 1]) && aligned16(y) && aligned16(kept);
    if constexpr (kRows)
      if (aligned) return rows(t);
    walk_packs(t, n, kSize, !kRows && aligned, *this);   // calls `pack` and `map`
  }
  /// The loop of kRows: two rows at a time, so that their loads overlap.
  MC_DEVICE void rows(const Thread& t) const {
    const index_t step = unsigned(t.total()) / row * row, end = n / kSize;  // threads after the last whole row are idle
    index_t i = t.index();
    if (i >= min_(step, end)) return;
    decltype(f.at(0)) each[kSize];
    for (int j = 0; j < kSize; ++j) each[j] = f.at(unsigned(i) % row * kSize + j);
    for (; i + step < end; i += 2 * step) {
      Pack<T> a[N], b[N];
      load(a, i), load(b, i + step);
      store(a, i, [&](int j) { return each[j]; });
      store(b, i + step, [&](int j) { return each[j]; });
    }
    if (i >= end) return;
    Pack<T> a[N];
    load(a, i), store(a, i, [&](int j) { return each[j]; });
  }
  MC_DEVICE void pack(index_t i) const {
    Pack<T> from[N];
    load(from, i);
    if (one) {
      const auto same = f.at(channel(i * kSize));
      store(from, i, [&](int) { return same; });
    } else {
      store(from, i, [&](int j) { return f.at(channel(i * kSize + j)); });
    }
  }
  MC_DEVICE void load(Pack<T> (&from)[N], index_t i) const {
    for (int k = 0; k < N; ++k) from[k] = reinterpret_cast<const Pack<T>*>(x[k])[i];
  }
  /// Compute and store pack i: at(j) is the functor of element j.
  template <class At> MC_DEVICE void store(const Pack<T> (&from)[N], index_t i, const At& at) const {
    Pack<T> to;
    for (int j = 0; j < kSize; ++j) {
      typename Element<T>::Compute value[N];
      for (int k = 0; k < N; ++k) value[k] = from[k].value[j];
      to.value[j] = apply_(at(j), value);
    }
    reinterpret_cast<Pack<T>*>(y)[i] = to;
    if (kept) reinterpret_cast<Pack<T>*>(kept)[i] = from[0];
  }
  MC_DEVICE void map(index_t i) const {
    typename Element<T>::Compute value[N];
    for (int k = 0; k < N; ++k) value[k] = x[k][i];
    if (kept) kept[i] = x[0][i];
    y[i] = apply_(f.at(channel(i)), value);
  }
};

}  // namespace mc
