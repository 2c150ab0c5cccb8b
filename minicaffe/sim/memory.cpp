// Device memory: one reserved address range per device, allocations between inaccessible pages, blocks that an allocator of the
// program splits from an allocation, pinned host memory, and descriptions of addresses.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "sim.hpp"

namespace mcsim {
namespace {

// Addresses without host mappings: above the heap and the program, below the libraries and stacks, and clear of ASan's shadow.
constexpr uintptr_t kFirstRange = 0x200000000000;
constexpr size_t kGranule = 256;  // cuMemAlloc's alignment
constexpr unsigned char kCanary = 0xc5;   // fills the slack around an allocation
constexpr size_t kFreedKept = 65536;      // freed allocations that are remembered for error messages

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

char* backing(const Allocation& a) { return a.device->backing + a.start; }  // its first page, accessible to the driver
size_t front_slack(const Allocation& a) { return a.pages - a.rounded; }  // bytes between the first page and the first byte

/// The offset for `pages` bytes and a guard page: after the newest allocation, so that freed addresses stay unused until it wraps.
size_t find_room(Device& device, size_t pages) {
  const size_t guard = page_size();
  for (size_t at : {device.cursor, guard}) {
    auto next = device.live.lower_bound(at);
    if (next != device.live.begin()) {
      const Allocation& previous = *std::prev(next)->second;
      at = std::max(at, previous.start + previous.pages + guard);
    }
    for (; at + pages + guard <= device.range; at = next->first + next->second->pages + guard, ++next)
      if (next == device.live.end() || at + pages + guard <= next->first) return at;
  }
  fail(CUDA_ERROR_OUT_OF_MEMORY, "no %zu adjacent bytes are left in the address range of device %d", pages, device.ordinal);
}

/// Fill the bytes around a new allocation, up to whole pages, with kCanary; with uninitialized=1 the allocation with kPoison.
void mark_new(const Allocation& a) {
  char* begin = backing(a) + front_slack(a);
  memset(backing(a), kCanary, front_slack(a));
  memset(begin + a.size, kCanary, a.rounded - a.size);
  if (state().settings.uninitialized)
    for (size_t i = 0; i < a.size; i += 4) memcpy(begin + i, &kPoison, std::min<size_t>(4, a.size - i));
}

/// cuMemAlloc: between two inaccessible pages, at the end of its last page, so that an access beyond the end is a fault.
CUdeviceptr allocate(Device& device, size_t size) {
  const size_t rounded = round_up(size, kGranule), memory = state().settings.memory;
  if (size > memory || device.used + rounded > memory)
    fail(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc: %zu bytes asked, %zu of %zu free on device %d", size, memory - device.used,
         memory, device.ordinal);
  auto a = std::make_shared<Allocation>();
  a->device = &device;
  a->size = size;
  a->rounded = rounded;
  a->pages = round_up(rounded, page_size());
  a->start = find_room(device, a->pages);
  a->address = CUdeviceptr(device.base) + a->start + front_slack(*a);
  a->number = ++device.numbered;
  device.cursor = a->start + a->pages + page_size();
  device.used += rounded;
  auto it = device.freed.lower_bound(a->start);  // in a wrapped range: forget the freed allocations that were at these pages
  if (it != device.freed.begin() && std::prev(it)->first + std::prev(it)->second->pages > a->start) --it;
  while (it != device.freed.end() && it->first < a->start + a->pages) it = device.freed.erase(it);
  device.live[a->start] = a;
  mark_new(*a);
  return a->address;
}

/// The freed allocation whose pages have `address`, for errors; null if there is none or it was forgotten.
std::shared_ptr<Allocation> find_freed(Device& device, CUdeviceptr address) {
  const size_t offset = address - CUdeviceptr(device.base);
  auto* entry = floor_entry(device.freed, offset);
  return entry && offset < entry->first + entry->second->pages ? entry->second : nullptr;
}

/// The last live allocation that begins at or before `address`; its end may be before `address`, too.
std::shared_ptr<Allocation> allocation_before(Device& device, CUdeviceptr address) {
  auto* entry = floor_entry(device.live, address - CUdeviceptr(device.base));
  return entry ? entry->second : nullptr;
}

/// Describe `address` by its distance from the nearer neighbour: `before` ends before it, `after` begins after it. One may be null.
std::string describe_between(CUdeviceptr address, const Allocation* before, const Allocation* after) {
  size_t past = before ? address - before->address - before->size : SIZE_MAX, ahead = after ? after->address - address : SIZE_MAX;
  return ahead < past ? formatted("%zu bytes before %s", ahead, after->text().c_str())
                      : formatted("%zu bytes past the end of %s", past, before->text().c_str());
}

/// cuMemFree. Fails unless the address is the start of an allocation, and, after freeing, if bytes around it were overwritten.
void free_device(CUdeviceptr address) {
  Device* device = device_of(address);
  std::shared_ptr<Allocation> a = device ? allocation_before(*device, address) : nullptr;
  if (!a || a->address != address) {
    auto freed = device ? find_freed(*device, address) : nullptr;
    if (freed && freed->address == address)
      fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: double free: 0x%llx was allocation #%u (%zu bytes) and was freed before",
           address, freed->number, freed->size);
    fail(CUDA_ERROR_INVALID_VALUE, "cuMemFree: 0x%llx is not the start of an allocation: %s", address,
         describe(address).c_str());
  }
  synchronize(device->context);  // as the real driver does: queued work may still use the memory
  size_t lost = overwritten_slack_bytes(*a);
  std::string text = a->text();
  release_memory(*device, a);
  if (lost)
    fail(CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemFree: %zu bytes outside %s, next to it, were overwritten", lost, text.c_str());
}

}  // namespace

size_t page_size() {
  static const size_t size = size_t(sysconf(_SC_PAGESIZE));
  return size;
}

/// Host memory between two inaccessible pages, at the end of its last page; `what` is its purpose, for errors.
char* guarded_memory(size_t size, const char* what) {
  const size_t page = page_size(), inside = round_up(size, page);
  void* memory = mmap(nullptr, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(CUDA_ERROR_OUT_OF_MEMORY, "the host has no memory for %s", what);
  mprotect(static_cast<char*>(memory) + page, inside, PROT_READ | PROT_WRITE);
  return static_cast<char*>(memory) + page + inside - size;
}

std::string Allocation::text() const {
  if (is_block)
    return formatted("a block of %zu bytes at 0x%llx in allocation #%u on device %d", size, address, number, device->ordinal);
  return formatted("allocation #%u (%zu bytes at 0x%llx on device %d)", number, size, address, device->ordinal);
}

/// Reserve the addresses of a device twice: at `base`, inaccessible but while a kernel uses them; at `backing`, for the driver.
std::unique_ptr<Device> make_device(int ordinal, size_t memory) {
  std::unique_ptr<Device> device(new Device);
  device->ordinal = ordinal;
  // The smallest allocation takes a page and a guard page. The rest of the range delays the reuse of freed addresses.
  device->range = round_up(64 * memory + (size_t(64) << 20), size_t(1) << 30);
  device->cursor = page_size();
  device->file = memfd_create("minicaffe simulated device", MFD_CLOEXEC);
  void* address_hint = reinterpret_cast<void*>(kFirstRange + (uintptr_t(ordinal) << 42));
  const int flags = MAP_SHARED | MAP_NORESERVE;
  void *base = MAP_FAILED, *backing = MAP_FAILED;
  for (;; device->range /= 4) {  // smaller if the processor has few address bits or `ulimit -v` is set
    base = mmap(address_hint, device->range, PROT_NONE, flags, device->file, 0);
    backing = mmap(nullptr, device->range, PROT_READ | PROT_WRITE, flags, device->file, 0);
    if (base != MAP_FAILED && backing != MAP_FAILED) break;
    if (base != MAP_FAILED) munmap(base, device->range);
    if (backing != MAP_FAILED) munmap(backing, device->range);
    if (device->range / 4 < 2 * memory)
      fail(CUDA_ERROR_OPERATING_SYSTEM, "cuInit: cannot reserve %zu bytes of addresses for device %d: %s; set a smaller memory=",
           device->range, ordinal, strerror(errno));
  }
  if (ftruncate(device->file, off_t(device->range)))
    fail(CUDA_ERROR_OPERATING_SYSTEM, "cuInit: no memory file of %zu bytes: %s", device->range, strerror(errno));
  // A forked child must not access the device of its parent, as with CUDA.
  madvise(base, device->range, MADV_DONTFORK);
  madvise(backing, device->range, MADV_DONTFORK);
  device->base = static_cast<char*>(base);
  device->backing = static_cast<char*>(backing);
  device->context.device = device.get();
  return device;
}

/// The device in whose range the address is; null for any other address.
Device* device_of(CUdeviceptr address) {
  for (auto& device : state().devices)
    if (device->holds(address)) return device.get();
  return nullptr;
}

std::shared_ptr<Allocation> find_allocation(CUdeviceptr address) {
  Device* device = device_of(address);
  std::shared_ptr<Allocation> a = device ? allocation_before(*device, address) : nullptr;
  return a && address - a->address < a->size ? a : nullptr;
}

std::shared_ptr<Allocation> find_block(CUdeviceptr address) {
  auto a = find_allocation(address);
  if (!a || !a->divided) return a;
  auto* entry = floor_entry(a->blocks, address);
  return entry && address - entry->first < entry->second->size ? entry->second : nullptr;
}

std::string describe(CUdeviceptr address) {  // where it is, as text for errors
  Device* device = device_of(address);
  if (!device) {
    if (auto* pinned = find_pinned(address))
      return formatted("byte %zu of %zu bytes of pinned host memory", size_t(address - pinned->first), pinned->second.size);
    if (address < 4096) return "a null pointer";
    return is_mapped_host(address) ? "a host address, which the device cannot reach" : "an address of neither device nor host";
  }
  std::shared_ptr<Allocation> a = allocation_before(*device, address);
  if (auto found = find_block(address)) return formatted("byte %zu of %s", size_t(address - found->address), found->text().c_str());
  if (a && address - a->address < a->size) {
    auto next = a->blocks.upper_bound(address);
    if (a->blocks.empty()) return formatted("in %s, of which no block is in use", a->text().c_str());
    return describe_between(address, next == a->blocks.begin() ? nullptr : std::prev(next)->second.get(),
                  next == a->blocks.end() ? nullptr : next->second.get());
  }
  if (auto freed = find_freed(*device, address)) return "in " + freed->text() + ", freed before";
  auto after = device->live.upper_bound(address - CUdeviceptr(device->base));
  if (a && address < a->address) return formatted("%zu bytes before %s", size_t(a->address - address), a->text().c_str());
  if (!a && after == device->live.end()) return formatted("in no allocation of device %d", device->ordinal);
  return describe_between(address, a.get(), after == device->live.end() ? nullptr : after->second.get());
}

bool is_mapped_host(uintptr_t address) {
  if (device_of(address) || address < page_size() || address >> 47) return false;
  unsigned char resident;
  return mincore(reinterpret_cast<void*>(address / page_size() * page_size()), 1, &resident) == 0;
}

const std::pair<const uintptr_t, Pinned>* find_pinned(uintptr_t address) {
  auto* entry = floor_entry(state().pinned, address);
  return entry && address - entry->first < entry->second.size ? entry : nullptr;
}

/// Free an allocation without checks: return its pages to the host, and remember it in `freed` for error messages.
void release_memory(Device& device, const std::shared_ptr<Allocation>& a) {
  fallocate(device.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(a->start), off_t(a->pages));
  device.used -= a->rounded;
  a->history.clear(), a->blocks.clear();
  device.freed[a->start] = a;
  if (device.freed.size() > kFreedKept) device.freed.erase(device.freed.begin());
  device.live.erase(a->start);
}

void release_pinned(Context& context) {  // all of the context
  erase_if(state().pinned, [&](auto& entry) {
    const bool found = entry.second.context == &context;
    if (found) munmap(reinterpret_cast<void*>(entry.first), round_up(entry.second.size, page_size()));
    return found;
  });
}

/// The number of bytes around an allocation, up to whole pages, that no longer have the pattern of mark_new.
size_t overwritten_slack_bytes(const Allocation& a) {
  size_t count = 0;
  const unsigned char* begin = reinterpret_cast<const unsigned char*>(backing(a));
  for (size_t i = 0; i < front_slack(a); ++i) count += begin[i] != kCanary;
  for (size_t i = front_slack(a) + a.size; i < a.pages; ++i) count += begin[i] != kCanary;
  return count;
}

}  // namespace mcsim

using namespace mcsim;

extern "C" {

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* out, size_t size) {
  return on_context("cuMemAlloc", out, "the pointer for the address", [&](Context& context) {
    forbid_in_capture("cuMemAlloc");
    if (!size) fail(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc: 0 bytes asked");
    return allocate(*context.device, size);
  });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  return on_context("cuMemFree", [&](Context&) {
    forbid_in_capture("cuMemFree");
    free_device(address);
  });
}

/// Not in CUDA: a caching allocator (memory/red_zones.pyx) makes `size` bytes of an allocation inaccessible, first the whole of it,
/// then each freed block. With deferred=1 all stays accessible: work on a block may run after the block was freed.
void mcsim_poison(CUdeviceptr address, size_t size) {
  if (state().forked) return;
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  auto a = find_allocation(address);
  if (!a) return;
  if (state().settings.deferred) {
    a->divided = false;
    a->blocks.clear();
  } else if (address == a->address && size == a->size) {
    a->divided = true;
  }
  for (auto it = a->blocks.lower_bound(address); it != a->blocks.end() && it->first < address + size; it = a->blocks.erase(it))
    for (Access use : it->second->history) {  // for race=1: the next user of these bytes must come after
      use.begin += it->first - a->address;
      use.end += it->first - a->address;
      a->history.push_back(use);
    }
}

/// Not in CUDA: the allocator makes a new block of `size` bytes accessible, which begins at a page. The bytes from its end to the
/// next page get a pattern that shows overruns; the page after that must stay inaccessible. With race=1 the block takes over the
/// accesses to its bytes from the allocation's history.
void mcsim_unpoison(CUdeviceptr address, size_t size) {
  if (state().forked) return;
  std::lock_guard<std::recursive_mutex> hold(state().lock);
  auto a = find_allocation(address);
  if (!a || !a->divided || !size) return;
  auto block = std::make_shared<Allocation>();
  block->device = a->device;
  block->address = address;
  block->size = size;
  block->rounded = block->pages = round_up(size, page_size());
  block->start = size_t(address - CUdeviceptr(a->device->base));
  block->number = a->number;
  block->is_block = true;
  mark_new(*block);
  const size_t begin = address - a->address, end = begin + size;
  std::vector<Access> elsewhere;
  auto keep = [](std::vector<Access>& to, const Access& use, size_t from, size_t until, size_t origin) {
    from = std::max(from, use.begin);
    until = std::min(until, use.end);
    if (from < until) to.push_back({from - origin, until - origin, use.write, use.lane, use.tick, use.operation});
  };
  for (const Access& use : a->history) {
    keep(elsewhere, use, 0, begin, 0);
    keep(block->history, use, begin, end, begin);
    keep(elsewhere, use, end, a->size, 0);
  }
  a->history = std::move(elsewhere);
  a->blocks[address] = block;
}

CUresult CUDAAPI cuMemGetInfo(size_t* available, size_t* total) {
  return on_context("cuMemGetInfo", [&](Context& context) {
    size_t memory = state().settings.memory;
    if (available) *available = memory - std::min(memory, context.device->used);
    if (total) *total = memory;
  });
}

CUresult CUDAAPI cuMemHostAlloc(void** out, size_t size, unsigned) {
  return on_context("cuMemHostAlloc", out, "the pointer for the address", [&](Context& context) {
    forbid_in_capture("cuMemHostAlloc");
    if (!size) fail(CUDA_ERROR_INVALID_VALUE, "cuMemHostAlloc: 0 bytes asked");
    void* memory = mmap(nullptr, round_up(size, page_size()), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(CUDA_ERROR_OUT_OF_MEMORY, "cuMemHostAlloc: the host has no %zu bytes", size);
    state().pinned[uintptr_t(memory)] = {size, &context};
    return memory;
  });
}

CUresult CUDAAPI cuMemFreeHost(void* memory) {
  return on_context("cuMemFreeHost", [&](Context& context) {
    forbid_in_capture("cuMemFreeHost");
    auto found = state().pinned.find(uintptr_t(memory));
    if (found == state().pinned.end())
      fail(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost: %p is not the start of memory from cuMemHostAlloc: %s", memory,
           describe(uintptr_t(memory)).c_str());
    synchronize(context);
    munmap(memory, round_up(found->second.size, page_size()));
    state().pinned.erase(found);
  });
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr p) {
  return on_driver("cuPointerGetAttribute", [&] {
    check_pointer(data, "cuPointerGetAttribute", "data");
    auto a = find_allocation(p);
    auto* pinned = find_pinned(p);
    if (!a && !pinned) fail(CUDA_ERROR_INVALID_VALUE, "cuPointerGetAttribute: 0x%llx is %s", p, describe(p).c_str());
    auto put = [&](auto value) { memcpy(data, &value, sizeof value); };
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return put(unsigned(a ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(0u);
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put((a ? a->device : pinned->second.context->device)->ordinal);
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(a ? a->address : CUdeviceptr(pinned->first));
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(a ? a->size : pinned->second.size);
      default:
        fail(CUDA_ERROR_NOT_SUPPORTED, "cuPointerGetAttribute: the simulated device does not know attribute %d", int(attribute));
    }
  });
}

}  // extern "C"
