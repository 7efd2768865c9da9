// Products by the oneDNN that torch carries.
#pragma once

#include <torch/library.h>

#include "kernel.h"

namespace npucompose {

using torch::jit::Stack;

// Let `torch.ops.air.onednn_bmm` and `onednn_attention` exist; false in a torch without oneDNN.
bool define_onednn();
void define_attention(torch::Library& library);

// What computes one of them, called with `args`, into `out`; null for every other operator.
KernelPtr onednn_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out);
KernelPtr attention_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out);

// out = scale x y, of float32 matrices [count, rows, columns] that share no memory with `out`.
void multiply(const at::Tensor& x, const at::Tensor& y, const at::Tensor& out, double scale = 1);

}  // namespace npucompose
