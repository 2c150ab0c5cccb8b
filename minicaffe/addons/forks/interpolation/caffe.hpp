// Bilinear interpolation on a device (kernel.hpp); the CPU multiplies by matrices (addons/forks/resizing.py).
#pragma once
#include "minicaffe/device/typed.hpp"
#include "minicaffe/addons/forks/interpolation/kernel.hpp"

namespace mc {

/// y from x, or with `back` the gradient of x, `to`, from that of y: `images` of [height, width, channels]. The tables have the
/// type that is computed in.
inline void bilinear(const Context& on, int dtype, bool back, const ResizeShape& s, index_t images, const void* rows,
                     const void* columns, const void* from, void* to) {
  dispatch_layout(dtype, [&](auto type) {
    using X = decltype(type);
    using T = typename Element<X>::Compute;
    auto run = [&](auto pack) {
      constexpr int kPack = decltype(pack)::value;
      const index_t pixels = back ? s.height * s.width : s.top_height * s.top_width, n = images * pixels * (s.channels / kPack);
      auto launch = [&](auto back) {
        cuda::for_each(*on.stream, n,
                       Bilinear<X, kPack, back>{s, static_cast<const T*>(rows), static_cast<const T*>(columns),
                                                static_cast<const X*>(from), static_cast<X*>(to)});
      };
      back ? launch(std::true_type()) : launch(std::false_type());
    };
    if (s.channels % Pack<X>::kSize)
      run(std::integral_constant<int, 1>());
    else
      run(std::integral_constant<int, Pack<X>::kSize>());
  });
}

}  // namespace mc
