// The training examples of SSD (multibox_loss_layer.cpp; Liu et al., 2016): match prior boxes with objects, mine hard background
// boxes, and gather codes and their targets for the loss.
#pragma once
#include <cmath>
#include <limits>
#include "minicaffe/addons/ssd/boxes/boxes.hpp"
#include "minicaffe/ops/loss/kernel.hpp"
#include "minicaffe/ops/softmax/kernel.hpp"

namespace mc {
namespace cpu {

enum Mining { kNoMining, kMaxNegative, kHardExample };  // caffe.proto MultiBoxLossParameter.MiningType

struct MultiBoxRule {
  index_t images, priors, classes;
  int background, code, mining;
  bool share_location, per_prediction, match_priors, use_difficult;
  bool squared_loc, logistic;    // losses: L2 instead of smooth L1, LOGISTIC instead of SOFTMAX
  bool variance_in_target, agnostic, skip_crossing, stay_inside;
  bool nms, nms_on_priors;
  double overlap_threshold, negatives_per_positive, negative_overlap, nms_threshold, eta;
  index_t nms_top_k, sample_size;
  index_t locations() const { return share_location ? 1 : classes; }
};

/// A row of an object that counts; its numbers were checked.
struct Truth {
  double image, label, instance;
  Box<double> box;
  double difficult;
};

/// A prior box that is to predict an object; `location` is the class whose codes it predicts, 0 where all share them.
struct Positive {
  index_t image, prior, location, truth;
};

/// A row of the confidences, image x priors + prior, and its true class.
struct Example {
  index_t row, label;
};

struct Matched {
  std::vector<Positive> positives;
  std::vector<Example> examples;
};

/// Matching, mining and gathering for one batch: loc [images, priors, locations, 4], conf [images, priors, classes], priors
/// [2, priors, 4]; truths by image.
template <class T> struct MultiBox {
  const MultiBoxRule& r;
  const T *loc, *conf, *priors;
  const Truth* truths;  // `count` of them
  index_t count;

  static constexpr index_t kFree = -1, kSkipped = -2;  // instead of a truth's index

  Prior<T> prior(index_t p) const { return prior_at(priors, r.priors, p, r.variance_in_target); }
  const T* codes(index_t image, index_t p, index_t location) const {
    return loc + ((image * r.priors + p) * r.locations() + location) * 4;
  }
  Box<T> predicted(index_t image, index_t p, index_t location) const {
    return decode(r.code, prior(p), codes(image, p, location));
  }
  Box<T> truth_box(index_t t) const {
    const Box<double>& b = truths[t].box;
    return {T(b.xmin), T(b.ymin), T(b.xmax), T(b.ymax)};
  }
  int label_of(index_t truth) const { return r.agnostic ? (r.background == 0 ? 1 : 0) : int(truths[truth].label); }

  struct Pair {
    T overlap;
    index_t prior, truth;
  };

  /// Match boxes with those of the truths `begin`..`end` that have `label`, or with all if it is -1. `match` receives the truth
  /// of each box, `best` its largest overlap.
  void match_boxes(const std::vector<Box<T>>& boxes, index_t begin, index_t end, index_t label, std::vector<index_t>* match,
                   std::vector<T>* best) const {
    match->assign(boxes.size(), kFree);
    best->assign(boxes.size(), T(0));
    std::vector<index_t> wanted;
    for (index_t t = begin; t < end; ++t)
      if (label < 0 || truths[t].label == label) wanted.push_back(t);
    if (wanted.empty()) return;
    std::vector<Pair> pairs;  // by box and truth
    for (index_t p = 0; p < index_t(boxes.size()); ++p) {
      if (r.skip_crossing && !within_picture(boxes[p])) {
        (*match)[p] = kSkipped;
        continue;
      }
      for (index_t t : wanted) {
        const T o = overlap(boxes[p], truth_box(t));
        if (!(o > T(1e-6))) continue;
        pairs.push_back({o, p, t});
        (*best)[p] = std::max((*best)[p], o);
      }
    }
    // The best pair of what is left, again and again, until each truth has a box.
    std::vector<Pair> order = pairs;
    std::stable_sort(order.begin(), order.end(), [](const Pair& a, const Pair& b) { return a.overlap > b.overlap; });
    std::vector<bool> done(size_t(end - begin), false);
    for (const Pair& pair : order) {
      if ((*match)[pair.prior] != kFree || done[pair.truth - begin]) continue;
      (*match)[pair.prior] = pair.truth;
      (*best)[pair.prior] = pair.overlap;
      done[pair.truth - begin] = true;
    }
    if (!r.per_prediction) return;
    for (size_t i = 0; i < pairs.size();) {  // each free box takes the truth that it overlaps most
      const index_t p = pairs[i].prior;
      const bool open = (*match)[p] == kFree;
      T most = T(-1);
      for (; i < pairs.size() && pairs[i].prior == p; ++i)
        if (open && pairs[i].overlap >= T(r.overlap_threshold) && pairs[i].overlap > most) {
          most = pairs[i].overlap;
          (*match)[p] = pairs[i].truth;
        }
    }
  }

  /// The loss of row x for `label`, as in the loss layers; NaN counts as infinity. `p` is scratch memory of `classes` values.
  T conf_loss(const T* x, int label, std::vector<T>* p) const {
    T loss = 0;
    if (r.logistic) {
      for (index_t c = 0; c < r.classes; ++c) loss += logistic_term(x[c], T(c == label));
    } else {
      range(ByRow<SoftmaxForward<T>>{{x, p->data()}, r.classes}, 0, 1);
      loss = log_term((*p)[size_t(label)], T(kFloatMin));
    }
    return loss == loss ? loss : std::numeric_limits<T>::infinity();
  }

  /// Prediction and target of a positive, for the loss.
  void loc_pair(const Positive& m, T* pred, T* target) const {
    const T* l = codes(m.image, m.prior, m.location);
    encode(r.code, prior(m.prior), truth_box(m.truth), target);
    std::copy(l, l + 4, pred);
    if (r.stay_inside) {  // edges outside the picture get no gradient
      const Box<T> b = r.match_priors ? box_at(priors + m.prior * 4) : predicted(m.image, m.prior, m.location);
      const T edges[4] = {b.xmin, b.ymin, b.xmax, b.ymax};
      for (int k = 0; k < 4; ++k)
        if (edges[k] < T(0) || edges[k] > T(1)) pred[k] = target[k];
    }
    if (r.variance_in_target)
      for (int k = 0; k < 4; ++k) {
        const T v = priors[(r.priors + m.prior) * 4 + k];
        pred[k] /= v;
        target[k] /= v;
      }
  }

  T loc_loss(const Positive& m) const {
    T pred[4], target[4], loss = 0;
    loc_pair(m, pred, target);
    const SquaredDistanceTerm<T> squared{pred, target};
    const SmoothL1Term<T> smooth{pred, target, nullptr, nullptr, T(1)};
    for (int k = 0; k < 4; ++k) loss += r.squared_loc ? squared(k) / 2 : smooth(k);
    return loss == loss ? loss : std::numeric_limits<T>::infinity();
  }

  /// Choose boxes of an image by their loss; drop the positives that were not chosen, return the background boxes that were.
  std::vector<index_t> mine(index_t image, std::vector<index_t>* match, const std::vector<T>& best) const {
    std::vector<Scored<T>> eligible;
    std::vector<T> probabilities(static_cast<size_t>(r.classes));
    index_t positives = 0;
    for (index_t p = 0; p < r.priors; ++p) {
      const index_t m = (*match)[p];
      positives += m >= 0;
      if (m == kSkipped || (r.mining == kMaxNegative && (m >= 0 || !(best[p] < T(r.negative_overlap))))) continue;
      T loss = conf_loss(conf + (image * r.priors + p) * r.classes, m >= 0 ? label_of(m) : r.background, &probabilities);
      if (m >= 0) loss += loc_loss({image, p, 0, m});
      eligible.push_back({loss, p});
    }
    const index_t limit = r.mining == kMaxNegative ? index_t(double(positives) * r.negatives_per_positive) : r.sample_size;
    index_t count = std::min<index_t>(limit, index_t(eligible.size()));
    std::vector<index_t> chosen;
    if (r.nms) {
      keep_best(eligible, r.nms_top_k);
      std::vector<Box<T>> boxes;
      for (const auto& s : eligible)
        boxes.push_back(r.nms_on_priors ? box_at(priors + s.index * 4) : predicted(image, s.index, 0));
      for (index_t k : suppress(boxes, T(r.nms_threshold), T(r.eta)))
        if (index_t(chosen.size()) < count) chosen.push_back(eligible[k].index);
    } else {
      keep_best(eligible, count);
      for (const auto& s : eligible) chosen.push_back(s.index);
    }
    std::sort(chosen.begin(), chosen.end());
    if (r.mining == kHardExample)
      for (index_t p = 0; p < r.priors; ++p)
        if ((*match)[p] >= 0 && !std::binary_search(chosen.begin(), chosen.end(), p)) (*match)[p] = kFree;
    std::vector<index_t> negatives;
    for (index_t p : chosen)
      if ((*match)[p] == kFree) negatives.push_back(p);
    // A positive that was dropped became free, but it was not chosen, so it is not among the negatives.
    return negatives;
  }

  /// Everything about one image, whose truths are `begin`..`end`.
  Matched match_image(index_t image, index_t begin, index_t end) const {
    std::vector<std::vector<index_t>> match(static_cast<size_t>(r.locations()));
    std::vector<T> best;
    std::vector<Box<T>> boxes(static_cast<size_t>(r.priors));
    Matched out;
    if (begin == end && r.mining != kNoMining) return out;  // no objects: neither positives nor negatives
    if (r.match_priors) {
      for (index_t p = 0; p < r.priors; ++p) boxes[p] = box_at(priors + p * 4);
      std::vector<index_t> all;
      match_boxes(boxes, begin, end, -1, &all, &best);
      for (index_t location = 0; location < r.locations(); ++location) {
        match[location] = all;
        if (r.share_location) continue;
        for (index_t& t : match[location])
          if (t >= 0 && truths[t].label != location) t = kFree;  // no object has the label of the background
      }
    } else {
      for (index_t location = 0; location < r.locations(); ++location) {
        match[location].assign(static_cast<size_t>(r.priors), kFree);
        if (!r.share_location && location == r.background) continue;
        for (index_t p = 0; p < r.priors; ++p) boxes[p] = predicted(image, p, location);
        match_boxes(boxes, begin, end, r.share_location ? -1 : location, &match[location], &best);
      }
    }
    std::vector<index_t> negatives;
    if (r.mining != kNoMining) negatives = mine(image, &match[0], best);
    std::vector<int> label(static_cast<size_t>(r.priors), r.background);
    for (index_t location = 0; location < r.locations(); ++location)
      for (index_t p = 0; p < r.priors; ++p) {
        const index_t t = match[location][p];
        if (t < 0) continue;
        out.positives.push_back({image, p, location, t});
        label[p] = label_of(t);
        if (r.mining != kNoMining) out.examples.push_back({image * r.priors + p, label[p]});
      }
    for (index_t p : negatives) out.examples.push_back({image * r.priors + p, r.background});
    if (r.mining == kNoMining)
      for (index_t p = 0; p < r.priors; ++p) out.examples.push_back({image * r.priors + p, label[p]});
    return out;
  }

  Matched match_all(Threads threads) const {
    std::vector<Matched> by_image(static_cast<size_t>(r.images));
    std::vector<index_t> first(static_cast<size_t>(r.images) + 1, 0);
    for (index_t t = 0; t < count; ++t) ++first[index_t(truths[t].image) + 1];
    for (index_t i = 0; i < r.images; ++i) first[i + 1] += first[i];
    parallel(threads, r.images, kGrain / (16 * r.priors + 1), [&](int, index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) by_image[i] = match_image(i, first[i], first[i + 1]);
    });
    Matched all;
    for (const Matched& m : by_image) {
      all.positives.insert(all.positives.end(), m.positives.begin(), m.positives.end());
      all.examples.insert(all.examples.end(), m.examples.begin(), m.examples.end());
    }
    return all;
  }
};

// ---- for an element type known only at run time

struct MultiBoxData {
  const void *loc, *conf, *priors;
  const double* truths;
  index_t count;
};

template <class T> MultiBox<T> multibox(const MultiBoxRule& r, const MultiBoxData& d) {
  return {r, static_cast<const T*>(d.loc), static_cast<const T*>(d.conf), static_cast<const T*>(d.priors),
          reinterpret_cast<const Truth*>(d.truths), d.count};
}

inline Matched match_typed(Threads threads, int dtype, const MultiBoxRule& r, const MultiBoxData& d) {
  return dispatch(dtype, [&](auto type) { return multibox<decltype(type)>(r, d).match_all(threads); });
}

/// pred and target, [positives, 4]
inline void gather_locations(int dtype, const MultiBoxRule& r, const MultiBoxData& d, const Matched& m, void* pred, void* target) {
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    const MultiBox<T> boxes = multibox<T>(r, d);
    for (size_t i = 0; i < m.positives.size(); ++i)
      boxes.loc_pair(m.positives[i], static_cast<T*>(pred) + 4 * i, static_cast<T*>(target) + 4 * i);
  });
}

}  // namespace cpu
}  // namespace mc
