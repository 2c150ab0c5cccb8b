#include "device.hpp"
#include "minicaffe/ops/softmax/kernel.hpp"
#include "minicaffe/ops/softmax/plain.hpp"

using namespace test;

CASE(softmax) {
  for_both_types([](auto type) {
    using T = decltype(type);
    for (Shape s : {Shape{1, 1, 1}, {5, 10, 1}, {3, 32, 1}, {3, 33, 1}, {4, 256, 1}, {2, 1000, 1}, {3, 21, 35}, {2, 1, 300},
                    {2, 300, 3}, {1, 40, 2100}, {0, 3, 4}, {4, 0, 3}, {4, 3, 0}}) {
      size_t n = size_t(s.count());
      Array<T> x(n, 1), dy(n, 2);
      if (s.channels > 20) x[5] = -std::numeric_limits<T>::infinity();
      for (size_t i = 0; i < n / 2; ++i) x[i] -= T(900);  // whose exponentials vanish unless the largest is subtracted first
      std::vector<double> y(n), dx(n);
      const mc::Channels shape{s.outer, s.channels, s.inner};
      mc::plain::softmax_forward(shape, {x.data, dtype<T>()}, {y.data(), mc::DOUBLE});
      mc::plain::softmax_backward(shape, {y.data(), mc::DOUBLE}, {dy.data, dtype<T>()}, {dx.data(), mc::DOUBLE});
      on_both(name_of("softmax", s, sizeof(T)), [&](const mc::Context& on) {
        Array<T> top(n), bottom_diff(n), place(x);
        mc::softmax_forward<T>(on, s.outer, s.channels, s.inner, x.data, top.data);
        expect("forward", top.data, y, tolerance<T>());
        mc::softmax_backward<T>(on, s.outer, s.channels, s.inner, top.data, dy.data, bottom_diff.data);
        expect("backward", bottom_diff.data, dx, tolerance<T>());
        mc::softmax_forward<T>(on, s.outer, s.channels, s.inner, place.data, place.data);
        expect("in place", place.data, y, tolerance<T>());
      });
    }
    for (size_t channels : {3, 100}) {
      Array<T> x(channels);
      std::vector<double> nothing(channels, NAN);
      on_both(text("%zu values", channels), [&](const mc::Context& on) {
        Array<T> y(channels, 1);
        std::fill(x.data, x.data + channels, -std::numeric_limits<T>::infinity());
        mc::softmax_forward<T>(on, 1, index_t(channels), 1, x.data, y.data);
        expect("of -inf", y.data, nothing, 0);
        std::fill(x.data, x.data + channels, T(1));
        x[channels - 1] = T(NAN);
        mc::softmax_forward<T>(on, 1, index_t(channels), 1, x.data, y.data);
        expect("with a NaN", y.data, nothing, 0);
      });
    }
  });
}
