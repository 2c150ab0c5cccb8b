// What the fake cuDNN computes, as a kernel of the simulated device: on the stream that the handle was set to.
#pragma once
#include <dlfcn.h>
#include <deque>
#include <functional>
#include <map>
#include "minicaffe/kernels/grid.hpp"

namespace slow {

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
