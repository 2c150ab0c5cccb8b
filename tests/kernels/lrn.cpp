#include "device.hpp"
#include "minicaffe/ops/lrn/caffe.hpp"
#include "minicaffe/ops/lrn/plain.hpp"

using namespace test;

CASE(lrn) {
  struct Size {
    index_t groups, rows, width, half_rows, half_columns;
  };
  for_both_types([](auto type) {
    using T = decltype(type);
    for (Size z : {Size{1, 1, 1, 0, 0}, {2, 7, 30, 2, 0}, {3, 20, 9, 1, 0}, {1, 3, 2000, 5, 0}, {2, 9, 11, 1, 1}, {3, 5, 7, 3, 3},
                   {1, 17, 5, 0, 0}, {0, 3, 4, 1, 0}, {2, 3, 0, 1, 0}})
      for (double beta : {0.75, 0.4}) {
        mc::LrnShape s{{z.rows, z.width, z.half_rows, z.half_columns}, z.groups, z.half_columns ? z.width : 1024, 1.5, 0.3, beta};
        size_t n = size_t(z.groups * z.rows * z.width);
        Array<T> x(n, 1), dy(n, 2);
        std::vector<double> y(n), dx(n);
        mc::plain::lrn_forward(s, {x.data, dtype<T>()}, {y.data(), mc::DOUBLE});
        mc::plain::lrn_backward(s, {x.data, dtype<T>()}, {dy.data, dtype<T>()}, {dx.data(), mc::DOUBLE});
        auto name = text("lrn [%lld, %lld, %lld] window %lld %lld beta %g of %zu bytes", z.groups, z.rows, z.width, z.half_rows,
                         z.half_columns, beta, sizeof(T));
        on_both(name, [&](const mc::Context& on) {
          Array<T> top(n), scales(n), bottom_diff(n), scratch(size_t(2 * s.rows * s.block));
          mc::lrn_forward(on, dtype<T>(), s, x.data, top.data, scales.data);
          expect("forward", top.data, y, tolerance<T>());
          mc::lrn_backward(on, dtype<T>(), s, x.data, top.data, scales.data, dy.data, bottom_diff.data, scratch.data);
          expect("backward", bottom_diff.data, dx, tolerance<T>());
        });
      }
  });
}
