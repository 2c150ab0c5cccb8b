// Threads that share a CPU loop. The pool behind them is device/pool.hpp, which only device/threads.pyx includes: the process has one.
#pragma once
#include <algorithm>
#include "minicaffe/kernels/config.hpp"

namespace mc {
namespace cpu {

/// What other modules see of the pool.
struct Pool {
  using Work = void (*)(const void* argument, int part);
  void (*run)(Pool*, int parts, Work, const void* argument);    // work(argument, part) once for each 0 <= part < parts
  bool (*start)(Pool*, int threads);                            // tell whether there are so many, with the one that calls
  void (*begin)(Pool*, int parts, Work, const void* argument);  // all but part 0, at the same time, by so many threads; then end
  void (*end)(Pool*);
  int (*dry)();  // whether the calling thread computes nothing (device/threads.pyx, dry_run)
};

/// How many threads of which pool; without a pool, loops run on the calling thread.
struct Threads {
  int count;
  Pool* pool;
  operator int() const { return count; }
};

constexpr index_t kVector = 32;  // elements of the longest vector, of 2 bytes each
constexpr index_t kLongPart = 16 * kVector;

/// work(part, begin, end) for up to `threads` parts of 0..n-1, each contiguous and of at least `grain`. The parts depend on the number of
/// threads alone, not on which thread runs one, so scratch memory is indexed by part.
///
/// Long parts begin at multiples of kVector. An element then belongs to a vector or to the remainder of a loop whatever the number of
/// threads, and the compiler may round them differently: it fuses different products and sums.
template <class Work> void parallel(Threads threads, index_t n, index_t grain, const Work& work) {
  if (n <= 0 || (threads.pool && threads.pool->dry())) return;
  const index_t parts = std::min<index_t>(threads.pool ? threads.count : 1, std::max<index_t>(1, n / std::max<index_t>(1, grain)));
  if (parts == 1) return work(0, 0, n);
  auto first = [&](index_t part) {
    const index_t begin = n * part / parts;
    return part == parts || n / parts < kLongPart ? begin : begin / kVector * kVector;
  };
  auto run = [&](int part) { work(part, first(part), first(part + 1)); };
  threads.pool->run(threads.pool, int(parts), [](const void* f, int part) { (*static_cast<const decltype(run)*>(f))(part); }, &run);
}

}  // namespace cpu
}  // namespace mc
