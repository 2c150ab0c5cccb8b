// Which detections are right (SSD's detection_evaluate_layer.cpp; Everingham et al., "The PASCAL VOC challenge", 2010).
#pragma once
#include <tuple>
#include "minicaffe/addons/ssd/boxes/boxes.hpp"

namespace mc {
namespace cpu {

struct EvaluateRule {
  index_t classes;
  int background;
  double overlap_threshold;
  bool difficult;  // objects marked difficult count
  bool pixels;     // boxes are in pixels, both edges inside
};

/// Rows of `detections` (image, label, score, box) and `objects` (image, label, instance, box, difficult); label -1 or image -1
/// means none. The result has rows of 5: for each class (-1, label, number of objects, -1, -1), then for each detection by image,
/// label and falling score (image, label, score, right, wrong); both are 0 if it matches an object that does not count.
inline std::vector<double> evaluate(const EvaluateRule& r, const double* detections, index_t n, const double* objects, index_t m) {
  struct Row {
    index_t image, label, index;
    double score;
  };
  std::vector<double> out;
  std::vector<index_t> count(static_cast<size_t>(r.classes), 0);
  std::vector<Row> known, found;
  for (index_t i = 0; i < m; ++i) {
    const double* row = objects + 8 * i;
    if (row[0] == -1) continue;
    known.push_back({index_t(row[0]), index_t(row[1]), i, 0.0});
    count[index_t(row[1])] += r.difficult || row[7] == 0;
  }
  for (index_t i = 0; i < n; ++i) {
    const double* row = detections + 7 * i;
    if (row[0] == -1 || row[1] == -1) continue;
    found.push_back({index_t(row[0]), index_t(row[1]), i, row[2] == row[2] ? row[2] : -HUGE_VAL});
  }
  auto before = [](const Row& a, const Row& b) {
    return std::tie(a.image, a.label, b.score, a.index) < std::tie(b.image, b.label, a.score, b.index);
  };
  auto other_group = [](const Row& a, const Row& b) { return std::tie(a.image, a.label) < std::tie(b.image, b.label); };
  std::sort(known.begin(), known.end(), before);
  std::sort(found.begin(), found.end(), before);
  for (index_t c = 0; c < r.classes; ++c)
    if (c != r.background) out.insert(out.end(), {-1.0, double(c), double(count[c]), -1.0, -1.0});
  std::vector<bool> taken(known.size(), false);
  for (const Row& f : found) {
    const auto range = std::equal_range(known.begin(), known.end(), f, other_group);
    double most = -1;
    size_t best = known.size();
    for (auto k = range.first; k != range.second; ++k) {
      const double o = overlap(box_at(detections + 7 * f.index + 3), box_at(objects + 8 * k->index + 3), r.pixels);
      if (o > most) most = o, best = size_t(k - known.begin());
    }
    bool right = false, wrong = true;
    if (best < known.size() && most >= r.overlap_threshold) {
      if (r.difficult || objects[8 * known[best].index + 7] == 0) {
        right = !taken[best];
        wrong = !right;
        taken[best] = true;
      } else {
        wrong = false;
      }
    }
    out.insert(out.end(), {double(f.image), double(f.label), detections[7 * f.index + 2], double(right), double(wrong)});
  }
  return out;
}

}  // namespace cpu
}  // namespace mc
