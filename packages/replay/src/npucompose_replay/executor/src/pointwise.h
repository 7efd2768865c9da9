// `mkldnn::_convolution_pointwise`, `_convolution_transpose_pointwise` and `_linear_pointwise`, products with packed weights
// and an activation, computed by oneDNN into memory that is given. torch's operators make their results anew and set oneDNN
// up in every call (20 µs of a convolution, 8 of a product).
#pragma once

#include "kernel.h"

namespace npucompose {

// What computes `op(*args)` into `out` with the operator's bits, tried on random operands; `out` is the first of `args`
// where the operator adds to it. Null for every other operator, for operands in another form, and where oneDNN cannot be
// called (onednn_functions.h).
KernelPtr pointwise_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& args, const at::Tensor& out);

}  // namespace npucompose
