#include "device.hpp"
#include "minicaffe/ops/batch_norm/caffe.hpp"

using namespace test;

/// Forward and backward of elements T: on the CPU and the device, or, of Bf16, on the device alone.
template <class T> void normalise(std::initializer_list<Shape> shapes) {
  using C = typename mc::Element<T>::Compute;
  constexpr bool half = std::is_same_v<T, mc::Bf16>;
  const double rounding = half ? 1.0 / 256 : 0;  // of what is stored
  const int number = half ? int(mc::BF16) : dtype<T>();
  for (Shape s : shapes)
    for (int rule = 0; rule < 3; ++rule)
      for (bool given : {false, true}) {
        bool mean_only = rule == int(mc::Deviation::kNone);
        size_t n = size_t(s.count()), channels = size_t(s.channels);
        double eps = 0.01, per = 1.0 / std::max<double>(1, double(s.outer * s.inner));
        Array<T> x(n, 1), dy(n, 2);
        Array<C> some_mean(channels, 3), some_variance(channels, 4);
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
          Array<C> gamma(channels, 5), beta(channels, 6), gamma_before(channels, 7), beta_before(channels, 8);
          const double slope = fused ? 0.25 : 1;
          std::vector<double> xhat(n), dz(n), dgamma(channels), dbeta(channels);
          std::fill(dys.begin(), dys.end(), 0), std::fill(dots.begin(), dots.end(), 0);
          for (size_t i = 0; i < n; ++i) {
            const size_t k = channel(i);
            xhat[i] = (x[i] - mean[k]) * factor[k];
            const double z = fused ? gamma[k] * xhat[i] + beta[k] : xhat[i];
            y[i] = z > 0 ? z : slope * z;
            dz[i] = (z > 0 ? 1 : slope) * dy[i];
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
            if (half && !on.stream) return;  // the CPU has Bf16 in lanes only (below)
            for (bool in_place : {false, true}) {
              Array<T> from(x), to(n), kept(n), diff(n);
              Array<C> means(some_mean), variances(some_variance), factors(channels), scales(channels), shifts(channels),
                  dscale(gamma_before), dshift(beta_before), scratch(4 * channels);
              T* top = in_place ? from.data : to.data;
              const mc::Channels shape{s.outer, s.channels, s.inner};
              const mc::Standardization how{rule, given, eps, slope, 0, means.data, variances.data, factors.data, scales.data,
                                            shifts.data, fused ? gamma.data : nullptr, fused ? beta.data : nullptr};
              const long long before = stream().launches;
              mc::standardize_forward(on, number, shape, how, from.data, top, in_place ? kept.data : nullptr);
              expect("y", top, y, 4 * tolerance<C>() + rounding);
              expect("mean", means.data, mean, tolerance<C>());
              expect("factor", factors.data, factor, 4 * tolerance<C>());
              if (!mean_only) expect("variance", variances.data, variance, tolerance<C>());
              if (in_place) expect("kept", kept.data, std::vector<double>(x.data, x.data + n), 0);
              const long long between = stream().launches;
              const T* values = in_place ? kept.data : from.data;
              C *gamma_diff = fused ? dscale.data : nullptr, *beta_diff = fused ? dshift.data : nullptr;
              mc::standardize_backward(on, number, shape, how, true, true, values, dy.data, diff.data, gamma_diff, true, beta_diff,
                                       true, scratch.data);
              expect("dx", diff.data, dx, 20 * tolerance<C>() + rounding);
              const long long most = !on.stream ? 0 : s.outer * s.inner < 100 ? 2 : 3;  // without partial sums, and with
              if (between - before > most || stream().launches - between > most)
                fail("%lld and %lld launches", between - before, stream().launches - between);
              ++state().checks;
              if (!given) {  // as with several processes, of which the others have no values
                std::copy(gamma_before.data, gamma_before.data + channels, dscale.data);
                std::copy(beta_before.data, beta_before.data + channels, dshift.data);
                for (bool apply : {false, true})
                  mc::standardize_backward(on, number, shape, how, !apply, apply, values, dy.data, diff.data, gamma_diff, true, beta_diff,
                                           true, scratch.data);
                expect("dx in two parts", diff.data, dx, 20 * tolerance<C>() + rounding);
              }
              for (bool added : {true, false}) {  // then a gradient that is overwritten
                if (!added && fused) {
                  std::fill(dscale.data, dscale.data + channels, C(NAN)), std::fill(dshift.data, dshift.data + channels, C(NAN));
                  mc::standardize_backward(on, number, shape, how, true, true, values, dy.data, diff.data, gamma_diff, false,
                                           beta_diff, false, scratch.data);
                  for (size_t k = 0; k < channels; ++k) dscale.data[k] += gamma_before[k], dshift.data[k] += beta_before[k];
                }
                expect("gradient of the shift", dshift.data, dbeta, 2 * tolerance<C>() * std::sqrt(1 / per));
                expect("gradient of the scale", dscale.data, dgamma, 8 * tolerance<C>() * std::sqrt(1 / per));
              }
            }
          });
        }
      }
}

CASE(batch_norm) {
  for_both_types([](auto type) {
    normalise<decltype(type)>({{1, 1, 2}, {4, 3, 5}, {2, 1, 70}, {1, 9, 300}, {64, 50, 1}, {30, 2, 700}, {0, 3, 4}});
    normalise<decltype(type)>({{1, 5, 1}, {1, 3, 1}, {300, 1, 1}, {3000, 3, 1}, {9000, 4, 1}, {700, 64, 1}, {40, 257, 1},
                               {5, 4, 16}, {2, 257, 49}, {9, 4, 1000}, {1000, 5, 12}});
  });
}

CASE(batch_norm_bf16) {
  normalise<mc::Bf16>({{1, 1, 2}, {4, 3, 5}, {1, 5, 1}, {300, 1, 1}, {9000, 4, 1}, {700, 64, 1}, {40, 257, 1}, {3000, 8, 1},
                       {5, 4, 16}, {2, 257, 49}, {30, 2, 700}, {0, 3, 4}});
}

/// Mean and variance of what would cancel, and of what is not finite.
CASE(moments) {
  for (Shape s : {Shape{1, 1, 5000}, {9, 4, 1000}, {70, 5, 49}, {9000, 4, 1}, {900, 257, 1}, {6, 3, 1}, {2, 3, 2}})
    for (const char* what : {"large mean", "a far first element", "one infinity", "the first infinite", "both infinities",
                             "one NaN", "equal"}) {
      const size_t n = size_t(s.count()), channels = size_t(s.channels);
      Array<float> x(n, 1);
      std::vector<double> mean(channels), variance(channels);
      const double per = 1.0 / double(s.outer * s.inner);
      auto channel = [&](size_t i) { return size_t(index_t(i) / s.inner % s.channels); };
      for (size_t i = 0; i < n; ++i) {
        const index_t at = index_t(i) / s.inner / s.channels * s.inner + index_t(i) % s.inner;  // in its channel
        if (*what == 'l') x[i] += 1000;
        if (*what == 'e') x[i] = 0.1f + float(channel(i));
        if (!std::strcmp(what, "a far first element")) x[i] = at ? 1.1f : 1e6f;
        const float infinity = HUGE_VALF;
        if (!std::strcmp(what, "one infinity") && at == 1) x[i] = infinity;
        if (!std::strcmp(what, "the first infinite") && at == 0) x[i] = -infinity;
        if (!std::strcmp(what, "both infinities") && at < 2) x[i] = at ? infinity : -infinity;
        if (!std::strcmp(what, "one NaN") && at == 3) x[i] = NAN;
      }
      for (size_t i = 0; i < n; ++i) mean[channel(i)] += x[i] * per;
      for (size_t i = 0; i < n; ++i) variance[channel(i)] += (x[i] - mean[channel(i)]) * (x[i] - mean[channel(i)]) * per;
      on_both(name_of(what, s, 4), [&](const mc::Context& on) {
        Array<float> means(channels), variances(channels);
        mc::standardize_moments(on, mc::FLOAT, {s.outer, s.channels, s.inner}, x.data, means.data, variances.data);
        if (on.stream || !std::strstr(what, "infini"))  // the CPU's may be NaN there
          expect("mean", means.data, mean, on.stream ? 1e-6 : 1e-5);
        expect("variance", variances.data, variance, *what != 'e' ? 1e-4 : on.stream ? 1e-12 : 1e-6);
      });
    }
}

// ---- lanes

namespace {

/// Where element i of plain order is in lanes.
size_t place(const mc::Channels& c, index_t i) {
  index_t o = i / (c.channels * c.inner), k = i / c.inner % c.channels, p = i % c.inner;
  return size_t(((o * c.blocks() + k / c.lanes) * c.inner + p) * c.lanes + k % c.lanes);
}

size_t stored(const mc::Channels& c) { return size_t(c.outer * c.blocks() * c.inner * c.lanes); }

struct Lanes {
  Array<float> values;
  Lanes(const mc::Channels& c, const Array<float>& plain) : values(stored(c)) {
    std::fill(values.data, values.data + values.count, 0.f);
    for (index_t i = 0; i < index_t(plain.count); ++i) values[place(c, i)] = plain[size_t(i)];
  }
};

/// That `got`, in lanes, is what `want` is in plain order, and zero between channels.
void expect_lanes(const char* what, const mc::Channels& c, const Array<float>& got, const Array<float>& want, double tolerance) {
  std::vector<double> all(got.count, 0.0);
  for (index_t i = 0; i < index_t(want.count); ++i) all[place(c, i)] = want[size_t(i)];
  expect(what, got.data, all, tolerance);
}

}  // namespace

/// In lanes everything is computed as in plain order; what blocks hold beside channels is overwritten by zeros.
CASE(lanes) {
  const mc::Context on{{2, mc::cpu::process_pool()}, nullptr};
  for (mc::Channels c : {mc::Channels{1, 16, 1, 16}, {2, 32, 9, 16}, {3, 20, 35, 16}, {2, 3, 300, 8}, {2, 40, 25, 8},
                         {2, 20, 49, 20}, {1, 48, 1, 48}, {4, 17, 1100, 16}}) {
    const mc::Channels plain{c.outer, c.channels, c.inner};
    const size_t n = stored(plain), m = stored(c), k = size_t(c.channels);
    Array<float> x(n, 1), dy(n, 2), scale(k, 3), shift(k, 4), y(n), kept(n), sums(k, 5), more(sums);
    const Lanes from(c, x), diff(c, dy);
    Array<float> to(m), copy(m);
    const void *a = scale.data, *b = shift.data, *px = x.data, *pdy = dy.data, *lx = from.values.data, *ldy = diff.values.data;
    state().where = text("lanes of %lld, %lld x %lld x %lld", c.lanes, c.outer, c.channels, c.inner);

    mc::broadcast1<mc::ScaleShift>(on, mc::FLOAT, plain, x.data, y.data, kept.data, a, b);
    mc::broadcast1<mc::ScaleShift>(on, mc::FLOAT, c, from.values.data, to.data, copy.data, a, b);
    expect_lanes("scale and shift", c, to, y, tolerance<float>());
    expect_lanes("kept", c, copy, x, 0);
    mc::broadcast2<mc::PreluBackward>(on, mc::FLOAT, plain, x.data, dy.data, y.data, a);
    mc::broadcast2<mc::PreluBackward>(on, mc::FLOAT, c, from.values.data, diff.values.data, to.data, a);
    expect_lanes("prelu backward", c, to, y, tolerance<float>());
    mc::channel_sums_typed<mc::DotTerm>(on, mc::FLOAT, plain, 0.5, true, sums.data, px, pdy);
    mc::channel_sums_typed<mc::DotTerm>(on, mc::FLOAT, c, 0.5, true, more.data, lx, ldy);
    expect("dots", more.data, std::vector<double>(sums.data, sums.data + k), 1e-6 * std::sqrt(double(n / k) + 1));

    for (int rule = 0; rule < 3; ++rule)
      for (bool given : {false, true})
        for (double slope : {1.0, 0.25}) {  // 0.25: with scale, shift and a leaky ReLU behind it
          Array<float> mean(k, 6), variance(k, 7), factor(k), scales(k), shifts(k), dx(n), lane_dx(m), scratch(4 * k);
          Array<float> dscale(k, 8), dshift(k, 9);
          for (size_t i = 0; i < k; ++i) variance[i] = std::abs(variance[i]) + 1;
          Array<float> lane_mean(mean), lane_variance(variance), lane_factor(k), lane_scales(k), lane_shifts(k);
          Array<float> lane_dscale(dscale), lane_dshift(dshift);
          const bool fused = slope != 1;
          const mc::Standardization how{rule, given, 0.01, slope, 0, mean.data, variance.data, factor.data, scales.data, shifts.data,
                                        fused ? a : nullptr, fused ? b : nullptr};
          const mc::Standardization lane_how{rule, given, 0.01, slope, 0, lane_mean.data, lane_variance.data, lane_factor.data,
                                             lane_scales.data, lane_shifts.data, fused ? a : nullptr, fused ? b : nullptr};
          mc::standardize_forward(on, mc::FLOAT, plain, how, x.data, y.data, kept.data);
          mc::standardize_forward(on, mc::FLOAT, c, lane_how, lx, to.data, copy.data);
          expect_lanes("y", c, to, y, 8 * tolerance<float>());
          expect_lanes("x kept", c, copy, x, 0);
          auto same = [&](const char* what, const Array<float>& got, const Array<float>& want, double tolerance) {
            expect(what, got.data, std::vector<double>(want.data, want.data + k), tolerance);
          };
          same("mean", lane_mean, mean, tolerance<float>());
          same("factor", lane_factor, factor, 8 * tolerance<float>());
          mc::standardize_backward(on, mc::FLOAT, plain, how, true, true, x.data, pdy, dx.data,
                                   fused ? dscale.data : nullptr, true, fused ? dshift.data : nullptr, true, scratch.data);
          mc::standardize_backward(on, mc::FLOAT, c, lane_how, true, true, lx, ldy, lane_dx.data,
                                   fused ? lane_dscale.data : nullptr, true, fused ? lane_dshift.data : nullptr, true, scratch.data);
          expect_lanes("dx", c, lane_dx, dx, 40 * tolerance<float>());
          same("gradient of the scale", lane_dscale, dscale, 1e-5 * std::sqrt(double(n / k) + 1));
          same("gradient of the shift", lane_dshift, dshift, 1e-5 * std::sqrt(double(n / k) + 1));
        }
  }
}
