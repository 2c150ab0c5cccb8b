// y = f(x...) for one, two or three inputs in strides, on CPU or device.
//
// Axes are sorted by the strides of y and joined where all tensors step from one into the next (THC's collapseDims). What is
// left decides: a single axis of stride 1 is contiguous data and takes the vectorised path; where an input is contiguous along
// another axis than y, CPU and device go by tiles; the rest computes offsets from indices.
#pragma once
#include "minicaffe/ops/strided/kernel.hpp"
#include "minicaffe/device/context.hpp"

namespace mc {

/// The shape of N tensors and their strides in elements, which may be negative, and 0 for all but the first, the output.
template <int N> struct Strides {
  static constexpr int kMaxAxes = 32;
  int axes = 0;
  index_t size[kMaxAxes];
  index_t stride[kMaxAxes][N];

  index_t count() const {
    index_t n = 1;
    for (int a = 0; a < axes; ++a) n *= size[a];
    return n;
  }
  /// Whether all indices and offsets fit in 31 bits.
  bool narrow() const {
    index_t most = 2147483647ll, reach[N] = {};
    for (int a = 0; a < axes; ++a)
      for (int t = 0; t < N; ++t) reach[t] += (size[a] - 1) * std::abs(stride[a][t]);
    return count() <= most && *std::max_element(reach, reach + N) <= most;
  }
  bool contiguous() const {
    if (axes == 0) return true;
    return axes == 1 && std::all_of(stride[0], stride[0] + N, [](index_t s) { return s == 1; });
  }
  void move(int from, int to) {
    size[to] = size[from];
    std::copy(stride[from], stride[from] + N, stride[to]);
  }
  void remove(int axis) {
    for (int a = axis + 1; a < axes; ++a) move(a, a - 1);
    --axes;
  }
  /// Drop axes of size 1, sort axes so that y's strides decrease (then those of the inputs), join neighbours.
  void collapse() {
    for (int a = axes - 1; a >= 0; --a)
      if (size[a] == 1) remove(a);
    for (int a = 1; a < axes; ++a)
      for (int b = a; b > 0 && later(b - 1, b); --b) {
        std::swap(size[b - 1], size[b]);
        std::swap_ranges(stride[b], stride[b] + N, stride[b - 1]);
      }
    for (int a = axes - 1; a > 0; --a) {
      bool joined = true;
      for (int t = 0; t < N; ++t) joined = joined && stride[a - 1][t] == stride[a][t] * size[a];
      if (!joined) continue;
      size[a] *= size[a - 1];
      remove(a - 1);
    }
  }
  /// Whether axis a moves through memory in smaller steps than axis b.
  bool later(int a, int b) const {
    for (int t = 0; t < N; ++t)
      if (std::abs(stride[a][t]) != std::abs(stride[b][t])) return std::abs(stride[a][t]) < std::abs(stride[b][t]);
    return false;
  }
  template <class Index> OffsetInfo<Index, N> offset_info() const {
    OffsetInfo<Index, N> info = {};
    info.axes = std::max(axes, 1);
    info.size.set(0, 1);
    for (int a = 0; a < axes; ++a) {
      info.size.set(a, size[a]);
      for (int t = 0; t < N; ++t) info.stride[a][t] = Index(stride[a][t]);
    }
    return info;
  }
};

/// Find the axes p, along which y is contiguous, and q, along which an input is that is not so along p; whether there are such,
/// long enough that tiles are not nearly empty.
template <int N> bool tile_axes(const Strides<N + 1>& s, int* p, int* q) {
  *p = s.axes - 1, *q = -1;
  if (s.axes < 2 || s.stride[*p][0] != 1) return false;
  for (int a = 0; a < *p && *q < 0; ++a)
    for (int k = 0; k < N; ++k)
      if (s.stride[a][k + 1] == 1 && s.stride[*p][k + 1] != 1) *q = a;
  return *q >= 0 && s.size[*p] >= 8 && s.size[*q] >= 8;
}

namespace cpu {

/// One tile: the cache lines of a turned input stay in the cache until all of each is used.
template <class F, class T, int N> struct TileLoop {
  F f;
  index_t p_size, q_size, p_tiles, q_tiles, p_stride[N + 1], q_stride[N + 1];
  OffsetInfo<unsigned long long, N + 1> others;  // the other axes
  const T* x[N];
  T* y;
  MC_HD void operator()(index_t i) const {
    const index_t rest = i / p_tiles, other = rest / q_tiles;
    const index_t p0 = (i - rest * p_tiles) * kTile, q0 = (rest - other * q_tiles) * kTile;
    const index_t p1 = min_<index_t>(p0 + kTile, p_size), q1 = min_<index_t>(q0 + kTile, q_size);
    index_t start[N + 1];
    others.offsets(other, start);
    for (index_t q = q0; q < q1; ++q)
      for (index_t p = p0; p < p1; ++p) {
        T value[N];
        for (int k = 0; k < N; ++k) value[k] = x[k][start[k + 1] + p * p_stride[k + 1] + q * q_stride[k + 1]];
        y[start[0] + p * p_stride[0] + q * q_stride[0]] = apply_(f, value);
      }
  }
};

/// Run by tiles if that is better; return whether.
template <class F, class T, int N>
bool map_tiles(Threads threads, Strides<N + 1> s, const F& f, const T* const (&x)[N], T* y) {
  int p, q;
  if (!tile_axes<N>(s, &p, &q)) return false;
  TileLoop<F, T, N> loop = {f, s.size[p], s.size[q], (s.size[p] + kTile - 1) / kTile, (s.size[q] + kTile - 1) / kTile,
                            {}, {}, {}, {}, y};
  std::copy(s.stride[p], s.stride[p] + N + 1, loop.p_stride);
  std::copy(s.stride[q], s.stride[q] + N + 1, loop.q_stride);
  std::copy(x, x + N, loop.x);
  const index_t tiles = loop.p_tiles * loop.q_tiles * (s.count() / (loop.p_size * loop.q_size));
  s.remove(p);  // the last axis, so that q keeps its number
  s.remove(q);
  loop.others = s.template offset_info<unsigned long long>();
  for_each(threads, tiles, loop, kTile * kTile);
  return true;
}

}  // namespace cpu

namespace cuda {

/// Run by tiles if that is better; return whether.
template <class F, class T, int N>
bool map_tiles(Stream& stream, Strides<N + 1> s, const F& f, const T* const (&x)[N], T* y) {
  int p, q;
  if (!s.narrow() || !tile_axes<N>(s, &p, &q)) return false;
  auto turned = [&](int axis, int k) { return s.stride[axis][k + 1] == 1 && s.stride[p][k + 1] != 1; };
  index_t p_tiles = (s.size[p] + kTile - 1) / kTile, q_tiles = (s.size[q] + kTile - 1) / kTile;
  index_t blocks = p_tiles * q_tiles * (s.count() / (s.size[p] * s.size[q]));
  TiledMap<F, T, N> map = {};
  map.f = f;
  map.p_size = unsigned(s.size[p]);
  map.q_size = unsigned(s.size[q]);
  set_divisor(map.p_tiles, p_tiles);
  set_divisor(map.q_tiles, q_tiles);
  std::copy(s.stride[p], s.stride[p] + N + 1, map.p_stride);
  std::copy(s.stride[q], s.stride[q] + N + 1, map.q_stride);
  for (int k = 0; k < N; ++k) map.turned[k] = turned(q, k), map.x[k] = x[k];
  map.y = y;
  s.remove(p);
  s.remove(q);
  map.others = s.template offset_info<unsigned>();
  launch(stream, map, unsigned(blocks));
  return true;
}

}  // namespace cuda

/// y = f(x[0], ...), of collapsed strides.
template <class F, class T, int N>
void map_collapsed(const Context& on, Strides<N + 1> s, const F& f, const T* const (&x)[N], T* y) {
  if (s.contiguous()) {
    if constexpr (N == 1) return map(on, s.count(), f, x[0], y);
    if constexpr (N == 2) return map(on, s.count(), f, x[0], x[1], y);
    if constexpr (N == 3) return map(on, s.count(), f, x[0], x[1], x[2], y);
  }
  if (s.axes > kMaxStridedAxes) {  // rare enough for a launch to each index of the outermost axis
    const T* from[N];
    index_t outermost = s.size[0], step[N + 1];
    std::copy(s.stride[0], s.stride[0] + N + 1, step);
    s.remove(0);
    for (index_t i = 0; i < outermost; ++i) {
      for (int k = 0; k < N; ++k) from[k] = x[k] + i * step[k + 1];
      map_collapsed(on, s, f, from, y + i * step[0]);
    }
    return;
  }
  if (on.stream ? cuda::map_tiles(*on.stream, s, f, x, y) : cpu::map_tiles(on.threads, s, f, x, y)) return;
  auto run = [&](auto index) {
    using Index = decltype(index);
    StridedMap<F, T, N, Index> map = {f, s.template offset_info<Index>(), {}, y};
    std::copy(x, x + N, map.x);
    for_each(on, s.count(), map, 4);
  };
  s.narrow() ? run(0u) : run(0ull);
}

/// y = f(x[0], ...) for tensors of one shape. Strides are in elements; an input may repeat its values by strides of 0. In place
/// is allowed where the input has y's strides.
template <class F, class T, int N>
void map_strided(const Context& on, int axes, const index_t* sizes, const F& f, const T* const (&x)[N],
                 const index_t* const (&x_strides)[N], T* y, const index_t* y_strides) {
  static_assert(N <= kMaxStridedInputs, "a functor takes at most three inputs");
  Strides<N + 1> s;
  s.axes = axes;
  for (int a = 0; a < axes; ++a) {
    s.size[a] = sizes[a];
    s.stride[a][0] = y_strides[a];
    for (int k = 0; k < N; ++k) s.stride[a][k + 1] = x_strides[k][a];
  }
  if (s.count() == 0) return;
  s.collapse();
  map_collapsed(on, s, f, x, y);
}

}  // namespace mc
