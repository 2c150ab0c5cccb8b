// From predictions to detections (SSD's detection_output_layer.cpp): decode, suppress within each class, keep the best.
#pragma once
#include "minicaffe/addons/ssd/boxes/boxes.hpp"

namespace mc {
namespace cpu {

struct DetectionRule {
  index_t images, priors, classes;
  int background;  // -1: none
  int code;
  bool share_location, variance_in_target;
  double threshold;               // lower scores are ignored
  double nms_threshold, eta;
  index_t nms_top_k, keep_top_k;  // -1: all
};

/// A row of the top.
struct Detection {
  double image, label, score;
  Box<double> box;
};

/// The detections of one class of one image by falling score. `loc` and `list` are those of the image.
template <class T>
std::vector<Detection> detect_class(const DetectionRule& r, index_t image, index_t label, std::vector<Scored<T>>& list,
                                    const T* loc, const T* priors) {
  const index_t locations = r.share_location ? 1 : r.classes, location = r.share_location ? 0 : label;
  keep_best(list, r.nms_top_k);
  std::vector<Box<T>> boxes;
  for (const Scored<T>& s : list)
    boxes.push_back(decode(r.code, prior_at(priors, r.priors, s.index, r.variance_in_target),
                           loc + (s.index * locations + location) * 4));
  std::vector<Detection> found;
  for (index_t k : suppress(boxes, T(r.nms_threshold), T(r.eta))) {
    const Box<T>& b = boxes[k];
    found.push_back({double(image), double(label), list[k].score, {b.xmin, b.ymin, b.xmax, b.ymax}});
  }
  return found;
}

/// The detections of all images by image, label and falling score. loc is [images, priors, locations, 4], conf [images, priors,
/// classes], priors [2, priors, 4].
template <class T>
std::vector<Detection> detect(Threads threads, const DetectionRule& r, const T* loc, const T* conf, const T* priors) {
  const index_t locations = r.share_location ? 1 : r.classes;
  std::vector<Detection> all;
  for (index_t image = 0; image < r.images; ++image, loc += r.priors * locations * 4) {
    std::vector<std::vector<Scored<T>>> candidates(static_cast<size_t>(r.classes));
    for (index_t p = 0; p < r.priors; ++p, conf += r.classes)
      for (index_t c = 0; c < r.classes; ++c)
        if (conf[c] > T(r.threshold) && c != r.background) candidates[c].push_back({conf[c], p});
    std::vector<std::vector<Detection>> found(static_cast<size_t>(r.classes));
    parallel(threads, r.classes, kGrain / (16 * r.priors + 1), [&](int, index_t begin, index_t end) {
      for (index_t c = begin; c < end; ++c) found[c] = detect_class(r, image, c, candidates[c], loc, priors);
    });
    std::vector<Scored<double>> order;  // over all classes
    std::vector<const Detection*> listed;
    for (const auto& of_class : found)
      for (const Detection& d : of_class) order.push_back({d.score, index_t(listed.size())}), listed.push_back(&d);
    if (r.keep_top_k >= 0 && index_t(order.size()) > r.keep_top_k) {
      keep_best(order, r.keep_top_k);
      std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
    }
    for (const auto& s : order) all.push_back(*listed[s.index]);
  }
  return all;
}

inline std::vector<Detection> detect_typed(Threads threads, int dtype, const DetectionRule& r, const void* loc, const void* conf,
                                           const void* priors) {
  return dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    return detect(threads, r, static_cast<const T*>(loc), static_cast<const T*>(conf), static_cast<const T*>(priors));
  });
}

}  // namespace cpu
}  // namespace mc
