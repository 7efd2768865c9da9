#include "workers.h"

#include <system_error>
#include <thread>

#include <pthread.h>
#include <sched.h>

#include <ATen/Parallel.h>

// Threads of one kernel, as this thread's OpenMP and MKL count them; null where torch was built without.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
// The threads that torch's operators compute with. What a compiler makes of `#pragma omp parallel` would want an OpenMP
// of its own beside the one that torch brings; this is the call itself, which LLVM's and Intel's libraries have too.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" __attribute__((weak)) int omp_get_thread_num();
extern "C" __attribute__((weak)) int omp_get_num_threads();
extern "C" __attribute__((weak)) int omp_in_parallel();

namespace npucompose {

OneThread::OneThread() : before_(at::get_num_threads()) {
  if (before_ == 1) return;
  if (omp_set_num_threads) omp_set_num_threads(1);
  if (MKL_Set_Num_Threads_Local) products_before_ = MKL_Set_Num_Threads_Local(1);
}

OneThread::~OneThread() {
  if (before_ == 1) return;
  if (omp_set_num_threads) omp_set_num_threads(before_);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(products_before_);
}

namespace {

// Notes that a thread of a team was on the caller's core.
struct Meeting final : CoreWatch {
  const std::atomic<int>& callers;
  bool was_there = false;

  explicit Meeting(const std::atomic<int>& core) : callers(core) {}
  void look() override { was_there |= sched_getcpu() == callers.load(std::memory_order_relaxed); }
};

// What the threads of a team are given: all of them, so that none is dismissed, and started anew by the next operator.
struct TeamCall {
  Job& job;
  const size_t parts;
  CoreWatch& caller;
  const std::atomic<int>& callers_core;
  bool is_done = false;
  std::atomic<bool> met{false};

  static void take_part(void* call) { static_cast<TeamCall*>(call)->take_part(); }

  void take_part() {
    const size_t number = static_cast<size_t>(omp_get_thread_num());
    if (static_cast<size_t>(omp_get_num_threads()) < parts) return;  // the system gives no more threads: so for each
    if (number >= parts) return;
    const OneThread quiet;
    if (number == 0) {
      is_done = true;
      return job.part(number, caller);
    }
    Meeting watch(callers_core);
    job.part(number, watch);
    if (watch.was_there) met.store(true, std::memory_order_relaxed);
  }
};

bool has_team(size_t parts) {
#if defined(__SANITIZE_THREAD__)
  return false;  // it does not see how OpenMP's threads wait for one another
#endif
  return GOMP_parallel && omp_get_thread_num && omp_get_num_threads && omp_in_parallel && !omp_in_parallel() &&
         static_cast<size_t>(at::get_num_threads()) >= parts;
}

}  // namespace

class Workers::Worker final : private CoreWatch {
 public:
  Worker(size_t number, Gate& ended, const Caller& caller) : number_(number), ended_(ended), caller_(caller) {
    pthread_getaffinity_np(pthread_self(), sizeof anywhere_, &anywhere_);
    allowed_ = anywhere_;
    std::thread thread([this] { live(); });
    thread_ = thread.native_handle();
    thread.detach();  // asleep or looking when the process ends, and never joined
  }

  // Bound to `core`, or, where that is negative, kept off the core `taken`: false where there is no other. A thread that
  // is woken on the core of the one that wakes it does not run before that one sleeps, and the system sees no reason to
  // move either. Called by the caller, between jobs.
  bool settle(int core, int taken) {
    const bool bound = core >= 0;
    if (core == core_ && (bound || (taken == taken_ && ran_on_ != taken))) return true;
    hear();
    if (!bound && !has_other(taken)) pthread_getaffinity_np(pthread_self(), sizeof anywhere_, &anywhere_);
    if (!bound && !has_other(taken)) return false;
    core_ = core;
    allow(bound ? only(core) : all_but(taken), taken);
    return true;
  }

  void begin(Job& job, int64_t spin_ns) {
    job_ = &job, spin_ns_ = spin_ns;
    begun_.store(begun_.load(std::memory_order_relaxed) + 1);
    awaited_.open();
  }
  bool is_done() const { return done_.load() == begun_.load(std::memory_order_relaxed); }

 private:
  // Called by the worker, during a job.
  void look() override {
    ran_on_ = sched_getcpu();
    if (ran_on_ != caller_.core.load(std::memory_order_relaxed) || core_ >= 0 || taken_ == ran_on_) return;
    hear();
    if (has_other(ran_on_)) allow(all_but(ran_on_), ran_on_);
  }

  // Somebody else may have said where it may run.
  void hear() {
    cpu_set_t now;
    if (pthread_getaffinity_np(thread_, sizeof now, &now) == 0 && !CPU_EQUAL(&now, &allowed_)) anywhere_ = allowed_ = now;
  }

  bool has_other(int core) const { return CPU_COUNT(&anywhere_) > (core >= 0 && CPU_ISSET(core, &anywhere_) ? 1 : 0); }

  cpu_set_t all_but(int core) const {
    cpu_set_t set = anywhere_;
    if (core >= 0) CPU_CLR(core, &set);
    return set;
  }

  static cpu_set_t only(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return set;
  }

  void allow(const cpu_set_t& set, int taken) {
    if (pthread_setaffinity_np(thread_, sizeof set, &set)) return;  // not ours any more: looked at again next time
    allowed_ = set, taken_ = taken;
  }

  [[noreturn]] void live() {
    const OneThread quiet;
    int64_t patience = 0;
    for (uint64_t turn = 1;; ++turn) {
      awaited_.pass([&] { return begun_.load() == turn; }, patience);
      patience = spin_ns_;  // what belongs to the caller is not read once it knows that we are done
      look();
      job_->part(number_, *this);
      done_.store(turn);
      ended_.open();
    }
  }

  const size_t number_;
  Gate& ended_;
  Job* job_ = nullptr;
  int64_t spin_ns_ = 0;
  pthread_t thread_{};
  const Caller& caller_;
  cpu_set_t anywhere_, allowed_;  // all that it may run on, and what of it was chosen last
  int core_ = -1, taken_ = -1, ran_on_ = -1;
  Gate awaited_;
  alignas(64) std::atomic<uint64_t> begun_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
};

Workers& Workers::here() {
  // Never destroyed: its threads may look at it until the process is gone.
  static std::atomic<Workers*> workers{[] {
    pthread_atfork(nullptr, nullptr, [] { workers.store(new Workers); });
    return new Workers;
  }()};
  return *workers.load(std::memory_order_relaxed);
}

bool Workers::run_in_team(Job& job, size_t parts) {
  if (without_team_ > 0) return --without_team_, false;
  if (!has_team(parts)) return false;
  TeamCall call{job, parts, caller_, caller_.core};
  GOMP_parallel(&TeamCall::take_part, &call, static_cast<unsigned>(at::get_num_threads()), 0);
  if (call.met.load()) without_team_ = kApart;
  return call.is_done;
}

bool Workers::run(Job& job, size_t parts, int64_t spin_ns, const std::vector<int>& cores) {
  const std::unique_lock turn(taken_, std::try_to_lock);
  if (!turn) return false;
  caller_.look();
  if (cores.empty() && run_in_team(job, parts)) return true;
  try {
    while (workers_.size() + 1 < parts) workers_.push_back(std::make_unique<Worker>(workers_.size() + 1, ended_, caller_));
  } catch (const std::system_error&) {  // the system gives no more threads
    return false;
  }
  const int here = caller_.core.load(std::memory_order_relaxed);
  for (size_t i = 0; i + 1 < parts; ++i)
    if (!workers_[i]->settle(i < cores.size() ? cores[i] : -1, here)) return false;
  for (size_t i = 0; i + 1 < parts; ++i) workers_[i]->begin(job, spin_ns);
  {
    const OneThread quiet;
    job.part(0, caller_);
  }
  for (size_t i = 0; i + 1 < parts; ++i) ended_.pass([&] { return workers_[i]->is_done(); }, spin_ns);
  return true;
}

}  // namespace npucompose
