// The simulated CUDA driver: a libcuda.so.1 in host memory that runs kernels compiled for the host, and is strict.
//
// Unlike a GPU's driver it is slow and checks every access, handle, limit and order that it can check;
// cuGetErrorString(code) describes the last error with that code in this thread. Files: errors (the
// messages), settings (MINICAFFE_SIM), memory (ranges, allocations, pinned memory), copies, streams (order of work,
// events, races), graphs (capture), kernels (modules, launches), fibers (threads that wait for each other), faults (SIGSEGV),
// driver (devices, contexts, the table of entry points). It has the calls that minicaffe, its tests and its tools make, so no
// textures, arrays, memory pools, managed memory or PTX.
//
// One global lock is held during each call, kernels included. Entry points are C functions in the file of their subject;
// on_driver and on_context are their common frame.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "minicaffe/kernels/grid.hpp"

namespace mcsim {

// ---- errors.cpp

struct Failure {
  CUresult code;
  std::string text;
};

[[noreturn]] void fail(CUresult code, const char* format, ...) __attribute__((format(printf, 2, 3)));
/// Return the text of printf's arguments.
std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));
CUresult remember(const Failure& failure);
bool error_code(const std::string& name, CUresult* code);

// ---- handles: numbers that are not addresses, never reused, so that use of a destroyed one is detected

enum class Kind : uint64_t { Context = 1, Stream, Event, Module, Function, Graph, Exec };

inline uint64_t handle_of(Kind kind, uint64_t number) { return ((0x5000 + uint64_t(kind)) << 48) | number; }
/// The number in a handle; 0, which no handle has, if it is of another kind.
inline uint64_t number_of(Kind kind, const void* handle) {
  uint64_t value = reinterpret_cast<uint64_t>(handle);
  return value >> 48 == 0x5000 + uint64_t(kind) ? value & 0xffffffffffff : 0;
}
[[noreturn]] void bad_handle(Kind wanted, uint64_t handle, uint64_t given_out);

template <class T, Kind kind> class Handles {
 public:
  template <class H> H add(std::shared_ptr<T> object) {
    objects_[++last_] = std::move(object);
    return reinterpret_cast<H>(handle_of(kind, last_));
  }
  std::shared_ptr<T> find(const void* handle) const {
    auto found = objects_.find(number_of(kind, handle));
    if (found == objects_.end()) bad_handle(kind, reinterpret_cast<uint64_t>(handle), last_);
    return found->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    auto object = find(handle);
    objects_.erase(number_of(kind, handle));
    return object;
  }
  template <class P> void remove_if(P leaves) {
    for (auto it = objects_.begin(); it != objects_.end();) it = leaves(*it->second) ? objects_.erase(it) : std::next(it);
  }
  const std::map<uint64_t, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  std::map<uint64_t, std::shared_ptr<T>> objects_;
  uint64_t last_ = 0;
};

/// The entry of a map with the largest key up to `key`; null if there is none.
template <class M> auto floor_entry(M& map, typename M::key_type key) {
  auto after = map.upper_bound(key);
  return after == map.begin() ? nullptr : &*std::prev(after);
}

// ---- streams.cpp: the order of work

struct Context;
struct Device;
struct Allocation;
struct Operation;
struct Capture;
struct Graph;
using Op = std::shared_ptr<Operation>;
/// A vector clock: lane -> the number of operations in that lane that are ordered before. A lane is a sequence of operations that
/// run one after the other: those of a stream, or of a node of an executable graph in its launches.
using Clock = std::map<unsigned, uint64_t>;

/// A range of device memory that an operation read or wrote.
struct MemoryAccess {
  std::shared_ptr<Allocation> allocation;
  size_t begin, end;
  bool write;
};

/// Work of a call for a stream, before it has a position in the order; a graph stores these.
struct Work {
  std::string name;
  Context* context;
  std::function<void(Operation&)> run;  // may be empty: an edge only
};

/// Work with its position in the order: after all of `after`.
struct Operation {
  Work work;
  std::string location;  // "stream #2, graph node 1", for errors
  uint64_t sequence = 0;
  std::vector<Op> after;
  bool started = false, done = false;
  double finished_at = 0;       // ms
  std::vector<MemoryAccess> accesses;   // filled by run
  Clock clock;                  // kept only with race=1
  unsigned lane = 0;
  uint64_t tick = 0;
};

struct Stream {
  Context* context;
  std::string name;
  bool legacy = false;    // the default stream that waits for all blocking streams, and they for it
  bool blocking = true;
  unsigned lane = 0;
  Op last;
  std::shared_ptr<Capture> capture;
  std::set<int> tails;    // under capture: the nodes that the next one comes after
};

struct Event {
  Context* context;
  unsigned flags;
  Op recorded;
  std::shared_ptr<Capture> capture;
  std::set<int> nodes;
};

std::shared_ptr<Stream> stream_of(Context& current, CUstream handle);
std::vector<Op> predecessors_of_next(Stream& stream);
Op make_operation(Stream& stream, Work work, std::vector<Op> after, unsigned lane);
Op submit(Stream& stream, Work work, const std::vector<Op>& after = {});  // null under capture
void finish(const std::vector<Op>& wanted);
void synchronize(const Op& operation);       // finish, and the host has waited for it
void synchronize(Context& context);
std::shared_ptr<Stream> new_stream(Context& context, const std::string& name);
unsigned new_lane();

// ---- graphs.cpp

struct Node {
  Work work;
  std::set<int> after;
};

struct Graph {
  std::vector<Node> nodes;
};

struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  CUstreamCaptureMode mode;
  std::shared_ptr<Stream> origin;
  unsigned thread;
  bool active = true;
  std::string invalid;  // why it can no longer succeed
};

struct Exec {
  std::shared_ptr<Graph> graph;
  std::vector<unsigned> lanes;
  Op last;
};

void capture(Stream& stream, Work work);
void join_capture(const std::shared_ptr<Stream>& stream, Event& event);
void end_capture(const std::shared_ptr<Capture>& capture);
[[noreturn]] void break_capture(Capture& capture, CUresult code, const std::string& why);
void forbid_in_capture(const char* call);       // calls that would wait for, or disturb, a capture
void forbid_captured_stream(Stream& stream, const char* call);

// ---- memory.cpp

struct Access {
  size_t begin, end;
  bool write;
  unsigned lane;
  uint64_t tick;
  std::string operation;  // its name and location, for errors
};

struct Allocation {
  Device* device;
  CUdeviceptr address;
  size_t size, rounded;         // rounded: to 256 bytes
  size_t start, pages;          // offset in the device's range, bytes of whole pages
  unsigned number;
  bool written = false;         // whether anything was ever written to it
  int open = 0;                 // mprotect's flags while a kernel runs
  std::vector<Access> history;  // kept only with race=1
  bool divided = false;         // by mcsim_poison: of all its bytes only those of `blocks` may be touched
  bool is_block = false;        // one of those; `number` is that of the allocation it lies in
  std::map<CUdeviceptr, std::shared_ptr<Allocation>> blocks;  // by address
  std::string text() const;     // "allocation #3 (400 bytes at 0x... on device 0)"
};

struct Freed {
  CUdeviceptr address;
  size_t size, pages;
  unsigned number;
};

struct Pinned {
  size_t size;
  Context* context;
};

struct Context {
  Device* device;
  bool retained = false;
  CUresult lost = CUDA_SUCCESS;
  std::string lost_text;
  std::set<int> peers;
  std::shared_ptr<Stream> legacy;
  std::vector<Op> last_of_destroyed;  // last work of destroyed streams
};

struct Device {
  int ordinal;
  // Two mappings of `file`, each of `range` bytes. Device addresses are in `base`, whose pages are inaccessible but while a kernel
  // uses them, so that the host cannot read them by mistake. The driver itself reads and writes by `backing`.
  char *base, *backing;
  size_t range, cursor, used = 0;  // cursor: the offset where the search for free addresses starts
  int file;
  std::map<size_t, std::shared_ptr<Allocation>> live;  // by start
  std::map<size_t, Freed> freed;                       // by start
  unsigned numbered = 0;                               // since the context was made
  Context context;
  bool holds(CUdeviceptr address) const { return address - reinterpret_cast<CUdeviceptr>(base) < range; }
};

size_t page_size();
/// Host memory between two inaccessible pages, at the end of its last page; `what` is its purpose, for errors.
char* guarded_memory(size_t size, const char* what);
std::unique_ptr<Device> make_device(int ordinal, size_t memory);
Device* device_of(CUdeviceptr address);
std::shared_ptr<Allocation> find_allocation(CUdeviceptr address);   // of cuMemAlloc; null where there is none
std::shared_ptr<Allocation> find_block(CUdeviceptr address);        // the allocation or block that may be accessed there
std::string describe(CUdeviceptr address);                          // "4 bytes past the end of allocation #3 ..."
bool is_mapped_host(uintptr_t address);                             // without touching it
const std::pair<const uintptr_t, Pinned>* find_pinned(uintptr_t address);
void release_memory(Device& device, const std::shared_ptr<Allocation>& allocation);
void release_pinned(Context& context);
size_t overwritten_slack_bytes(const Allocation& allocation);  // overwritten bytes of the slack around it
constexpr uint32_t kPoison = 0xfff5a5f5;
extern "C" void mcsim_poison(CUdeviceptr address, size_t size);
extern "C" void mcsim_unpoison(CUdeviceptr address, size_t size);

// ---- kernels.cpp, fibers.cpp, faults.cpp

struct Module {
  Context* context;
  mc::HostImage image;  // a copy: the caller may give the bytes back after loading; the kernels stay where they are
};

struct Function {
  std::shared_ptr<Module> module;
  const mc::HostKernel* kernel;
  std::string name;  // of its functor, for errors
};

/// Why a running kernel had to stop.
struct Fault {
  uintptr_t address = 0;
  bool has_address = false, write = false;
  int signal = 0;
};

struct Launch;
/// A launch's effects on device memory.
struct GuardedRun {
  Device* device;
  std::vector<std::shared_ptr<Allocation>> opened;
  std::shared_ptr<Allocation> read_unwritten;
  Fault fault;
};
/// Run f(launch) with device memory opened on first access. False if a fault ended it; then `run.fault` has the fault.
bool run_guarded(GuardedRun& run, void (*f)(Launch&), Launch& launch);
void install_fault_handler();
/// Run all threads of the block; the number of those that ended while `*waiting` others waited at a barrier, or 0.
unsigned run_threads(const mc::HostKernel& kernel, void** arguments, const mc::Thread& block, void* shared,
                     mc::Thread** current, unsigned* waiting);
bool is_stack_guard(uintptr_t address);

// ---- settings.cpp

struct Settings {
  int devices = 1;
  size_t memory = size_t(4) << 30;
  int capability = 90;                  // the compute capability times 10
  std::set<std::pair<int, int>> peers;  // both ways round
  bool race = false, uninitialized = false, leak = false, deferred = false;
};

struct Planned {
  unsigned long long calls_left;  // fails when it reaches 0
  CUresult code;
};

void configure_from_environment();
void apply_planned_failure(const char* call);
void report_leaks(Context& context);
bool is_entry_point(const std::string& name);
void reset(Context& context);

// ---- the state of it all

struct ThreadState {
  unsigned number;
  Context* context = nullptr;
  std::map<CUresult, std::string> details;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_callback = false, has_signal_stack = false;
};

struct State {
  std::recursive_mutex lock;
  bool initialized = false, forked = false;
  pid_t process = 0;
  Settings settings;
  std::map<std::string, Planned> planned;
  std::vector<std::unique_ptr<Device>> devices;
  std::map<uintptr_t, Pinned> pinned;
  Handles<Stream, Kind::Stream> streams;
  Handles<Event, Kind::Event> events;
  Handles<Module, Kind::Module> modules;
  Handles<Function, Kind::Function> functions;
  Handles<Graph, Kind::Graph> graphs;
  Handles<Exec, Kind::Exec> execs;
  std::vector<std::shared_ptr<Capture>> captures;
  Clock host;  // what the host has waited for; one for all threads of it, so a race between host threads goes unseen
};

State& state();
ThreadState& this_thread();
void enter(const char* call);
/// The thread's current context; an error if there is none, or if it was destroyed or an earlier failure made it unusable.
Context& enter_context(const char* call);
Context& context_of(CUcontext handle);
CUcontext handle_of(const Context& context);

template <class T> void check_pointer(T* pointer, const char* call, const char* name) {
  if (!pointer) fail(CUDA_ERROR_INVALID_VALUE, "%s: %s is null", call, name);
}

/// Run body() with the lock; the code of what it throws.
template <class F> CUresult locked(F body) {
  if (state().forked) return CUDA_ERROR_NOT_INITIALIZED;  // before the lock: another thread may have held it at the fork
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  try {
    body();
    return CUDA_SUCCESS;
  } catch (const Failure& failure) {
    return remember(failure);
  } catch (const std::bad_alloc&) {
    return remember({CUDA_ERROR_OUT_OF_MEMORY, "the host has no memory left"});
  }
}

/// The frame of a call that needs cuInit only.
template <class F> CUresult on_driver(const char* call, F body) {
  return locked([&] { enter(call), body(); });
}

/// The frame of a call that works on the current context.
template <class F> CUresult on_context(const char* call, F body) {
  return locked([&] { body(enter_context(call)); });
}

/// The same frames for a call that stores the result of `body` in `out`; `name` is that of `out` in errors.
template <class T, class F> CUresult on_driver(const char* call, T* out, const char* name, F body) {
  return on_driver(call, [&] {
    check_pointer(out, call, name);
    *out = body();
  });
}
template <class T, class F> CUresult on_context(const char* call, T* out, const char* name, F body) {
  return on_context(call, [&](Context& context) {
    check_pointer(out, call, name);
    *out = body(context);
  });
}

}  // namespace mcsim
