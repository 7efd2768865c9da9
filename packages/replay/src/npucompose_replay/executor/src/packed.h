// Products with weights that MKL has packed, computed by MKL into memory that is given: torch has only the functional
// operator of them, which makes its result anew.
#pragma once

#include "kernel.h"

namespace npucompose {

// What computes `mkl::_mkl_linear(*args)` into `out` with the operator's bits, tried on random rows. Null for every other
// operator (pointwise.h has those of oneDNN), and where MKL cannot be asked.
KernelPtr packed_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& args, const at::Tensor& out);

// Where a weight lies that a library has packed; 0 where torch does not say.
uintptr_t address_of_packed(const at::Tensor& packed);

}  // namespace npucompose
