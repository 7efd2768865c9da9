// The memory of results. What a caller may still look at is left to him, and a replay gets other memory.
//
// # Note [Who holds a result]
// Every result of a replay, and every view of one, holds the storage it lies in. The storage that callers are given is
// nobody else's: kernels write through storages of their own over the same bytes. So its use count says whether anyone
// outside still holds a result. torch's CUDA graph trees decide it in the same way (torch/_inductor/cudagraph_trees.py).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

namespace npucompose {

class HeldMemory {
 public:
  explicit HeldMemory(size_t nbytes) : nbytes_(nbytes) { take(fresh()); }

  // `result` lies here from now on, wherever this memory is.
  void add(const at::Tensor& result) {
    results_.push_back(result);
    result.unsafeGetTensorImpl()->set_storage_keep_dtype(memory_.storage);
  }

  void* address() const { return memory_.address; }
  const c10::Storage& storage() const { return memory_.storage; }
  bool meets(uintptr_t begin, uintptr_t end) const {
    const auto own = reinterpret_cast<uintptr_t>(memory_.address);
    return begin < own + nbytes_ && own < end;
  }

  // Whether a result of an earlier replay lives on. An empty one cannot be overwritten.
  bool is_held() const { return nbytes_ && !is_free(memory_, 1 + results_.size()); }

  // Leave the memory to whoever holds it, for some that nobody does.
  void leave() {
    Memory next;
    for (Memory& spare : spares_)
      if (spare.storage && is_free(spare, 1)) std::swap(next, spare);
    Memory left = std::move(memory_);
    take(next.storage ? std::move(next) : fresh());
    // Kept where it may come back: whoever holds two results in turns needs no allocation.
    if (is_untouched(left)) std::swap(spares_[oldest_++ % kSpares], left);
  }

  // For when nothing was held for long: other memory than that in use is given back.
  void give_spares_back() { spares_ = {}; }

 private:
  static constexpr size_t kSpares = 2;

  struct Memory {
    c10::Storage storage;
    void* address = nullptr;
    c10::DeleterFnPtr deleter = nullptr;
  };

  Memory fresh() const {
    c10::Storage storage(
        c10::Storage::use_byte_size_t(), nbytes_, c10::GetCPUAllocator()->allocate(nbytes_), c10::GetCPUAllocator(), true);
    void* address = storage.mutable_data();
    return {storage, address, storage.data_ptr().get_deleter()};
  }

  void take(Memory memory) {
    memory_ = std::move(memory);
    for (const at::Tensor& result : results_) result.unsafeGetTensorImpl()->set_storage_keep_dtype(memory_.storage);
  }

  // A caller may have resized it, moved it to shared memory or copied it lazily: then kernels may not write there.
  bool is_untouched(const Memory& memory) const {
    return memory.storage.data() == memory.address && memory.storage.nbytes() == nbytes_ &&
        memory.storage.data_ptr().get_deleter() == memory.deleter;
  }

  bool is_free(const Memory& memory, size_t ours) const {
    if (memory.storage.use_count() > ours || !is_untouched(memory)) return false;
    // What the last holder read, in whichever thread, is read before a kernel writes.
    std::atomic_thread_fence(std::memory_order_acquire);
    return true;
  }

  size_t nbytes_ = 0, oldest_ = 0;
  Memory memory_;
  std::vector<at::Tensor> results_;
  std::array<Memory, kSpares> spares_;
};

}  // namespace npucompose
