// An OpenMP runtime for oneDNN: it runs parallel regions on the threads of our own loops (device/pool.hpp).
//
// With two thread pools, oneDNN's and ours would alternate on the same processors, thousands of times a second. Threads that poll
// for work take the processors from the other pool; threads that sleep are late each time. So the library's import table entries
// for OpenMP are redirected to the functions here. Their contract is in "The libgomp ABI" (GNU libgomp manual) and in OpenMP's
// definition of the omp_ functions.
#pragma once
#ifdef __linux__
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include "minicaffe/device/threads.hpp"

namespace mc {
namespace onednn {
namespace openmp {

/// The threads of a parallel region. Each calling thread has one Team and is number 0 of it.
struct Team {
  int size;                        // number of threads
  void (*region)(void*);           // the body of the region, which each thread calls once with `data`
  void* data;
  std::atomic<int> arrived;        // threads now at the barrier
  std::atomic<unsigned> barriers;  // barriers at which all threads have been
};

/// A loop `for (i = begin; i < end; i += step)` that a team shares, with the state of one member.
struct Loop {
  long begin, end, step, chunk, round;  // chunk: iterations of a part, 0: one of equal parts; round: parts that this member had
};

/// The state of a thread in a parallel region; nested regions run on one thread.
struct Member {
  Team* team;         // null: outside of a region
  int number, inner;  // number of this thread in the team; depth of nested regions, 0: none
  Loop loop;
  bool together() const { return team && !inner; }  // whether the other members run the same code
};

inline cpu::Pool* pool;               // of our own loops; set by `serve`, as the next one
inline int default_threads;           // the default number of threads
inline thread_local int threads_set;  // the number set by the calling thread; 0: the default
inline thread_local Team own_team;    // of the regions that this thread begins
inline thread_local Member me;

/// Library::set_threads (dnnl.hpp): the number of threads of the calling thread's next regions.
inline void set_threads(int threads) {
  if (!pool->start(pool, threads)) throw std::runtime_error("the system has no more threads");
  threads_set = threads;
}

inline int omp_get_max_threads() { return threads_set ? threads_set : default_threads; }
inline int omp_get_num_threads() { return me.together() ? me.team->size : 1; }
inline int omp_get_thread_num() { return me.together() ? me.number : 0; }
inline int omp_in_parallel() { return me.team && me.team->size > 1; }

/// GOMP_parallel_start: begin a region on the threads of the pool; the caller is member 0. `threads` is 0 for the number set.
inline void parallel_start(void (*region)(void*), void* data, unsigned threads) {
  if (me.team) {
    ++me.inner;
    return;
  }
  own_team.size = threads ? int(threads) : omp_get_max_threads();
  own_team.region = region, own_team.data = data;
  if (own_team.size > 1)
    pool->begin(pool, own_team.size, [](const void* argument, int part) {
      Team* team = static_cast<Team*>(const_cast<void*>(argument));
      me = Member{team, part, 0, {}};
      team->region(team->data);
      me = Member{};
    }, &own_team);
  me = Member{&own_team, 0, 0, {}};
}

/// GOMP_parallel_end: wait for the other members.
inline void parallel_end() {
  if (me.inner) {
    --me.inner;
    return;
  }
  if (own_team.size > 1) pool->end(pool);
  me = Member{};
}

// GOMP_parallel.
inline void parallel(void (*region)(void*), void* data, unsigned threads, unsigned) {
  parallel_start(region, data, threads);
  region(data);
  parallel_end();
}

/// GOMP_barrier: wait until all members of the region are here.
inline void barrier() {
  if (omp_get_num_threads() == 1) return;
  Team& team = *me.team;
  const unsigned before = team.barriers.load();
  if (team.arrived.fetch_add(1) + 1 == team.size) {
    team.arrived.store(0);
    team.barriers.store(before + 1);
  } else {
    for (int i = 0; team.barriers.load(std::memory_order_acquire) == before; ++i)
      if (i > 1000) std::this_thread::yield();
  }
}

/// GOMP_loop_static_next: store the next part of this member's loop, chunks in round-robin order; return false if there is none.
inline bool loop_next(long* begin, long* end) {
  Loop& loop = me.loop;
  const long members = omp_get_num_threads(), number = omp_get_thread_num();
  const long count = std::max(0L, (loop.end - loop.begin + loop.step - (loop.step > 0 ? 1 : -1)) / loop.step);
  const long chunk = loop.chunk ? loop.chunk : count / members + (number < count % members);
  const long first =
      loop.chunk ? (loop.round * members + number) * chunk : chunk * number + (number < count % members ? 0 : count % members);
  if (first >= count || !chunk || (!loop.chunk && loop.round)) return false;
  ++loop.round;
  *begin = loop.begin + first * loop.step;
  *end = loop.begin + std::min(first + chunk, count) * loop.step;
  return true;
}

/// GOMP_loop_static_start: begin a loop, and store its first part.
inline bool loop_start(long begin, long end, long step, long chunk, long* first, long* last) {
  me.loop = Loop{begin, end, step, chunk, 0};
  return loop_next(first, last);
}

inline void nothing() {}  // GOMP_loop_end_nowait

/// The replacement for OpenMP's function of that name; null if there is none.
inline void* function(const char* name) {
  static const struct {
    const char* name;
    void* ours;
  } kFunctions[] = {{"GOMP_parallel", reinterpret_cast<void*>(parallel)},
                    {"GOMP_parallel_start", reinterpret_cast<void*>(parallel_start)},
                    {"GOMP_parallel_end", reinterpret_cast<void*>(parallel_end)},
                    {"GOMP_barrier", reinterpret_cast<void*>(barrier)},
                    {"GOMP_loop_static_start", reinterpret_cast<void*>(loop_start)},
                    {"GOMP_loop_static_next", reinterpret_cast<void*>(loop_next)},
                    {"GOMP_loop_end", reinterpret_cast<void*>(barrier)},
                    {"GOMP_loop_end_nowait", reinterpret_cast<void*>(nothing)},
                    {"omp_get_max_threads", reinterpret_cast<void*>(omp_get_max_threads)},
                    {"omp_get_num_threads", reinterpret_cast<void*>(omp_get_num_threads)},
                    {"omp_get_thread_num", reinterpret_cast<void*>(omp_get_thread_num)},
                    {"omp_in_parallel", reinterpret_cast<void*>(omp_in_parallel)}};
  for (const auto& one : kFunctions)
    if (!std::strcmp(one.name, name)) return one.ours;
  return nullptr;
}

#ifdef __linux__
/// The relocations of imported functions in a loaded library, from its dynamic section (ELF-64 with addends: x86-64, AArch64).
class Imports {
 public:
  /// Of the library that dlopen returned as `handle`.
  explicit Imports(void* handle) {
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map_)) throw std::runtime_error(dlerror());
    for (const ElfW(Dyn)* entry = map_->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB) symbols_ = at<ElfW(Sym)>(entry);
      if (entry->d_tag == DT_STRTAB) names_ = at<char>(entry);
      if (entry->d_tag == DT_JMPREL) places_[0] = at<ElfW(Rela)>(entry);
      if (entry->d_tag == DT_PLTRELSZ) counts_[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
      if (entry->d_tag == DT_RELA) places_[1] = at<ElfW(Rela)>(entry);
      if (entry->d_tag == DT_RELASZ) counts_[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
  }

  /// visit(name, place) for each `place`, a pointer in the import table, that holds the address of a function of another library.
  template <class Visit> void each(const Visit& visit) const {
    for (int table = 0; table < 2; ++table)
      for (size_t i = 0; places_[table] && i < counts_[table]; ++i) {
        const ElfW(Rela)& place = places_[table][i];
        const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(place.r_info)];
        if (ELF64_R_SYM(place.r_info) && symbol.st_shndx == SHN_UNDEF)
          visit(names_ + symbol.st_name, reinterpret_cast<void**>(map_->l_addr + place.r_offset));
      }
  }

 private:
  // The table to which an entry of the dynamic section points.
  template <class T> const T* at(const ElfW(Dyn)* entry) const {
    const uintptr_t address = entry->d_un.d_ptr;    // some C libraries have relocated this address, some have not
    return reinterpret_cast<const T*>(address < map_->l_addr ? address + map_->l_addr : address);
  }

  link_map* map_;  // l_addr: the address at which the library is loaded
  const ElfW(Sym)* symbols_ = nullptr;
  const char* names_ = nullptr;
  const ElfW(Rela)* places_[2] = {};  // relocations of functions called directly, and all others
  size_t counts_[2] = {};
};

/// Redirect the OpenMP calls of a library that dlopen returned to the functions above. Throws, unchanged, if one is not among them.
inline void serve(void* handle, cpu::Threads threads) {
  const Imports imports(handle);
  imports.each([](const char* name, void**) {
    const bool of_openmp = !std::strncmp(name, "GOMP_", 5) || !std::strncmp(name, "omp_", 4) || !std::strncmp(name, "__kmpc_", 7);
    if (of_openmp && !function(name)) throw std::runtime_error(std::string("calls ") + name);
  });
  pool = threads.pool, default_threads = threads.count;
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  imports.each([page](const char* name, void** place) {
    void* ours = function(name);
    if (!ours || *place == ours) return;
    // The loader makes it read-only in some libraries.
    if (mprotect(reinterpret_cast<void*>(uintptr_t(place) / page * page), page, PROT_READ | PROT_WRITE))
      throw std::runtime_error("its table of functions cannot be written");
    *place = ours;
  });
}
#else
inline void serve(void*, cpu::Threads) { throw std::runtime_error("this system's format of libraries is not known"); }
#endif

}  // namespace openmp
}  // namespace onednn
}  // namespace mc
