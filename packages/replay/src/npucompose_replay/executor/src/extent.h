// How many bytes a dense tensor reaches over.
#pragma once

#include <ATen/core/Tensor.h>

namespace npucompose {

// From the begin of the storage to the end of the last element, of which there is one.
inline size_t reach_of(const at::TensorImpl& t) {
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.sizes()[d] - 1) * t.strides()[d];
  return static_cast<size_t>(last + 1) * t.itemsize();
}

// From the first element to the end of the last.
inline size_t bytes_of(const at::Tensor& t) {
  return t.numel() ? reach_of(*t.unsafeGetTensorImpl()) - t.storage_offset() * t.element_size() : 0;
}

}  // namespace npucompose
