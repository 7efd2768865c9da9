// Weights that a graph has as constants: are they as they were when it was made? Asked before every call of it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "gate.h"

namespace npucompose {

// What npucompose_replay/inductor/frozen_weights.py asks of a Weight, for plain tensors on the CPU. A no is for Python to judge.
class Weights {
 public:
  // `frozen`: its values are constants of the graph, and not only how it lies. They were of that version, at that address,
  // and `sample` was what lay at `sample_at`, within the tensor.
  void add(
      const at::Tensor& tensor, bool frozen, int64_t version, uintptr_t address, uintptr_t sample_at,
      const std::string& sample) {
    TORCH_CHECK(sample.size() <= kSample, "a sample of ", sample.size(), " bytes");
    Weight made;
    made.tensor = tensor, made.frozen = frozen;
    made.version = static_cast<uint32_t>(version), made.address = address;
    made.sample_at = reinterpret_cast<const char*>(sample_at), made.sampled = sample.size();
    std::memcpy(made.sample.data(), sample.data(), sample.size());
    made.dtype = tensor.dtype(), made.keys = tensor.key_set() - kUse;
    made.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    made.strides.assign(tensor.strides().begin(), tensor.strides().end());
    made.last_storage = tensor.storage().unsafeGetStorageImpl();
    weights_.push_back(std::move(made));
  }

  bool hold() const {
    // A replay leaves nothing of this in the cache: what is asked for all at once comes together.
    for (const Weight& weight : weights_) weight.fetch_ahead();
    for (const Weight& weight : weights_)
      if (weight.frozen && weight.impl().version_counter().current_version() != weight.version) return false;
    for (const Weight& weight : weights_)
      if (!weight.lies_as_before() || (weight.frozen && !weight.has_its_values())) return false;
    return true;
  }

 private:
  static constexpr size_t kSample = 64;

  struct Weight {
    at::Tensor tensor;
    bool frozen = false;
    uint32_t version = 0;
    uintptr_t address = 0;
    const char* sample_at = nullptr;
    size_t sampled = 0;
    std::array<char, kSample> sample{};
    caffe2::TypeMeta dtype;
    c10::DispatchKeySet keys;
    c10::SmallVector<int64_t, 4> sizes, strides;
    const void* last_storage = nullptr;  // only ever fetched ahead: it may be gone

    const at::TensorImpl& impl() const { return *tensor.unsafeGetTensorImpl(); }

    void fetch_ahead() const {
      constexpr size_t kLine = 64;
      const auto* begin = reinterpret_cast<const char*>(&impl());
      for (size_t at = 0; at < sizeof(at::TensorImpl); at += kLine) __builtin_prefetch(begin + at);
      __builtin_prefetch(last_storage);
      if (sampled) __builtin_prefetch(sample_at), __builtin_prefetch(sample_at + sampled - 1);
    }

    // Sizes come last: a tensor of another kind may have none.
    bool lies_as_before() const {
      const at::TensorImpl& t = impl();
      return t.dtype() == dtype && (t.key_set() - kUse) == keys && t.sizes() == sizes && t.strides() == strides;
    }

    // The sample is read where the address still holds.
    bool has_its_values() const {
      const at::TensorImpl& t = impl();
      if ((t.numel() ? address_of(t) : 0) != address) return false;
      return std::memcmp(sample_at, sample.data(), sampled) == 0;
    }
  };

  std::vector<Weight> weights_;
};

}  // namespace npucompose
