// A device for tests: kernels run on the host, the threads of a block as fibers, in an order that can be turned round, so that
// a missing barrier shows. Memory ends (or begins) at a page that faults.
//
// Every case runs on the CPU and on this device; what is expected comes from loops as naive as possible, in double.
#pragma once
#undef _FORTIFY_SOURCE  // its longjmp refuses to go from one stack to another; Ubuntu's and Fedora's compilers define it
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include "minicaffe/device/pool.hpp"
#include "minicaffe/device/context.hpp"

namespace test {

using mc::index_t;

// ---- failures

struct State {
  int failures = 0, checks = 0;
  bool backwards = false;   // fibers run from the last to the first
  bool flush_left = false;  // memory begins at a page that faults, else it ends there
  std::string where;
  std::map<std::string, const mc::HostKernel*> kernels;  // all that ran
};
inline State& state() {
  static State s;
  return s;
}

inline void fail(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (++state().failures <= 40) std::printf("FAIL %s: %s\n", state().where.c_str(), text);
}

/// The relative error, or the absolute one of values below 1; NaN equals NaN.
inline bool near(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want));
}

template <class T> void expect(const char* what, const T* got, const std::vector<double>& want, double tolerance) {
  for (size_t i = 0; i < want.size(); ++i) {
    ++state().checks;
    if (near(double(got[i]), want[i], tolerance)) continue;
    return fail("%s[%zu of %zu] is %.9g, not %.9g", what, i, want.size(), double(got[i]), want[i]);
  }
}

template <class T> double tolerance() { return sizeof(T) == 4 ? 2e-5 : 1e-11; }

// ---- memory

template <class T> struct Array {
  T* data;
  size_t count;
  explicit Array(size_t n) : count(n) {
    size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = n * sizeof(T);
    size_ = (bytes + page - 1) / page * page + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, size_ - 2 * page, PROT_READ | PROT_WRITE);
    data = reinterpret_cast<T*>(state().flush_left ? base_ + page : base_ + size_ - page - bytes);
    std::memset(static_cast<void*>(data), 0xff, bytes);  // NaN
  }
  Array(size_t n, unsigned seed) : Array(n) {
    std::minstd_rand engine(seed + 1);
    for (size_t i = 0; i < n; ++i) data[i] = T(int(engine() % 4001) - 2000) / T(1000);
  }
  Array(const Array& other) : Array(other.count) { std::memcpy(static_cast<void*>(data), other.data, count * sizeof(T)); }
  ~Array() { munmap(base_, size_); }
  T& operator[](size_t i) { return data[i]; }
  const T& operator[](size_t i) const { return data[i]; }
 private:
  char* base_;
  size_t size_;
};

// ---- blocks of fibers

/// A fiber runs one thread of block after block. It is entered by setcontext, which asks the system each time, and from then on
/// by _longjmp, which does not.
struct Fibers {
  static constexpr size_t kStack = 1 << 16;
  struct Fiber {
    std::unique_ptr<char[]> stack{new char[kStack]};
    ucontext_t context;
    jmp_buf here;
    mc::Thread thread;
    bool started = false, done;
  };
  jmp_buf scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* running = nullptr;
  const mc::HostKernel* kernel = nullptr;
  void **arguments = nullptr, *shared = nullptr;

  static Fibers& all() {
    static Fibers f;
    return f;
  }
  static void wait(const mc::Thread*) {
    if (!_setjmp(all().running->here)) _longjmp(all().scheduler, 1);
  }
  static void enter() {
    for (;;) {
      Fibers& f = all();
      f.kernel->call(f.arguments, &f.running->thread, f.shared);
      f.running->done = true;
      wait(nullptr);
    }
  }
  void resume(Fiber& f) {
    running = &f;
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.here, 1);
    f.started = true;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStack;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
    setcontext(&f.context);
  }
  void run_block(const mc::Thread& block) {
    unsigned n = block.threads_x, done = 0;
    while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned i = 0; i < n; ++i) {
      fibers[i]->thread = block;
      fibers[i]->thread.thread_x = i;
      fibers[i]->thread.wait = wait;
      fibers[i]->done = false;
    }
    while (!done) {
      for (unsigned i = 0; i < n; ++i) {
        Fiber& f = *fibers[state().backwards ? n - 1 - i : i];
        resume(f);
        done += f.done;
      }
    }
    if (done == n) return;
    fail("%s: %u of %u threads missed a barrier", kernel->name, done, n);
    for (auto& f : fibers) f->started = false;
  }
};

// ---- the stream

inline void* load(mc::cuda::Stream*, mc::cuda::Kernel* kernel) {
  state().kernels[kernel->host->name] = kernel->host;
  return kernel->functions[0] = const_cast<mc::HostKernel*>(kernel->host);
}

inline int start(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned, unsigned, unsigned,
                 void*, void** arguments, void**) {
  const mc::HostKernel& kernel = *static_cast<mc::HostKernel*>(function);
  if (grid_y > 65535 || grid_z > 65535 || grid_x > 2147483647u || kernel.shared_size > 48 * 1024) {
    fail("%s: a grid of %u x %u x %u, %u bytes shared", kernel.name, grid_x, grid_y, grid_z, kernel.shared_size);
    return 1;
  }
  alignas(16) static char shared[48 * 1024];
  Fibers& fibers = Fibers::all();
  fibers.kernel = &kernel, fibers.arguments = arguments, fibers.shared = shared;
  mc::Thread t = {};
  t.threads_x = block_x, t.threads_y = t.threads_z = 1;
  t.blocks_x = grid_x, t.blocks_y = grid_y, t.blocks_z = grid_z;
  for (t.block_z_ = 0; t.block_z_ < grid_z; ++t.block_z_)
    for (t.block_y_ = 0; t.block_y_ < grid_y; ++t.block_y_)
      for (t.block_x = 0; t.block_x < grid_x; ++t.block_x) {
        std::memset(shared, 0xff, kernel.shared_size);
        if (kernel.barriers) fibers.run_block(t);
        else kernel.call(arguments, &t, shared);
      }
  return 0;
}

inline mc::cuda::Stream& stream() {
  static Array<double> scratch(mc::cuda::kScratch);
  static mc::cuda::Stream s = [] {
    mc::cuda::Stream made = {};
    made.multiprocessors = 2;
    made.scratch = scratch.data;
    made.load = load;
    made.start = start;
    made.fail = [](mc::cuda::Stream*, int, mc::cuda::Kernel* k, unsigned, unsigned) { fail("%s: launch failed", k->host->name); };
    return made;
  }();
  return s;
}

/// work(context) on the CPU and on the device.
inline void on_both(const std::string& where, const std::function<void(const mc::Context&)>& work) {
  for (int device = 0; device < 2; ++device) {
    state().where = where + (device ? " on the device" : " on the CPU");
    work(device ? mc::Context{{1, nullptr}, &stream()} : mc::Context{{2, mc::cpu::process_pool()}, nullptr});
  }
}

template <class... A> std::string text(const char* format, A... values) {
  char out[256];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

// ---- cases

using Case = void (*)();
inline std::vector<std::pair<std::string, Case>>& cases() {
  static std::vector<std::pair<std::string, Case>> all;
  return all;
}
struct Register {
  Register(const char* name, Case one) { cases().push_back({name, one}); }
};
#define CASE(name)                                     \
  static void name();                                  \
  static test::Register register_##name(#name, name); \
  static void name()

template <class Work> void for_both_types(const Work& work) {
  work(float());
  work(double());
}
template <class T> constexpr int dtype() { return sizeof(T) == 4 ? 0 : 1; }

struct Shape {
  index_t outer, channels, inner;
  index_t count() const { return outer * channels * inner; }
};
inline std::string name_of(const char* what, const Shape& s, size_t size) {
  return text("%s [%lld, %lld, %lld] of %zu bytes", what, s.outer, s.channels, s.inner, size);
}

}  // namespace test
