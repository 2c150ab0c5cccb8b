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
};

/// How many threads of which pool; without a pool, loops run on the calling thread.
struct Threads {
  int count;
  Pool* pool;
  operator int() const { return count; }
};

/// work(part, begin, end) for up to `threads` parts of 0..n-1, each contiguous and of at least `grain`. What the parts are
/// depends on the number of threads alone; which thread runs one does not matter to it, so scratch memory goes by part.
template <class Work> void parallel(Threads threads, index_t n, index_t grain, const Work& work) {
  if (n <= 0) return;
  const index_t parts = std::min<index_t>(threads.pool ? threads.count : 1, std::max<index_t>(1, n / std::max<index_t>(1, grain)));
  if (parts == 1) return work(0, 0, n);
  auto run = [&](int part) { work(part, n * part / parts, n * (part + 1) / parts); };
  threads.pool->run(threads.pool, int(parts), [](const void* f, int part) { (*static_cast<const decltype(run)*>(f))(part); }, &run);
}

}  // namespace cpu
}  // namespace mc
