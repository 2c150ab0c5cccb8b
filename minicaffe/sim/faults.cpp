// The fault handler: device memory is inaccessible, and a kernel's first access to a part of it opens that part.
//
// A fault of the launching thread inside a living allocation opens that allocation, for reading first and for writing when
// it writes; so the launch's read and write sets are known, and any other address ends the kernel. Faults that are none of
// ours go to the handler that was there before.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "sim.hpp"

namespace mcsim {
namespace {

Launch* volatile guarded = nullptr;  // the kernel that runs, in `guarded_thread`; null: none
pthread_t guarded_thread;
sigjmp_buf escape;                             // in run_guarded: a fault that ends the kernel jumps there
constexpr int kSignals[] = {SIGSEGV, SIGFPE};  // SIGFPE: integer division by zero, which on a GPU gives an undefined value
struct sigaction previous[2];          // the handlers before ours, in the order of kSignals
bool installed_twice = false;          // ours was installed a second time, so the previous handler may call ours
volatile sig_atomic_t forwarded_faults = 0;

enum class Touching { Read, Write, Unknown };

/// Whether the instruction that faulted reads or writes; `context` is the ucontext_t of the signal.
Touching access(const void* context) {
#if defined(__x86_64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? Touching::Write : Touching::Read;
#else
  (void)context;
  return Touching::Unknown;
#endif
}

/// Open the allocation or block at `address` for the access, so that the instruction can run again. Where its kind is unknown, open
/// for reading first, for writing at the second fault. False, an error of the kernel, if nothing there may be opened.
bool open_allocation(Launch& launch, uintptr_t address, Touching kind) {
  auto a = find_block(address);
  if (!a || a->open == (PROT_READ | PROT_WRITE)) return false;
  if (a->device != launch.device && !launch.device->context.peers.count(a->device->ordinal)) return false;
  const bool write = kind == Touching::Write || (kind == Touching::Unknown && a->open == PROT_READ);
  if (kind == Touching::Read && !a->written && !launch.read_unwritten) launch.read_unwritten = a;
  // A vector's memory comes from malloc, which is safe here: the fault is the kernel's own, and kernels allocate nothing.
  if (!a->open) launch.opened.push_back(a);
  a->open = write ? PROT_READ | PROT_WRITE : PROT_READ;
  return mprotect(a->device->base + a->start, a->pages, a->open) == 0;
}

/// Explain on stderr a host access to device memory, of which the process is about to die.
void explain(uintptr_t address) {
  char line[256];
  int n = snprintf(line, sizeof line,
                   "minicaffe simulated device: the host touched device address 0x%llx outside of a kernel; device memory is "
                   "reached by copies and kernels only\n",
                   (unsigned long long)address);
  if (write(2, line, size_t(n)) < 0) return;
  // The search for the allocation needs the lock; another thread may be changing the list.
  if (!state().lock.try_lock()) return;
  std::string text = "minicaffe simulated device: that is " + describe(address) + "\n";
  state().lock.unlock();
  if (write(2, text.data(), text.size()) < 0) return;
}

/// Call the handler that was there before ours, such as Python's faulthandler.
void forward_signal(int signal, siginfo_t* info, void* context) {
  const struct sigaction& next = previous[signal == SIGFPE];
  if (installed_twice && forwarded_faults++) {  // the handlers have called each other in a circle
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
  } else if (next.sa_flags & SA_SIGINFO) {
    next.sa_sigaction(signal, info, context);
  } else if (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN) {
    sigaction(signal, &next, nullptr);  // the instruction runs again, and the process ends
  } else {
    next.sa_handler(signal);
  }
}

/// The handler: open the allocation and continue, end the kernel, or forward a fault that is not of a kernel.
void on_fault(int signal, siginfo_t* info, void* context) {
  const int keep = errno;
  const bool sent = info->si_code <= 0;                 // by kill or raise: no access
  const bool has_address = info->si_code != SI_KERNEL;  // a number that cannot be an address comes without it
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  Launch* launch = guarded;
  if (launch && !sent && pthread_equal(guarded_thread, pthread_self())) {
    Touching kind = access(context);
    if (signal == SIGSEGV && has_address && open_allocation(*launch, address, kind)) {
      errno = keep;
      return;
    }
    launch->signal = signal, launch->address = address;
    launch->has_address = has_address, launch->write = kind == Touching::Write;
    siglongjmp(escape, 1);
  }
  if (signal == SIGSEGV && !sent && has_address && !state().forked && device_of(address)) explain(address);
  errno = keep;
  forward_signal(signal, info, context);
}

/// A stack overflow must be handled on another stack. Python provides one for its main thread only.
void ensure_signal_stack() {
  ThreadState& thread = this_thread();
  if (thread.has_signal_stack) return;
  thread.has_signal_stack = true;
  stack_t stack = {};
  if (sigaltstack(nullptr, &stack) || !(stack.ss_flags & SS_DISABLE)) return;
  stack = {};
  stack.ss_size = 64 << 10;
  stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, nullptr);
}

}  // namespace

/// Make on_fault the handler of our signals. Again before each launch, as Python's faulthandler may have been enabled since.
void install_fault_handler() {
  static bool installed[2];
  for (int i = 0; i < 2; ++i) {
    struct sigaction now = {}, ours = {};
    sigaction(kSignals[i], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) continue;
    installed_twice |= installed[i];
    installed[i] = true;
    previous[i] = now;
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[i], &ours, nullptr);
  }
}

/// Call run(launch), which runs a kernel's blocks, with device memory opened on first access. A fault that ends it sets `signal`.
void run_guarded(Launch& launch, void (*run)(Launch&)) {
  install_fault_handler();
  ensure_signal_stack();
  guarded_thread = pthread_self();
  struct Close {  // also when the launch fails for another reason
    Launch& launch;
    ~Close() {
      guarded = nullptr;
      for (auto& a : launch.opened) mprotect(a->device->base + a->start, a->pages, PROT_NONE);
    }
  } close{launch};
  if (sigsetjmp(escape, 1)) return;
  guarded = &launch;
  run(launch);
}

}  // namespace mcsim
