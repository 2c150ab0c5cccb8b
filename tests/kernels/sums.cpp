#include "device.hpp"
#include "minicaffe/loops/sums/caffe.hpp"

using namespace test;

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
