// The threads of the process that share CPU loops (device/threads.hpp).
//
// A loop is split into parts. The calling thread runs part 0, workers run the others, and a thread that is done runs parts that no
// thread has begun: a loop never waits for a worker that the operating system has not scheduled. A worker polls for the next loop
// for a bounded time and then sleeps.
//
// When other programs use the processors, workers can cost time: waking one may take the caller's processor, and a worker may be
// preempted in the middle of a part. So the caller adds up the time that workers saved and the time that they cost, by waiting for
// a part or by not arriving. If the cost is larger, it uses no workers for a pause, which doubles when that repeats. A thread that
// works briefly for each batch, such as a data reader, costs less than workers save. A worker that was preempted while polling
// sleeps at once.
//
// One loop at a time is shared. A nested loop, or one in a second thread, runs on the calling thread.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include "minicaffe/device/threads.hpp"

namespace mc {
namespace cpu {

constexpr int kMaxThreads = 1024;

/// The pool of the process. Other modules see only the base, Pool.
class ThreadPool : public Pool {
 public:
  ThreadPool()
      : Pool{[](Pool* self, int parts, Work work, const void* argument) {
               static_cast<ThreadPool*>(self)->run_loop(parts, work, argument);
             },
             [](Pool* self, int threads) { return static_cast<ThreadPool*>(self)->start(threads - 1); },
             [](Pool* self, int parts, Work work, const void* argument) {
               static_cast<ThreadPool*>(self)->begin_concurrent(parts, work, argument);
             },
             [](Pool* self) { static_cast<ThreadPool*>(self)->end_concurrent(); }, []() -> int { return dry_run_flag(); }} {}
  static bool& dry_run_flag() {  // of the calling thread, see set_dry
    static thread_local bool now = false;
    return now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  static constexpr std::chrono::microseconds kPollTime{500};       // of a worker for a loop, of the caller for the end of parts
  static constexpr std::chrono::microseconds kPreemptionGap{300};  // a longer time between two polls: the thread was preempted
  static constexpr std::chrono::milliseconds kFirstPause{4}, kLastPause{256};
  static constexpr std::chrono::milliseconds kMaxBalance{4};   // limit of balance_: old savings hide new costs no longer

  /// Pool::run. The calling thread runs all parts if another loop uses the workers, or in a pause.
  void run_loop(int parts, Work work, const void* argument) {
    if (busy_.exchange(true, std::memory_order_acquire)) return run_alone(parts, work, argument);
    const Time start = Clock::now();
    if (start < no_workers_until_)
      run_alone(parts, work, argument);
    else
      run_with_workers(start, parts, work, argument);
    busy_.store(false, std::memory_order_release);
  }

  /// Run a loop whose parts the workers may take, and update balance_.
  void run_with_workers(Time start, int parts, Work work, const void* argument) {
    start_workers(parts - 1);
    const bool workers_helped = run_free_parts(publish(parts, parts, work, argument), 0) < parts;
    const Time own_end = Clock::now();
    if (pending_.load(std::memory_order_acquire)) wait_for_parts();
    const Time end = workers_helped ? Clock::now() : own_end;
    // Until `own_end` a worker did about as much work as the caller, so that this time was saved. If no worker began a part, the
    // time counts as cost. The time from `own_end` to `end` was lost by waiting.
    const Clock::duration saved = workers_helped ? own_end - start : start - own_end, waited = end - own_end;
    balance_ = std::min<Clock::duration>(balance_ + saved - waited, kMaxBalance);
    if (balance_ < -kPreemptionGap) pause_workers(end);
  }

  /// Offer the parts of a loop to the workers; it ends when `pending` parts have been run. Return the new value of loop_.
  uint64_t publish(int parts, int pending, Work work, const void* argument) {
    work_ = work, argument_ = argument;
    pending_.store(pending, std::memory_order_relaxed);
    const uint64_t loop = ++loops_ << kPartBits | uint64_t(parts);
    loop_.store(loop);
    wake(parts - 1);
    return loop;
  }

  /// Pool::start, before `begin`, which needs a worker for each part. Return whether there are `workers` workers.
  bool start(int workers) {
    if (workers_.load() < workers) {
      wait_for_others();
      start_workers(workers);
      busy_.store(false, std::memory_order_release);
    }
    return workers_.load() >= workers;
  }

  /// Pool::begin, for parallel regions of oneDNN, whose parts may wait for each other: each has its own worker. Part 0 is only
  /// marked as taken: the caller runs it before `end`. busy_ remains set until then.
  void begin_concurrent(int parts, Work work, const void* argument) {
    wait_for_others();
    start_workers(parts - 1);
    taken_[0].store(loops_ + 1, std::memory_order_relaxed);
    publish(parts, parts - 1, work, argument);
  }

  /// Pool::end, after part 0: return when all parts have ended.
  void end_concurrent() {
    run_free_parts(loop_.load(), 0);    // cannot deadlock: each part that these may wait for has a worker
    if (pending_.load(std::memory_order_acquire)) wait_for_parts();
    busy_.store(false, std::memory_order_release);
  }

  /// Wait until no other thread uses the workers, and reserve them: set busy_.
  void wait_for_others() {
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }

  static void run_alone(int parts, Work work, const void* argument) {
    for (int part = 0; part < parts; ++part) work(argument, part);
  }

  /// Run the parts of a loop that no thread has begun, and return how many. The first one tried is `first`, so that a thread has
  /// the same data in each loop.
  int run_free_parts(uint64_t loop, int first) {
    const uint64_t number = loop >> kPartBits;
    const int parts = int(loop & kPartMask);
    int ran = 0;
    for (int i = 0; i < parts; ++i) {
      const int part = (first + i) % parts;
      uint64_t taken = taken_[part].load(std::memory_order_relaxed);
      // For a late worker all parts are taken, by this loop or a later one.
      if (taken >= number || !taken_[part].compare_exchange_strong(taken, number, std::memory_order_acq_rel)) continue;
      work_(argument_, part);
      ++ran;
      if (pending_.fetch_sub(1) == 1 && caller_waits_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        ended_.notify_one();
      }
    }
    return ran;
  }

  /// Poll ready() for a bounded time; return whether it became true.
  template <class Ready> static bool poll(const Ready& ready) {
    const Time start = Clock::now();
    for (Time before = start, now; ; before = now) {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        relax();
      }
      now = Clock::now();
      if (now - start > kPollTime || now - before > kPreemptionGap) return ready();
    }
  }

  /// A hint for the processor that this loop waits: the other thread of its core gets the units.
  static void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  /// Return when no part of the current loop runs: the caller polls for a time, then sleeps until the last worker notifies it.
  void wait_for_parts() {
    if (poll([&] { return pending_.load(std::memory_order_acquire) == 0; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_waits_.store(true);
    ended_.wait(lock, [&] { return pending_.load() == 0; });
    caller_waits_.store(false);
  }

  /// Use no workers for a time: twice the last pause, at most kLastPause, if that ended recently; otherwise kFirstPause.
  void pause_workers(Time now) {
    pause_ =
        now - no_workers_until_ < 4 * pause_ ? std::min<Clock::duration>(2 * pause_, kLastPause) : Clock::duration(kFirstPause);
    no_workers_until_ = now + pause_;
    balance_ = Clock::duration(0);
  }

  /// Start threads until there are `wanted` workers, or as many as the system allows.
  void start_workers(int wanted) {
    if (workers_ >= wanted) return;
    sigset_t all, before;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are handled by Python's threads
    try {
      for (; workers_ < wanted; ++workers_) std::thread(&ThreadPool::run_worker, this, workers_ + 1).detach();
    } catch (const std::system_error&) {
      // The system has no more threads: loops use the existing ones.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  /// The life of a worker: wait for a loop, run free parts of it, from part `first` on.
  void run_worker(int first) {
    uint64_t last_loop = 0;
    auto has_new_loop = [&] { return loop_.load() != last_loop; };
    for (;;) {
      if (!poll(has_new_loop)) sleep(has_new_loop);
      last_loop = loop_.load();
      run_free_parts(last_loop, first);
    }
  }

  /// Sleep until `wake` notifies, unless there is a new loop already.
  template <class HasNewLoop> void sleep(const HasNewLoop& has_new_loop) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    if (has_new_loop()) {
      --sleepers_;
    } else {
      wake_condition_.wait(lock, [&] { return pending_wakes_ > 0; });
      --pending_wakes_;
    }
  }

  /// Wake sleeping workers, so that `wanted` are awake.
  void wake(int wanted) {
    if (!sleepers_.load()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (int asleep = workers_ - wanted; sleepers_.load() > std::max(0, asleep); --sleepers_, ++pending_wakes_)
      wake_condition_.notify_one();
  }

  static constexpr int kPartBits = 16;
  static constexpr uint64_t kPartMask = (1 << kPartBits) - 1;

  std::atomic<bool> busy_{false};
  // The current loop: its number and its number of parts, in one word. A thread that has taken a part may read work_ and argument_,
  // because the loop cannot end before that part.
  std::atomic<uint64_t> loop_{0};
  Work work_ = nullptr;
  const void* argument_ = nullptr;
  std::atomic<int> pending_{0};                     // parts that have not ended
  std::atomic<uint64_t> taken_[kMaxThreads] = {};   // of each part: the number of the last loop in which a thread took it
  std::mutex mutex_;                                // for sleeping threads
  std::condition_variable wake_condition_, ended_;
  int pending_wakes_ = 0;                           // sleeping threads that were notified but have not run yet
  std::atomic<int> sleepers_{0};                    // sleeping workers that were not notified
  std::atomic<bool> caller_waits_{false};
  std::atomic<int> workers_{0};                     // changed only by the thread that holds busy_
  // Used only by that thread:
  uint64_t loops_ = 0;
  Time no_workers_until_{};
  Clock::duration pause_{kFirstPause};
  Clock::duration balance_{0};                      // time saved minus cost since the last pause, kMaxBalance at most
};

/// Set whether the calling thread is in a dry run, in which loops compute nothing (device/threads.pyx, dry_run).
inline void set_dry(bool now) { ThreadPool::dry_run_flag() = now; }

/// The pool of this process. A forked child gets a new one, because threads do not survive a fork.
inline Pool* process_pool() {
  alignas(ThreadPool) static char place[sizeof(ThreadPool)];
  static Pool* pool = [] {
    pthread_atfork(nullptr, nullptr, [] { new (place) ThreadPool; });
    return new (place) ThreadPool;  // never destroyed: workers may outlive the end of main
  }();
  return pool;
}

}  // namespace cpu
}  // namespace mc
