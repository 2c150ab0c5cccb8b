// Threads that share a CPU loop. Their pool is in device/pool.hpp, which only device/threads.pyx includes: one per process.
#pragma once
#include <algorithm>
#include "minicaffe/kernels/config.hpp"

namespace mc {
namespace cpu {

/// The interface of the pool for other modules.
struct Pool {
  using Work = void (*)(const void* argument, int part);
  void (*run)(Pool*, int parts, Work, const void* argument);    // work(argument, part) once for each 0 <= part < parts
  bool (*start)(Pool*, int threads);  // start workers; returns whether there are so many threads, including the calling one
  void (*begin)(Pool*, int parts, Work, const void* argument);  // parts 1.. concurrently, each on its own thread, until `end`
  void (*end)(Pool*);
  int (*dry)();  // whether the calling thread computes nothing (device/threads.pyx, dry_run)
};

/// A number of threads of a pool; without a pool, loops run on the calling thread.
struct Threads {
  int count;
  Pool* pool;
  operator int() const { return count; }
};

constexpr index_t kVector = 32;  // elements of the longest vector, of 2 bytes each
constexpr index_t kLongPart = 16 * kVector;  // from this length on a part begins at a multiple of kVector

/// The number of parts, at most `threads`, of n steps of which each part has at least `grain`: small work is not divided.
inline int parts_of(int threads, index_t n, index_t grain) {
  return int(std::min<index_t>(threads, std::max<index_t>(1, n / std::max<index_t>(1, grain))));
}

/// work(part, begin, end) for up to `threads` parts of 0..n-1, each contiguous and of at least `grain` elements. The parts depend
/// only on the number of threads, not on which thread runs one, so scratch memory is indexed by part.
///
/// Long parts begin at multiples of kVector, so that the number of threads does not decide whether an element belongs to a vector
/// or to the remainder of a loop. The compiler may round those differently: it fuses different products and sums.
template <class Work> void parallel(Threads threads, index_t n, index_t grain, const Work& work) {
  if (n <= 0 || (threads.pool && threads.pool->dry())) return;
  const int parts = parts_of(threads.pool ? threads.count : 1, n, grain);
  if (parts == 1) return work(0, 0, n);
  auto first = [&](index_t part) {
    const index_t begin = n * part / parts;
    return part == parts || n / parts < kLongPart ? begin : begin / kVector * kVector;
  };
  auto run = [&](int part) { work(part, first(part), first(part + 1)); };
  threads.pool->run(threads.pool, parts, [](const void* f, int part) { (*static_cast<const decltype(run)*>(f))(part); }, &run);
}

}  // namespace cpu
}  // namespace mc
