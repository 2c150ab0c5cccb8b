#include "device.hpp"
#include "minicaffe/ops/batch_norm/caffe.hpp"

using namespace test;

CASE(batch_norm) {
  for_both_types([](auto type) {
    using T = decltype(type);
    for (Shape s : {Shape{1, 1, 2}, {4, 3, 5}, {2, 1, 70}, {1, 9, 300}, {64, 50, 1}, {30, 2, 700}, {0, 3, 4}})
      for (int rule = 0; rule < 3; ++rule)
        for (bool given : {false, true}) {
          bool mean_only = rule == int(mc::Deviation::kNone);
          size_t n = size_t(s.count()), channels = size_t(s.channels);
          double eps = 0.01, per = 1.0 / std::max<double>(1, double(s.outer * s.inner));
          Array<T> x(n, 1), dy(n, 2), some_mean(channels, 3), some_variance(channels, 4);
          for (size_t k = 0; k < channels; ++k) some_variance[k] = std::abs(some_variance[k]);
          std::vector<double> mean(channels), variance(channels), factor(channels), y(n), dx(n), dys(channels), dots(channels);
          auto channel = [&](size_t i) { return size_t(index_t(i) / s.inner % s.channels); };
          for (size_t i = 0; i < n; ++i) mean[channel(i)] += x[i] * per;
          for (size_t i = 0; i < n; ++i) variance[channel(i)] += (x[i] - mean[channel(i)]) * (x[i] - mean[channel(i)]) * per;
          for (size_t k = 0; k < channels; ++k) {
            if (given) mean[k] = some_mean[k], variance[k] = some_variance[k];
            factor[k] = rule == 0 ? 1 / std::sqrt(variance[k] + eps) : rule == 1 ? 1 / (std::sqrt(variance[k]) + eps) : 1;
          }
          for (size_t i = 0; i < n; ++i) {
            y[i] = (x[i] - mean[channel(i)]) * factor[channel(i)];
            dys[channel(i)] += dy[i] * per;
            dots[channel(i)] += dy[i] * y[i] * per;
          }
          for (size_t i = 0; i < n; ++i)
            dx[i] = (dy[i] - (given ? 0 : dys[channel(i)] + (mean_only ? 0 : y[i] * dots[channel(i)]))) * factor[channel(i)];
          auto name = name_of(given ? "given" : "batch norm", s, sizeof(T)) + text(", rule %d", rule);
          on_both(name, [&](const mc::Context& on) {
            for (bool in_place : {false, true}) {
              Array<T> from(x), to(n), kept(n), means(some_mean), variances(some_variance), factors(channels), diff(n),
                  scratch(2 * channels);
              T* top = in_place ? from.data : to.data;
              mc::standardize_forward(on, dtype<T>(), {s.outer, s.channels, s.inner}, rule, given, eps, from.data, top,
                                    in_place && !given ? kept.data : nullptr, means.data, variances.data, factors.data);
              expect("y", top, y, 4 * tolerance<T>());
              expect("mean", means.data, mean, tolerance<T>());
              expect("factor", factors.data, factor, 4 * tolerance<T>());
              if (!mean_only) expect("variance", variances.data, variance, tolerance<T>());
              if (in_place && !given) expect("kept", kept.data, y, 4 * tolerance<T>());
              const T* v = in_place && !given ? kept.data : from.data;
              mc::standardize_backward(on, dtype<T>(), {s.outer, s.channels, s.inner}, given, mean_only, in_place, v, dy.data,
                                     means.data, factors.data, diff.data, scratch.data);
              expect("dx", diff.data, dx, 20 * tolerance<T>());
            }
          });
        }
  });
}
