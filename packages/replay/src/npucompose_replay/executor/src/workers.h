// Threads that wait for work: awake for a while, then asleep. A process has one set of them for all of its recordings.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <sched.h>

namespace npucompose {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Where threads wait for an atomic to change, which is stored with sequential consistency before open() is called.
class Gate {
 public:
  // Returns when `ready()` holds: looks without pause for `spin_ns`, then sleeps until somebody opens.
  template <class Ready>
  void pass(const Ready& ready, int64_t spin_ns) {
    constexpr int kLooks = 64;  // between two looks at the clock
    if (ready()) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(spin_ns);
    do {
      for (int look = 0; look < kLooks; ++look) {
        if (ready()) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock lock(mutex_);
    ++sleepers_;  // from here on whoever changes something sees a sleeper, or the look below sees the change
    changed_.wait(lock, ready);
    --sleepers_;
  }

  void open() {
    if (!sleepers_.load()) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // In a child of fork(): whoever slept here, or was about to, is a thread of the parent.
  void forget() {
    sleepers_.store(0);
    new (&mutex_) std::mutex;
    new (&changed_) std::condition_variable;
  }

 private:
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// While it lives, kernels that this thread runs start no threads of their own. at::set_num_threads would be heard by
// all threads that begin after it; what is set in OpenMP and MKL here is for this thread alone.
class OneThread {
 public:
  OneThread();
  ~OneThread();

 private:
  int before_, products_before_ = 0;
};

// The thread on whose behalf this one runs kernels: a thread of streams acts for the one that replays.
inline std::thread::id& acting_for() {
  thread_local std::thread::id whom = std::this_thread::get_id();
  return whom;
}

// Where a thread of a job runs. The system may move any of them while they run, the caller onto a worker's core too: for
// as long as both stay there, they take turns on it. Looked at often, it costs next to nothing.
class CoreWatch {
 public:
  virtual ~CoreWatch() = default;
  // The caller says where it is; a worker that is there as well goes elsewhere.
  virtual void look() = 0;
};

// What several threads do together, each its own part; throws nothing.
struct Job {
  virtual ~Job() = default;
  virtual void part(size_t number, CoreWatch& watch) noexcept = 0;
};

class Workers {
 public:
  // Those of this process: a child of fork() has none of its parent's threads and starts its own.
  static Workers& here();

  // Part 0 on the calling thread, each other one on a thread of its own; returns when all have ended. Kernels in them use
  // one thread each. False, with nothing done: the threads are at work for somebody else, or the caller's core is the
  // only one for a worker.
  //
  // The threads are the caller's own in OpenMP, where it has enough and `cores` is empty: after an operator of torch they
  // look for work for milliseconds (libgomp: GOMP_SPINCOUNT) and leave no core to anybody else. Where they may run is
  // torch's affair, so once two of them were seen on one core the next replays take workers.
  //
  // Otherwise they are workers. `cores[i]`: the core that the worker of part i + 1 is bound to; without it, any but the
  // caller's, of those that the thread which started it could use then, or that it was given from outside since. Where
  // the caller may run is never changed.
  bool run(Job& job, size_t parts, int64_t spin_ns, const std::vector<int>& cores);

 private:
  class Worker;
  struct Caller final : CoreWatch {
    std::atomic<int> core{-1};
    void look() override { core.store(sched_getcpu(), std::memory_order_relaxed); }
  };

  bool run_in_team(Job& job, size_t parts);

  static constexpr int kApart = 64;  // so many replays until OpenMP's threads are tried again

  std::mutex taken_;
  int without_team_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  Gate ended_;
  Caller caller_;
};

}  // namespace npucompose
