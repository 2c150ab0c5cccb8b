// Random parts of a picture that meet limits of overlap with its objects (SSD's sampler.cpp; Liu et al., 2016, section 2.2).
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "minicaffe/addons/ssd/boxes/boxes.hpp"
#include "minicaffe/kernels/random.hpp"

namespace mc {

/// One `batch_sampler`. Its limits are of the overlap, of the part's share in an object, and of the object's share in the part. One
/// that is not given is NaN: every comparison with it is false.
struct SamplerRule {
  double min_scale, max_scale, min_ratio, max_ratio;
  double least[3], greatest[3];
  long long most, trials;  // most: maximal number of parts; negative: no limit

  /// Whether there is no limit, or one of the objects meets all limits at once.
  bool accepts(const cpu::Box<double>& part, const std::vector<cpu::Box<double>>& objects) const {
    const auto given = [](double limit) { return !std::isnan(limit); };
    if (std::none_of(least, least + 3, given) && std::none_of(greatest, greatest + 3, given)) return true;
    return std::any_of(objects.begin(), objects.end(), [&](const cpu::Box<double>& object) {
      const double found[3] = {cpu::overlap(part, object), cpu::coverage(part, object), cpu::coverage(object, part)};
      for (int k = 0; k < 3; ++k)
        if (found[k] < least[k] || found[k] > greatest[k]) return false;
      return true;
    });
  }
};

/// The random numbers of one picture, in order.
struct RandomSequence {
  Philox random;
  u64 counter;
  double uniform(double lo, double hi) {
    u32 bits[4];
    random(counter++, bits);
    return lo + (hi - lo) * ((u64(bits[0]) << 21 | bits[1] >> 11) * (1.0 / 9007199254740992.0));  // 53 random bits
  }
};

/// Try all samplers; return the number of parts found, and store one of them, drawn uniformly, in `chosen`.
inline index_t sample_part(const SamplerRule* rules, index_t count, const std::vector<cpu::Box<double>>& objects, u64 seed,
                           cpu::Box<double>* chosen) {
  RandomSequence draws = {{seed}, 0};
  std::vector<cpu::Box<double>> parts;
  for (const SamplerRule* r = rules; r != rules + count; ++r) {
    long long found = 0;
    for (long long trial = 0; trial < r->trials && (r->most < 0 || found < r->most); ++trial) {
      const double scale = draws.uniform(r->min_scale, r->max_scale), square = scale * scale;
      const double ratio = std::min(std::max(draws.uniform(r->min_ratio, r->max_ratio), square), 1 / square);
      const double width = std::min(scale * std::sqrt(ratio), 1.0), height = std::min(scale / std::sqrt(ratio), 1.0);
      const double left = draws.uniform(0, 1 - width), top = draws.uniform(0, 1 - height);
      const cpu::Box<double> part = {left, top, left + width, top + height};
      if (!r->accepts(part, objects)) continue;
      parts.push_back(part);
      ++found;
    }
  }
  if (parts.empty()) return 0;
  *chosen = parts[std::min(size_t(draws.uniform(0, double(parts.size()))), parts.size() - 1)];
  return index_t(parts.size());
}

}  // namespace mc
