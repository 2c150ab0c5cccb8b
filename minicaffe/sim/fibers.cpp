// Threads of a block that wait for each other: each has a stack of its own, and at a barrier the next one continues. All run in one
// thread of the system. Only kernels with barriers run in this way (kernels.cpp).
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>

#include "sim.hpp"

namespace mcsim {
namespace {

constexpr size_t kStack = 128 << 10;  // of one thread; only touched pages take memory

/// A stack that runs one thread after the other; `where` is the place at which it continues, if `started`.
struct Stack {
  char* memory;  // its low end, with a closed page below it
  bool started = false;
  jmp_buf where = {};
};

struct Fiber {  // one thread of the block
  mc::Thread thread;
  Stack* stack = nullptr;
  bool ended = false;
};

// One block runs at a time (the lock), so one set of stacks serves all.
std::vector<std::unique_ptr<Stack>> stacks;
std::vector<Fiber> fibers;
bool all_ended = true;  // false while a block runs, and after one that a fault or a barrier has stopped: stacks then start again
jmp_buf scheduler;      // in resume(): where a thread returns to at a barrier and at its end
Fiber* running;
Launch* running_launch;

/// The n-th stack, made at its first use and kept for later blocks.
Stack* stack_of(size_t n) {
  while (stacks.size() <= n) stacks.emplace_back(new Stack{guarded_memory(kStack, "the stack of a thread")});
  return stacks[n].get();
}

/// A barrier, mc::Thread::wait of kernels: store where the thread continues, and jump to resume(), which then returns.
void wait_here(const mc::Thread*) {
  if (!_setjmp(running->stack->where)) _longjmp(scheduler, 1);
}

/// The code on each stack, endless: run one thread to its end, then the next that is resumed on this stack.
void run_stack() {
  for (;;) {
    const Plan& plan = *running_launch->plan;
    plan.function->kernel->call(const_cast<void**>(plan.arguments.data()), &running->thread, running_launch->shared);
    running->ended = true;
    wait_here(nullptr);
  }
}

/// Switch to a new stack, of `size` bytes; it begins with run_stack. Control comes back by a jump to `scheduler`.
void start(Stack& stack, size_t size) {
  static ucontext_t context;
  stack.started = true;
  getcontext(&context);
  context.uc_stack.ss_sp = stack.memory;
  context.uc_stack.ss_size = size;
  makecontext(&context, run_stack, 0);
  setcontext(&context);
}

/// Run a thread until it waits at a barrier or ends.
void resume(Fiber& fiber) {
  running = &fiber;
  running_launch->current = &fiber.thread;
  if (_setjmp(scheduler)) return;
  if (fiber.stack->started) _longjmp(fiber.stack->where, 1);
  // Tops at different distances from a page's end, or all of them would compete for the same lines of the cache.
  start(*fiber.stack, kStack - (&fiber - fibers.data()) % 16 * 256);
}

}  // namespace

/// Whether `address` is in the inaccessible page below a stack, which a thread touches when its stack is full.
bool is_stack_guard(uintptr_t address) {
  for (auto& stack : stacks)
    if (uintptr_t(stack->memory) - address - 1 < page_size()) return true;
  return false;
}

/// Run all threads of `block`, from which they get all but their own indices. If some end while others wait at a barrier, an error
/// of the kernel, `launch` gets their numbers, and as `current` one that waits. A fault leaves this function by a jump.
void run_threads(Launch& launch, const mc::Thread& block) {
  const unsigned count = block.threads_x * block.threads_y * block.threads_z;
  if (fibers.size() < count) fibers.resize(count);
  running_launch = &launch;
  for (auto& stack : stacks) stack->started &= all_ended;
  all_ended = false;
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
    fiber.stack = stack_of(stack);
    resume(fiber);
    if (fiber.ended) ++ended; else ++stack;
  }
  // In each further round every thread comes from one barrier to the next, or all end.
  while (ended == 0) {
    for (unsigned i = 0; i < count; ++i) {
      resume(fibers[i]);
      ended += fibers[i].ended;
    }
  }
  all_ended = ended == count;
  if (all_ended) return;
  launch.ended = ended, launch.waiting = count - ended;
  launch.current = &std::find_if(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return !fiber.ended; })->thread;
}

}  // namespace mcsim
