#include "streams.h"

#include <cfenv>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace npucompose {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A caller's Python modes are a stack of its own thread, which a worker cannot see: their key without it is an error.
const c10::DispatchKeySet kPython({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

class Streams::ThreadState {
 public:
  ThreadState()
      : keys_(c10::impl::tls_local_dispatch_key_set()), gradients_(c10::AutogradState::get_tls_state()), thread_(std::this_thread::get_id()), whom_(acting_for()) {
#if defined(__SSE__)
    floats_ = __builtin_ia32_stmxcsr();
#else
    std::fegetenv(&floats_);
#endif
    keys_.included_ = keys_.included_ - kPython;
  }

  bool is_of_this_thread() const { return thread_ == std::this_thread::get_id(); }

  void take() const {
    acting_for() = whom_;
    c10::impl::_force_tls_local_dispatch_key_set(keys_);
    c10::AutogradState::set_tls_state(gradients_);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(floats_);
#else
    std::fesetenv(&floats_);
#endif
  }

 private:
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState gradients_;
  std::thread::id thread_, whom_;
#if defined(__SSE__)
  unsigned floats_;
#else
  std::fenv_t floats_;
#endif
};

Streams::Streams(std::vector<std::vector<Turn>> threads, size_t events, int64_t spin_ns, std::vector<int> cores)
    : threads_(std::move(threads)), events_(std::make_unique<Event[]>(events)), spin_ns_(spin_ns),
      cores_(std::move(cores)) {}

bool Streams::run(std::vector<Span>* spans) {
  const ThreadState callers;
  callers_ = &callers, spans_ = spans;
  ++replay_;
  const bool done = Workers::here().run(*this, threads_.size(), spin_ns_, cores_);
  if (!failed_.load()) return done;
  failed_.store(false);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void Streams::part(size_t number, CoreWatch& watch) noexcept {
  std::optional<ThreadState> own;  // a thread of torch's goes on with it
  if (!callers_->is_of_this_thread()) {
    own.emplace();
    callers_->take();
  }
  try {
    run_turns(threads_[number], watch);
  } catch (...) {
    if (!failed_.exchange(true)) error_ = std::current_exception();
    happened_.open();
  }
  if (own) own->take();
}

void Streams::in_child() {
  happened_.forget();
  failed_.store(false);
}

void Streams::run_turns(const std::vector<Turn>& turns, CoreWatch& watch) {
  for (const Turn& turn : turns) {
    watch.look();
    for (size_t event : turn.waits) await(events_[event]);
    if (failed_.load(std::memory_order_relaxed)) return;
    if (spans_) (*spans_)[turn.step].first = now_ns();
    turn.kernel->run();
    if (spans_) (*spans_)[turn.step].second = now_ns();
    if (turn.records < 0) continue;
    events_[turn.records].happened_in.store(replay_);
    happened_.open();
  }
}

void Streams::await(const Event& event) {
  happened_.pass([&] { return event.happened_in.load() == replay_ || failed_.load(); }, spin_ns_);
}

std::pair<std::vector<double>, std::vector<double>> synchronisation_ns(
    int64_t rounds, int64_t spin_ns, const std::vector<int>& cores) {
  struct Nothing final : Kernel {
    void run() override {}
  } nothing;
  constexpr size_t kEvents = 32;
  // One step on the other thread; and a ball that goes to and fro: every step waits for the one before it.
  std::vector<std::vector<Turn>> aside{{}, {Turn{&nothing, 0, {}, -1}}}, ball(2);
  for (size_t i = 0; i < kEvents; ++i)
    ball[i % 2].push_back(Turn{&nothing, i, i ? std::vector<size_t>{i - 1} : std::vector<size_t>{}, static_cast<int>(i)});
  Streams launch(std::move(aside), 0, spin_ns, cores), chain(std::move(ball), kEvents, spin_ns, cores);
  std::vector<double> starts, events;
  std::vector<Span> spans(kEvents);
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t begun = now_ns();
    if (launch.run(&spans)) starts.push_back(static_cast<double>(spans[0].first - begun));
    if (chain.run(&spans))
      events.push_back(static_cast<double>(spans[kEvents - 1].first - spans[0].second) / (kEvents - 1));
  }
  return {starts, events};
}

}  // namespace npucompose
