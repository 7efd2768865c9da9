// One thread decrements, a later one decrements and deletes: ordered by the count. With an argument, the first thread
// writes after its decrement: a race.
#include <chrono>
#include <thread>

#include "object.h"

extern "C" Object* made();
extern "C" void let_go(Object* object);

int main(int arguments, char**) {
  using namespace std::chrono_literals;
  for (int i = 0; i < 20; ++i) {
    Object* object = made();
    std::thread first([=] {
      object->count.fetch_sub(1, std::memory_order_acq_rel);
      if (arguments > 1) object->value = 1;
    });
    std::thread last([=] {
      std::this_thread::sleep_for(5ms);
      let_go(object);
    });
    first.join();
    last.join();
  }
}
