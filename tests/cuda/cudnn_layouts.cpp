// Convolutions by cuDNN (minicaffe/ops/conv/cudnn.hpp) without Python: arrays in NHWC, and at addresses that only their elements are
// aligned to, give what those in NCHW give. The argument is the library, in which FAKE_HOST is set: arrays are in the host's memory.
#include <dlfcn.h>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include "minicaffe/ops/conv/cudnn.hpp"

using namespace mc;
using namespace mc::cuda;

int products = 0;

void check(bool holds, const char* text) {
  if (holds) return;
  std::printf("%s\n", text);
  std::exit(1);
}

/// [first][channels][pixels] as it lies in `layout`, `shift` elements behind an aligned address.
template <class T> struct Array {
  index_t first, channels, pixels;
  int layout;
  std::vector<T> memory;
  T* at;

  Array(std::vector<double> values, index_t first, index_t channels, index_t pixels, int layout, int shift)
      : first(first), channels(channels), pixels(pixels), layout(layout), memory(values.size() + 32) {
    at = memory.data() + (16 - size_t(memory.data()) % 16) % 16 / sizeof(T) + shift;
    for (size_t i = 0; i < values.size(); ++i) at[place(index_t(i))] = T(values[i]);
  }
  index_t place(index_t i) const {
    const index_t n = i / (channels * pixels), c = i / pixels % channels, p = i % pixels;
    return layout == kNhwc ? (n * pixels + p) * channels + c : i;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (index_t i = 0; i < first * channels * pixels; ++i) all.push_back(at[place(i)]);
    return all;
  }
};

template <class T> void compare(const Context& on, const ConvShape& s, int dtype) {
  std::mt19937 random(7);
  auto numbers = [&](index_t n) {
    std::vector<double> values;
    for (index_t i = 0; i < n; ++i) values.push_back(double(random() % 1000) / 500 - 1);
    return values;
  };
  const auto image = numbers(s.images * s.channels * s.pixels), weights = numbers(s.outputs * s.k),
             columns = numbers(s.images * s.outputs * s.positions), bias = numbers(s.outputs);
  for (int product = 0; product < 3; ++product) {
    std::vector<double> expected;
    for (int way = 0; way < 3; ++way) {  // plain, in NHWC, not aligned
      const int layout = way == 1 ? kNhwc : kNchw, shift = way == 2;
      Array<T> x(image, s.images, s.channels, s.pixels, layout, shift), w(weights, s.outputs, s.group_channels, s.taps, layout, shift),
          y(columns, s.images, s.outputs, s.positions, layout, shift), b(bias, 1, s.outputs, 1, layout, shift);
      const CudnnArguments what(product, dtype, layout, x.at, w.at, y.at, product == kForward ? b.at : nullptr, true);
      int plan = -1;
      index_t bytes = 0;
      CudnnPlans* plans = cudnn_plans(on, s, what, &plan, &bytes);
      check(plans && plan < 0, "no plans, or chosen ones");
      plan = cudnn_choose(on, *plans, -1, &bytes);
      std::vector<double> memory(size_t(bytes) / 8 + 2);
      void* aligned = reinterpret_cast<char*>(memory.data()) + size_t(memory.data()) % 16;
      check(cudnn_run(on, s, what, *plans, plan, aligned).empty(), "a plan failed");
      const auto found = product == kForward ? y.values() : product == kBackwardData ? x.values() : w.values();
      if (!way) expected = found;
      check(found != (product == kForward ? columns : product == kBackwardData ? image : weights), "nothing was computed");
      for (size_t i = 0; i < found.size(); ++i) check(std::abs(found[i] - expected[i]) < 1e-6, "another result");
      products += way > 0;
    }
  }
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  check(library, "no library");
  Cudnn cudnn = {};
  void** calls = reinterpret_cast<void**>(&cudnn.call);
  for (int i = 0; i < kCudnnCalls; ++i) calls[i] = dlsym(library, kCudnnNames[i]);
  cudnn.call.cudnnCreate(&cudnn.handle);
  cudnn.workspace_limit = 1 << 20, cudnn.place = "the host";
  cudnn.fail = [](Stream*, const char* call, int) { check(false, call); };
  cudnn.status_name = [](int) { return "a status"; };
  Libraries libraries = {};
  libraries.cudnn = &cudnn;
  Stream stream = {};
  stream.libraries = &libraries;
  Context on = {};
  on.stream = &stream;
  ConvShape s;
  s.set(2, 4, 6, 2, {2, {5, 6}, {3, 2}, {2, 1}, {1, 0}, {1, 2}, {3, 4}});
  compare<float>(on, s, FLOAT);
  compare<double>(on, s, DOUBLE);
  s.set(1, 3, 2, 1, {3, {4, 3, 5}, {2, 1, 3}, {1, 1, 2}, {0, 0, 1}, {1, 1, 1}, {3, 3, 3}});
  compare<float>(on, s, FLOAT);
  compare<double>(on, s, DOUBLE);
  std::printf("%d products\n", products);
}
