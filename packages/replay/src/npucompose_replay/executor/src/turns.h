// Who replays now, of recordings that use the same memory: one at a time, each for a whole replay.
#pragma once

#include <atomic>
#include <mutex>
#include <new>
#include <thread>

#include <torch/csrc/utils/pybind.h>

#include "forks.h"
#include "workers.h"

namespace npucompose {

class Turns final : private Forkable {
 public:
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) { turns_.take(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { turns_.end(); }

   private:
    Turns& turns_;
  };

  // Others wait, without Python's lock. A replay inside a replay would wait for itself.
  void take() {
    TORCH_CHECK(
        !is_mine(), "a recording was replayed from within its own replay, or one that shares its memory");
    if (!mutex_.try_lock()) {
      const pybind11::gil_scoped_release release;
      mutex_.lock();
    }
    owner_.store(acting_for(), std::memory_order_relaxed);
  }

  void end() {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

  // Whether this thread replays now, or runs a stream of such a replay.
  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == acting_for(); }

 private:
  void in_child() override {
    if (is_mine()) return;
    new (&mutex_) std::mutex;
    owner_.store(std::thread::id());
  }

  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};  // each thread asks only whether it is itself: no order is needed
};

}  // namespace npucompose
