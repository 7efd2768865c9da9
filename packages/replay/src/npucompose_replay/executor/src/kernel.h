// One step of a recording: something that can be run again and again on memory whose place is known.
#pragma once

#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace npucompose {

struct Kernel {
  virtual ~Kernel() = default;
  virtual void run() = 0;
  // The memory of some operand lies elsewhere now: forget every address that was noted.
  virtual void moved() {}
};

using KernelPtr = std::unique_ptr<Kernel>;

// What runs `op(*args)` quicker than the dispatcher does, with the same bits: first a BLAS call, then a structured kernel
// whose set-up is done here, once. Null where there is neither. `args` are in the order of the schema and name the
// tensors that every run reads and writes; nothing is written to them here.
KernelPtr blas_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& args);
KernelPtr held_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& args);

}  // namespace npucompose
