// What an operator returns in a replay, held against what it returned when it was recorded.
#pragma once

#include <exception>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace npucompose {

// Note [Results as they were recorded]: the steps behind an operator were made for the sizes, strides and types that it
// returned at capture. Torch's own follow from the signature. Another's may return what its fake implementation does not
// say, or free what it was given: then the call leaves the recording, and goes on in the graph that it was made of.
// Beside other streams it cannot: some of their steps have run and others have not. That call is an error, and later
// ones run in one stream.
struct OtherResults : std::exception {
  OtherResults(size_t step, torch::jit::Stack returned) : step(step), returned(std::move(returned)) {}
  const char* what() const noexcept override { return "an operator returned other tensors than it was recorded with"; }

  size_t step;
  torch::jit::Stack returned;
  bool side_by_side = false;
};

// For each result a tensor without memory that says how it lies, a list of them, or None.
class ReturnedForms {
 public:
  ReturnedForms() = default;
  explicit ReturnedForms(torch::jit::Stack recorded) : recorded_(std::move(recorded)) {}

  bool match(const torch::jit::Stack& returned) const {
    if (returned.size() != recorded_.size()) return recorded_.empty();
    for (size_t i = 0; i < recorded_.size(); ++i)
      if (!alike(returned[i], recorded_[i])) return false;
    return true;
  }

 private:
  static bool alike(const c10::IValue& now, const c10::IValue& before) {
    if (before.isTensor()) return now.isTensor() && lie_alike(now.toTensor(), before.toTensor());
    if (!before.isTensorList()) return before.isNone() == now.isNone();
    if (!now.isTensorList()) return false;
    const auto these = now.toTensorVector(), those = before.toTensorVector();
    if (these.size() != those.size()) return false;
    for (size_t i = 0; i < these.size(); ++i)
      if (!lie_alike(these[i], those[i])) return false;
    return true;
  }

  // The stride of a single element means nothing.
  static bool lie_alike(const at::Tensor& now, const at::Tensor& before) {
    if (!now.defined() || !before.defined()) return now.defined() == before.defined();
    if (now.scalar_type() != before.scalar_type() || !now.is_cpu() || now.layout() != at::kStrided) return false;
    if (now.sizes() != before.sizes() || now.is_conj() != before.is_conj() || now.is_neg() != before.is_neg()) return false;
    if (!now.numel()) return true;
    for (int64_t d = 0; d < now.dim(); ++d)
      if (now.sizes()[d] > 1 && now.strides()[d] != before.strides()[d]) return false;
    return true;
  }

  torch::jit::Stack recorded_;
};

}  // namespace npucompose
