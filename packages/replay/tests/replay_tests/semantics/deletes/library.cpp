// As torch's libraries: the last decrement and the delete are made where the thread sanitizer does not look.
#include "object.h"

extern "C" Object* made() { return new Object; }
extern "C" void let_go(Object* object) {
  if (object->count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete object;
}
