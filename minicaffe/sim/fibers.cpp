// Threads of a block that wait for each other: each has a stack of its own, and at a barrier the next one continues.
#include <algorithm>

#include "sim.hpp"

extern "C" {
void mcsim_switch(void** save, void* load) __attribute__((visibility("hidden")));
void mcsim_fiber_main() __attribute__((visibility("hidden")));
}

namespace mcsim {
namespace {

constexpr size_t kStack = 128 << 10;  // of one thread; only touched pages take memory

// Save what a called function must preserve on this stack, change to the other one, restore from there. A jump, since the
// processor would predict that `ret` goes back to where this call came from.
#define MCSIM_SWITCH(body) \
  asm(".text\n.globl mcsim_switch\n.hidden mcsim_switch\n.type mcsim_switch, %function\n" \
      "mcsim_switch:" body ".size mcsim_switch, .-mcsim_switch\n")
#if defined(__x86_64__)
constexpr int kFrame = 8, kReturn = 6;  // six registers, where to go, and no return from there
MCSIM_SWITCH(R"(
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
)");
#elif defined(__aarch64__)
constexpr int kFrame = 20, kReturn = 11;  // x30
MCSIM_SWITCH(R"(
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
)");
#else
#error CUDA is for x86-64 and AArch64, and so is the simulated device
#endif

void* first_frame(char* top) {
  void** frame = reinterpret_cast<void**>(top) - kFrame;
  std::fill_n(frame, kFrame, nullptr);
  frame[kReturn] = reinterpret_cast<void*>(mcsim_fiber_main);
  return frame;
}

struct Fiber {
  mc::Thread thread;
  void* stack_pointer = nullptr;
  size_t stack = 0;  // its number in `stacks`
  bool ended = false;
};

// One block runs at a time (the lock), so one set of stacks serves all; a kernel that a fault has ended leaves nothing behind.
std::vector<char*> stacks;
std::vector<Fiber> fibers;
void* scheduler;
Fiber* running;
const mc::HostKernel* running_kernel;
void** running_arguments;
void* running_shared;

/// The low end of the n-th stack, with a closed page below it.
char* stack_of(size_t n) {
  while (stacks.size() <= n) stacks.push_back(guarded_memory(kStack, "the stack of a thread"));
  return stacks[n];
}

void wait_here(const mc::Thread*) { mcsim_switch(&running->stack_pointer, scheduler); }

void resume(Fiber& fiber, mc::Thread** current) {
  running = &fiber;
  *current = &fiber.thread;
  mcsim_switch(&scheduler, fiber.stack_pointer);
}

}  // namespace

extern "C" void mcsim_fiber_main() {
  running_kernel->call(running_arguments, &running->thread, running_shared);
  running->ended = true;
  wait_here(nullptr);  // for ever
  __builtin_unreachable();
}

bool is_stack_guard(uintptr_t address) {
  for (char* stack : stacks)
    if (uintptr_t(stack) - address - 1 < page_size()) return true;
  return false;
}

unsigned run_threads(const mc::HostKernel& kernel, void** arguments, const mc::Thread& block, void* shared,
                     mc::Thread** current, unsigned* waiting) {
  const unsigned count = block.threads_x * block.threads_y * block.threads_z;
  if (fibers.size() < count) fibers.resize(count);
  running_kernel = &kernel;
  running_arguments = arguments;
  running_shared = shared;
  scheduler = nullptr;
  // The first round starts each thread; one that ends without waiting leaves its stack, still in the cache, to the next.
  unsigned ended = 0;
  size_t stack = 0;
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    fiber.thread = block;
    fiber.thread.thread_x = i % block.threads_x;
    fiber.thread.thread_y = i / block.threads_x % block.threads_y;
    fiber.thread.thread_z = i / block.threads_x / block.threads_y;
    fiber.thread.wait = wait_here;
    fiber.ended = false;
    // Tops at different distances from a page's end, or all of them would compete for the same lines of the cache.
    fiber.stack_pointer = first_frame(stack_of(stack) + kStack - stack % 16 * 256);
    resume(fiber, current);
    if (fiber.ended) ++ended; else ++stack;
  }
  // In each further round every thread comes from one barrier to the next, or all end.
  while (ended == 0) {
    for (unsigned i = 0; i < count; ++i) {
      resume(fibers[i], current);
      ended += fibers[i].ended;
    }
  }
  *waiting = count - ended;
  for (unsigned i = 0; i < count && *waiting; ++i)
    if (!fibers[i].ended) {
      *current = &fibers[i].thread;
      break;
    }
  return *waiting ? ended : 0;
}

}  // namespace mcsim
