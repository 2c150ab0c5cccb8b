// Copies between tensors of one shape with different orders of elements, on CPU or device.
//
// Axes are sorted by the strides of y and joined where both tensors step from one into the next (THC's collapseDims). What is
// left decides: a single axis of stride 1 is contiguous data and takes the vectorised path; where x is contiguous along another
// axis than y, CPU and device go by tiles; of rows that are contiguous in both the CPU copies each at once, a device 16 bytes a
// thread where that divides all sizes; the rest computes offsets from indices.
#pragma once
#include <cstdint>
#include "minicaffe/loops/strided/kernel.hpp"
#include "minicaffe/device/typed.hpp"

namespace mc {

/// The shape of two tensors, y and x, and their strides in elements, which may be negative, and 0 for x.
struct Strides {
  static constexpr int kMaxAxes = 32;
  int axes = 0;
  index_t size[kMaxAxes];
  index_t stride[kMaxAxes][2];  // of each axis: that of y, that of x

  index_t count() const {
    index_t n = 1;
    for (int a = 0; a < axes; ++a) n *= size[a];
    return n;
  }
  /// Whether all indices and offsets fit in 31 bits, so that kernels divide faster.
  bool narrow() const {
    index_t most = 2147483647ll, reach[2] = {};
    for (int a = 0; a < axes; ++a)
      for (int t = 0; t < 2; ++t) reach[t] += (size[a] - 1) * std::abs(stride[a][t]);
    return count() <= most && std::max(reach[0], reach[1]) <= most;
  }
  bool contiguous() const { return axes == 0 || (axes == 1 && stride[0][0] == 1 && stride[0][1] == 1); }
  void remove(int axis) {
    std::copy(size + axis + 1, size + axes, size + axis);
    for (int a = axis + 1; a < axes; ++a) std::copy(stride[a], stride[a] + 2, stride[a - 1]);
    --axes;
  }
  /// Drop axes of size 1, sort axes so that y's strides decrease (then those of x), join neighbours.
  void collapse() {
    for (int a = axes - 1; a >= 0; --a)
      if (size[a] == 1) remove(a);
    for (int a = 1; a < axes; ++a)
      for (int b = a; b > 0 && later(b - 1, b); --b) {
        std::swap(size[b - 1], size[b]);
        std::swap(stride[b - 1], stride[b]);
      }
    for (int a = axes - 1; a > 0; --a) {
      if (stride[a - 1][0] != stride[a][0] * size[a] || stride[a - 1][1] != stride[a][1] * size[a]) continue;
      size[a] *= size[a - 1];
      remove(a - 1);
    }
  }
  /// Whether axis a moves through memory in smaller steps than axis b, and so has to follow it.
  bool later(int a, int b) const {
    const int t = std::abs(stride[a][0]) == std::abs(stride[b][0]);
    return std::abs(stride[a][t]) < std::abs(stride[b][t]);
  }
  /// The sizes and strides in the form in which a kernel computes offsets from an index.
  template <class Index> OffsetInfo<Index, 2> offset_info() const {
    OffsetInfo<Index, 2> info = {};
    info.axes = std::max(axes, 1);
    info.size.set(0, 1);
    for (int a = 0; a < axes; ++a) {
      info.size.set(a, size[a]);
      for (int t = 0; t < 2; ++t) info.stride[a][t] = Index(stride[a][t]);
    }
    return info;
  }
};

namespace cpu {

/// Tile i of copy_tiles, along its axes p and q: the cache lines of x stay in the cache until all of each is used.
template <class X, class Y> struct TileLoop {
  index_t p_size, q_size, p_tiles, q_tiles, p_stride[2], q_stride[2];  // strides of y, of x
  OffsetInfo<unsigned long long, 2> others;  // the other axes
  const X* x;
  Y* y;
  MC_HD void operator()(index_t i) const {
    const index_t rest = i / p_tiles, other = rest / q_tiles;
    const index_t p0 = (i - rest * p_tiles) * kTile, q0 = (rest - other * q_tiles) * kTile;
    const index_t p1 = min_<index_t>(p0 + kTile, p_size), q1 = min_<index_t>(q0 + kTile, q_size);
    index_t start[2];
    others.offsets(other, start);
    for (index_t q = q0; q < q1; ++q)
      for (index_t p = p0; p < p1; ++p)
        y[start[0] + p * p_stride[0] + q * q_stride[0]] = Y(x[start[1] + p * p_stride[1] + q * q_stride[1]]);
  }
};

}  // namespace cpu

/// Copy by tiles if that is better: where there are an axis p, the last, along which y is contiguous, and an axis q, along which x
/// is but not along p, both long enough that tiles are not nearly empty. Return whether it did; else another way must copy.
template <class X, class Y> bool copy_tiles(const Context& on, Strides s, const X* x, Y* y) {
  const int p = s.axes - 1;
  int q = 0;
  while (q < p && s.stride[q][1] != 1) ++q;
  if (q >= p || s.stride[p][0] != 1 || s.stride[p][1] == 1 || s.size[p] < 8 || s.size[q] < 8 || (on.stream && !s.narrow()))
    return false;
  const index_t p_tiles = (s.size[p] + kTile - 1) / kTile, q_tiles = (s.size[q] + kTile - 1) / kTile;
  const index_t tiles = p_tiles * q_tiles * (s.count() / (s.size[p] * s.size[q]));
  auto fill = [&](auto& copy) {
    using Size = decltype(copy.p_size);
    copy.p_size = Size(s.size[p]), copy.q_size = Size(s.size[q]);
    std::copy(s.stride[p], s.stride[p] + 2, copy.p_stride);
    std::copy(s.stride[q], s.stride[q] + 2, copy.q_stride);
    s.remove(p);  // the last axis, so that q keeps its number
    s.remove(q);
    copy.x = x, copy.y = y;
  };
  if (on.stream) {
    TiledCopy<X, Y> copy = {};
    fill(copy);
    set_divisor(copy.p_tiles, p_tiles);
    set_divisor(copy.q_tiles, q_tiles);
    copy.others = s.offset_info<unsigned>();
    cuda::launch(*on.stream, copy, unsigned(tiles));
  } else {
    cpu::TileLoop<X, Y> copy = {};
    fill(copy);
    copy.p_tiles = p_tiles, copy.q_tiles = q_tiles;
    copy.others = s.offset_info<unsigned long long>();
    cpu::for_each(on.threads, tiles, copy, kTile * kTile);
  }
  return true;
}

/// Copy rows that are contiguous in x and y, the last of at least two axes, on the CPU.
template <class T> void copy_contiguous_rows(cpu::Threads threads, Strides s, const T* x, T* y) {
  const index_t row = s.size[s.axes - 1];
  s.remove(s.axes - 1);
  const index_t run = s.size[s.axes - 1], *step = s.stride[s.axes - 1];  // rows one step behind each other
  const auto info = s.offset_info<unsigned long long>();
  cpu::parallel(threads, s.count(), cpu::kGrain / row, [&](int, index_t begin, index_t end) {
    for (index_t at[2]; begin < end;) {
      info.offsets(begin, at);
      for (const index_t stop = std::min(end, begin + run - begin % run); begin < stop; ++begin, at[0] += step[0], at[1] += step[1])
        std::memcpy(y + at[0], x + at[1], size_t(row) * sizeof(T));
    }
  });
}

/// Copy element by element, with offsets computed from the index: any order, the slowest way.
template <class X, class Y> void copy_by_offsets(const Context& on, const Strides& s, const X* x, Y* y) {
  auto run = [&](auto index) {
    using Index = decltype(index);
    for_each(on, s.count(), StridedCopy<X, Y, Index>{s.offset_info<Index>(), x, y}, 4);
  };
  s.narrow() ? run(0u) : run(0ull);
}

/// Copy rows that are contiguous in x and y by words of several elements. Return false, without copying, if an address, size or
/// stride is no multiple of a word.
template <class Word, class T> bool copy_words(const Context& on, Strides s, const T* x, T* y) {
  constexpr index_t kCount = sizeof(Word) / sizeof(T);
  index_t remainders = index_t((reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y)) % sizeof(Word));
  remainders |= s.size[s.axes - 1] % kCount;
  s.size[s.axes - 1] /= kCount;
  for (int a = 0; a + 1 < s.axes; ++a)
    for (index_t& stride : s.stride[a]) remainders |= stride % kCount, stride /= kCount;
  if (remainders) return false;
  copy_by_offsets(on, s, reinterpret_cast<const Word*>(x), reinterpret_cast<Word*>(y));
  return true;
}

/// y = x, of collapsed strides, by the first way that fits (see the head of the file).
template <class X, class Y> void copy_collapsed(const Context& on, Strides s, const X* x, Y* y) {
  if constexpr (std::is_same_v<X, Y>)
    if (s.contiguous()) return on.stream ? map(on, s.count(), Same<X>{}, x, y) : cpu::copy(on.threads, s.count(), x, y);
  if (s.contiguous()) return for_each(on, s.count(), Convert<X, Y>{x, y});
  if (s.axes > kMaxStridedAxes) {  // rare enough for a launch to each index of the outermost axis
    const index_t outermost = s.size[0], y_step = s.stride[0][0], x_step = s.stride[0][1];
    s.remove(0);
    for (index_t i = 0; i < outermost; ++i) copy_collapsed(on, s, x + i * x_step, y + i * y_step);
    return;
  }
  if (copy_tiles(on, s, x, y)) return;
  if constexpr (std::is_same_v<X, Y>)
    if (const index_t* last = s.stride[s.axes - 1]; last[0] == 1 && last[1] == 1) {
      if (!on.stream) return copy_contiguous_rows(on.threads, s, x, y);
      if (copy_words<Pack<X>>(on, s, x, y)) return;
      if constexpr (sizeof(X) == 2)
        if (copy_words<Few<X, 2>>(on, s, x, y)) return;
    }
  copy_by_offsets(on, s, x, y);
}

// caffe.cpp compiles these once.
#define MC_COPY(EXTERN, X, Y) EXTERN template void copy_collapsed(const Context&, Strides, const X*, Y*);
#define MC_COPIES(EXTERN)                                                                                     \
  MC_COPY(EXTERN, float, float) MC_COPY(EXTERN, double, double) MC_COPY(EXTERN, Bf16, Bf16)                   \
  MC_COPY(EXTERN, float, Bf16) MC_COPY(EXTERN, Bf16, float)                                                   \
  EXTERN template void map1<Same>(const Context&, int, index_t, const void*, void*);                          \
  EXTERN template void fill(const Context&, index_t, float, float*);                                          \
  EXTERN template void fill(const Context&, index_t, double, double*);                                        \
  EXTERN template void each_typed<TileBackward>(const Context&, int, index_t, index_t, index_t, index_t, const void*, void*);
#ifdef MC_COMPILED_ONCE
MC_COPIES(extern)
#endif

/// y = x for tensors of one shape and element types known only at run time, which are equal, or float and Bf16. Strides are in
/// elements; x may repeat its values by strides of 0.
inline void copy_strided(const Context& on, int x_type, int y_type, int axes, const index_t* sizes, const void* x,
                         const index_t* x_strides, void* y, const index_t* y_strides) {
  Strides s;
  s.axes = axes;
  for (int a = 0; a < axes; ++a) s.size[a] = sizes[a], s.stride[a][0] = y_strides[a], s.stride[a][1] = x_strides[a];
  if (s.count() == 0) return;
  s.collapse();
  auto copy = [&](auto from, auto to) {
    copy_collapsed(on, s, static_cast<const decltype(from)*>(x), static_cast<decltype(to)*>(y));
  };
  if (x_type == y_type)
    dispatch_layout(x_type, [&](auto type) { copy(type, type); });
  else if (x_type == BF16)
    copy(Bf16(), float());
  else
    copy(float(), Bf16());
}

/// y = x, rounded to Bf16, of n floats on a device: the weights of a convolution, for cuDNN.
inline void round_to_bf16(const Context& on, index_t n, const void* x, void* y) {
  for_each(on, n, Convert<float, Bf16>{static_cast<const float*>(x), static_cast<Bf16*>(y)});
}

/// y += x of n Bf16, computed in float, on the calling thread alone: MPI calls it when gradients of another rank arrive.
inline void add_bf16(index_t n, const void* x, void* y) {
  auto from = static_cast<const Bf16*>(x);
  auto to = static_cast<Bf16*>(y);
  cpu::range(Map<Axpy<Bf16>, Bf16, 2>{{Bf16(1)}, {from, to}, to}, 0, n);
}

}  // namespace mc
