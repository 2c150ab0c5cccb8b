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

#include <chrono>
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

struct Failure {  // thrown by fail(), caught in locked(): an entry point returns its code
  CUresult code;
  std::string text;
};

[[noreturn]] void fail(CUresult code, const char* format, ...) __attribute__((format(printf, 2, 3)));
std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));  // the text of printf's arguments
CUresult remember(const Failure& failure);  // stores its text for cuGetErrorString in this thread; returns its code
bool error_code(const std::string& name, CUresult* code);  // false, and `code` as before: there is none of that name

// ---- handles: numbers that are not addresses, never reused, so that use of a destroyed one is detected

enum class Kind : uint64_t { Context = 1, Stream, Event, Module, Function, Graph, Exec };

inline uint64_t handle_of(Kind kind, uint64_t number) { return ((0x5000 + uint64_t(kind)) << 48) | number; }
/// The number in a handle; 0, which no handle has, if it is of another kind.
inline uint64_t number_of(Kind kind, const void* handle) {
  uint64_t value = reinterpret_cast<uint64_t>(handle);
  return value >> 48 == 0x5000 + uint64_t(kind) ? value & 0xffffffffffff : 0;
}
[[noreturn]] void bad_handle(Kind wanted, uint64_t handle, uint64_t given_out);

/// Erase the entries of a map for which leaves(entry).
template <class M, class P> void erase_if(M& map, P leaves) {
  for (auto it = map.begin(); it != map.end();) it = leaves(*it) ? map.erase(it) : std::next(it);
}

/// The objects of one kind by handle (H: its type in CUDA). Queued work may share an object that is removed here.
template <class T, Kind kind> class Handles {
 public:
  template <class H> H add(std::shared_ptr<T> object) {
    objects_[++last_] = std::move(object);
    return reinterpret_cast<H>(handle_of(kind, last_));
  }
  std::shared_ptr<T> find(const void* handle) const {  // fails unless the handle is a live one
    auto found = objects_.find(number_of(kind, handle));
    if (found == objects_.end()) bad_handle(kind, reinterpret_cast<uint64_t>(handle), last_);
    return found->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    auto object = find(handle);
    objects_.erase(number_of(kind, handle));
    return object;
  }
  template <class P> void remove_if(P leaves) {  // all objects for which leaves(object)
    erase_if(objects_, [&](auto& entry) { return leaves(*entry.second); });
  }
  const std::map<uint64_t, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  std::map<uint64_t, std::shared_ptr<T>> objects_;
  uint64_t last_ = 0;  // the number of the newest handle
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
using Op = std::shared_ptr<Operation>;
/// A vector clock: lane -> the number of operations in that lane that are ordered before. A lane is a sequence of operations that
/// run one after the other: those of a stream, or of a node of an executable graph in its launches.
using Clock = std::map<unsigned, uint64_t>;

/// A range of device memory that an operation read or wrote.
struct MemoryAccess {
  std::shared_ptr<Allocation> allocation;
  size_t begin, end;  // offsets in the allocation
  bool write;
};

/// Work of a call for a stream, before it has a position in the order; a graph stores these.
struct Work {
  std::string name;  // for errors: "kernel ...", or that of the call
  Context* context;
  std::function<void(Operation&)> run;  // may be empty, as for events, which only order other work
};

/// Work with its position in the order: after all of `after`.
struct Operation {
  Work work;
  std::string location;  // "stream #2, graph node 1", for errors
  uint64_t sequence = 0;        // number in the order of submission
  std::vector<Op> after;        // predecessors not done at submission; emptied when this is done
  bool started = false, done = false;
  std::chrono::steady_clock::time_point finished_at;  // for cuEventElapsedTime
  std::vector<MemoryAccess> accesses;   // filled by run
  Clock clock;                  // of this and all before it; kept only with race=1
  unsigned lane = 0;
  uint64_t tick = 0;            // with race=1: its number in its lane, from 1
};

struct Stream {  // the state of a CUstream
  Context* context;
  std::string name;       // for errors
  bool legacy = false;    // the default stream that waits for all blocking streams, and they for it
  bool blocking = true;   // false: CU_STREAM_NON_BLOCKING
  unsigned lane = 0;
  Op last;                // the newest operation; null: none
  std::shared_ptr<Capture> capture;  // null: the stream does its work
  std::set<int> tails;    // under capture: the nodes that the next one comes after
};

struct Event {  // the state of a CUevent
  Context* context;
  unsigned flags;                    // of cuEventCreate
  Op recorded;                       // null: never recorded, or last in a captured stream
  std::shared_ptr<Capture> capture;  // of the stream where it was last recorded; null: none
  std::set<int> nodes;               // of the captured graph: the newest of that stream
};

std::shared_ptr<Stream> stream_of(Context& current, CUstream handle);  // the default one for 0; fails for one that was destroyed
std::vector<Op> predecessors_of_next(Stream& stream);
Op make_operation(Stream& stream, Work work, std::vector<Op> after, unsigned lane);
Op submit(Stream& stream, Work work, const std::vector<Op>& after = {});  // null under capture
void finish(const std::vector<Op>& wanted);
void synchronize(const Op& operation);       // finish, and the host has waited for it; null: nothing
void synchronize(Context& context);          // the same for all work of all its streams
std::shared_ptr<Stream> new_stream(Context& context, const std::string& name);
unsigned new_lane();

// ---- graphs.cpp

struct Node {  // captured work
  Work work;
  std::set<int> after;  // indices of earlier nodes
};

using Graph = std::vector<Node>;  // the state of a CUgraph

struct Capture {  // of one stream, and of those that wait for its events
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  CUstreamCaptureMode mode;
  std::shared_ptr<Stream> origin;  // the stream in which it began and must end
  unsigned thread;                 // ThreadState::number of the thread that began it
  bool active = true;              // false: it has ended
  std::string invalid;  // why it can no longer succeed; empty: it can
};

struct Exec {  // CUgraphExec
  std::shared_ptr<Graph> graph;
  std::vector<unsigned> lanes;  // of each node
  Op last;                      // the end of its latest launch; null: none
};

void capture(Stream& stream, Work work);
void join_capture(const std::shared_ptr<Stream>& stream, Event& event);
void end_capture(const std::shared_ptr<Capture>& capture);
[[noreturn]] void break_capture(Capture& capture, CUresult code, const std::string& why);
void forbid_in_capture(const char* call);       // calls that would wait for, or disturb, a capture

// ---- memory.cpp

struct Access {       // a past MemoryAccess
  size_t begin, end;  // offsets in the allocation
  bool write;
  unsigned lane;      // of its operation, as `tick`
  uint64_t tick;
  std::string operation;  // its name and location, for errors
};

struct Allocation {  // of cuMemAlloc; or a block of one, split off by an allocator (mcsim_unpoison)
  Device* device;
  CUdeviceptr address;          // of its first byte
  size_t size, rounded;         // rounded: to 256 bytes
  size_t start, pages;          // of its pages: offset in the device's range, bytes
  unsigned number;              // for errors, from 1 in each context
  bool written = false;         // whether anything was ever written to it
  int open = 0;                 // mprotect's flags while a kernel runs; 0: not accessed by it yet
  std::vector<Access> history;  // kept only with race=1
  bool divided = false;         // by mcsim_poison: of all its bytes only those of `blocks` may be touched
  bool is_block = false;        // one of those; `number` is that of the allocation it lies in
  std::map<CUdeviceptr, std::shared_ptr<Allocation>> blocks;  // by address
  std::string text() const;     // "allocation #3 (400 bytes at 0x... on device 0)"
};

struct Pinned {  // memory of cuMemHostAlloc
  size_t size;
  Context* context;
};

struct Context {  // the primary context of a device, its only one
  Device* device;
  bool retained = false;              // by cuDevicePrimaryCtxRetain: it can be used
  CUresult lost = CUDA_SUCCESS;       // the error of a kernel that made the context unusable; each later call in it returns it
  std::string lost_text;
  std::set<int> peers;                // devices whose memory work of this context may access
  std::shared_ptr<Stream> legacy;     // the default stream; null: not retained
  std::vector<Op> last_of_destroyed;  // last work of destroyed streams, for which a synchronization waits, too
};

struct Device {
  int ordinal;
  // Two mappings of `file`, each of `range` bytes. Device addresses are in `base`, whose pages are inaccessible but while a kernel
  // uses them, so that the host cannot read them by mistake. The driver itself reads and writes by `backing`.
  char *base, *backing;
  size_t range, cursor, used = 0;  // cursor: the offset where the search for free addresses starts; used: bytes allocated
  int file;                        // of memfd_create
  std::map<size_t, std::shared_ptr<Allocation>> live, freed;  // by start; `freed` is for errors
  unsigned numbered = 0;                               // since the context was made
  Context context;
  bool holds(CUdeviceptr address) const { return address - reinterpret_cast<CUdeviceptr>(base) < range; }
};

size_t page_size();
char* guarded_memory(size_t size, const char* what);
std::unique_ptr<Device> make_device(int ordinal, size_t memory);
Device* device_of(CUdeviceptr address);
std::shared_ptr<Allocation> find_allocation(CUdeviceptr address);  // of cuMemAlloc, with this byte; null where there is none
std::shared_ptr<Allocation> find_block(CUdeviceptr address);  // as this, of a divided one only a block in use (mcsim_poison)
std::string describe(CUdeviceptr address);                          // "4 bytes past the end of allocation #3 ..."
bool is_mapped_host(uintptr_t address);                             // found out without an access
const std::pair<const uintptr_t, Pinned>* find_pinned(uintptr_t address);  // the block with this byte; null where there is none
void release_memory(Device& device, const std::shared_ptr<Allocation>& allocation);
void release_pinned(Context& context);
size_t overwritten_slack_bytes(const Allocation& allocation);  // overwritten bytes of the slack around it
constexpr uint32_t kPoison = 0xfff5a5f5;
extern "C" void mcsim_poison(CUdeviceptr address, size_t size);
extern "C" void mcsim_unpoison(CUdeviceptr address, size_t size);

// ---- kernels.cpp, fibers.cpp, faults.cpp

struct Module {  // the state of a CUmodule
  Context* context;
  mc::HostImage image;  // a copy: the caller may free the bytes after loading; the kernels are code of the caller's libraries
};

struct Function {  // the state of a CUfunction
  std::shared_ptr<Module> module;
  const mc::HostKernel* kernel;
  std::string name;  // of its functor, for errors
};

/// A requested launch, stored by a graph, or by a stream with deferred=1. The arguments are copies.
struct Plan {
  std::shared_ptr<Function> function;
  mc::Thread block;  // sizes of block and grid
  size_t shared;     // bytes, static and dynamic
  std::vector<char> storage;
  std::vector<void*> arguments;  // pointers into `storage`
};

/// A Plan in execution, and its effects on device memory.
struct Launch {
  const Plan* plan;
  Device* device;
  char* shared;                     // the memory of one block
  mc::Thread* current = nullptr;    // the running thread, read after a fault; null: all have ended
  unsigned ended = 0, waiting = 0;  // threads that ended, and that wait at a barrier which not all reach; else 0
  std::vector<std::shared_ptr<Allocation>> opened;  // that it accessed
  std::shared_ptr<Allocation> read_unwritten;       // the first that it read before anything was written there; null: none
  int signal = 0;                                   // SIGSEGV or SIGFPE, which stopped it; 0: it was not stopped
  uintptr_t address = 0;                            // that it accessed then, as the following
  bool has_address = false, write = false;
};
void run_guarded(Launch& launch, void (*run)(Launch&));
void install_fault_handler();
void run_threads(Launch& launch, const mc::Thread& block);
bool is_stack_guard(uintptr_t address);

// ---- settings.cpp

struct Settings {  // the settings of MINICAFFE_SIM by their names (settings.cpp)
  int devices = 1;
  size_t memory = size_t(4) << 30;
  int capability = 90;                  // the compute capability times 10
  std::set<std::pair<int, int>> peers;  // each pair in both orders
  bool race = false, uninitialized = false, leak = false, deferred = false;
};

struct Planned {  // a failure, of fail=CALL:N:CODE
  unsigned long long calls_left;  // the call fails when it reaches 0
  CUresult code;
};

void configure_from_environment();
void apply_planned_failure(const char* call);  // counts the call; fails if its turn has come
void report_leaks(Context& context);
bool is_entry_point(const std::string& name);
void reset(Context& context);

// ---- the state of it all

struct ThreadState {  // of one thread of the program
  unsigned number;                          // from 1
  Context* context = nullptr;               // the current one; null: none
  std::map<CUresult, std::string> details;  // the last error of each code, for cuGetErrorString
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // of cuThreadExchangeStreamCaptureMode
  bool in_callback = false, has_signal_stack = false;                // whether it runs a host function of cuLaunchHostFunc
};

struct State {
  std::recursive_mutex lock;
  bool initialized = false, forked = false;   // by cuInit; in a child of that process
  pid_t process = 0;                          // that called cuInit
  Settings settings;
  std::map<std::string, Planned> planned;     // by the name of the call
  std::vector<std::unique_ptr<Device>> devices;
  std::map<uintptr_t, Pinned> pinned;         // by address
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
void enter(const char* call);  // fails unless a driver call is allowed now
Context& enter_context(const char* call);  // the current context; fails also without a usable one
Context& context_of(CUcontext handle);
CUcontext handle_of(const Context& context);

template <class T> void check_pointer(T* pointer, const char* call, const char* name) {
  if (!pointer) fail(CUDA_ERROR_INVALID_VALUE, "%s: %s is null", call, name);
}

/// Run body() with the lock; the code of the Failure that it throws, or success.
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
