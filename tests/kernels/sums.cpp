#include "device.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

using namespace test;

CASE(sums) {
  for_both_types([](auto type) {
    using T = decltype(type);
    for (index_t n : {0, 1, 2, 15, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 100003}) {
      Array<T> x(size_t(n), 1), y(size_t(n), 2);
      double sum = 0, asum = 0, sumsq = 0, dot = 0;
      for (index_t i = 0; i < n; ++i)
        sum += x[i], asum += std::abs(x[i]), sumsq += double(x[i]) * x[i], dot += double(x[i]) * y[i];
      on_both(text("%lld values of %zu bytes", n, sizeof(T)), [&](const mc::Context& on) {
        Array<T> out(1);
        Array<double> wide(1);
        mc::sum_to(on, n, mc::SumTerm<T>{x.data}, 1.0, false, out.data);
        expect("sum", out.data, {sum}, 1e-6 * std::sqrt(n + 1));
        mc::sum_to(on, n, mc::AbsTerm<T>{x.data}, 1.0, false, wide.data);
        expect("asum", wide.data, {asum}, tolerance<T>());
        mc::sum_to(on, n, mc::SquareTerm<T>{x.data}, 1.0, false, out.data);
        expect("sumsq", out.data, {sumsq}, tolerance<T>());
        mc::sum_to(on, n, mc::DotTerm<T>{x.data, y.data}, 1.0, false, wide.data);
        expect("dot", wide.data, {dot}, 1e-6 * std::sqrt(n + 1));
        out[0] = 3;
        mc::sum_to(on, n, mc::AbsTerm<T>{x.data}, 0.5, true, out.data);
        expect("3 + asum / 2", out.data, {3 + asum / 2}, tolerance<T>());
      });
    }
  });
}

CASE(channel_sums) {
  for_both_types([](auto type) {
    using T = decltype(type);
    for (Shape s : {Shape{1, 1, 1}, {3, 5, 7}, {2, 1, 9}, {4, 33, 1}, {64, 500, 1}, {1000, 40, 1}, {20000, 3, 1}, {9000, 1, 1},
                    {50, 2, 1000}, {1, 7, 100}, {3, 300, 2}, {0, 5, 3}, {3, 5, 0}, {3, 0, 5}, {0, 5, 1}, {2, 3, 5000},
                    {300, 2, 255}, {300, 2, 257}, {1, 5000, 3}, {2, 4097, 1}, {3000, 4, 1}, {3000, 8, 1}, {2000, 257, 1}, {1, 5, 1}}) {
      Array<T> x(size_t(s.count()), 1), dy(size_t(s.count()), 2), old(size_t(s.channels), 3);
      std::vector<double> plain(size_t(s.channels)), more(size_t(s.channels));
      for (index_t i = 0; i < s.count(); ++i) {
        index_t k = i / s.inner % s.channels;
        plain[k] += double(x[i]) * dy[i];
      }
      for (index_t k = 0; k < s.channels; ++k) more[k] = old[k] + 0.25 * plain[k];
      on_both(name_of("channel sums", s, sizeof(T)), [&](const mc::Context& on) {
        Array<T> out(size_t(s.channels));
        const void *a = x.data, *b = dy.data;
        mc::channel_sums_typed<mc::DotTerm>(on, dtype<T>(), {s.outer, s.channels, s.inner}, 1.0, false, out.data, a, b);
        expect("sum", out.data, plain, 4 * tolerance<T>());
        std::copy(old.data, old.data + old.count, out.data);
        mc::channel_sums_typed<mc::DotTerm>(on, dtype<T>(), {s.outer, s.channels, s.inner}, 0.25, true, out.data, a, b);
        expect("old + sum / 4", out.data, more, 4 * tolerance<T>());
      });
    }
  });
}
