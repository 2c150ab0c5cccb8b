// Modules, functions and launches. A module is a mc::HostImage: kernels that the host compiler made (kernels/grid.hpp).
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "sim.hpp"

namespace mcsim {

constexpr unsigned kMaxThreads = 1024, kMaxBlockZ = 64, kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535, kMaxShared = 48 << 10;

namespace {

/// "mc::Some<float>", for errors, from a kernel's name "const char* mc::spelling() [with K = mc::Some<float>]".
std::string readable(const char* name) {
  std::string text = name;
  size_t begin = text.find("K = ");
  if (begin == std::string::npos || text.back() != ']') return text;
  return text.substr(begin + 4, text.size() - begin - 5);
}

/// A block's shared memory of `size` bytes, the same for all launches. It ends at a closed page (but for the alignment to 64
/// bytes), so running over its end is found.
char* shared_memory(size_t size) {
  static char* const base = guarded_memory(kMaxShared, "a block's shared memory");
  return base + kMaxShared - (std::max<size_t>(size, 1) + 63) / 64 * 64;
}

/// Run all blocks of a launch, one after the other. A fault leaves it by a jump (faults.cpp), so it has no object to destroy.
void run_blocks(Launch& launch) {
  const Plan& plan = *launch.plan;
  const mc::HostKernel& kernel = *plan.function->kernel;
  void** arguments = const_cast<void**>(plan.arguments.data());
  mc::Thread thread = plan.block;
  launch.current = &thread;
  for (thread.block_z_ = 0; thread.block_z_ < thread.blocks_z; ++thread.block_z_)
    for (thread.block_y_ = 0; thread.block_y_ < thread.blocks_y; ++thread.block_y_)
      for (thread.block_x = 0; thread.block_x < thread.blocks_x; ++thread.block_x) {
        memset(launch.shared, 0xff, plan.shared);  // NaN; a block finds nothing of the one before
        if (kernel.barriers) {
          run_threads(launch, thread);
          if (launch.waiting) return;
          continue;
        }
        for (thread.thread_z = 0; thread.thread_z < thread.threads_z; ++thread.thread_z)
          for (thread.thread_y = 0; thread.thread_y < thread.threads_y; ++thread.thread_y) {
            thread.thread_x = 0;
            kernel.call(arguments, &thread, launch.shared);  // without barriers it runs all thread_x
          }
      }
  launch.current = nullptr;
}

/// Fail with an error after which the context is unusable, as after a wrong access on a GPU.
[[noreturn]] void lose(Context& context, CUresult code, const std::string& text) {
  context.lost = code;
  context.lost_text = text + " (the context is lost by this error)";
  fail(code, "%s", text.c_str());
}

/// The access or division at which a kernel was stopped, as text for the error.
std::string fault_text(const Launch& launch) {
  if (launch.signal == SIGFPE) return "divided an integer by zero";
  if (!launch.has_address) return "used a number as a pointer that no address can be";
  const uintptr_t p = launch.address;
  const char* verb = launch.write ? "wrote" : "read";
#if !defined(__x86_64__)
  verb = "touched";
#endif
  std::string at = formatted("%s address 0x%llx: ", verb, (unsigned long long)p);
  if (is_stack_guard(p)) return at + "a thread's stack is full (128 KiB)";
  const size_t past = p - uintptr_t(launch.shared) - launch.plan->shared;
  if (past < 8192) return at + formatted("%zu bytes past the end of %zu bytes of shared memory", past, launch.plan->shared);
  auto a = find_allocation(p);
  if (a && a->device != launch.device)
    return at + a->text() + formatted(", and device %d has no peer access to it", launch.device->ordinal);
  return at + describe(p);
}

/// Run a launch when its turn has come, record which allocations it read and wrote, and fail for what it did wrong.
void run_kernel(Operation& op, const Plan& plan) {
  Context& context = *op.work.context;
  static Launch launch;  // not on the stack: a fault jumps back here
  launch = {&plan, context.device, shared_memory(plan.shared)};
  run_guarded(launch, run_blocks);
  auto& unwritten = launch.read_unwritten;

  std::string kernel_name = "kernel " + plan.function->name, where = kernel_name;
  if (launch.current) {
    const mc::Thread& t = *launch.current;
    where += formatted(", block (%u, %u, %u), thread (%u, %u, %u)", t.block_x, t.block_y_, t.block_z_, t.thread_x, t.thread_y,
                       t.thread_z);
  }
  std::string damage;
  for (auto& a : launch.opened) {
    bool write = a->open & PROT_WRITE;
    a->open = 0;
    if (!write && !a->written && !unwritten) unwritten = a;
    a->written |= write;
    op.accesses.push_back({a, 0, a->size, write});
    if (size_t lost = write ? overwritten_slack_bytes(*a) : 0)
      damage = formatted("%s wrote to %zu bytes outside %s, next to it", kernel_name.c_str(), lost, a->text().c_str());
  }
  if (launch.signal)
    lose(context, launch.signal == SIGFPE ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_ILLEGAL_ADDRESS,
         where + " " + fault_text(launch));
  if (launch.waiting)
    lose(context, CUDA_ERROR_LAUNCH_FAILED,
         where + formatted(" waits at a barrier: barrier not reached by all threads (%u of the block wait, %u have ended)",
                           launch.waiting, launch.ended));
  if (!damage.empty()) lose(context, CUDA_ERROR_ILLEGAL_ADDRESS, damage);
  if (unwritten && state().settings.uninitialized)
    fail(CUDA_ERROR_INVALID_VALUE, "%s: uninitialized: it read %s, nothing of which was ever written", kernel_name.c_str(),
         unwritten->text().c_str());
}

/// Fail if a pointer in argument number `argument`, of `size` bytes, is an address of pageable host memory.
void refuse_host_pointers(const Function& function, int argument, const char* bytes, unsigned size) {
  const auto pointers = static_cast<const char*>(function.kernel->pointers[argument]());
  for (unsigned i = 0; i + 8 <= size; i += 8) {
    uint64_t word, is_pointer;
    memcpy(&word, bytes + i, 8), memcpy(&is_pointer, pointers + i, 8);
    if (is_pointer && word >> 32 && !(word >> 47) && !find_pinned(word) && is_mapped_host(word))
      fail(CUDA_ERROR_INVALID_VALUE,
           "cuLaunchKernel: kernel %s, argument %d, byte %u: 0x%llx is a host address, which the device cannot reach",
           function.name.c_str(), argument, i, (unsigned long long)word);
  }
}

/// Copy the arguments of a launch to the plan, as CUDA does: the caller may change them after the call.
void copy_arguments(Plan& plan, void** given) {
  const Function& function = *plan.function;
  const mc::HostKernel& kernel = *function.kernel;
  if (!kernel.arguments) return;
  if (!given)
    fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernel %s takes %d arguments, the list of them is null",
         function.name.c_str(), kernel.arguments);
  size_t total = 64;  // kept 64 bytes apart, so that any type is aligned
  for (int i = 0; i < kernel.arguments; ++i) total += (kernel.argument_sizes[i] + 63) / 64 * 64;
  plan.storage.resize(total);
  char* next = plan.storage.data() + (64 - uintptr_t(plan.storage.data()) % 64) % 64;
  for (int i = 0; i < kernel.arguments; ++i) {
    if (!given[i]) fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernel %s: argument %d is null", function.name.c_str(), i);
    if (!is_mapped_host(uintptr_t(given[i])))
      fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernel %s: argument %d is at %p, which is %s", function.name.c_str(), i,
           given[i], describe(uintptr_t(given[i])).c_str());
    memcpy(next, given[i], kernel.argument_sizes[i]);
    if (kernel.pointers) refuse_host_pointers(function, i, next, kernel.argument_sizes[i]);
    plan.arguments.push_back(next);
    next += (kernel.argument_sizes[i] + 63) / 64 * 64;
  }
}

}  // namespace
}  // namespace mcsim

using namespace mcsim;

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* out, const void* data) {
  return on_context("cuModuleLoadData", out, "the pointer for the module", [&](Context& context) {
    forbid_in_capture("cuModuleLoadData");
    auto image = static_cast<const mc::HostImage*>(data);
    uintptr_t end = uintptr_t(data) + sizeof *image - 1;
    if (!data || !is_mapped_host(uintptr_t(data)) || !is_mapped_host(end) || memcmp(image->magic, "MCHOST1", 8))
      fail(CUDA_ERROR_INVALID_IMAGE, "cuModuleLoadData: %p is not a module for the simulated device: it must begin with MCHOST1",
           data);
    return state().modules.add<CUmodule>(std::make_shared<Module>(Module{&context, *image}));
  });
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  return on_context("cuModuleUnload", [&](Context&) {
    forbid_in_capture("cuModuleUnload");
    auto module = state().modules.find(handle);
    synchronize(*module->context);
    state().functions.remove_if([&](const Function& f) { return f.module == module; });
    state().modules.remove(handle);
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return on_context("cuModuleGetFunction", out, "the pointer for the function", [&](Context&) {
    auto module = state().modules.find(handle);
    check_pointer(name, "cuModuleGetFunction", "the name");
    const mc::HostImage& image = module->image;
    const mc::HostKernel* end = image.kernels + image.count;
    const mc::HostKernel* kernel = std::find_if(image.kernels, end, [&](auto& k) { return !strcmp(k.name, name); });
    if (kernel != end)
      return state().functions.add<CUfunction>(std::make_shared<Function>(Function{module, kernel, readable(name)}));
    std::string known;
    for (unsigned long long i = 0; i < std::min(image.count, 8ull); ++i)
      known += (i ? ", " : "") + readable(image.kernels[i].name);
    fail(CUDA_ERROR_NOT_FOUND, "cuModuleGetFunction: the module has no kernel '%s'; it has %llu: %s%s", name, image.count,
         known.c_str(), image.count > 8 ? ", ..." : "");
  });
}

CUresult CUDAAPI cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned dynamic_shared, CUstream stream_handle,
                                void** arguments, void** extra) {
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  return on_context("cuLaunchKernel", [&](Context& context) {
    auto plan = std::make_shared<Plan>();
    auto function = plan->function = state().functions.find(handle);
    auto stream = stream_of(context, stream_handle);
    const mc::HostKernel& kernel = *function->kernel;
    const char* name = function->name.c_str();
    Context* home = function->module->context;
    if (home != stream->context)
      fail(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel: kernel %s was loaded on device %d, %s is of device %d", name,
           home->device->ordinal, stream->name.c_str(), stream->context->device->ordinal);
    const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > kMaxGridX || grid[1] > kMaxGridYZ || grid[2] > kMaxGridYZ)
      fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernel %s: a grid of %u x %u x %u blocks; 1 to %u x %u x %u are allowed",
           name, grid[0], grid[1], grid[2], kMaxGridX, kMaxGridYZ, kMaxGridYZ);
    if (!threads || block[0] > kMaxThreads || block[1] > kMaxThreads || block[2] > kMaxBlockZ || threads > kMaxThreads)
      fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernel %s: %u x %u x %u threads in a block; 1 to %u are allowed, %u in z",
           name, block[0], block[1], block[2], kMaxThreads, kMaxBlockZ);
    if (kernel.max_threads > 0 && threads > unsigned(kernel.max_threads))
      fail(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
           "cuLaunchKernel: kernel %s was compiled for at most %d threads in a block, %llu were asked", name,
           kernel.max_threads, threads);
    plan->shared = (size_t(kernel.shared_size) + 15) / 16 * 16 + dynamic_shared;
    if (plan->shared > kMaxShared)
      fail(CUDA_ERROR_INVALID_VALUE,
           "cuLaunchKernel: kernel %s: %zu bytes of shared memory, %u of them dynamic; at most %u are allowed", name,
           plan->shared, dynamic_shared, kMaxShared);
    if (extra) fail(CUDA_ERROR_NOT_SUPPORTED, "cuLaunchKernel: kernel %s: arguments in `extra` are not supported", name);
    copy_arguments(*plan, arguments);
    plan->block = {0, 0, 0, block[0], block[1], block[2], 0, 0, 0, grid[0], grid[1], grid[2], nullptr};
    submit(*stream, {"kernel " + function->name, stream->context, [plan](Operation& op) { run_kernel(op, *plan); }});
  });
}

}  // extern "C"
