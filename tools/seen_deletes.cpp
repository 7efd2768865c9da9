// Loaded before the thread sanitizer's library, by tools/sanitized.py.
//
// torch deletes an object after the last decrement of its reference count, which acquires what every other thread released
// by its own decrement (torch/headeronly or c10/util/intrusive_ptr.h, "The requirement is that ..."). Our library's decrements
// are seen by the sanitizer, those inside torch's libraries are not: so it takes their deletes for unordered. Here a delete
// acquires the count of the object that goes. It hides no race: memory that is still used after it is reported as before.
#include <cstddef>
#include <dlfcn.h>

extern "C" void __tsan_acquire(void* address);

namespace {
// Behind the pointer to the virtual functions: c10::intrusive_ptr_target::combined_refcount_.
constexpr std::size_t kCount = sizeof(void*);
using Delete = void (*)(void*, std::size_t);
}  // namespace

void operator delete(void* object, std::size_t size) noexcept {
  static const auto next = reinterpret_cast<Delete>(dlsym(RTLD_NEXT, "_ZdlPvm"));
  if (object && size > kCount) __tsan_acquire(static_cast<char*>(object) + kCount);
  next(object, size);
}
