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
          for (bool fused : {false, true}) {  // with a scale, a shift and a leaky ReLU behind it
            Array<T> gamma(channels, 5), beta(channels, 6), gamma_before(channels, 7), beta_before(channels, 8);
            const double slope = fused ? 0.25 : 1;
            std::vector<double> xhat(n), dz(n), dgamma(channels), dbeta(channels);
            std::fill(dys.begin(), dys.end(), 0), std::fill(dots.begin(), dots.end(), 0);
            for (size_t i = 0; i < n; ++i) {
              const size_t k = channel(i);
              xhat[i] = (x[i] - mean[k]) * factor[k];
              const double z = fused ? gamma[k] * xhat[i] + beta[k] : xhat[i];
              y[i] = z > 0 ? z : slope * z;
              dz[i] = z > 0 ? dy[i] : slope * dy[i];
              dys[k] += dz[i] * per;
              dots[k] += dz[i] * xhat[i] * per;
            }
            for (size_t k = 0; k < channels; ++k) {
              dgamma[k] = gamma_before[k] + (fused ? dots[k] / per : 0);
              dbeta[k] = beta_before[k] + (fused ? dys[k] / per : 0);
            }
            for (size_t i = 0; i < n; ++i) {
              const size_t k = channel(i);
              dx[i] = (dz[i] - (given ? 0 : dys[k] + (mean_only ? 0 : xhat[i] * dots[k]))) * factor[k] * (fused ? gamma[k] : 1);
            }
            auto name = name_of(given ? "given" : "batch norm", s, sizeof(T)) + text(", rule %d%s", rule, fused ? ", fused" : "");
            on_both(name, [&](const mc::Context& on) {
              for (bool in_place : {false, true}) {
                Array<T> from(x), to(n), kept(n), means(some_mean), variances(some_variance), factors(channels), scales(channels),
                    shifts(channels), diff(n), dscale(gamma_before), dshift(beta_before), scratch(4 * channels);
                T* top = in_place ? from.data : to.data;
                const mc::Channels shape{s.outer, s.channels, s.inner};
                const mc::Standardization how{rule, given, eps, slope, 0, means.data, variances.data, factors.data, scales.data,
                                              shifts.data, fused ? gamma.data : nullptr, fused ? beta.data : nullptr};
                mc::standardize_forward(on, dtype<T>(), shape, how, from.data, top, in_place ? kept.data : nullptr);
                expect("y", top, y, 4 * tolerance<T>());
                expect("mean", means.data, mean, tolerance<T>());
                expect("factor", factors.data, factor, 4 * tolerance<T>());
                if (!mean_only) expect("variance", variances.data, variance, tolerance<T>());
                if (in_place) expect("kept", kept.data, std::vector<double>(x.data, x.data + n), 0);
                mc::standardize_backward(on, dtype<T>(), shape, how, mc::Part::kWhole, in_place ? kept.data : from.data, dy.data,
                                         diff.data, fused ? dscale.data : nullptr, fused ? dshift.data : nullptr, scratch.data);
                expect("dx", diff.data, dx, 20 * tolerance<T>());
                expect("gradient of the shift", dshift.data, dbeta, 2 * tolerance<T>() * std::sqrt(1 / per));
                expect("gradient of the scale", dscale.data, dgamma, 8 * tolerance<T>() * std::sqrt(1 / per));
              }
            });
          }
        }
  });
}
