// What trials of kernels have in common.
#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace npucompose {

// Fill the whole memory of a tensor with numbers of the normal distribution, from `place` of a series on; `place` is the
// next one.
void fill_with_noise(const at::Tensor& tensor, size_t& place);

}  // namespace npucompose
