// Products by the oneDNN that torch carries.
#pragma once

#include "kernel.h"

namespace npucompose {

using torch::jit::Stack;

// Let `torch.ops.air.onednn_bmm` exist; false in a torch without oneDNN.
bool define_onednn();

// What computes `air::onednn_bmm(*args)` into `out`; null for every other operator.
KernelPtr onednn_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out);

}  // namespace npucompose
