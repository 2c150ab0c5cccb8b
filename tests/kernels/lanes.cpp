#include "device.hpp"
#include "minicaffe/ops/batch_norm/caffe.hpp"

using namespace test;

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
