// Pooling by engine CAFFE: one output or pixel a thread, with the functors of ops/pooling/kernel.hpp; on the CPU whole planes where
// that is faster.
//
// Forward has a path in vector registers there, for float32 windows of the usual sizes. Planes whose windows reach beyond the image
// are copied with a border first, so that every window is whole. Both paths add in the same order, to the same bits.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {

/// The rectangle that all windows together cover; it starts at (-pad_h, -pad_w). Empty where the windows leave gaps, since a
/// stride of a million would make a frame of a million.
struct PoolFrame {
  index_t height, width;
  bool inside;  // within the image
};
inline PoolFrame pool_frame(const PoolShape& s) {
  if (s.stride_h > s.kernel_h || s.stride_w > s.kernel_w || !s.out_height || !s.out_width) return {0, 0, false};
  index_t height = (s.out_height - 1) * s.stride_h + s.kernel_h, width = (s.out_width - 1) * s.stride_w + s.kernel_w;
  return {height, width, !s.pad_h && !s.pad_w && height <= s.height && width <= s.width};
}

/// How many elements of scratch memory the functions below need: on the CPU a frame for each thread, in backward for AVE alone.
inline index_t pool_scratch(const Context& on, const PoolShape& s, bool backward) {
  const PoolFrame frame = pool_frame(s);
  return on.stream || (frame.inside && !backward) ? 0 : on.threads * frame.height * frame.width;
}

template <class T> MC_HD void copy_into_frame(const PoolShape& s, const PoolFrame& frame, T border, const T* plane, T* to) {
  for (index_t i = 0; i < frame.height * frame.width; ++i) to[i] = border;
  index_t rows = min_(s.height, frame.height - s.pad_h), columns = min_(s.width, frame.width - s.pad_w);
  for (index_t h = 0; h < rows; ++h)
    for (index_t w = 0; w < columns; ++w) to[(h + s.pad_h) * frame.width + s.pad_w + w] = plane[h * s.width + w];
}

/// One plane with K x K windows at stride S, K <= 3.
template <class T, class Op, int K, int S> struct PoolPlane {
  PoolForward<T, Op> one;
  PoolFrame frame;
  T* scratch;  // a frame, unless it is inside the image

  /// Row `ph` of windows, outputs pw to pw + L - 1: a constant number of straight-line lanes, which compilers vectorise.
  template <int L> MC_HD void lanes(const T* from, index_t from_width, index_t first, index_t ph, index_t pw) const {
    const PoolShape& s = one.s;
    const T* x = from + ph * S * from_width + pw * S;
    T even[K][L + 1], odd[K][L];  // columns 0, S, 2 S ... and those right of them
    for (int r = 0; r < K; ++r) {
      for (int i = 0; i < L; ++i) {
        even[r][i] = x[r * from_width + i * S];
        odd[r][i] = x[r * from_width + i * S + 1];
      }
      if (K > 2) even[r][L] = S == 2 ? x[r * from_width + L * S] : T(0);
    }
    T third[K][L];
    if constexpr (K > 2)
      for (int r = 0; r < K; ++r)
        for (int i = 0; i < L; ++i) third[r][i] = S == 2 ? even[r][i + 1] : x[r * from_width + i * S + 2];
    int width = int(s.width), left = int(pw * S - s.pad_w), top = int(ph * S - s.pad_h);
    int area_h = min_(top + K, int(s.height + s.pad_h)) - top, limit_w = int(s.width + s.pad_w);
    T *y = one.y + first + pw, *mask = one.mask + first + pw;
    // Unrolled early, a short loop would no longer be recognised as one vector, and its choices become branches.
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int i = 0; i < L; ++i) {
      Op op;
      int at = top * width + left + i * S;
      op.take(even[0][i], at);
      op.take(odd[0][i], at + 1);
      if constexpr (K > 2) op.take(third[0][i], at + 2);
      op.take(even[1][i], at + width);
      op.take(odd[1][i], at + width + 1);
      if constexpr (K > 2) {
        op.take(third[1][i], at + width + 2);
        op.take(even[2][i], at + 2 * width);
        op.take(odd[2][i], at + 2 * width + 1);
        op.take(third[2][i], at + 2 * width + 2);
      }
      int area_w = min_(left + i * S + K, limit_w) - left - i * S;
      op.put(i, T(area_h * area_w), y, mask);
    }
  }

  /// A row in groups of L, the last of which overlaps the one before: it computes some outputs twice, to the same values.
  template <int L> MC_HD void row(const T* from, index_t from_width, index_t first, index_t ph) const {
    index_t pw = 0;
    for (; pw + L <= one.s.out_width; pw += L) lanes<L>(from, from_width, first, ph, pw);
    if (pw < one.s.out_width) lanes<L>(from, from_width, first, ph, one.s.out_width - L);
  }

  MC_HD void operator()(index_t plane) const {
    const PoolShape& s = one.s;
    const T* from = one.x + plane * s.height * s.width;
    index_t from_width = s.width;
    if (!frame.inside) {
      copy_into_frame(s, frame, Op::border(), from, scratch);
      from = scratch;
      from_width = frame.width;
    }
    for (index_t ph = 0; ph < s.out_height; ++ph) {
      index_t first = (plane * s.out_height + ph) * s.out_width;
      if (s.out_width >= 16)
        row<16>(from, from_width, first, ph);
      else if (s.out_width >= 8)
        row<8>(from, from_width, first, ph);
      else if (s.out_width >= 4)
        row<4>(from, from_width, first, ph);
      else
        row<1>(from, from_width, first, ph);
    }
  }
};

/// `scratch` holds a frame for each thread.
template <class T, class Op, int K, int S>
void pool_planes(cpu::Threads threads, index_t planes, const PoolForward<T, Op>& one, T* scratch) {
  PoolFrame frame = pool_frame(one.s);
  index_t cost = K * K * one.s.out_height * one.s.out_width;
  cpu::parallel(threads, planes, std::max<index_t>(1, cpu::kGrain / (cost + 1)), [&](int thread, index_t begin, index_t end) {
    cpu::range(PoolPlane<T, Op, K, S>{one, frame, scratch + thread * frame.height * frame.width}, begin, end);
  });
}

/// One output at a time, by any of MaxOf, MeanOf, StochasticMean.
template <template <class> class Op>
void pool_outputs(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* x, void* y, void* mask) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    PoolForward<T, Op<T>> one{s, static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(mask)};
    for_each(on, planes * s.out_height * s.out_width, one, s.kernel_h * s.kernel_w);
  });
}

/// MAX or AVE; `mask` is written by MAX only and may be null for AVE.
template <template <class> class Op>
void pool_forward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* x, void* y, void* mask,
                  void* scratch) {
  bool square = s.kernel_h == s.kernel_w && s.stride_h == s.stride_w;
  if (!on.stream && dtype == FLOAT && square && planes >= on.threads) {
    PoolForward<float, Op<float>> one{s, static_cast<const float*>(x), static_cast<float*>(y), static_cast<float*>(mask)};
    auto frames = static_cast<float*>(scratch);
    if (s.kernel_h == 2 && s.stride_h == 2) return pool_planes<float, Op<float>, 2, 2>(on.threads, planes, one, frames);
    if (s.kernel_h == 3 && s.stride_h == 2) return pool_planes<float, Op<float>, 3, 2>(on.threads, planes, one, frames);
    if (s.kernel_h == 3 && s.stride_h == 1) return pool_planes<float, Op<float>, 3, 1>(on.threads, planes, one, frames);
  }
  pool_outputs<Op>(on, dtype, s, planes, x, y, mask);
}

inline void stochastic_forward(const Context& on, int dtype, const PoolShape& s, index_t planes, u64 seed, u64 start,
                               const void* x, void* y, void* mask) {
  const u64* drawn = on.stream ? on.stream->drawn : nullptr;
  each_typed<StochasticForward>(on, dtype, planes * s.out_height * s.out_width, 2 * s.kernel_h * s.kernel_w + 20, s, Philox{seed},
                                start, drawn, x, y, mask);
}

/// Adds each dy of one plane to the pixel of its mask; a mask outside the plane (-1: an empty window) is skipped.
template <class T> struct MaskScatter {
  index_t pixels, outputs;
  const T *dy, *mask;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    T* to = dx + plane * pixels;
    for (index_t i = 0; i < pixels; ++i) to[i] = T(0);
    for (index_t o = plane * outputs; o < (plane + 1) * outputs; ++o) {
      index_t at = index_t(mask[o]);
      if (at >= 0 && at < pixels) to[at] += dy[o];
    }
  }
};

/// The same where windows of 2 x 2 lie side by side and fill the plane, so that each pixel belongs to one: L windows at once.
template <class T, int L> struct MaskSpread {
  typedef T Vector __attribute__((vector_size(L * sizeof(T))));
  typedef T Unaligned __attribute__((vector_size(L * sizeof(T)), aligned(alignof(T)), may_alias));
  index_t out_height, out_width;  // at least L wide
  const T *dy, *mask;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    const index_t width = 2 * out_width, first = plane * out_height * out_width;
    const Vector zeros = {}, high = zeros + T(width);
    Vector across;
    for (int l = 0; l < L; ++l) across[l] = T(2 * l);
    for (index_t ph = 0; ph < out_height; ++ph)
      for (index_t begin = 0; begin < out_width; begin += L) {
        const index_t pw = min_(begin, out_width - L);  // the last group overlaps the one before it
        const index_t corner = 2 * (ph * width + pw), at = first + ph * out_width + pw;
        const Vector from = *reinterpret_cast<const Unaligned*>(dy + at);
        const Vector where = *reinterpret_cast<const Unaligned*>(mask + at) - (across + T(corner));
        Unaligned* to = reinterpret_cast<Unaligned*>(dx + 4 * first + corner);
        put(where == zeros ? from : zeros, where == zeros + T(1) ? from : zeros, to);
        to = reinterpret_cast<Unaligned*>(dx + 4 * first + corner + width);
        put(where == high ? from : zeros, where == high + T(1) ? from : zeros, to);
      }
  }
  /// Even and odd pixels of a row, in turn.
  MC_HD void put(Vector even, Vector odd, Unaligned* to) const {
#if defined(__clang__) || __GNUC__ >= 12
    if constexpr (L == 8) {
      to[0] = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
      to[1] = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      to[0] = __builtin_shufflevector(even, odd, 0, 4, 1, 5);
      to[1] = __builtin_shufflevector(even, odd, 2, 6, 3, 7);
    }
#else
    for (int l = 0; l < 2 * L; ++l) to[l / L][l % L] = (l % 2 ? odd : even)[l / 2];
#endif
  }
};

/// Adds each dy / area to the window's pixels, in a frame that is then cut to the image. K 0: any size.
template <class T, int K> struct MeanScatter {
  PoolShape s;
  PoolFrame frame;
  const T* dy;
  T *dx, *scratch;
  MC_HD void operator()(index_t plane) const {
    index_t kernel_h = K ? K : s.kernel_h, kernel_w = K ? K : s.kernel_w;
    for (index_t i = 0; i < frame.height * frame.width; ++i) scratch[i] = T(0);
    const T* from = dy + plane * s.out_height * s.out_width;
    for (index_t ph = 0; ph < s.out_height; ++ph)
      for (index_t pw = 0; pw < s.out_width; ++pw) {
        T share = from[ph * s.out_width + pw] / T(pool_window(s, ph, pw).area);
        T* to = scratch + ph * s.stride_h * frame.width + pw * s.stride_w;
        for (index_t h = 0; h < kernel_h; ++h)
          for (index_t w = 0; w < kernel_w; ++w) to[h * frame.width + w] += share;
      }
    T* to = dx + plane * s.height * s.width;
    index_t rows = min_(s.height, frame.height - s.pad_h), columns = min_(s.width, frame.width - s.pad_w);
    for (index_t h = 0; h < s.height; ++h) {
      index_t known = h < rows ? columns : 0;
      for (index_t w = 0; w < known; ++w) to[h * s.width + w] = scratch[(h + s.pad_h) * frame.width + s.pad_w + w];
      for (index_t w = known; w < s.width; ++w) to[h * s.width + w] = T(0);
    }
  }
};

inline void mask_backward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* dy, const void* mask,
                          void* dx) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(dy), where = static_cast<const T*>(mask);
    auto to = static_cast<T*>(dx);
    const index_t pixels = s.height * s.width;
    if (on.stream || planes < on.threads)
      for_each(on, planes * pixels, PoolBackward<T, true>{s, from, where, to}, 16);
    else if (s.kernel_h == 2 && s.kernel_w == 2 && s.stride_h == 2 && s.stride_w == 2 && s.height == 2 * s.out_height &&
             s.width == 2 * s.out_width && !s.pad_h && !s.pad_w && s.out_width >= 4)
      s.out_width >= 8 ? cpu::for_each(on.threads, planes, MaskSpread<T, 8>{s.out_height, s.out_width, from, where, to}, pixels)
                       : cpu::for_each(on.threads, planes, MaskSpread<T, 4>{s.out_height, s.out_width, from, where, to}, pixels);
    else
      cpu::for_each(on.threads, planes, MaskScatter<T>{pixels, s.out_height * s.out_width, from, where, to}, pixels);
  });
}

/// work(number) with an integral constant of how many channels a thread takes: what 16 bytes hold, or one.
template <class X, class Work> void with_pool_pack(index_t channels, const Work& work) {
  constexpr int kMost = Pack<X>::kSize;
  if (channels % kMost)
    work(std::integral_constant<int, 1>());
  else
    work(std::integral_constant<int, kMost>());
}

/// Forward on a device, in the layout with channels last. `dtype` is that of x and y as stored; `mask` (or null) has the type that
/// is computed in.
template <template <class> class Op>
void pool_forward_channels_last(const Context& on, int dtype, const PoolShape& s, index_t images, index_t channels, const void* x,
                                void* y, void* mask) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    with_pool_pack<X>(channels, [&](auto pack) {
      cuda::for_each(*on.stream, images * s.out_height * s.out_width * (channels / pack),
                     PoolForwardLast<X, Op<T>, decltype(pack)::value>{s, channels, static_cast<const X*>(x), static_cast<X*>(y),
                                                                      static_cast<T*>(mask)});
    });
  });
}

/// Its gradient: of MAX with a mask, of AVE with null.
inline void pool_backward_channels_last(const Context& on, int dtype, const PoolShape& s, index_t images, index_t channels,
                                        const void* dy, const void* mask, void* dx) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    with_pool_pack<X>(channels, [&](auto pack) {
      auto run = [&](auto masked) {
        cuda::for_each(*on.stream, images * s.height * s.width * (channels / pack),
                       PoolBackwardLast<X, decltype(masked)::value, decltype(pack)::value>{
                           s, channels, static_cast<const X*>(dy), static_cast<const T*>(mask), static_cast<X*>(dx)});
      };
      mask ? run(std::true_type()) : run(std::false_type());
    });
  });
}

inline void mean_backward(const Context& on, int dtype, const PoolShape& s, index_t planes, const void* dy, void* dx,
                          void* scratch) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    auto from = static_cast<const T*>(dy);
    auto to = static_cast<T*>(dx);
    PoolFrame frame = pool_frame(s);
    index_t pixels = frame.height * frame.width;
    if (on.stream || planes < on.threads || pixels == 0)
      return for_each(on, planes * s.height * s.width, PoolBackward<T, false>{s, from, nullptr, to}, 32);
    index_t cost = pixels + s.out_height * s.out_width * s.kernel_h * s.kernel_w;
    cpu::parallel(on.threads, planes, std::max<index_t>(1, cpu::kGrain / cost), [&](int thread, index_t begin, index_t end) {
      T* mine = static_cast<T*>(scratch) + thread * pixels;
      if (s.kernel_h == 3 && s.kernel_w == 3)
        cpu::range(MeanScatter<T, 3>{s, frame, from, to, mine}, begin, end);
      else
        cpu::range(MeanScatter<T, 0>{s, frame, from, to, mine}, begin, end);
    });
  });
}

}  // namespace mc
