// Kernels of the tests, written against minicaffe/kernels/grid.hpp: right ones and ones with a planted fault.
#include <cstdint>

#include "minicaffe/kernels/grid.hpp"

namespace test {

template <int threads, bool barriers = false> struct Kernel {
  static constexpr int kThreads = threads;
  static constexpr bool kBarriers = barriers;
  using Shared = mc::NoShared;
};

struct Scale {  // y = a x
  float a;
  const float* x;
  float* y;
  MC_DEVICE void operator()(mc::index_t i) const { y[i] = a * x[i]; }
};

struct WriteAt : Kernel<64> {  // block 1, thread 5 writes
  float* p;
  long long index;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    if (t.block() == 1 && t.thread() == 5) p[index] = 7;
  }
};

struct ReadAt : Kernel<64> {
  const volatile float* p;
  long long index;
  float* out;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    if (t.index() == 0) *out = p[index];
  }
};

struct Reverse : Kernel<256, true> {  // each block reverses its part
  struct Shared { float part[256]; };
  float* p;
  MC_DEVICE void operator()(const mc::Thread& t, Shared& s) const {
    s.part[t.thread()] = p[t.index()];
    t.barrier();
    p[t.index()] = s.part[t.threads() - 1 - t.thread()];
  }
};

struct Sum : Kernel<256, true> {  // tree with many barriers: out[block] = the sum of the block's part
  struct Shared { float part[256]; };
  const float* p;
  float* out;
  MC_DEVICE void operator()(const mc::Thread& t, Shared& s) const {
    s.part[t.thread()] = p[t.index()];
    for (unsigned half = t.threads() / 2; half; half /= 2) {
      t.barrier();
      if (t.thread() < half) s.part[t.thread()] += s.part[t.thread() + half];
    }
    if (t.thread() == 0) out[t.block()] = s.part[0];
  }
};

struct HalfBarrier : Kernel<256, true> {  // threads from `first` on come to the barrier
  unsigned first, rounds;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    for (unsigned i = 0; i < rounds; ++i) t.barrier();
    if (t.thread() >= first) t.barrier();
  }
};

struct FiberWrite : Kernel<256, true> {  // after a barrier, thread 9 of block 2 writes
  float* p;
  long long index;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    t.barrier();
    if (t.block() == 2 && t.thread() == 9) p[index] = 1;
  }
};

struct SharedOut : Kernel<1> {  // copies shared memory, to which nothing was written, and then writes to it
  struct Shared { uint32_t word[16]; };
  uint32_t* out;
  MC_DEVICE void operator()(const mc::Thread& t, Shared& s) const {
    for (int i = 0; i < 16; ++i) out[t.block() * 16 + i] = s.word[i];
    for (int i = 0; i < 16; ++i) s.word[i] = 5;
  }
};

struct SharedOverrun : Kernel<1> {
  struct Shared { uint32_t word[16]; };
  unsigned index;
  MC_DEVICE void operator()(const mc::Thread&, Shared& s) const { ((volatile uint32_t*)s.word)[index] = 5; }
};

int deep(volatile char* above, int left) {
  volatile char here[1024];
  here[0] = char(left);
  return left ? deep(here, left - 1) + here[0] + above[0] : 0;
}

struct StackHog : Kernel<2, true> {
  int depth;
  int* out;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    volatile char start[8] = {};
    t.barrier();
    int n = deep(start, depth);
    if (t.thread() == 0) *out = n;
  }
};

struct Position : Kernel<1024> {  // for grids and blocks of three dimensions
  int* out;
  MC_DEVICE void operator()(const mc::Thread& t, Shared&) const {
    unsigned block = t.block_x + t.blocks_x * (t.block_y() + t.blocks_y * t.block_z());
    unsigned thread = t.thread_x + t.threads_x * (t.thread_y + t.threads_y * t.thread_z);
    out[block * t.threads_x * t.threads_y * t.threads_z + thread] += int(1 + block * 1000 + thread);
  }
};

struct Divide {
  int by;
  int* out;
  MC_DEVICE void operator()(mc::index_t i) const { out[i] = 7 / by; }
};

struct TooMuchShared : Kernel<1> {
  struct Shared { char bytes[49 << 10]; };
  int n;
  MC_DEVICE void operator()(const mc::Thread&, Shared&) const {}
};

template <class K> mc::HostKernel named(const char* name) {
  mc::HostKernel kernel = mc::kHostKernel<K>;
  kernel.name = name;
  return kernel;
}

const mc::HostKernel kKernels[] = {
    named<mc::Each<Scale>>("scale"), named<WriteAt>("write_at"), named<ReadAt>("read_at"), named<Reverse>("reverse"),
    named<Sum>("sum"), named<HalfBarrier>("half_barrier"), named<FiberWrite>("fiber_write"), named<SharedOut>("shared_out"),
    named<SharedOverrun>("shared_overrun"), named<StackHog>("stack_hog"), named<Position>("position"),
    named<TooMuchShared>("too_much_shared"), named<mc::Each<Divide>>("divide"), mc::kHostKernel<mc::Each<Scale>>};

}  // namespace test

extern "C" const mc::HostImage image = {
    {'M', 'C', 'H', 'O', 'S', 'T', '1'}, test::kKernels, sizeof test::kKernels / sizeof *test::kKernels};
