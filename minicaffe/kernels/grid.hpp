// Kernels that run on a grid of blocks of threads, on a GPU or, on the host, on the simulated device.
//
// A kernel is a struct K. Its members are the parameters, copied to the device by value. It also defines:
//   static constexpr int kThreads       threads of a block (blocks are one-dimensional, grids have up to three dimensions)
//   static constexpr bool kBarriers     whether threads wait for each other
//   static constexpr int kBlocks        blocks that a multiprocessor should hold at once, which limits registers; may be left out
//   struct Shared                       the block's shared memory; may be empty
//   operator()(const Thread&, Shared&)  what one thread does
// mc::run<K, sizeof(K)> is the entry that NVRTC compiles; the size is compared there, as both compilers must lay K out alike. The
// host compiler makes a HostKernel from the same source, for the simulated device.
#pragma once
#include "minicaffe/kernels/config.hpp"

namespace mc {

#ifdef __CUDACC_RTC__

/// The place of the calling thread in the grid, of a GPU.
struct Thread {
  MC_DEVICE unsigned thread() const { return threadIdx.x; }
  MC_DEVICE unsigned threads() const { return blockDim.x; }
  MC_DEVICE unsigned block() const { return blockIdx.x; }
  MC_DEVICE unsigned block_y() const { return blockIdx.y; }
  MC_DEVICE unsigned block_z() const { return blockIdx.z; }
  MC_DEVICE unsigned blocks() const { return gridDim.x; }
  MC_DEVICE void barrier() const { __syncthreads(); }
  MC_DEVICE index_t index() const { return index_t(blockIdx.x) * blockDim.x + threadIdx.x; }  // of the thread in the grid's x
  MC_DEVICE index_t total() const { return index_t(gridDim.x) * blockDim.x; }
};

#else

/// The place of the calling thread in the grid, on the host, filled in by the simulated device.
/// `wait` returns when all threads of the block have reached it.
struct Thread {
  unsigned thread_x, thread_y, thread_z, threads_x, threads_y, threads_z;
  unsigned block_x, block_y_, block_z_, blocks_x, blocks_y, blocks_z;
  void (*wait)(const Thread*);
  unsigned thread() const { return thread_x; }
  unsigned threads() const { return threads_x; }
  unsigned block() const { return block_x; }
  unsigned block_y() const { return block_y_; }
  unsigned block_z() const { return block_z_; }
  unsigned blocks() const { return blocks_x; }
  void barrier() const { wait(this); }
  index_t index() const { return index_t(block_x) * threads_x + thread_x; }
  index_t total() const { return index_t(blocks_x) * threads_x; }
};

#endif

struct NoShared {};

/// f(i) for 0 <= i < n, where f is a functor over an index, in a grid-stride loop.
template <class F> struct Each {
  static constexpr int kThreads = 256;
  static constexpr bool kBarriers = false;
  using Shared = NoShared;
  F f;
  index_t n;
  MC_DEVICE void operator()(const Thread& t, Shared&) const {
    for (index_t i = t.index(); i < n; i += t.total()) f(i);
  }
};

#ifdef __CUDACC_RTC__

// K::kBlocks, or 1 if K leaves it out: the call blocks_at_once<K>(0) prefers the first.
template <class K> MC_HD constexpr auto blocks_at_once(int) -> decltype(int(K::kBlocks)) { return K::kBlocks; }
template <class K> MC_HD constexpr int blocks_at_once(long) { return 1; }

template <class K, unsigned long long size>
__global__ void __launch_bounds__(K::kThreads, blocks_at_once<K>(0)) run(const K kernel) {
  static_assert(sizeof(K) == size, "the host compiler and NVRTC lay this kernel's parameters out differently");
  __shared__ typename K::Shared shared;
  kernel(Thread(), shared);
}

#else

// ---- what the simulated device gets in place of a cubin

/// A kernel for the simulated device. If `barriers` is true, `call` runs one thread, else all threads of `thread`'s block (it sets
/// thread_x itself). `shared` has shared_size bytes, the same for all threads of a block.
struct HostKernel {
  const char* name;  // by `spelling`; sim/ and cuda/ cut the type out of it
  void (*call)(void** arguments, Thread* thread, void* shared);
  const unsigned* argument_sizes;  // in bytes
  int arguments;                   // their number: 1, the struct K, for kernels here
  unsigned shared_size;
  int max_threads;                 // K::kThreads, of which `launch` makes a block
  int barriers;
  const void* (*const* pointers)();  // of each argument: returns a copy with ones in all pointers, else zeros: where the
                                     // simulated device refuses addresses of the host; null: nowhere
};

/// The simulated device's cubin: the kernels of a module, by name. An argument of its cuModuleLoadData.
struct HostImage {
  char magic[8];  // "MCHOST1"
  const HostKernel* kernels;
  unsigned long long count;
};

inline HostImage image_of(const HostKernel* kernels, unsigned long long count) {
  return {{'M', 'C', 'H', 'O', 'S', 'T', '1', 0}, kernels, count};
}

/// HostKernel::call: run kernel K for one thread, or for all threads of a block one after another if it has no barriers.
/// Compilers optimize a function with the attribute `cold` for size, in less time.
template <class K> __attribute__((cold)) void call_on_host(void** arguments, Thread* thread, void* shared) {
  const K& kernel = *static_cast<const K*>(arguments[0]);
  typename K::Shared& block = *static_cast<typename K::Shared*>(shared);
  if (K::kBarriers) return kernel(*thread, block);
  for (thread->thread_x = 0; thread->thread_x < thread->threads_x; ++thread->thread_x) {
    asm volatile("" : : "r"(thread) : "memory");  // stores thread_x: the fault handler reads it
    kernel(*thread, block);
  }
}

/// Initializes a member: a pointer with ones, another number with zeros. It does not convert to arrays and structs with members, so
/// that the compiler takes a mark for each of those members instead (brace elision).
struct PointerMark {
  template <class T, class = std::enable_if_t<!std::is_aggregate_v<T> || std::is_empty_v<T>>> operator T() const { return T(); }
  template <class T> operator T*() const { return reinterpret_cast<T*>(~0ull); }
};
template <size_t> using MarkOf = PointerMark;
// takes_marks<T>(an index sequence) is true if T can be initialized with as many marks.
template <class T> std::false_type takes_marks(...);
template <class T, size_t... i> auto takes_marks(std::index_sequence<i...>) -> decltype(T{MarkOf<i>()...}, std::true_type());

template <class T, size_t... i> __attribute__((cold)) const void* marked(std::index_sequence<i...>) {
  static const T value = {MarkOf<i>()...};  // static: its padding is zero
  return &value;
}

/// The function in HostKernel::pointers for an argument of type T. T has `low` members or more, nested ones included, and less than
/// `high` (an empty base class takes a mark and no byte); bisection finds their number. In a class with a constructor or private
/// members no pointer is found.
template <class T, size_t low = 0, size_t high = std::is_class_v<T> && !std::is_aggregate_v<T> ? 1 : 2 * sizeof(T) + 1>
const void* pointers_in() {
  constexpr size_t middle = (low + high) / 2;
  if constexpr (middle == low) return marked<T>(std::make_index_sequence<low>());
  else if constexpr (decltype(takes_marks<T>(std::make_index_sequence<middle>()))::value) return pointers_in<T, middle, high>();
  else return pointers_in<T, low, middle>();
}

/// The string "... [with K = mc::Some<float>]": GCC's and Clang's spelling of a type, which NVRTC can parse.
template <class K> constexpr const char* spelling() { return __PRETTY_FUNCTION__; }

/// The description of kernel K by which a launch finds its name, sizes and, on the simulated device, its code.
template <class K> constexpr unsigned kArgumentSize = sizeof(K);
template <class K> constexpr const void* (*kArgumentPointers)() = pointers_in<K>;
template <class K> constexpr HostKernel kHostKernel = {
    spelling<K>(), call_on_host<K>, &kArgumentSize<K>, 1, unsigned(sizeof(typename K::Shared)), K::kThreads, K::kBarriers,
    &kArgumentPointers<K>};

#endif

}  // namespace mc
