// A thread for kernels that start threads of OpenMP, in a child of fork() (ops/generated.py, Note [A fixed number of threads]).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "forks.h"

namespace npucompose {

// One caller at a time.
class OwnThread {
 public:
  OwnThread() = default;
  ~OwnThread() { forget(); }

  // Does `work` there and returns when it is done; throws what it throws.
  void run(const std::function<void()>& work) {
    if (!host_ || host_->forks != Forkable::forks()) {
      forget();
      host_ = std::make_unique<Host>();
    }
    host_->run(work);
  }

 private:
  struct Host {
    const uint64_t forks = Forkable::forks();
    std::mutex mutex;
    std::condition_variable changed;
    const std::function<void()>* work = nullptr;
    std::exception_ptr error;
    bool over = false;
    std::thread thread{[this] { serve(); }};  // last: it reads all others

    void serve() {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [this] { return work || over; });
        if (over) return;
        try {
          (*work)();
        } catch (...) {
          error = std::current_exception();
        }
        work = nullptr;
        changed.notify_all();
      }
    }

    void run(const std::function<void()>& given) {
      std::unique_lock lock(mutex);
      work = &given, error = nullptr;
      changed.notify_all();
      changed.wait(lock, [this] { return !work; });
      if (error) std::rethrow_exception(error);
    }
  };

  // The thread of a parent is not there to be waited for.
  void forget() {
    if (!host_) return;
    if (host_->forks != Forkable::forks()) {
      host_.release();
      return;
    }
    {
      const std::lock_guard lock(host_->mutex);
      host_->over = true;
      host_->changed.notify_all();
    }
    host_->thread.join();
    host_.reset();
  }

  std::unique_ptr<Host> host_;
};

}  // namespace npucompose
