// Copies and fills. Each end must lie inside one allocation, one pinned block or mapped host memory, at the call and when it runs.
#include <cstring>

#include "sim.hpp"

using namespace mcsim;

namespace {

enum class Side { Host, Device };

/// One end of a copy as the caller gave it.
struct End {
  Side side;
  uint64_t address;
  Device* owner = nullptr;  // the device of the memory, of cuMemcpyPeerAsync; null: not given
};

/// The memory of an End.
struct Span {
  char* memory = nullptr;                  // an address that the driver can read and write
  std::shared_ptr<Allocation> allocation;  // null: host memory
  size_t offset = 0;                       // in the allocation
  bool pinned = false;
};

/// Find the memory of one end of a copy; fail unless all `size` bytes are in it. `which` is "source" or "destination", for errors.
Span resolve(const char* call, const char* which, const End& end, size_t size) {
  const uint64_t p = end.address;
  Span span;
  Device* device = device_of(p);
  if (end.side == Side::Host && device)
    fail(CUDA_ERROR_INVALID_VALUE, "%s: %s must be host memory, 0x%llx is a device address: %s", call, which,
         (unsigned long long)p, describe(p).c_str());
  if (device) {
    auto a = find_block(p);
    if (!a || size > a->address + a->size - p)
      fail(CUDA_ERROR_INVALID_VALUE, "%s: %s: %zu bytes at 0x%llx are out of bounds: %s is %s", call, which, size,
           (unsigned long long)p, a ? "the first outside" : "it", describe(a ? a->address + a->size : p).c_str());
    if (end.owner && end.owner != device)
      fail(CUDA_ERROR_INVALID_VALUE, "%s: %s must be on device %d, it is %s", call, which, end.owner->ordinal,
           a->text().c_str());
    span.allocation = a;
    span.offset = p - a->address;
    span.memory = device->backing + (p - CUdeviceptr(device->base));
    return span;
  }
  if (auto* pinned = find_pinned(p)) {
    if (size > pinned->first + pinned->second.size - p)
      fail(CUDA_ERROR_INVALID_VALUE, "%s: %s: %zu bytes at 0x%llx are out of bounds: %s", call, which, size,
           (unsigned long long)p, describe(p).c_str());
    span.pinned = true;
  } else if (end.side == Side::Device) {
    fail(CUDA_ERROR_INVALID_VALUE, "%s: %s must be device memory, 0x%llx is %s", call, which, (unsigned long long)p,
         describe(p).c_str());
  } else if (!is_mapped_host(p) || !is_mapped_host(p + size - 1)) {
    fail(CUDA_ERROR_INVALID_VALUE, "%s: %s: %zu bytes at 0x%llx are not host memory: %s", call, which, size,
         (unsigned long long)p, describe(is_mapped_host(p) ? p + size - 1 : p).c_str());
  }
  span.memory = reinterpret_cast<char*>(p);
  return span;
}

/// Fail unless work on the stream may access the memory: that of its device, of enabled peers, and of the host. Not for
/// cuMemcpyPeerAsync, which may access any device.
void check_access(const char* call, const Stream& stream, const Span& span) {
  const Device* device = stream.context->device;
  if (span.allocation && span.allocation->device != device && !stream.context->peers.count(span.allocation->device->ordinal))
    fail(CUDA_ERROR_INVALID_VALUE, "%s in a stream of device %d: %s, and device %d has no peer access to it", call, device->ordinal,
         span.allocation->text().c_str(), device->ordinal);
}

/// With uninitialized=1: fail if a word copied to the host equals the fill pattern of new allocations, a NaN. The pattern is found
/// also in a copy by a kernel, and in a result of arithmetic that keeps the bits of a NaN.
void refuse_unwritten(const char* call, const Span& from, size_t size) {
  for (size_t i = (from.offset + 3) / 4 * 4; i + 4 <= from.offset + size; i += 4)
    if (!memcmp(from.memory - from.offset + i, &kPoison, 4))
      fail(CUDA_ERROR_INVALID_VALUE, "%s: uninitialized: bytes %zu to %zu of %s were never written", call, i, i + 3,
           from.allocation->text().c_str());
}

/// Note that `op` wrote `size` bytes, for races and uninitialized=1; no effect for host memory.
void wrote(Operation& op, const Span& to, size_t size) {
  if (!to.allocation) return;
  to.allocation->written = true;
  op.accesses.push_back({to.allocation, to.offset, to.offset + size, true});
}

/// Do a copy in the order of its stream: by then the memory may have been freed, so both ends are checked again.
void move(Operation& op, const std::string& call, const End& to_end, const End& from_end, size_t size) {
  Span to = resolve(call.c_str(), "destination", to_end, size), from = resolve(call.c_str(), "source", from_end, size);
  if (!to.allocation && from.allocation && state().settings.uninitialized) refuse_unwritten(call.c_str(), from, size);
  memmove(to.memory, from.memory, size);
  wrote(op, to, size);
  if (from.allocation) op.accesses.push_back({from.allocation, from.offset, from.offset + size, false});
}

enum class Wait { Always, IfPageable, Never };  // whether the call returns only when the copy is done

/// Check a copy of `size` bytes and submit it to a stream; wait for it where CUDA's call does. Both ends have an owner or none.
void copy_in(const char* call, Context& context, End to, End from, size_t size, CUstream handle, Wait wait) {
  auto stream = stream_of(context, handle);
  if (wait == Wait::Always) forbid_in_capture(call);
  if (!size) return;
  Span target = resolve(call, "destination", to, size), source = resolve(call, "source", from, size);
  if (!to.owner) check_access(call, *stream, target), check_access(call, *stream, source);
  if (target.memory < source.memory + size && source.memory < target.memory + size)
    fail(CUDA_ERROR_INVALID_VALUE, "%s: source and destination overlap: %zu bytes at 0x%llx and at 0x%llx", call, size,
         (unsigned long long)from.address, (unsigned long long)to.address);
  // Pageable memory is read before the call returns (the real driver stages it), so the caller may change it at once.
  const bool pageable_source = !source.allocation && !source.pinned, pageable_target = !target.allocation && !target.pinned;
  std::shared_ptr<std::vector<char>> staged;
  if (pageable_source && state().settings.deferred && !stream->capture) {
    staged = std::make_shared<std::vector<char>>(source.memory, source.memory + size);
    from.address = reinterpret_cast<uint64_t>(staged->data());
  }
  std::string name = call;
  Op op = submit(*stream, {name, &context, [=, alive = staged](Operation& self) {
                             move(self, name, to, from, size);
                           }});
  if (op && (wait == Wait::Always || (wait == Wait::IfPageable && pageable_target))) synchronize(op);
}

CUresult copy(const char* call, End to, End from, size_t size, CUstream stream, Wait wait) {  // an entry point
  return on_context(call, [&](Context& context) { copy_in(call, context, to, from, size, stream, wait); });
}

End host(const void* p) { return {Side::Host, reinterpret_cast<uint64_t>(p)}; }
End device(CUdeviceptr p) { return {Side::Device, p}; }

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return copy("cuMemcpyHtoD", device(to), host(from), size, nullptr, Wait::Always);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return copy("cuMemcpyHtoDAsync", device(to), host(from), size, stream, Wait::Never);
}
CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return copy("cuMemcpyDtoH", host(to), device(from), size, nullptr, Wait::Always);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy("cuMemcpyDtoHAsync", host(to), device(from), size, stream, Wait::IfPageable);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy("cuMemcpyDtoDAsync", device(to), device(from), size, stream, Wait::Never);
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                                   CUstream stream) {
  return on_context("cuMemcpyPeerAsync", [&](Context& context) {
    Device *target = context_of(to_context).device, *source = context_of(from_context).device;
    copy_in("cuMemcpyPeerAsync", context, {Side::Device, to, target}, {Side::Device, from, source}, size, stream, Wait::Never);
  });
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t size, CUstream handle) {
  return on_context("cuMemsetD8Async", [&](Context& context) {
    auto stream = stream_of(context, handle);
    if (!size) return;
    check_access("cuMemsetD8Async", *stream, resolve("cuMemsetD8Async", "destination", device(p), size));
    submit(*stream, {"cuMemsetD8Async", &context, [=](Operation& op) {
                       Span to = resolve("cuMemsetD8Async", "destination", device(p), size);
                       memset(to.memory, value, size);
                       wrote(op, to, size);
                     }});
  });
}
}  // extern "C"
