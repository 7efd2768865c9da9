// The operands of an operator that is not torch's own: ordinary tensors, as eager would give it, which it may keep.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "extent.h"

namespace npucompose {

// # Note [An operator may keep what it is given]
// A recording's tensors lie over memory that the next step or replay writes, and they are inference tensors. Torch's own
// operators keep none of them. Another's may: it gets ordinary tensors. What is an input of the graph, or a view of one, is
// the caller's own tensor, or lies in its storage, as in eager. What the graph returns lies in the memory that the caller
// gets it in: who keeps it holds that memory (Note [Who holds a result]). What else the graph computes lies over storages that
// are made for one call; one that is still held when the operator returns is moved, with what it holds, to memory of its own.
// Where the next call may overwrite results, what is returned is copied too: an operator was promised nothing of the kind.
class LentOperands {
 public:
  using Results = std::vector<std::pair<const c10::StorageImpl*, c10::Storage>>;

  // `owners` are the inputs that the operator reads as they were given; `results` the storage that callers are given for
  // one that steps know.
  LentOperands(const std::vector<at::Tensor>& owners, const Results& results)
      : inference_(false), no_grad_(), owners_(owners), results_(results) {}

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
    for (auto& [storage, memory, nbytes] : storages_) {
      if (storage.use_count() == 1 || storage.data() != memory) continue;  // the operator has freed or moved it itself
      c10::DataPtr own = c10::GetCPUAllocator()->allocate(nbytes);
      if (nbytes) std::memcpy(own.get(), memory, nbytes);
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(own));
    }
    storages_.clear();
  }

 private:
  at::Tensor lent(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& [known, given] : results_)
      if (tensor.storage().unsafeGetStorageImpl() == known) return made(tensor, given, tensor.storage_offset());
    const auto item = static_cast<uintptr_t>(tensor.element_size());
    const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data()) + tensor.storage_offset() * item;
    for (const at::Tensor& owner : owners_) {
      const auto low = reinterpret_cast<uintptr_t>(owner.storage().data());
      if (begin < low || begin + bytes_of(tensor) > low + owner.storage().nbytes() || (begin - low) % item) continue;
      const auto offset = static_cast<int64_t>((begin - low) / item);
      return is_same(tensor, owner, offset) ? owner : made(tensor, owner.storage(), offset);
    }
    return made(tensor, over(tensor.storage()), tensor.storage_offset());
  }

  static at::Tensor made(const at::Tensor& like, c10::Storage storage, int64_t offset) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), offset);
    if (like.is_conj()) made._set_conj(true);
    if (like.is_neg()) made._set_neg(true);
    return made;
  }

  static bool is_same(const at::Tensor& tensor, const at::Tensor& owner, int64_t offset) {
    return owner.storage_offset() == offset && owner.sizes() == tensor.sizes() && owner.strides() == tensor.strides() &&
        owner.dtype() == tensor.dtype() && owner.is_conj() == tensor.is_conj() && owner.is_neg() == tensor.is_neg();
  }

  // Operands that share memory go on sharing it.
  c10::Storage over(const c10::Storage& memory) {
    for (const auto& [storage, begin, nbytes] : storages_)
      if (begin == memory.data() && nbytes == memory.nbytes()) return storage;
    c10::Storage made(
        c10::Storage::use_byte_size_t(), memory.nbytes(),
        c10::DataPtr(const_cast<void*>(memory.data()), at::kCPU), c10::GetCPUAllocator(), true);
    storages_.emplace_back(made, memory.data(), memory.nbytes());
    return made;
  }

  const c10::InferenceMode inference_;
  const c10::NoGradGuard no_grad_;
  const std::vector<at::Tensor>& owners_;
  const Results& results_;
  std::vector<std::tuple<c10::Storage, const void*, size_t>> storages_;
};

}  // namespace npucompose
