// The steps of a plan in order, and the memory of its inputs and outputs, which may be moved.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernel.h"
#include "own_thread.h"
#include "returned.h"
#include "streams.h"
#include "watch.h"

namespace npucompose {

// A value that a step makes on every run; `list` where the operator returns a list of tensors, `place` where the value is
// to lie in memory that is known.
struct Result {
  int reg = -1;
  std::vector<int> list;
  at::Tensor place;
};

// An argument that is made of registers: one of them, or a list of tensors, registers (>= 0) among them.
struct Filled {
  int position = 0;
  bool is_list = false;
  std::vector<int> registers;
  std::vector<at::Tensor> fixed;
};

// What computes `op(*args)` into `out`, called without torch in between; null where nothing does.
KernelPtr placed_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& args, const at::Tensor& out);

class Recording {
 public:
  Recording();

  // Append a step; the answer is the way in which it runs: "blas", "held", "packed", "generated" or "boxed" (always, without `direct`). `lent` are
  // the inputs that it may keep; where it returns something else than `returns`, or frees one of these, `run` ends with
  // OtherResults.
  std::string add(
      const c10::OperatorHandle& op, torch::jit::Stack args, std::vector<Filled> filled, std::vector<Result> results,
      std::vector<int> dying, std::vector<int64_t> lent, ReturnedForms returns, bool direct);

  // The fixed memory of input `index`, and the address at which it lies now.
  void set_input(int64_t index, const at::Tensor& whole);
  void move(int64_t index, const void* address);

  // What lies in the memory of output buffer `number`, each from its first byte on, the result itself last, and where that
  // memory is from now on.
  void set_output(size_t number, const std::vector<at::Tensor>& wholes);
  void move_output(size_t number, void* address);

  // From now on the steps run on several threads: `threads[i]` are those of thread i, in order, and `waits[step]` are the
  // steps of other threads that have to be done before. Every wait is for a step that was added earlier. Registers in
  // `kept` are emptied when all is done.
  void set_streams(
      const std::vector<std::vector<size_t>>& threads, const std::vector<std::vector<size_t>>& waits,
      std::vector<int> kept, int64_t spin_ns, std::vector<int> cores);

  // From now on streams that take longer than one stream, of which a replay takes `one_ns` (0: unknown), are left for it
  // until that is over; replays that are timed here are none of those that decide it.
  void watch(int64_t one_ns) { watch_ = std::make_unique<StreamWatch>(one_ns); }
  const StreamWatch* watched() const { return watch_.get(); }

  void run();

  // Nanoseconds of each of `rounds` replays.
  std::vector<int64_t> took(int64_t rounds);

  // When each step began and ended in each of `rounds` replays, in nanoseconds since the replay began.
  std::vector<std::vector<Span>> spans(int64_t rounds);

  // Nanoseconds of each of `rounds` runs of `steps`, in the order given. Reads and writes what a replay would.
  std::vector<double> times(const std::vector<int64_t>& steps, int64_t rounds);

  // Whether a step is an operator that may keep what it is given; then `owners` are, for the length of a replay, the
  // inputs by their index, and `results` the memory that callers get results in, by the storage that steps know it as
  // (Note [An operator may keep what it is given]).
  bool lends() const { return lends_; }
  std::unordered_map<int64_t, at::Tensor> owners;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> results;
  const c10::StorageImpl* result_storage(size_t number) const {
    return outputs_.at(number).wholes.back().storage().unsafeGetStorageImpl();
  }

  // Whether torch would still take the routine for a product that it took at capture.
  bool products_as_captured = true;
  std::vector<c10::IValue> registers;

 private:
  using Users = std::vector<Kernel*>;
  struct Input {
    at::Tensor whole;
    int64_t offset = 0;
    Users users;
  };
  struct Output {
    std::vector<at::Tensor> wholes;
    Users users;
  };

  // Whether the streams ran side by side: not where it is not asked for, or the threads have other work.
  bool run_steps(bool side_by_side, std::vector<Span>* spans = nullptr);
  bool run_streams(std::vector<Span>* spans);
  // Have `kernel` notified when an input or output buffer moves in which one of its operands lies.
  void follow(Kernel& kernel, const torch::jit::Stack& args);
  void follow(Kernel& kernel, const at::Tensor& operand);

  bool lends_ = false;
  int64_t settings_;
  uint64_t forks_;
  OwnThread own_thread_;
  std::vector<KernelPtr> steps_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<StreamWatch> watch_;
  std::vector<int> kept_;
  std::unordered_map<int64_t, Input> inputs_;
  std::unordered_map<size_t, Output> outputs_;
  std::unordered_map<const c10::StorageImpl*, Users*> users_by_storage_;
};

}  // namespace npucompose
