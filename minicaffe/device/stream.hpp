// Launching kernels (kernels/grid.hpp) on a stream of a device, from any module and without the driver's headers.
//
// The first launch of a kernel on a device compiles it (Stream::load, which acquires the GIL); every further one is a table lookup
// and one driver call. A failure is stored in the stream, prevents all further launches on it, and is raised by Stream::raise.
#pragma once
#include <algorithm>
#include "minicaffe/kernels/grid.hpp"

namespace mc {
namespace cuda {

struct Libraries;  // cuda/libraries.hpp

constexpr int kMaxDevices = 16;

/// A kernel K of this module: `launch` has one, a static variable, for each K.
struct Kernel {
  const HostKernel* host;        // its name, its sizes, and its code for the simulated device
  void* functions[kMaxDevices];  // CUfunction by device number; null: not loaded there yet
};

/// A stream of a device, and what a launch needs from cuda/, as plain data and functions: filled by cuda/device.pyx.
struct Stream {
  void* handle;         // CUstream
  int device;
  int multiprocessors;
  int capability;       // the compute capability times 10: 90 is 9.0
  int failed;           // 1 after a failure that was not raised yet
  int recording;        // every kernel is launched by watch()
  long long launches;   // so far
  double* scratch;      // kScratch values on the device, for sums in two launches
  void* workspace;      // of cuBLAS
  long long workspace_bytes;
  const double* rate;   // during graph capture: address of the learning rate on the device; else null
  const unsigned long long* drawn;  // likewise: address of an offset added to the start of every stream of random numbers
  Libraries* libraries; // null: our own kernels only
  void* (*load)(Stream*, Kernel*);  // compiles and loads a kernel for the stream's device; null, and `failed`, if that fails
  int (*start)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
               unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void** extra);  // cuLaunchKernel
  void (*fail)(Stream*, int code, Kernel*, unsigned blocks, unsigned threads);  // stores the error of a launch; sets `failed`
  // As `start`, then waits for the kernel and reports its time and its arrays.
  int (*watch)(Stream*, Kernel*, void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads,
               void** arguments);
  int (*raise)(Stream*);     // raises the stored error in Python, returns -1 and clears `failed`; needs the GIL
  int (*activate)(Stream*);  // makes the device's context current in the calling thread; -1, and `failed`, if that fails
  int (*dry)();       // cpu::Pool's: whether launches are skipped; null: never
};

// Partial sums of two numbers for each channel: 1024 blocks of 128 channels (loops/sums/caffe.hpp). 2 MiB.
constexpr int kScratch = 1 << 18;

/// Queue a kernel with the parameters k; not a template, as there are hundreds of kernels. After a failure it does nothing.
__attribute__((noinline)) inline void launch(Stream& stream, Kernel& kernel, const void* k, unsigned grid_x, unsigned grid_y,
                                             unsigned grid_z) {
  const unsigned threads = kernel.host->max_threads;
  if (stream.failed || !grid_x || !grid_y || !grid_z || (stream.dry && stream.dry())) return;
  void* function = kernel.functions[stream.device];
  if (!function && !(function = stream.load(&stream, &kernel))) return;
  void* arguments[] = {const_cast<void*>(k)};
  int code = stream.recording
      ? stream.watch(&stream, &kernel, function, grid_x, grid_y, grid_z, threads, arguments)
      : stream.start(function, grid_x, grid_y, grid_z, threads, 1, 1, 0, stream.handle, arguments, nullptr);
  ++stream.launches;
  if (code) stream.fail(&stream, code, &kernel, grid_x * grid_y * grid_z, threads);
}

/// Run kernel k on grid_x x grid_y x grid_z blocks of K::kThreads threads.
template <class K> void launch(Stream& stream, const K& k, unsigned grid_x, unsigned grid_y = 1, unsigned grid_z = 1) {
  static Kernel kernel = {&kHostKernel<K>, {}};
  launch(stream, kernel, &k, grid_x, grid_y, grid_z);
}

/// Number of blocks of `threads` for n items, at most what fills every multiprocessor 4 times; the kernel needs a grid-stride loop.
inline unsigned blocks_for(const Stream& stream, index_t n, int threads) {
  index_t wanted = (n + threads - 1) / threads, most = index_t(stream.multiprocessors) * (2048 / threads) * 4;
  return unsigned(std::min(wanted, most));
}

/// f(i) for 0 <= i < n, where f is a functor over an index that NVRTC can compile.
template <class F> void for_each(Stream& stream, index_t n, const F& f) {
  launch(stream, Each<F>{f, n}, blocks_for(stream, n, Each<F>::kThreads));
}

}  // namespace cuda
}  // namespace mc
