// cuInit, devices, contexts, and the table by which callers find every entry point.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim.hpp"

namespace mcsim {

// Never destroyed: Python may release handles after C++ has begun to destroy static objects.
State& state() {
  static State* const it = new State;
  return *it;
}

ThreadState& this_thread() {  // made at the thread's first use
  static unsigned last = 0;
  static thread_local ThreadState* it = nullptr;
  if (!it) {
    it = new ThreadState;
    it->number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  }
  return *it;
}

/// Fail unless the call is allowed now; all calls begin with it but cuInit and queries such as cuGetErrorName.
void enter(const char* call) {
  if (!state().initialized) fail(CUDA_ERROR_NOT_INITIALIZED, "%s: cuInit comes first", call);
  if (this_thread().in_callback)
    fail(CUDA_ERROR_NOT_PERMITTED, "%s: a host function in a stream must not call the driver", call);
  apply_planned_failure(call);
}

/// `enter`, for a call that works on the thread's current context; return that. Fails if it was released or lost by an error.
Context& enter_context(const char* call) {
  enter(call);
  if (!this_thread().context) fail(CUDA_ERROR_INVALID_CONTEXT, "%s: this thread has no current context", call);
  Context& context = *this_thread().context;
  if (!context.retained)
    fail(CUDA_ERROR_CONTEXT_IS_DESTROYED, "%s: the current context, of device %d, was released", call, context.device->ordinal);
  if (context.lost) fail(context.lost, "%s", context.lost_text.c_str());
  return context;
}

Context& context_of(CUcontext handle) {  // fails for a handle of another kind
  const uint64_t number = number_of(Kind::Context, handle);
  if (!number || number > state().devices.size()) bad_handle(Kind::Context, reinterpret_cast<uint64_t>(handle), 0);
  return state().devices[number - 1]->context;
}

/// The handle of a context: the device's number plus 1, the same each time it is retained.
CUcontext handle_of(const Context& context) {
  return reinterpret_cast<CUcontext>(handle_of(Kind::Context, uint64_t(context.device->ordinal) + 1));
}

/// cuDevicePrimaryCtxReset: free everything in the context; the next retain starts it as if for the first time.
void reset(Context& context) {
  Device& device = *context.device;
  try {
    synchronize(context);
  } catch (const Failure&) {  // an error of queued work, or of a context that is lost
  }
  if (state().settings.leak) report_leaks(context);
  for (auto& c : std::vector<std::shared_ptr<Capture>>(state().captures))
    if (c->origin->context == &context) end_capture(c);
  auto in_context = [&](const auto& object) { return object.context == &context; };
  state().streams.remove_if(in_context);
  state().events.remove_if(in_context);
  state().functions.remove_if([&](const Function& f) { return f.module->context == &context; });
  state().modules.remove_if(in_context);
  while (!device.live.empty()) release_memory(device, device.live.begin()->second);
  device.freed.clear();
  device.numbered = 0;
  release_pinned(context);
  context.last_of_destroyed.clear();
  context.peers.clear();
  context.legacy = nullptr;
  context.lost = CUDA_SUCCESS;
  context.retained = false;
}

namespace {

/// List what the program has not freed, with leak=1.
void at_exit() {
  if (state().forked || getpid() != state().process) return;
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  if (state().settings.leak)
    for (auto& device : state().devices) report_leaks(device->context);
}

/// The device with this number; fails, for the entry point `call`, if there is none.
Device& device_at(const char* call, CUdevice ordinal) {
  if (ordinal < 0 || size_t(ordinal) >= state().devices.size())
    fail(CUDA_ERROR_INVALID_DEVICE, "%s: device %d of %zu", call, ordinal, state().devices.size());
  return *state().devices[size_t(ordinal)];
}

// clang-format off: tables
#define A(name, value) {CU_DEVICE_ATTRIBUTE_##name, value}
const std::pair<CUdevice_attribute, int> kAttributes[] = {  // those that minicaffe reads (cuda/device.pyx, cli/device_query.py)
    A(MAX_THREADS_PER_BLOCK, 1024), A(MAX_BLOCK_DIM_X, 1024), A(MAX_BLOCK_DIM_Y, 1024), A(MAX_BLOCK_DIM_Z, 64),
    A(MAX_GRID_DIM_X, 0x7fffffff), A(MAX_GRID_DIM_Y, 65535), A(MAX_GRID_DIM_Z, 65535),
    A(MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10), A(TOTAL_CONSTANT_MEMORY, 64 << 10), A(WARP_SIZE, 32), A(MAX_PITCH, 0x7fffffff),
    A(MAX_REGISTERS_PER_BLOCK, 65536), A(CLOCK_RATE, 1000000), A(TEXTURE_ALIGNMENT, 512), A(MULTIPROCESSOR_COUNT, 4),
    A(L2_CACHE_SIZE, 1 << 20),
};
#undef A
// clang-format on

}  // namespace
}  // namespace mcsim

using namespace mcsim;

extern "C" {

CUresult CUDAAPI cuInit(unsigned flags) {
  return locked([&] {
    if (flags) fail(CUDA_ERROR_INVALID_VALUE, "cuInit: flags must be 0");
    configure_from_environment();
    apply_planned_failure("cuInit");
    State& s = state();
    if (!s.settings.devices) fail(CUDA_ERROR_NO_DEVICE, "cuInit: MINICAFFE_SIM asks for 0 devices");
    if (s.initialized) return;
    s.devices.clear();
    for (int i = 0; i < s.settings.devices; ++i) s.devices.push_back(make_device(i, s.settings.memory));
    s.process = getpid();
    s.initialized = true;
    install_fault_handler();
    pthread_atfork(nullptr, nullptr, [] { state().forked = true; });
    atexit(at_exit);
  });
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return on_driver("cuDeviceGet", device, "the pointer for the device", [&] { return device_at("cuDeviceGet", ordinal).ordinal; });
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return on_driver("cuDeviceGetCount", count, "the pointer for the number", [&] { return int(state().devices.size()); });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int size, CUdevice device) {
  return on_driver("cuDeviceGetName", [&] {
    device_at("cuDeviceGetName", device);
    if (!name || size <= 0) fail(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetName: no room for the name");
    snprintf(name, size_t(size), "minicaffe simulated device");
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
  return on_driver("cuDeviceGetAttribute", value, "the pointer for the value", [&] {
    device_at("cuDeviceGetAttribute", device);
    if (name < 1 || name >= CU_DEVICE_ATTRIBUTE_MAX)
      fail(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: unknown attribute %d", int(name));
    if (name == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) return state().settings.capability / 10;
    if (name == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) return state().settings.capability % 10;
    for (auto [known, number] : kAttributes)
      if (known == name) return number;
    return 0;  // not supported
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  return on_driver("cuDeviceGetPCIBusId", [&] {
    device_at("cuDeviceGetPCIBusId", device);
    if (!id || size < 13) fail(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetPCIBusId: no room for the id");
    snprintf(id, size_t(size), "0000:%02x:00.0", unsigned(device + 1));
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return on_driver("cuDeviceCanAccessPeer", can, "the pointer for the answer", [&] {
    device_at("cuDeviceCanAccessPeer", device), device_at("cuDeviceCanAccessPeer", peer);
    return int(state().settings.peers.count({device, peer}));
  });
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return on_context("cuCtxEnablePeerAccess", [&](Context& context) {
    Context& other = context_of(peer);
    if (flags) fail(CUDA_ERROR_INVALID_VALUE, "cuCtxEnablePeerAccess: flags must be 0");
    if (&other == &context) fail(CUDA_ERROR_INVALID_DEVICE, "cuCtxEnablePeerAccess: the peer is the current context");
    if (!other.retained) fail(CUDA_ERROR_INVALID_CONTEXT, "cuCtxEnablePeerAccess: the peer's context was released");
    if (!state().settings.peers.count({context.device->ordinal, other.device->ordinal}))
      fail(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
           "cuCtxEnablePeerAccess: device %d and device %d are not peers; MINICAFFE_SIM's peers= says which are",
           context.device->ordinal, other.device->ordinal);
    if (!context.peers.insert(other.device->ordinal).second)
      fail(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "cuCtxEnablePeerAccess: device %d has access to device %d already",
           context.device->ordinal, other.device->ordinal);
  });
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  return on_context("cuCtxDisablePeerAccess", [&](Context& context) {
    if (!context.peers.erase(context_of(peer).device->ordinal))
      fail(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "cuCtxDisablePeerAccess: it was not enabled");
  });
}

/// Retains are not counted: the context exists until cuDevicePrimaryCtxReset.
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  return on_driver("cuDevicePrimaryCtxRetain", out, "the pointer for the context", [&] {
    Context& context = device_at("cuDevicePrimaryCtxRetain", device).context;
    if (!context.retained) {
      context.retained = true;
      context.legacy = new_stream(context, "the default stream");
      context.legacy->legacy = true;
    }
    return mcsim::handle_of(context);
  });
}

/// Ends the context: the recovery from a sticky error. Retain it again; the handle stays the same.
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  return on_driver("cuDevicePrimaryCtxReset", [&] {
    Context& context = device_at("cuDevicePrimaryCtxReset", device).context;
    if (context.retained) reset(context);
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  return on_driver("cuCtxSetCurrent", [&] { this_thread().context = handle ? &context_of(handle) : nullptr; });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* out) {
  return on_driver("cuCtxGetCurrent", out, "the pointer for the context", [&] {
    const Context* context = this_thread().context;
    return context ? mcsim::handle_of(*context) : nullptr;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return on_context("cuCtxGetDevice", device, "the pointer for the device",
                    [&](Context& context) { return context.device->ordinal; });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return on_context("cuCtxSynchronize", [&](Context& context) {
    forbid_in_capture("cuCtxSynchronize");
    synchronize(context);
  });
}

// NVRTC requests its own tables from the loaded libcuda.so.1; there are none here.
CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
  if (table) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

namespace {

struct Entry {
  const char* name;
  int version;  // the first with this signature
  void* function;
};

// Callers look up the plain #name with a CUDA version; cuda.h has a macro from it to the function, e.g. cuMemAlloc_v2.
// clang-format off: tables
#define E(name, version) {#name, version, reinterpret_cast<void*>(name)}
#define V(name, version, function) {#name, version, reinterpret_cast<void*>(function)}
const Entry kEntries[] = {
    E(cuInit, 2000), E(cuDriverGetVersion, 2020), E(cuGetErrorName, 6000), E(cuGetErrorString, 6000), E(cuGetProcAddress, 12000),
    E(cuDeviceGet, 2000), E(cuDeviceGetCount, 2000), E(cuDeviceGetName, 2000), E(cuDeviceGetAttribute, 2000),
    E(cuDeviceGetPCIBusId, 4010), E(cuDeviceCanAccessPeer, 4000), E(cuDevicePrimaryCtxRetain, 7000),
    E(cuDevicePrimaryCtxReset, 7000), E(cuCtxEnablePeerAccess, 4000), E(cuCtxDisablePeerAccess, 4000), E(cuCtxSetCurrent, 4000),
    E(cuCtxGetCurrent, 4000), E(cuCtxGetDevice, 2000), E(cuCtxSynchronize, 2000), E(cuMemAlloc, 3020), E(cuMemFree, 3020),
    E(cuMemGetInfo, 3020), E(mcsim_poison, 12000), E(mcsim_unpoison, 12000), E(cuMemHostAlloc, 2020), E(cuMemFreeHost, 2000),
    E(cuPointerGetAttribute, 4000), E(cuMemcpyHtoD, 3020), E(cuMemcpyHtoDAsync, 3020), E(cuMemcpyDtoH, 3020),
    E(cuMemcpyDtoHAsync, 3020), E(cuMemcpyDtoDAsync, 3020), E(cuMemcpyPeerAsync, 4000),
    E(cuMemsetD8Async, 3020), E(cuStreamCreate, 2000), E(cuStreamDestroy, 4000), E(cuStreamSynchronize, 2000),
    E(cuStreamWaitEvent, 3020), E(cuStreamGetCtx, 9020), E(cuLaunchHostFunc, 10000), E(cuEventCreate, 2000),
    E(cuEventDestroy, 4000), E(cuEventRecord, 2000), E(cuEventQuery, 2000), E(cuEventSynchronize, 2000),
    E(cuEventElapsedTime, 2000), E(cuStreamBeginCapture, 10010), E(cuStreamEndCapture, 10000), E(cuStreamIsCapturing, 10000),
    E(cuThreadExchangeStreamCaptureMode, 10010), E(cuGraphDestroy, 10000), E(cuGraphGetNodes, 10000),
    V(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags), E(cuGraphInstantiateWithFlags, 11040), E(cuGraphLaunch, 10000),
    E(cuGraphExecDestroy, 10000), E(cuModuleLoadData, 2000), E(cuModuleUnload, 2000), E(cuModuleGetFunction, 2000),
    E(cuLaunchKernel, 4000),
};
#undef V
#undef E
// clang-format on

}  // namespace

bool mcsim::is_entry_point(const std::string& name) {
  return std::any_of(std::begin(kEntries), std::end(kEntries), [&](const Entry& entry) { return name == entry.name; });
}

extern "C" {

/// By this callers find every other entry point. Null where CUDA `version` had another signature. Calls for per-thread default
/// streams get the same functions: stream 0 stays the legacy one.
CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t,
                                  CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Entry& entry : kEntries) {
    if (strcmp(entry.name, symbol)) continue;
    const bool known = entry.version <= version;
    if (known) *function = entry.function;
    result = known ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  if (status) *status = result;
  return CUDA_SUCCESS;
}

}  // extern "C"
