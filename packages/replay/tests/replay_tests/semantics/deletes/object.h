#pragma once
#include <atomic>

// Laid out as c10::intrusive_ptr_target: the reference count is behind the pointer to the virtual functions.
struct Object {
  virtual ~Object() = default;
  std::atomic<unsigned long> count{2};
  long value = 0;
};
