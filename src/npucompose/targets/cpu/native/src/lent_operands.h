// The operands of an operator that is not torch's own: ordinary tensors, as eager would give it, which it may keep.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace npucompose {

// # Note [An operator may keep what it is given]
// A recording's tensors lie over memory that the next step or replay writes, and they are inference tensors. Torch's own
// operators keep none of them. Another's may: it gets ordinary tensors over storages that are made for one call. A storage
// that is still held when the operator returns is moved, with what it holds, to memory of its own.
class LentOperands {
 public:
  LentOperands() : inference_(false), no_grad_() {}

  void lend(c10::IValue& value) {
    if (value.isTensor()) {
      value = lent(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorList().copy();
      for (size_t i = 0; i < list.size(); ++i) list.set(i, lent(list.get(i)));
      value = std::move(list);
    } else if (value.isList() && value.toListRef().size() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); ++i)
        if (const c10::IValue part = list.get(i); part.isTensor()) list.set(i, lent(part.toTensor()));
      value = std::move(list);
    }
  }

  // After the call, when the operands are no longer on its stack.
  void take_back() {
    for (auto& [storage, nbytes] : storages_) {
      if (storage.use_count() == 1) continue;
      c10::DataPtr own = c10::GetCPUAllocator()->allocate(nbytes);
      if (nbytes) std::memcpy(own.get(), storage.data(), nbytes);
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(own));
    }
    storages_.clear();
  }

 private:
  at::Tensor lent(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    c10::Storage storage = over(tensor.storage());
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) made._set_conj(true);
    if (tensor.is_neg()) made._set_neg(true);
    return made;
  }

  // Operands that share memory go on sharing it.
  c10::Storage over(const c10::Storage& memory) {
    for (const auto& [storage, nbytes] : storages_)
      if (storage.data() == memory.data() && nbytes == memory.nbytes()) return storage;
    c10::Storage made(
        c10::Storage::use_byte_size_t(), memory.nbytes(),
        c10::DataPtr(const_cast<void*>(memory.data()), at::kCPU), c10::GetCPUAllocator(), true);
    storages_.emplace_back(made, memory.nbytes());
    return made;
  }

  const c10::InferenceMode inference_;
  const c10::NoGradGuard no_grad_;
  std::vector<std::pair<c10::Storage, size_t>> storages_;
};

}  // namespace npucompose
