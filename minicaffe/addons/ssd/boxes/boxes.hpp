// Boxes of the SSD layers (Liu et al., 2016; SSD's bbox_util.cpp): sizes, overlaps, codes relative to prior boxes, suppression.
//
// A box is its corners, normally in units of the picture's width and height, so that 0..1 is inside; nothing forces it there.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "minicaffe/device/apply.hpp"

namespace mc {
namespace cpu {

template <class T> struct Box {
  T xmin, ymin, xmax, ymax;
  T width() const { return xmax - xmin; }
  T height() const { return ymax - ymin; }
};

template <class T> Box<T> box_at(const T* corners) { return {corners[0], corners[1], corners[2], corners[3]}; }

/// Width times height, 0 for an inverted box (xmax < xmin).
template <class T> T area(const Box<T>& b) { return b.xmax < b.xmin || b.ymax < b.ymin ? T(0) : b.width() * b.height(); }

/// Intersection over union; 0 where the intersection has no area, for boxes without area too.
template <class T> T overlap(const Box<T>& a, const Box<T>& b) {
  const T inside = area(Box<T>{std::max(a.xmin, b.xmin), std::max(a.ymin, b.ymin),
                               std::min(a.xmax, b.xmax), std::min(a.ymax, b.ymax)});
  return inside > T(0) ? inside / (area(a) + area(b) - inside) : T(0);
}

template <class T> bool within_picture(const Box<T>& b) {
  return b.xmin >= T(0) && b.xmin <= T(1) && b.ymin >= T(0) && b.ymin <= T(1) && b.xmax >= T(0) && b.xmax <= T(1) &&
         b.ymax >= T(0) && b.ymax <= T(1);
}

// ---- codes: what a net predicts instead of a box

enum Code { kCorner = 1, kCenterSize = 2, kCornerSize = 3 };  // caffe.proto PriorBoxParameter.CodeType

/// A prior box and the variances that scale its codes, all 1 where they are in the target.
template <class T> struct Prior {
  Box<T> box;
  T v[4];
};

/// Prior p of a blob [1, 2, count, 4]: boxes, then variances.
template <class T> Prior<T> prior_at(const T* priors, index_t count, index_t p, bool variance_in_target) {
  const T* v = priors + (count + p) * 4;
  Prior<T> prior = {box_at(priors + p * 4), {T(1), T(1), T(1), T(1)}};
  if (!variance_in_target) std::copy(v, v + 4, prior.v);
  return prior;
}

template <class T> Box<T> decode(int code, const Prior<T>& prior, const T* l) {
  const Box<T>& p = prior.box;
  const T* v = prior.v;
  if (code == kCenterSize) {
    const T width = p.width(), height = p.height();
    const T x = v[0] * l[0] * width + (p.xmin + p.xmax) / 2, y = v[1] * l[1] * height + (p.ymin + p.ymax) / 2;
    const T w = std::exp(v[2] * l[2]) * width / 2, h = std::exp(v[3] * l[3]) * height / 2;
    return {x - w, y - h, x + w, y + h};
  }
  const T width = code == kCornerSize ? p.width() : T(1), height = code == kCornerSize ? p.height() : T(1);
  return {p.xmin + v[0] * l[0] * width, p.ymin + v[1] * l[1] * height, p.xmax + v[2] * l[2] * width,
          p.ymax + v[3] * l[3] * height};
}

/// The code that `decode` turns into `b`, which for CENTER_SIZE has width and height.
template <class T> void encode(int code, const Prior<T>& prior, const Box<T>& b, T* l) {
  const Box<T>& p = prior.box;
  const T* v = prior.v;
  if (code == kCenterSize) {
    l[0] = ((b.xmin + b.xmax) - (p.xmin + p.xmax)) / 2 / p.width() / v[0];
    l[1] = ((b.ymin + b.ymax) - (p.ymin + p.ymax)) / 2 / p.height() / v[1];
    l[2] = std::log(b.width() / p.width()) / v[2];
    l[3] = std::log(b.height() / p.height()) / v[3];
    return;
  }
  const T width = code == kCornerSize ? p.width() : T(1), height = code == kCornerSize ? p.height() : T(1);
  l[0] = (b.xmin - p.xmin) / width / v[0];
  l[1] = (b.ymin - p.ymin) / height / v[1];
  l[2] = (b.xmax - p.xmax) / width / v[2];
  l[3] = (b.ymax - p.ymax) / height / v[3];
}

// ---- suppression

/// A score and its index; equal scores are ordered by index.
template <class T> struct Scored {
  T score;
  index_t index;
  bool operator<(const Scored& other) const {
    return score != other.score ? score > other.score : index < other.index;
  }
};

/// Sort by falling score and leave the best `most`, all if it is negative.
template <class T> void keep_best(std::vector<Scored<T>>& list, index_t most) {
  if (most >= 0 && most < index_t(list.size())) {
    std::partial_sort(list.begin(), list.begin() + most, list.end());
    list.resize(size_t(most));
  } else {
    std::sort(list.begin(), list.end());
  }
}

/// Indices into `boxes`, which come by falling score, of those that no better one overlaps by more than `threshold`. With
/// eta < 1 a threshold above 1/2 shrinks by that factor with each box that is kept.
template <class T> std::vector<index_t> suppress(const std::vector<Box<T>>& boxes, T threshold, T eta) {
  std::vector<index_t> kept;
  for (index_t i = 0; i < index_t(boxes.size()); ++i) {
    const bool covered =
        std::any_of(kept.begin(), kept.end(), [&](index_t k) { return overlap(boxes[i], boxes[k]) > threshold; });
    if (covered) continue;
    kept.push_back(i);
    if (eta < T(1) && threshold > T(0.5)) threshold *= eta;
  }
  return kept;
}

}  // namespace cpu
}  // namespace mc
