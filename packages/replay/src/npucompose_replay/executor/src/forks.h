// What a child of fork() has to put right: it has the memory of its parent and of its threads only the one that forked.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include <pthread.h>

namespace npucompose {

// Is called after every fork(), in the child. What other threads held at that moment nobody will ever let go.
class Forkable {
 public:
  Forkable(const Forkable&) = delete;
  Forkable& operator=(const Forkable&) = delete;

  // How many forks lie between the process that loaded this and the present one.
  static uint64_t forks() { return all().forks.load(std::memory_order_relaxed); }

 protected:
  Forkable() {
    const std::lock_guard lock(all().mutex);
    all().living.insert(this);
  }
  ~Forkable() {
    const std::lock_guard lock(all().mutex);
    all().living.erase(this);
  }
  virtual void in_child() {}

 private:
  struct All {
    std::mutex mutex;  // held while the process forks: nobody is half made in the child
    std::unordered_set<Forkable*> living;
    std::atomic<uint64_t> forks{0};
  };

  static All& all() {
    static All* const found = [] {
      pthread_atfork(
          [] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
          [] {
            ++all().forks;
            for (Forkable* one : all().living) one->in_child();
            all().mutex.unlock();
          });
      return new All;  // never destroyed: a process may fork while it ends
    }();
    return *found;
  }
};

}  // namespace npucompose
