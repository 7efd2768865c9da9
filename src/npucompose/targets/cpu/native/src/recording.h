// The steps of a plan in order, and the memory of its inputs, which may be moved.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernel.h"

namespace npucompose {

// A value that a step makes on every run; `list` where the operator returns a list of tensors.
struct Result {
  int reg = -1;
  std::vector<int> list;
};

// An argument that is made of registers: one of them, or a list of tensors, registers (>= 0) among them.
struct Filled {
  int position = 0;
  bool is_list = false;
  std::vector<int> registers;
  std::vector<at::Tensor> fixed;
};

class Recording {
 public:
  Recording();

  // Append a step; the answer is the way in which it runs: "blas", "held" or "boxed" (always, without `direct`).
  std::string add(
      const c10::OperatorHandle& op, torch::jit::Stack args, std::vector<Filled> filled, std::vector<Result> results,
      std::vector<int> dying, bool direct);

  // The fixed memory of input `index`, and the address at which it lies now.
  void set_input(int64_t index, const at::Tensor& whole);
  void move(int64_t index, const void* address);

  void run();

  // Nanoseconds of each of `rounds` runs of `steps`, in the order given. Reads and writes what a replay would.
  std::vector<double> times(const std::vector<int64_t>& steps, int64_t rounds);

  // Whether torch would still take the routine for a product that it took at capture.
  bool products_as_captured = true;
  torch::jit::Stack stack;
  std::vector<c10::IValue> registers;

 private:
  struct Input {
    at::Tensor whole;
    int64_t offset = 0;
    std::vector<Kernel*> users;
  };

  int64_t settings_;
  std::vector<KernelPtr> steps_;
  std::unordered_map<int64_t, Input> inputs_;
};

}  // namespace npucompose
