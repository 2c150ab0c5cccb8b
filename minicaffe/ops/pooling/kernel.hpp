// Pooling over windows of a plane. Planes are the N C images of an [N, C, H, W] tensor; x is the bottom, y the top, and a
// mask holds for each output the position h W + w of the pixel it came from within its plane, or -1.
#pragma once
#include "minicaffe/kernels/random.hpp"
#include "minicaffe/kernels/types.hpp"
#include "minicaffe/kernels/vector.hpp"

namespace mc {

struct PoolShape {  // set by layer Pooling
  index_t images, channels, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  MC_HD index_t planes() const { return images * channels; }
  MC_HD index_t outputs() const { return planes() * out_height * out_width; }
};

/// The window of one output: rows top..bottom-1 and columns left..right-1 inside the image, and the area before clipping to
/// it, which includes padding but nothing beyond the padding.
struct PoolWindow {
  index_t top, bottom, left, right, area;
};

/// The window of the output in row ph and column pw.
MC_HD PoolWindow pool_window(const PoolShape& s, index_t ph, index_t pw) {
  index_t top = ph * s.stride_h - s.pad_h, left = pw * s.stride_w - s.pad_w;
  index_t bottom = min_(top + s.kernel_h, s.height + s.pad_h), right = min_(left + s.kernel_w, s.width + s.pad_w);
  index_t area = (bottom - top) * (right - left);
  return {max_(top, index_t(0)), min_(bottom, s.height), max_(left, index_t(0)), min_(right, s.width), area};
}

/// MAX, as the Op of PoolForward: `take` each pixel of a window and its position, then `put` the result to y[i] and mask[i]. It is
/// the first maximum in row-major order. NaN and values not above -FLT_MAX are never chosen, as in Caffe.
template <class T> struct MaxOf {
  T best = -T(kFloatMax);
  int where = -1;
  static MC_HD T border() { return -T(kFloatMax); }  // the value of a pixel outside, which is never chosen (PoolPlane, caffe.hpp)
  MC_HD void take(T x, int index) {
    bool more = x > best;
    best = more ? x : best;
    where = more ? index : where;
  }
  MC_HD void put(index_t i, T, T* y, T* mask) const {
    y[i] = best;
    mask[i] = T(where);
  }
};

/// AVE, likewise: the sum over the window, divided by its area.
template <class T> struct MeanOf {
  T sum = 0;
  static MC_HD T border() { return T(0); }
  MC_HD void take(T x, int) { sum += x; }
  MC_HD void put(index_t i, T area, T* y, T*) const { y[i] = sum / area; }
};

/// Where index i of a functor is. In plain order, kPack 0, it is the index of a pixel, and planes are images of one channel. With
/// channels last it is the index of kPack neighbouring channels of a pixel.
template <int kPack> struct PoolPlace {
  static constexpr int kTogether = kPack ? kPack : 1;
  index_t channels, image, h, w, channel, at;  // channels: of an image; channel, at: the first of the pack, and its element
  MC_HD PoolPlace(index_t i, index_t height, index_t width, index_t all_channels) {
    channels = kPack ? all_channels : 1;
    const index_t packs = kPack ? channels / kTogether : 1, pixel = i / packs, row = pixel / width;
    image = row / height, h = row - image * height, w = pixel - row * width;
    channel = (i - pixel * packs) * kTogether, at = i * kTogether;
  }
};

/// Pooling by an Op at index i of the top. Values are stored as X. The mask, null but for MAX, has positions in a plane.
// e.g. PoolForward<T, MaxOf<T>, 0>
template <class X, class Op, int kPack> struct PoolForward {
  using T = typename Element<X>::Compute;
  using Place = PoolPlace<kPack>;
  using Values = Few<X, Place::kTogether>;
  using Positions = Few<T, Place::kTogether>;
  PoolShape s;
  const X* x;
  X* y;
  T* mask;
  MC_HD void operator()(index_t i) const {
    const Place to(i, s.out_height, s.out_width, s.channels);
    const PoolWindow window = pool_window(s, to.h, to.w);
    const X* image = x + to.image * s.height * s.width * to.channels + to.channel;
    Op op[Place::kTogether];
    for (index_t h = window.top; h < window.bottom; ++h)
      for (index_t w = window.left; w < window.right; ++w) {
        const Values from = *reinterpret_cast<const Values*>(image + (h * s.width + w) * to.channels);
        for (int l = 0; l < Place::kTogether; ++l) op[l].take(T(from.value[l]), int(h * s.width + w));
      }
    if constexpr (kPack == 0) return op[0].put(i, T(window.area), y, mask);  // without copies it takes fewer registers
    T values[Place::kTogether];
    Positions where = {};
    for (int l = 0; l < Place::kTogether; ++l) op[l].put(l, T(window.area), values, where.value);
    Values result;
    for (int l = 0; l < Place::kTogether; ++l) result.value[l] = X(values[l]);
    *reinterpret_cast<Values*>(y + to.at) = result;
    if (mask) *reinterpret_cast<Positions*>(mask + to.at) = where;
  }
};

/// Zeiler and Fergus, "Stochastic pooling", 2013: take a pixel with probability x / sum x. A window whose sum is negative takes its
/// last pixel; one with a NaN gives NaN and no position. Output i uses random number start + i, + *drawn unless that is null.
template <class T> struct StochasticForward {
  PoolShape s;
  Philox random;
  u64 start;
  const u64* drawn;
  const T* x;
  T *y, *mask;
  MC_HD void operator()(index_t i) const {
    index_t pw = i % s.out_width, ph = i / s.out_width % s.out_height;
    const T* plane = x + i / s.out_width / s.out_height * s.height * s.width;
    PoolWindow window = pool_window(s, ph, pw);
    T sum = 0;
    for (index_t h = window.top; h < window.bottom; ++h)
      for (index_t w = window.left; w < window.right; ++w) sum += plane[h * s.width + w];
    u32 bits[4];
    random(start + (drawn ? *drawn : 0) + u64(i), bits);
    T threshold = T(1.0 - uniform_(bits[0])) * sum;  // in (0, sum]: a pixel of value 0 is not taken before a positive one
    T running = 0, value = sum;
    index_t where = -1;
    bool found = sum != sum;
    for (index_t h = window.top; h < window.bottom; ++h)
      for (index_t w = window.left; w < window.right; ++w) {
        if (found) continue;
        where = h * s.width + w;
        value = plane[where];
        running += value;
        found = running >= threshold;
      }
    y[i] = value;
    mask[i] = T(where);
  }
};

/// STOCHASTIC in TEST, as an Op of PoolForward, in place of drawing: sum x^2 / sum x, or 0 where the sum is not positive.
template <class T> struct StochasticMean {
  T sum = 0, squares = 0;
  MC_HD void take(T x, int) {
    sum += x;
    squares += x * x;
  }
  MC_HD void put(index_t i, T, T* y, T*) const { y[i] = sum <= T(0) ? T(0) : squares / sum; }
};

/// The windows that cover position `at` of an axis, for PoolBackward: first and one past the last.
struct PoolCover {
  index_t begin, end;
};
MC_HD PoolCover pool_cover(index_t at, index_t pad, index_t kernel, index_t stride, index_t out) {
  index_t reach = at + pad;
  return {reach < kernel ? 0 : (reach - kernel) / stride + 1, min_(reach / stride + 1, out)};
}

/// dx of one pixel, overwritten: the sum of dy of windows whose mask names it; without a mask, of dy / area of all that cover it.
// e.g. PoolBackward<T, true, 0>
template <class X, bool kMasked, int kPack> struct PoolBackward {
  using T = typename Element<X>::Compute;
  using Place = PoolPlace<kPack>;
  using Values = Few<X, Place::kTogether>;
  using Positions = Few<T, Place::kTogether>;
  PoolShape s;
  const X* dy;
  const T* mask;
  X* dx;
  MC_HD void operator()(index_t i) const {
    const Place to(i, s.height, s.width, s.channels);
    const PoolCover rows = pool_cover(to.h, s.pad_h, s.kernel_h, s.stride_h, s.out_height);
    const PoolCover columns = pool_cover(to.w, s.pad_w, s.kernel_w, s.stride_w, s.out_width);
    T sum[Place::kTogether] = {};
    for (index_t ph = rows.begin; ph < rows.end; ++ph)
      for (index_t pw = columns.begin; pw < columns.end; ++pw) {
        const index_t at = ((to.image * s.out_height + ph) * s.out_width + pw) * to.channels + to.channel;
        if constexpr (kMasked && kPack == 0) {  // reads dy only where the mask names the pixel
          if (index_t(mask[at]) == to.h * s.width + to.w) sum[0] += dy[at];
          continue;
        }
        const Values from = *reinterpret_cast<const Values*>(dy + at);
        if constexpr (kMasked) {
          const Positions where = *reinterpret_cast<const Positions*>(mask + at);
          for (int l = 0; l < Place::kTogether; ++l)
            sum[l] += index_t(where.value[l]) == to.h * s.width + to.w ? T(from.value[l]) : T(0);
        } else {
          const T area = T(pool_window(s, ph, pw).area);
          for (int l = 0; l < Place::kTogether; ++l) sum[l] += T(from.value[l]) / area;
        }
      }
    Values result;
    for (int l = 0; l < Place::kTogether; ++l) result.value[l] = X(sum[l]);
    *reinterpret_cast<Values*>(dx + to.at) = result;
  }
};

}  // namespace mc
