// Depthwise convolution on the CPU: every channel has one kernel of its own, over two axes.
//
// There is no matrix product to win from here: an output is a short sum, and the time goes into moving planes. Each thread copies
// a plane once, padded, into phases: the pixels whose row and column leave the same rest when divided by the stride. All phases
// have the same pitch, and outputs are numbered at that pitch, too (n = row * pitch + column, where the columns behind the end of
// a row mean nothing). So what a tap reads for output n lies at a fixed distance from n, and outputs are sums of shifted runs.
#pragma once
#include "minicaffe/device/apply.hpp"
#include "minicaffe/ops/conv/shape.hpp"

namespace mc {
namespace cpu {

constexpr index_t kMaxTaps = 64;

/// Whether the loops below compute it. Not if padding, strides or dilation make the padded copy of a plane large.
inline bool is_depthwise(const ConvShape& s) {
  const Window& w = s.window;
  if (s.group_channels != 1 || s.m != 1 || w.num_axes != 2 || s.taps == 1 || s.taps > kMaxTaps || !s.images || !s.positions)
    return false;
  double area = 1;
  for (int a = 0; a < 2; ++a) {
    const double extent = double(w.out[a] - 1) * w.stride[a] + double(w.kernel[a] - 1) * w.dilation[a] + 1;
    area *= extent + w.stride[a];
  }
  return area <= 8 * double(s.pixels + s.positions) + 4096;
}

/// The geometry, and copies of a plane of the image or the top in which a tap reads runs of neighbouring elements.
struct Depthwise {
  static constexpr index_t kSlack = 64;  // elements that runs may read and write beyond their end
  index_t height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w;
  index_t rows, pitch;    // of a phase: rows, and elements from one row to the next
  index_t reach = 0;      // the largest distance of a tap within its phase
  index_t taps;
  index_t at[kMaxTaps];  // where among the phases a tap (kernel element) reads for output 0

  explicit Depthwise(const ConvShape& s) {
    const Window& w = s.window;
    height = w.in[0], width = w.in[1], out_height = w.out[0], out_width = w.out[1];
    stride_h = w.stride[0], stride_w = w.stride[1], pad_h = w.pad[0], pad_w = w.pad[1], taps = s.taps;
    rows = ceil_div((out_height - 1) * stride_h + (w.kernel[0] - 1) * index_t(w.dilation[0]) + 1, stride_h);
    pitch = ceil_div((out_width - 1) * stride_w + (w.kernel[1] - 1) * index_t(w.dilation[1]) + 1, stride_w);
    for (index_t t = 0; t < taps; ++t) {
      const index_t row = t / w.kernel[1] * w.dilation[0], column = t % w.kernel[1] * w.dilation[1];
      const index_t distance = row / stride_h * pitch + column / stride_w;
      at[t] = (row % stride_h * stride_w + column % stride_w) * phase() + distance;
      reach = std::max(reach, distance);
    }
  }
  // Elements of a phase, of the outputs at the pitch, and of scratch memory for the copies by `pack` and by `spread`.
  index_t phase() const { return rows * pitch; }
  index_t outputs() const { return (out_height - 1) * pitch + out_width; }
  index_t image() const { return stride_h * stride_w * phase() + kSlack; }
  index_t top() const { return reach + phase() + kSlack; }

  /// visit(where among the phases, first pixel, step, count) for what of each row of a phase lies inside the plane, outside(where,
  /// count) for the rest.
  template <class Visit, class Outside> MC_HD void each_row(const Visit& visit, const Outside& outside) const {
    for (index_t p = 0; p < stride_h * stride_w; ++p)
      for (index_t row = 0; row < rows; ++row) {
        const index_t to = p * phase() + row * pitch, y = row * stride_h + p / stride_w - pad_h, x = p % stride_w - pad_w;
        const bool inside = y >= 0 && y < height && x < width;
        const index_t from = x < 0 ? min_(pitch, (-x + stride_w - 1) / stride_w) : 0;
        const index_t end = inside ? max_(from, min_(pitch, (width - x + stride_w - 1) / stride_w)) : from;
        outside(to, from);
        if (end > from) visit(to + from, y * width + x + from * stride_w, stride_w, end - from);
        outside(to + end, pitch - end);
      }
  }
  /// A plane of the image as phases, zeros around.
  template <class T> MC_HD void pack(const T* x, T* phases) const {
    each_row(
        [=](index_t to, index_t pixel, index_t step, index_t n) {
          if (step == 1)
            for (index_t i = 0; i < n; ++i) phases[to + i] = x[pixel + i];
          else if (step == 2)
            for (index_t i = 0; i < n; ++i) phases[to + i] = x[pixel + 2 * i];
          else
            for (index_t i = 0; i < n; ++i) phases[to + i] = x[pixel + i * step];
        },
        [=](index_t to, index_t n) {
          for (index_t i = 0; i < n; ++i) phases[to + i] = T(0);
        });
    for (index_t i = 0; i < kSlack; ++i) phases[stride_h * stride_w * phase() + i] = T(0);
  }
  /// A plane of the top at the pitch, from `reach` on, zeros around.
  template <class T> MC_HD void spread(const T* y, T* out) const {
    const index_t n = top();
    for (index_t i = 0; i < n; ++i) out[i] = T(0);
    for (index_t row = 0; row < out_height; ++row)
      for (index_t j = 0; j < out_width; ++j) out[reach + row * pitch + j] = y[row * out_width + j];
  }
};

/// to[n] = start + sum over t of weight[t] * from[t][n] for n < count, and some more that mean nothing.
template <class T> MC_HD void sum_of_runs(index_t count, index_t taps, const T* const* from, const T* weight, T start, T* to) {
  typedef T Vector __attribute__((vector_size(64)));
  typedef T Unaligned __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
  constexpr index_t kLanes = 64 / sizeof(T);
  index_t n = 0;
  for (; n + 2 * kLanes < count; n += 4 * kLanes) {
    Vector s0 = Vector{} + start, s1 = s0, s2 = s0, s3 = s0;
    for (index_t t = 0; t < taps; ++t) {
      const T w = weight[t];
      const Unaligned* x = reinterpret_cast<const Unaligned*>(from[t] + n);
      s0 += w * x[0], s1 += w * x[1], s2 += w * x[2], s3 += w * x[3];
    }
    Unaligned* y = reinterpret_cast<Unaligned*>(to + n);
    y[0] = s0, y[1] = s1, y[2] = s2, y[3] = s3;
  }
  for (; n < count; n += kLanes) {
    Vector sum = Vector{} + start;
    for (index_t t = 0; t < taps; ++t) sum += weight[t] * *reinterpret_cast<const Unaligned*>(from[t] + n);
    *reinterpret_cast<Unaligned*>(to + n) = sum;
  }
}

/// sums[t] += the sum over n < count of a[n] * b[t][n], for kTaps runs b. What lies in a behind `count` is 0.
template <int kTaps, class T> MC_HD void dots(index_t count, const T* a, const T* const* b, T* sums) {
  typedef T Vector __attribute__((vector_size(64)));
  typedef T Unaligned __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
  constexpr index_t kLanes = 64 / sizeof(T);
  Vector sum[kTaps] = {};
  for (index_t n = 0; n < count; n += kLanes) {
    const Vector x = *reinterpret_cast<const Unaligned*>(a + n);
#pragma GCC unroll 16
    for (int t = 0; t < kTaps; ++t) sum[t] += x * *reinterpret_cast<const Unaligned*>(b[t] + n);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTaps; ++t) {
    T total = T(0);
    for (index_t l = 0; l < kLanes; ++l) total += sum[t][l];
    sums[t] += total;
  }
}

/// y of one plane: the index is image * channels + channel, `scratch` the thread's image() + top() elements, `bias` may be null.
template <class T> struct DepthwiseForward {
  const Depthwise& d;
  index_t channels;
  const T *x, *weight, *bias;
  T *y, *scratch;
  MC_HD void operator()(index_t plane) const {
    T *phases = scratch, *top = scratch + d.image();
    const T* from[kMaxTaps];
    for (index_t t = 0; t < d.taps; ++t) from[t] = phases + d.at[t];
    d.pack(x + plane * d.height * d.width, phases);
    sum_of_runs(d.outputs(), d.taps, from, weight + plane % channels * d.taps, bias ? bias[plane % channels] : T(0), top);
    T* out = y + plane * d.out_height * d.out_width;
    for (index_t row = 0; row < d.out_height; ++row)
      for (index_t j = 0; j < d.out_width; ++j) out[row * d.out_width + j] = top[row * d.pitch + j];
  }
};

/// dx of one plane, overwritten, as sums of the top's runs for each phase; or the top of a deconvolution, with a bias.
template <class T> struct DepthwiseBackwardData {
  const Depthwise& d;
  index_t channels;
  const T *dy, *weight, *bias;
  T *dx, *scratch;
  MC_HD void operator()(index_t plane) const {
    T *phases = scratch, *top = scratch + d.image();
    const T *w = weight + plane % channels * d.taps, start = bias ? bias[plane % channels] : T(0);
    d.spread(dy + plane * d.out_height * d.out_width, top);
    for (index_t p = 0; p < d.stride_h * d.stride_w; ++p) {
      const T* from[kMaxTaps];
      T factors[kMaxTaps];
      index_t taps = 0;
      for (index_t t = 0; t < d.taps; ++t)
        if (d.at[t] / d.phase() == p) from[taps] = top + d.reach - d.at[t] % d.phase(), factors[taps++] = w[t];
      sum_of_runs(d.phase(), taps, from, factors, start, phases + p * d.phase());
    }
    T *out = dx + plane * d.height * d.width, s = start;
    const index_t pixels = d.height * d.width;
    for (index_t i = 0; i < pixels; ++i) out[i] = s;  // those that no window reaches
    d.each_row(
        [=](index_t from, index_t pixel, index_t step, index_t n) {
          if (step == 1)
            for (index_t i = 0; i < n; ++i) out[pixel + i] = phases[from + i];
          else
            for (index_t i = 0; i < n; ++i) out[pixel + i * step] = phases[from + i];
        },
        [](index_t, index_t) {});
  }
};

/// Add to dweight for one channel the sums over all images, in their order, so that the number of threads changes no result.
template <class T> struct DepthwiseBackwardWeights {
  const Depthwise& d;
  index_t images, channels;
  const T *x, *dy;
  T *dweight, *scratch;
  MC_HD void operator()(index_t channel) const {
    constexpr int kTaps = 9;
    T *phases = scratch, *top = scratch + d.image(), sums[kMaxTaps + kTaps] = {};
    for (index_t i = 0; i < images; ++i) {
      const index_t plane = i * channels + channel;
      d.pack(x + plane * d.height * d.width, phases);
      d.spread(dy + plane * d.out_height * d.out_width, top);
      for (index_t t = 0; t < d.taps; t += kTaps) {
        const T* from[kTaps];
        for (int k = 0; k < kTaps; ++k) from[k] = phases + d.at[min_(t + k, d.taps - 1)];
        dots<kTaps>(d.outputs(), top + d.reach, from, sums + t);
      }
    }
    for (index_t t = 0; t < d.taps; ++t) dweight[channel * d.taps + t] += sums[t];
  }
};

inline index_t depthwise_scratch(const ConvShape& s, int threads) {  // elements
  const Depthwise d(s);
  return threads * (d.image() + d.top());
}

/// Run F<T>{the Depthwise, members..., the thread's scratch memory} for `count` indices: all planes, or all channels.
template <template <class> class F, class T, class... M>
void depthwise(const ConvShape& s, Threads threads, index_t count, T* scratch, const M&... members) {
  const Depthwise d(s);
  const index_t planes = s.images * s.channels / count, grain = ceil_div(kGrain, 4 * (s.pixels + s.positions));
  parallel(threads, count, ceil_div(grain, planes), [&](int thread, index_t first, index_t last) {
    range(F<T>{d, members..., scratch + thread * (d.image() + d.top())}, first, last);
  });
}

}  // namespace cpu
}  // namespace mc
