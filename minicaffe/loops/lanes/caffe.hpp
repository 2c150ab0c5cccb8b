// How the elements of an array belong to its channels, in plain order and in layouts of engines, and the loops of the CPU over the
// latter.
#pragma once
#include <vector>
#include "minicaffe/device/bf16.hpp"
#include "minicaffe/kernels/reduce.hpp"

namespace mc {

/// A shape outer x channels x inner; with more lanes than 1: outer x blocks of so many channels x inner x the channels of a block,
/// where zeros fill the last block (oneDNN's nChw16c). They may be a part of an array of `whole` blocks; 0: they are all of it.
struct Channels {
  index_t outer, channels, inner, lanes, whole;
  Channels(index_t outer = 0, index_t channels = 0, index_t inner = 0, index_t lanes = 1, index_t whole = 0)
      : outer(outer), channels(channels), inner(inner), lanes(lanes), whole(whole) {}
  index_t blocks() const { return (channels + lanes - 1) / lanes; }
  index_t stride() const { return (whole ? whole : blocks()) * inner * lanes; }  // elements from one index of outer to the next
};

namespace cpu {

// What the CPU has of elements T: arrays in plain order; and arrays in lanes, that is in layouts of engines.
template <class T> constexpr bool kPlain = !std::is_same_v<T, Bf16>;
template <class T> constexpr bool kInLanes = !std::is_same_v<T, double>;

/// A row: kGroup neighbouring channels of one image, all positions of inner; or the channels that are left.
template <int kGroup> struct LaneRow {
  index_t outer, first, count, at;  // the image, the first channel, the number of channels, their first element
  MC_HD LaneRow(const Channels& c, index_t row) {
    const index_t groups = (c.channels + kGroup - 1) / kGroup;
    outer = row / groups, first = row % groups * kGroup, count = min_<index_t>(kGroup, c.channels - first);
    at = outer * c.stride() + first / c.lanes * c.inner * c.lanes + first % c.lanes;
  }
};

// Whether a row is computed in vectors (device/bf16.hpp), not in loops over its channels, which compilers vectorise for floats.
template <class T, int kGroup> constexpr bool kVectors = std::is_same_v<T, Bf16> && kGroup == 16;

/// rows.walk(c, row, its count), of whole groups with a count that the compiler knows. T are the elements, by which `uses` (below)
/// has `range` choose the instruction set (device/apply.hpp).
template <class Rows, int kGroup, class T> struct WalkRow {
  Channels c;
  Rows rows;
  MC_HD void operator()(index_t row) const {
    const LaneRow<kGroup> r(c, row);
    if (r.count == kGroup)
      rows.walk(c, r, kGroup);
    else
      rows.walk(c, r, r.count);
  }
};

template <class X, class Rows, int kGroup, class T> struct uses<X, WalkRow<Rows, kGroup, T>> : std::is_same<X, T> {};

/// Run Rows<kGroup>{members...} over all rows of elements T: of 16 channels, or of 8 if the lanes are no multiple of 16.
template <class T, template <int> class Rows, class... M>
void each_lane_row(Threads threads, const Channels& c, const M&... members) {
  auto run = [&](auto walk, index_t group) {
    for_each(threads, c.outer * ((c.channels + group - 1) / group), walk, std::max<index_t>(1, c.inner * group));
  };
  if (c.lanes % 16)
    run(WalkRow<Rows<8>, 8, T>{c, {members...}}, 8);
  else
    run(WalkRow<Rows<16>, 16, T>{c, {members...}}, 16);
}

/// The rows of map_lanes.
template <class F, class T> struct LaneMap {
  /// y = f.at(k)(a), or f.at(k)(a, b); in Bf16 by f.lanes<Lanes>(k) for 16 channels. `kept`, unless null, receives a copy of a.
  template <int kGroup> struct Rows {
    F f;
    const T *a, *b;
    T *y, *kept;

    MC_HD void walk(const Channels& c, const LaneRow<kGroup>& r, index_t count) const {
      for (index_t i = 0, at = r.at; kept && i < c.inner; ++i, at += c.lanes)
        for (index_t l = 0; l < count; ++l) kept[at + l] = a[at + l];
      if constexpr (kVectors<T, kGroup>)
        if (count == kGroup) {
          const auto each = f.template lanes<Lanes>(r.first);
          for (index_t i = 0, at = r.at; i < c.inner; ++i, at += c.lanes) {
            if constexpr (std::is_invocable_v<decltype(each), Lanes, Lanes>)
              put_lanes(y + at, each(get_lanes<Lanes>(a + at), get_lanes<Lanes>(b + at)));
            else
              put_lanes(y + at, each(get_lanes<Lanes>(a + at)));
          }
          return;
        }
      for (index_t i = 0, at = r.at; i < c.inner; ++i, at += c.lanes) {
        MC_IVDEP
        for (index_t l = 0; l < count; ++l) {
          if constexpr (std::is_invocable_v<decltype(f.at(0)), T, T>)
            y[at + l] = f.at(r.first + l)(a[at + l], b[at + l]);
          else
            y[at + l] = f.at(r.first + l)(a[at + l]);
        }
      }
    }
  };
};

/// The rows of sum_lanes.
template <class Term, class T> struct LaneSums {
  /// sums[outer][k] = the sum of term(i) over the elements i of channel k
  template <int kGroup> struct Rows {
    Term term;
    double* sums;

    MC_HD void walk(const Channels& c, const LaneRow<kGroup>& r, index_t count) const {
      double total[kGroup] = {};
      for (index_t i = 0; i < c.inner;) {
        T sum[kGroup] = {};
        for (const index_t end = min_(c.inner, i + kSumBlock / kSumLanes); i < end; ++i)
          for (index_t l = 0; l < count; ++l) sum[l] += term(r.at + i * c.lanes + l);
        for (index_t l = 0; l < count; ++l) total[l] += double(sum[l]);
      }
      for (index_t l = 0; l < count; ++l) sums[r.outer * c.channels + r.first + l] = total[l];
    }
  };
};

/// Zeros where there is no channel, as all layouts have them, so that element-wise loops may run over the padding.
template <class T> void zero_padding(const Channels& c, T* y) {
  for (index_t used = c.channels % c.lanes, o = 0; used && o < c.outer; ++o)
    for (T *at = y + o * c.stride() + (c.blocks() - 1) * c.inner * c.lanes, *end = at + c.inner * c.lanes; at < end; at += c.lanes)
      std::fill(at + used, at + c.lanes, T(0));
}

/// y = f.at(k)(a), or f.at(k)(a, b), for elements of channel k in lanes; `kept`, unless null, receives a copy of a. Padding is 0.
template <class T, class F>
void map_lanes(Threads threads, const Channels& c, const F& f, T* y, T* kept, const T* a, const T* b = nullptr) {
  if constexpr (kInLanes<T>) {
    each_lane_row<T, LaneMap<F, T>::template Rows>(threads, c, f, a, b, y, kept);
    zero_padding(c, y);
    if (kept) zero_padding(c, kept);
  }
}

/// out[k] = coeff times the sum of term(i) over the elements i of channel k in lanes, added if `add`.
template <class T, class Term>
void sum_lanes(Threads threads, const Channels& c, const Term& term, double coeff, bool add, T* out) {
  if constexpr (kInLanes<T>) {
    std::vector<double> sums(size_t(c.outer * c.channels));
    each_lane_row<T, LaneSums<Term, T>::template Rows>(threads, c, term, sums.data());
    for (index_t k = 0; k < c.channels; ++k) {
      double sum = 0;
      for (index_t o = 0; o < c.outer; ++o) sum += sums[size_t(o * c.channels + k)];
      out[k] = T((add ? double(out[k]) : 0.0) + coeff * sum);
    }
  }
}

}  // namespace cpu

/// Call work(part, its first channel, its first element) for one part of the channels after the other. `work` reads a part twice
/// (ops/batch_norm), the second time with `bytes` for each element. In lanes a part fits the CPU's caches; elsewhere it is all.
template <class Work> void each_part(const Context& on, const Channels& c, index_t bytes, const Work& work) {
  constexpr index_t kCached = 1 << 20;  // bytes for each thread
  const index_t blocks = c.blocks(), block = c.inner * c.lanes;
  const index_t many = on.stream || c.lanes == 1 ? blocks : kCached * on.threads.count / (bytes * c.outer * block + 1);
  for (index_t b = 0, n = std::max<index_t>(1, many); b < blocks; b += n)
    work(Channels(c.outer, std::min(n * c.lanes, c.channels - b * c.lanes), c.inner, c.lanes, blocks), b * c.lanes, b * block);
}

inline void zero_padding(int dtype, const Channels& c, void* y) {
  dispatch_layout(dtype, [&](auto type) { cpu::zero_padding(c, static_cast<decltype(type)*>(y)); });
}

}  // namespace mc
