// Steps on several threads at once: each thread takes its own in order, and waits where another one has to be first.
#pragma once

#include <exception>
#include <optional>
#include <utility>

#include "forks.h"
#include "kernel.h"
#include "workers.h"

namespace npucompose {

// When a step began and ended, in nanoseconds of a steady clock.
using Span = std::pair<int64_t, int64_t>;

int64_t now_ns();

// A step at its place on a thread: `waits` are events, `records` is the one that it lets happen, or -1.
struct Turn {
  Kernel* kernel;
  size_t step;
  std::vector<size_t> waits;
  int records = -1;
};

class Streams final : private Job, private Forkable {
 public:
  // Every event is recorded by one turn, and no turn waits, through whatever chain, for one that comes after it.
  Streams(std::vector<std::vector<Turn>> threads, size_t events, int64_t spin_ns, std::vector<int> cores);

  // What `threads` asks for, once. False, with nothing run: the worker threads have other work. An exception of a step
  // is thrown here when every thread has stopped. `spans`, where given, has a place for each step.
  bool run(std::vector<Span>* spans = nullptr);

 private:
  // An event has happened in this replay when it holds the replay's number: nothing needs to be reset.
  struct alignas(64) Event {
    std::atomic<uint64_t> happened_in{0};
  };
  // What of a thread's state changes what kernels do: dispatch keys, gradients, rounding and denormals.
  class ThreadState;

  void part(size_t number, CoreWatch& watch) noexcept override;
  void in_child() override;
  void run_turns(const std::vector<Turn>& turns, CoreWatch& watch);
  void await(const Event& event);

  const std::vector<std::vector<Turn>> threads_;
  const std::unique_ptr<Event[]> events_;
  const int64_t spin_ns_;
  const std::vector<int> cores_;
  uint64_t replay_ = 0;
  const ThreadState* callers_ = nullptr;
  std::vector<Span>* spans_ = nullptr;
  Gate happened_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// Nanoseconds from the beginning of a replay to the first step of a worker and from an event to the one that waits for
// it, on threads that are awake: of each of `rounds` replays of steps that do nothing.
std::pair<std::vector<double>, std::vector<double>> synchronisation_ns(
    int64_t rounds, int64_t spin_ns, const std::vector<int>& cores);

}  // namespace npucompose
