// Loops of many sizes from several threads at once on one pool, while other threads keep the processors busy part of the time.
// Each part must run exactly once and before the loop returns; prints how many loops, exits with 1 at the first fault.
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>
#include "minicaffe/device/pool.hpp"

using namespace mc::cpu;

// Not atomic on purpose: ThreadSanitizer sees a part that runs twice, or after the end of its loop.
static void check_loop(Threads threads, int n, int grain) {
  std::vector<int> ran(n, 0);
  parallel(threads, n, grain, [&](int, long long begin, long long end) {
    for (long long i = begin; i < end; ++i) ++ran[i];
    parallel(threads, 3, 1, [&](int, long long, long long) {});  // a loop inside a loop
  });
  for (int i = 0; i < n; ++i)
    if (ran[i] != 1) {
      std::printf("index %d of %d ran %d times on %d threads\n", i, n, ran[i], threads.count);
      std::exit(1);
    }
}

int main(int argc, char** argv) {
  const int loops = argc > 1 ? std::atoi(argv[1]) : 2000;
  Pool* pool = process_pool();
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 4; ++i)
    busy.emplace_back([&] {
      while (!stop) {
        for (volatile int k = 0; k < 3000000; ++k) {}
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([=] {
      unsigned seed = c;
      for (int i = 0; i < loops; ++i) {
        check_loop({1 + int(rand_r(&seed) % 7), pool}, rand_r(&seed) % 200, 1 + rand_r(&seed) % 20);
        if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the workers fall asleep
      }
    });
  for (auto& caller : callers) caller.join();
  stop = true;
  for (auto& thread : busy) thread.join();

  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 50; ++i) check_loop({4, process_pool()}, 100, 1);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  if (status) return std::printf("loops in a forked child failed\n"), 1;
  check_loop({4, pool}, 100, 1);
  std::printf("%d loops\n", 3 * loops);
}
