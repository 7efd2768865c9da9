#include "generated.h"

#include <array>

#include <unistd.h>

namespace npucompose {
namespace {

template <size_t... I>
void call_with(void* address, const uintptr_t* values, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(decltype((void)I, uintptr_t{})...)>(address)(values[I]...);
}

template <size_t N>
void call(void* address, const uintptr_t* values) {
  call_with(address, values, std::make_index_sequence<N>());
}

template <size_t... N>
constexpr std::array<void (*)(void*, const uintptr_t*), sizeof...(N)> callers_of(std::index_sequence<N...>) {
  return {call<N>...};
}

constexpr auto kCallers = callers_of(std::make_index_sequence<Generated::kMost + 1>());

uintptr_t address_of_data(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()); }

}  // namespace

std::unique_ptr<Generated> Generated::of(
    std::vector<at::IValue>& registers, OwnThread& own, void* address, int64_t process, const std::string& order,
    const std::vector<GeneratedOperand>& read, const std::vector<GeneratedOperand>& written,
    const std::vector<int64_t>& numbers) {
  if (order.size() > kMost) return nullptr;
  TORCH_CHECK(order.size() == read.size() + written.size() + numbers.size(), "parameters of a generated kernel");
  std::unique_ptr<Generated> made(new Generated(registers, own));
  made->address_ = address;
  made->parallel_ = process != 0, made->of_another_ = process != 0 && process != getpid();
  made->caller_ = kCallers[order.size()];
  auto next_read = read.begin(), next_written = written.begin();
  auto next_number = numbers.begin();
  for (const char kind : order) {
    const size_t place = made->values_.size();
    made->values_.push_back(kind == 'n' ? static_cast<uintptr_t>(*next_number++) : 0);
    if (kind == 'n') continue;
    const GeneratedOperand& operand = kind == 'w' ? *next_written++ : *next_read++;
    if (operand.reg >= 0) made->made_.emplace_back(place, operand.reg);
    else made->placed_.emplace_back(place, operand.fixed);
  }
  made->moved();
  return made;
}

void Generated::run() {
  for (const auto& [place, reg] : made_) values_[place] = address_of_data(registers_[reg].toTensor());
  if (parallel_ && (of_another_ || Forkable::forks() != forks_)) own_.run([this] { caller_(address_, values_.data()); });
  else caller_(address_, values_.data());
  for (int number : dying) registers_[number] = c10::IValue();
}

void Generated::moved() {
  for (const auto& [place, tensor] : placed_) values_[place] = address_of_data(tensor);
}

std::vector<at::Tensor> Generated::fixed() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [place, tensor] : placed_) tensors.push_back(tensor);
  return tensors;
}

}  // namespace npucompose
