// What cuDNN's book says that its calls compute, in double arithmetic on the host: sums over all indices, nothing clever.
//
// The fake library (fake_cudnn.cpp) uses it where FAKE_COMPUTES is set, in kernels of the simulated device: in order with the stream, in
// CUDA graphs too, and under that device's checks. So a wrong pointer, shape or factor shows as a wrong result or a fault.
#pragma once
#include <dlfcn.h>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <vector>
#include "minicaffe/kernels/grid.hpp"

namespace slow {

using Shape = std::vector<int>;
using Values = std::vector<double>;

inline size_t count(const Shape& shape) {
  size_t n = 1;
  for (int size : shape) n *= size;
  return n;
}

/// Dense memory of a device: read whole, written whole.
struct Tensor {
  Shape shape;
  int type;  // 0 float, 1 double, 9 bfloat16, as cudnnDataType_t

  Values read(const void* p) const {
    Values values(count(shape));
    for (size_t i = 0; i < values.size(); ++i) values[i] = get(static_cast<const char*>(p) + i * size());
    return values;
  }
  void write(void* p, const Values& values) const {
    for (size_t i = 0; i < values.size(); ++i) put(static_cast<char*>(p) + i * size(), values[i]);
  }
  size_t size() const { return type == 1 ? 8 : type == 9 ? 2 : 4; }
  double get(const char* from) const {
    if (type == 1) return *reinterpret_cast<const double*>(from);
    unsigned bits = type == 9 ? unsigned(*reinterpret_cast<const unsigned short*>(from)) << 16 : *reinterpret_cast<const unsigned*>(from);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void put(char* to, double x) const {
    if (type == 1) return void(std::memcpy(to, &x, 8));
    float value = float(x);
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    if (type == 9) {  // to the nearest, of two as near to the even one
      bits = value != value ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
      std::memcpy(to, &bits, 2);
    } else {
      std::memcpy(to, &bits, 4);
    }
  }
  /// memory = alpha values + beta memory
  void blend(void* p, double alpha, Values values, double beta) const {
    Values old = beta ? read(p) : Values(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = alpha * values[i] + (beta ? beta * old[i] : 0);
    write(p, values);
  }
};

/// visit(image index, weight index, column index) for all that a convolution multiplies.
template <class Visit>
void convolve(const Shape& image, const Shape& weights, const Shape& columns, const Shape& pad, const Shape& stride,
                     const Shape& dilation, int groups, const Visit& visit) {
  const int axes = int(pad.size());
  const Shape in(image.begin() + 2, image.end()), taps(weights.begin() + 2, weights.end()), out(columns.begin() + 2, columns.end());
  const int outputs = weights[0], inputs = weights[1];
  if (image[1] != inputs * groups || columns[1] != outputs) throw std::runtime_error("channels do not fit the groups");
  for (int n = 0; n < image[0]; ++n)
    for (int o = 0; o < outputs; ++o)
      for (int c = 0; c < inputs; ++c)
        for (size_t position = 0; position < count(out); ++position)
          for (size_t tap = 0; tap < count(taps); ++tap) {
            size_t p = position, t = tap, pixel = 0, step = 1;
            bool inside = true;
            for (int a = axes - 1; a >= 0; --a) {
              int at = int(p % out[a]) * stride[a] - pad[a] + int(t % taps[a]) * dilation[a];
              inside = inside && at >= 0 && at < in[a];
              pixel += at * step, step *= in[a], p /= out[a], t /= taps[a];
            }
            int channel = o / (outputs / groups) * inputs + c;
            if (inside)
              visit((size_t(n) * image[1] + channel) * count(in) + pixel, (size_t(o) * inputs + c) * count(taps) + tap,
                    (size_t(n) * outputs + o) * count(out) + position);
          }
}

/// visit(indices of all channels at one place) for every image and pixel.
inline void each_place(const Shape& shape, const std::function<void(const std::vector<size_t>&)>& visit) {
  const size_t inner = count(shape) / shape[0] / shape[1];
  for (int n = 0; n < shape[0]; ++n)
    for (size_t pixel = 0; pixel < inner; ++pixel) {
      std::vector<size_t> indices;
      for (int c = 0; c < shape[1]; ++c) indices.push_back((size_t(n) * shape[1] + c) * inner + pixel);
      visit(indices);
    }
}

/// k + alpha / n * the sum of squares around channel c.
inline double lrn_scale(const Values& x, const std::vector<size_t>& place, int c, int n, double alpha, double k) {
  double sum = 0;
  for (int j = std::max(0, c - n / 2); j <= std::min(int(place.size()) - 1, c + n / 2); ++j) sum += x[place[j]] * x[place[j]];
  return k + alpha / n * sum;
}

inline void* stream = nullptr;
inline std::deque<std::function<void()>> jobs;  // a graph runs one again and again, so all are kept

inline void run_job(void** arguments, mc::Thread*, void*) { jobs[size_t(*static_cast<int*>(arguments[0]))](); }

template <class... A> int driver(const char* name, A... arguments) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto function = reinterpret_cast<int (*)(A...)>(dlsym(library, name));
  return function ? function(arguments...) : -1;
}

/// Whether a module may be loaded now: the stream is not captured, or this thread's mode is CU_STREAM_CAPTURE_MODE_RELAXED.
inline bool may_load() {
  int status = 0, mode = 2;
  if (!stream || driver("cuStreamIsCapturing", stream, &status) || !status) return true;
  driver("cuThreadExchangeStreamCaptureMode", &mode);
  const bool relaxed = mode == 2;
  driver("cuThreadExchangeStreamCaptureMode", &mode);
  return relaxed;
}

/// Put `work` on the stream; return the driver's code.
inline int launch(std::function<void()> work) {
  static const unsigned sizes[] = {sizeof(int), 0};
  static const mc::HostKernel kernel = {"slow_cudnn", run_job, sizes, 1, 0, 1, 0, nullptr};
  static const mc::HostImage image = mc::image_of(&kernel, 1);
  static std::map<void*, void*> functions;  // of each context
  void *context = nullptr, *module = nullptr;
  if (int code = driver("cuStreamGetCtx", stream, &context)) return code;
  void*& function = functions[context];
  if (!function) {
    int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: a module may be loaded during a graph capture
    driver("cuThreadExchangeStreamCaptureMode", &mode);
    int code = driver("cuModuleLoadData", &module, static_cast<const void*>(&image));
    driver("cuThreadExchangeStreamCaptureMode", &mode);
    if (code) return code;
    if (int code = driver("cuModuleGetFunction", &function, module, kernel.name)) return code;
  }
  jobs.push_back(std::move(work));
  int number = int(jobs.size()) - 1;
  void* arguments[] = {&number};
  return driver("cuLaunchKernel", function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, static_cast<void**>(arguments), static_cast<void**>(nullptr));
}

}  // namespace slow
