#include "device.hpp"
#include "minicaffe/ops/lrn/caffe.hpp"

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
        std::vector<double> scale(n), y(n), dx(n);
        auto window = [&](index_t i, auto term) {
          index_t g = i / (z.rows * z.width), row = i / z.width % z.rows, column = i % z.width;
          double sum = 0;
          for (index_t r = row - z.half_rows; r <= row + z.half_rows; ++r)
            for (index_t c = column - z.half_columns; c <= column + z.half_columns; ++c)
              if (r >= 0 && r < z.rows && c >= 0 && c < z.width) sum += term(size_t((g * z.rows + r) * z.width + c));
          return sum;
        };
        for (size_t i = 0; i < n; ++i) {
          scale[i] = s.k + s.alpha * window(index_t(i), [&](size_t j) { return double(x[j]) * x[j]; });
          y[i] = x[i] * std::pow(scale[i], -beta);
        }
        for (size_t i = 0; i < n; ++i)
          dx[i] = dy[i] * std::pow(scale[i], -beta) -
                  2 * s.alpha * beta * x[i] * window(index_t(i), [&](size_t j) { return dy[j] * y[j] / scale[j]; });
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
