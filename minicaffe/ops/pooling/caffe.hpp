// Pooling by engine CAFFE. The formula is ops/pooling/plain.hpp; the functors of ops/pooling/kernel.hpp compute one output
// (backward: one pixel) at a time, on a device and where there is no faster way.
//
// Faster ways, on the CPU with as many planes as threads, and their gain over the formula for planes of 56x56:
// - PoolPlane, forward of float32 and windows of 2x2 and 3x3: 15 times at stride 2, 4 times (3x3), 8 times at stride 1.
// - MaskScatter, backward of MAX: 3 to 5 times; MaskScatter2x2, of 2x2 windows that fill the plane: 11 times.
// - MeanScatter, backward of AVE: 1.3 to 2 times.
//
// PoolPlane copies planes whose windows reach beyond the image with a border first, so that every window is whole. It adds in the
// same order as PoolForward: the results are the same bits.
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/ops/pooling/kernel.hpp"

namespace mc {

/// The rectangle of a plane that all windows together cover; it starts at (-pad_h, -pad_w). Empty, and not used, if the stride is
/// larger than the kernel: a huge stride would need a huge frame.
struct PoolFrame {
  index_t height, width;
  bool inside;  // whether it is inside the image, so that no copy is needed
};
inline PoolFrame pool_frame(const PoolShape& s) {
  if (s.stride_h > s.kernel_h || s.stride_w > s.kernel_w || !s.out_height || !s.out_width) return {0, 0, false};
  index_t height = (s.out_height - 1) * s.stride_h + s.kernel_h, width = (s.out_width - 1) * s.stride_w + s.kernel_w;
  return {height, width, !s.pad_h && !s.pad_w && height <= s.height && width <= s.width};
}

/// Elements of scratch memory that pool_forward needs, or the backward of AVE: on the CPU a frame for each thread.
inline index_t pool_scratch(const Context& on, const PoolShape& s, bool backward) {
  const PoolFrame frame = pool_frame(s);
  return on.stream || (frame.inside && !backward) ? 0 : on.threads * frame.height * frame.width;
}

/// Copy an image plane into a frame; elements outside the image are `border`.
template <class T> MC_HD void copy_into_frame(const PoolShape& s, const PoolFrame& frame, T border, const T* plane, T* to) {
  for (index_t i = 0; i < frame.height * frame.width; ++i) to[i] = border;
  index_t rows = min_(s.height, frame.height - s.pad_h), columns = min_(s.width, frame.width - s.pad_w);
  for (index_t h = 0; h < rows; ++h)
    for (index_t w = 0; w < columns; ++w) to[(h + s.pad_h) * frame.width + s.pad_w + w] = plane[h * s.width + w];
}

/// One plane with K x K windows at stride S, K <= 3: vectorised forward for the CPU, by loops without branches.
template <class T, class Op, int K, int S> struct PoolPlane {
  PoolForward<T, Op, 0> one;  // its members are used, not its loop
  PoolFrame frame;
  T* scratch;  // a frame, unless it is inside the image

  /// Compute outputs pw to pw + L - 1 of row `ph`, from a plane or frame at `from`; `first` is the index of the row in y and mask.
  template <int L> MC_HD void outputs(const T* from, index_t from_width, index_t first, index_t ph, index_t pw) const {
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
    // If this short loop is unrolled early, GCC no longer vectorises it, and compiles the conditional values as branches.
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

  /// Compute row `ph` in groups of L outputs. The last group overlaps the one before it: some outputs are computed twice.
  template <int L> MC_HD void row(const T* from, index_t from_width, index_t first, index_t ph) const {
    index_t pw = 0;
    for (; pw + L <= one.s.out_width; pw += L) outputs<L>(from, from_width, first, ph, pw);
    if (pw < one.s.out_width) outputs<L>(from, from_width, first, ph, one.s.out_width - L);
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

/// Run PoolPlane for all planes; `scratch` holds a frame for each thread.
template <int K, int S, class T, class Op> void pool_planes(cpu::Threads threads, const PoolForward<T, Op, 0>& one, T* scratch) {
  PoolFrame frame = pool_frame(one.s);
  index_t grain = std::max<index_t>(1, cpu::kGrain / (K * K * one.s.out_height * one.s.out_width + 1));
  cpu::parallel(threads, one.s.planes(), grain, [&](int thread, index_t begin, index_t end) {
    cpu::range(PoolPlane<T, Op, K, S>{one, frame, scratch + thread * frame.height * frame.width}, begin, end);
  });
}

/// MAX, with a mask, or AVE, where `mask` is null.
template <class T> void pool_forward(const Context& on, const PoolShape& s, const T* x, T* y, T* mask, T* scratch) {
  const bool square = s.kernel_h == s.kernel_w && s.stride_h == s.stride_w;
  const auto run = [&](auto op) {
    const PoolForward<T, decltype(op), 0> one{s, x, y, mask};
    if constexpr (std::is_same_v<T, float>)
      if (!on.stream && square && s.planes() >= on.threads) {
        if (s.kernel_h == 2 && s.stride_h == 2) return pool_planes<2, 2>(on.threads, one, scratch);
        if (s.kernel_h == 3 && s.stride_h == 2) return pool_planes<3, 2>(on.threads, one, scratch);
        if (s.kernel_h == 3 && s.stride_h == 1) return pool_planes<3, 1>(on.threads, one, scratch);
      }
    for_each(on, s.outputs(), one, s.kernel_h * s.kernel_w);
  };
  mask ? run(MaxOf<T>()) : run(MeanOf<T>());
}

/// STOCHASTIC, with a mask of what is drawn, or its mean, where `mask` is null.
template <class T> void stochastic_forward(const Context& on, const PoolShape& s, u64 seed, u64 start, const T* x, T* y, T* mask) {
  const u64* drawn = on.stream ? on.stream->drawn : nullptr;  // null but during graph capture
  const index_t window = s.kernel_h * s.kernel_w;
  if (mask)
    for_each(on, s.outputs(), StochasticForward<T>{s, Philox{seed}, start, drawn, x, y, mask}, 2 * window + 20);
  else
    for_each(on, s.outputs(), PoolForward<T, StochasticMean<T>, 0>{s, x, y, nullptr}, window);
}

/// dx of one plane, of `pixels`, from its `outputs`: add each dy to the pixel of its mask; one outside (-1: no maximum) is skipped.
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

/// MaskScatter for 2 x 2 windows at stride 2 that fill the plane. Each pixel is in exactly one window, so dx is not set to 0
/// first. L windows of a row are computed at once; their pixels are two rows of 2 L.
template <class T, int L> struct MaskScatter2x2 {
  typedef T Vector __attribute__((vector_size(L * sizeof(T))));
  typedef T Unaligned __attribute__((vector_size(L * sizeof(T)), aligned(alignof(T)), may_alias));
  index_t out_height, out_width;  // out_width >= L
  const T *dy, *mask;
  T* dx;
  MC_HD void operator()(index_t plane) const {
    const index_t width = 2 * out_width, first_output = plane * out_height * out_width;
    const Vector zeros = {}, second_row = zeros + T(width);
    Vector columns;  // of the upper left pixel of each window
    for (int l = 0; l < L; ++l) columns[l] = T(2 * l);
    for (index_t ph = 0; ph < out_height; ++ph)
      for (index_t begin = 0; begin < out_width; begin += L) {
        const index_t pw = min_(begin, out_width - L);  // the last group overlaps the one before it
        const index_t corner = 2 * (ph * width + pw), output = first_output + ph * out_width + pw;
        const Vector grad = *reinterpret_cast<const Unaligned*>(dy + output);
        // The chosen pixel, from the window's upper left one: 0 or 1 in the first row, width or width + 1 in the second.
        const Vector chosen = *reinterpret_cast<const Unaligned*>(mask + output) - (columns + T(corner));
        Unaligned* to = reinterpret_cast<Unaligned*>(dx + 4 * first_output + corner);
        store_interleaved(chosen == zeros ? grad : zeros, chosen == zeros + T(1) ? grad : zeros, to);
        to = reinterpret_cast<Unaligned*>(dx + 4 * first_output + corner + width);
        store_interleaved(chosen == second_row ? grad : zeros, chosen == second_row + T(1) ? grad : zeros, to);
      }
  }
  /// Write a row of 2 L pixels: even[0], odd[0], even[1], odd[1] ...
  MC_HD void store_interleaved(Vector even, Vector odd, Unaligned* to) const {
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

/// Add each dy / area of one plane to all pixels of its window, in a frame in `scratch` of which the part inside the image is then
/// copied to dx. Windows are K x K; K = 0: of any size.
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
      index_t covered = h < rows ? columns : 0;  // pixels of the row that are in the frame
      for (index_t w = 0; w < covered; ++w) to[h * s.width + w] = scratch[(h + s.pad_h) * frame.width + s.pad_w + w];
      for (index_t w = covered; w < s.width; ++w) to[h * s.width + w] = T(0);
    }
  }
};

/// dx from the mask of MAX and STOCHASTIC: by pixel, or by plane where the CPU has a plane for each thread.
template <class T> void mask_backward(const Context& on, const PoolShape& s, const T* dy, const T* mask, T* dx) {
  const index_t pixels = s.height * s.width, planes = s.planes();
  if (on.stream || planes < on.threads)
    for_each(on, planes * pixels, PoolBackward<T, true, 0>{s, dy, mask, dx}, 16);
  else if (s.kernel_h == 2 && s.kernel_w == 2 && s.stride_h == 2 && s.stride_w == 2 && s.height == 2 * s.out_height &&
           s.width == 2 * s.out_width && s.out_width >= 4)  // padding would make more windows
    s.out_width >= 8 ? cpu::for_each(on.threads, planes, MaskScatter2x2<T, 8>{s.out_height, s.out_width, dy, mask, dx}, pixels)
                     : cpu::for_each(on.threads, planes, MaskScatter2x2<T, 4>{s.out_height, s.out_width, dy, mask, dx}, pixels);
  else
    cpu::for_each(on.threads, planes, MaskScatter<T>{pixels, s.out_height * s.out_width, dy, mask, dx}, pixels);
}

/// dx of AVE: by pixel, or by plane where the CPU has a plane for each thread; `scratch` holds a frame for each.
template <class T> void mean_backward(const Context& on, const PoolShape& s, const T* dy, T* dx, T* scratch) {
  const PoolFrame frame = pool_frame(s);
  const index_t pixels = frame.height * frame.width;
  if (on.stream || s.planes() < on.threads || pixels == 0)
    return for_each(on, s.planes() * s.height * s.width, PoolBackward<T, false, 0>{s, dy, nullptr, dx}, 32);
  const index_t cost = pixels + s.out_height * s.out_width * s.kernel_h * s.kernel_w;
  cpu::parallel(on.threads, s.planes(), std::max<index_t>(1, cpu::kGrain / cost), [&](int thread, index_t begin, index_t end) {
    T* mine = scratch + thread * pixels;
    if (s.kernel_h == 3 && s.kernel_w == 3)
      cpu::range(MeanScatter<T, 3>{s, frame, dy, dx, mine}, begin, end);
    else
      cpu::range(MeanScatter<T, 0>{s, frame, dy, dx, mine}, begin, end);
  });
}

/// dx of MAX and STOCHASTIC, which have a mask, or of AVE, where `mask` is null.
template <class T> void pool_backward(const Context& on, const PoolShape& s, const T* dy, const T* mask, T* dx, T* scratch) {
  mask ? mask_backward(on, s, dy, mask, dx) : mean_backward(on, s, dy, dx, scratch);
}

// ---- on a device, in the layout with channels last. `dtype` is that of x, y and their gradients as stored; the mask has the type
// that is computed in.

/// work(pack, masked) as integral constants: how many channels a thread computes, those of 16 bytes, or 1 if the channels are no
/// multiple of that; and whether there is a mask.
template <class X, class Work> void with_pool_pack(index_t channels, const void* mask, const Work& work) {
  constexpr int kMost = Pack<X>::kSize;
  const auto choose = [&](auto pack) { mask ? work(pack, std::true_type()) : work(pack, std::false_type()); };
  channels % kMost ? choose(std::integral_constant<int, 1>()) : choose(std::integral_constant<int, kMost>());
}

/// y and mask of MAX, or y of AVE, where `mask` is null.
inline void pool_forward_channels_last(const Context& on, int dtype, const PoolShape& s, const void* x, void* y, void* mask) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    with_pool_pack<X>(s.channels, mask, [&](auto pack, auto masked) {
      using Op = std::conditional_t<masked, MaxOf<T>, MeanOf<T>>;
      cuda::for_each(*on.stream, s.outputs() / pack, PoolForward<X, Op, pack>{
          s, static_cast<const X*>(x), static_cast<X*>(y), static_cast<T*>(mask)});
    });
  });
}

/// dx of MAX, or of AVE, where `mask` is null.
inline void pool_backward_channels_last(const Context& on, int dtype, const PoolShape& s, const void* dy, const void* mask,
                                        void* dx) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    with_pool_pack<X>(s.channels, mask, [&](auto pack, auto masked) {
      cuda::for_each(*on.stream, s.planes() * s.height * s.width / pack, PoolBackward<X, masked, pack>{
          s, static_cast<const X*>(dy), static_cast<const T*>(mask), static_cast<X*>(dx)});
    });
  });
}

}  // namespace mc
