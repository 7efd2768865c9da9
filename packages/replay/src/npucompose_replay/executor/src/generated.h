// A kernel that a compiler generated (Inductor's C++), called by its address: `void f(pointers and whole numbers)`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "kernel.h"
#include "own_thread.h"

namespace npucompose {

// A tensor whose place is fixed, or one that a step makes anew on every run (`reg` >= 0).
struct GeneratedOperand {
  at::Tensor fixed;
  int reg = -1;
};

// Whole numbers and addresses travel alike where both are 64 bits wide, in registers and on the stack.
static_assert(sizeof(void*) == sizeof(int64_t));

class Generated final : public Kernel {
 public:
  static constexpr size_t kMost = 128;  // parameters

  // `order` says what each parameter is: the next tensor that is read ('r') or written ('w'), or the next number ('n').
  // `process` loaded one that may ask for threads, and is 0 for others;
  // `own` is for the former in a child of fork(). Null where there are more parameters than `kMost`.
  static std::unique_ptr<Generated> of(
      std::vector<at::IValue>& registers, OwnThread& own, void* address, int64_t process, const std::string& order,
      const std::vector<GeneratedOperand>& read, const std::vector<GeneratedOperand>& written,
      const std::vector<int64_t>& numbers);

  void run() override;
  void moved() override;

  std::vector<int> dying;  // registers that nobody reads after it
  std::vector<at::Tensor> fixed() const;  // the operands whose place is fixed

 private:
  using Caller = void (*)(void*, const uintptr_t*);

  Generated(std::vector<at::IValue>& registers, OwnThread& own) : registers_(registers), own_(own) {}

  std::vector<at::IValue>& registers_;
  OwnThread& own_;
  const uint64_t forks_ = Forkable::forks();
  bool parallel_ = false, of_another_ = false;  // whether it may ask for threads; whether another process loaded it
  void* address_ = nullptr;
  Caller caller_ = nullptr;
  std::vector<uintptr_t> values_;  // one for each parameter
  std::vector<std::pair<size_t, at::Tensor>> placed_;
  std::vector<std::pair<size_t, int>> made_;
};

}  // namespace npucompose
