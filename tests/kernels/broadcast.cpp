#include "device.hpp"
#include "minicaffe/loops/sums/caffe.hpp"
#include "minicaffe/ops/broadcast/caffe.hpp"

using namespace test;

CASE(broadcast) {
  for_both_types([](auto type) {
    using T = decltype(type);
    for (Shape s : {Shape{1, 1, 1}, {3, 5, 7}, {2, 1, 9}, {4, 33, 1}, {64, 100, 1}, {2, 3, 4000}, {1, 7, 100}, {3, 64, 4},
                    {0, 5, 3}, {3, 5, 0}, {4, 16, 16}, {70000, 4, 1}, {3, 70000, 1}, {2, 65540, 1}}) {
      size_t n = size_t(s.count());
      Array<T> x(n, 1), dy(n, 2), scale(size_t(s.channels), 3), shift(size_t(s.channels), 4);
      std::vector<double> affine(n), prelu(n);
      for (size_t i = 0; i < n; ++i) {
        index_t k = index_t(i) / s.inner % s.channels;
        affine[i] = double(x[i]) * scale[k] + shift[k];
        prelu[i] = dy[i] * (x[i] > 0 ? 1.0 : double(scale[k]));
      }
      std::vector<double> before(x.data, x.data + n);
      on_both(name_of("broadcast", s, sizeof(T)), [&](const mc::Context& on) {
        Array<T> y(n), kept(n), place(x);
        const void *a = scale.data, *b = shift.data;
        mc::broadcast1<mc::ScaleShift>(on, dtype<T>(), {s.outer, s.channels, s.inner}, x.data, y.data, nullptr, a, b);
        expect("scale and shift", y.data, affine, tolerance<T>());
        mc::broadcast1<mc::ScaleShift>(on, dtype<T>(), {s.outer, s.channels, s.inner}, place.data, place.data, kept.data, a, b);
        expect("in place", place.data, affine, tolerance<T>());
        expect("kept", kept.data, before, 0);
        mc::broadcast2<mc::PreluBackward>(on, dtype<T>(), {s.outer, s.channels, s.inner}, x.data, dy.data, y.data, a);
        expect("prelu backward", y.data, prelu, tolerance<T>());
      });
    }
  });
}

CASE(channel_index) {
  state().where = "channel index";
  for (Shape s : {Shape{1, 1, 1}, {7, 3, 11}, {1 << 15, 1 << 10, 63}, {1 << 20, 3, 1 << 12}, {1, 1ll << 33, 1},
                  {5, 2, 1ll << 31}}) {
    mc::ChannelIndex index = mc::channel_index(s.outer, s.channels, s.inner);
    for (index_t step = 0; step < 1000; ++step) {
      index_t i = s.count() / 1000 * step + step % std::max<index_t>(1, s.count() / 1000);
      if (i >= s.count()) break;
      ++state().checks;
      if (index(i) != i / s.inner % s.channels) return fail("%lld of %lld, %lld", i, s.channels, s.inner);
    }
  }
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
