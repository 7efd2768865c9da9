#include "recording.h"

#include <chrono>
#include <cstring>
#include <optional>

#include <ATen/Parallel.h>

#include "generated.h"
#include "lent_operands.h"
#include "packed.h"
#include "pointwise.h"
#include "torch_internal.h"

namespace npucompose {
namespace {

// Torch's own, and the references that npucompose brings, keep nothing of what they are given. A collective keeps it until
// it is waited for, and who waits names it by the storage of its result: both are given what the recording has.
bool is_of_others(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  for (const char* own : {"aten::", "prims::", "mkldnn::", "mkl::", "npu::", "air::", "_c10d_functional::"})
    if (name.rfind(own, 0) == 0) return false;
  return true;
}

// Any operator, through torch's dispatcher.
class Boxed final : public Kernel {
 public:
  Boxed(
      Recording& owner, c10::OperatorHandle op, Stack args, std::vector<Filled> filled, std::vector<Result> results,
      std::vector<int> dying, std::vector<int64_t> lent, size_t step, ReturnedForms returns = {})
      : owner_(owner), op_(std::move(op)), args_(std::move(args)), filled_(std::move(filled)),
        results_(std::move(results)), dying_(std::move(dying)), lent_(std::move(lent)), step_(step),
        returns_(std::move(returns)), of_others_(is_of_others(op_)) {
    // A list is shared by those who hold it, and some operators write theirs (`_unsafe_masked_index` its indices).
    for (size_t i = 0; i < args_.size(); ++i)
      if (args_[i].isOptionalTensorList() || (of_others_ && args_[i].isList())) lists_.push_back(i);
  }

  void run() override {
    stack_.assign(args_.begin(), args_.end());
    for (size_t position : lists_) stack_[position] = stack_[position].toList().copy();
    for (const Filled& filled : filled_) stack_[filled.position] = value_of(filled);
    const bool left_inputs = of_others_ ? call_with_lent_operands() : (op_.callBoxed(stack_), true);
    if (!left_inputs || !returns_.match(stack_)) throw OtherResults(step_, std::exchange(stack_, {}));
    for (size_t i = 0; i < results_.size(); ++i) keep(results_[i], stack_[i]);
    stack_.clear();
    for (int number : dying_) owner_.registers[number] = c10::IValue();
  }

 private:
  // Whether the inputs lie where they did: an operator may free or move what it is given.
  bool call_with_lent_operands() {
    std::vector<at::Tensor> owners;
    for (int64_t index : lent_) owners.push_back(owner_.owners.at(index));
    std::vector<std::pair<const void*, size_t>> places;
    for (const at::Tensor& owner : owners) places.emplace_back(owner.storage().data(), owner.storage().nbytes());
    LentOperands lent(owners, owner_.results);
    for (c10::IValue& value : stack_) lent.lend(value);
    op_.callBoxed(stack_);
    lent.take_back();
    for (size_t i = 0; i < owners.size(); ++i)
      if (owners[i].storage().data() != places[i].first || owners[i].storage().nbytes() < places[i].second) return false;
    return true;
  }

  c10::IValue value_of(const Filled& filled) const {
    if (!filled.is_list) return owner_.registers[filled.registers[0]];
    auto type = op_.schema().arguments()[filled.position].type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
    c10::impl::GenericList list(type->expectRef<c10::ListType>().getElementType());
    for (size_t i = 0; i < filled.registers.size(); ++i) {
      const int number = filled.registers[i];
      const at::Tensor& fixed = filled.fixed[i];
      list.push_back(number >= 0 ? owner_.registers[number] : fixed.defined() ? c10::IValue(fixed) : c10::IValue());
    }
    return list;
  }

  static void lay(const at::Tensor& value, const at::Tensor& place) {
    const bool alike = value.scalar_type() == place.scalar_type() && value.sizes() == place.sizes() &&
        value.strides() == place.strides() && place.is_non_overlapping_and_dense();
    if (alike) std::memcpy(const_cast<void*>(place.const_data_ptr()), value.const_data_ptr(), place.nbytes());
    else place.copy_(value);
  }

  void keep(const Result& result, c10::IValue& value) {
    if (result.place.defined()) lay(value.toTensor(), result.place);
    if (result.reg >= 0) owner_.registers[result.reg] = std::move(value);
    if (result.list.empty()) return;
    const auto tensors = value.toTensorVector();
    TORCH_CHECK(
        tensors.size() == result.list.size(), op_.operator_name(), " was captured with ", result.list.size(),
        " results and now returns ", tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) owner_.registers[result.list[i]] = tensors[i];
  }

  Recording& owner_;
  c10::OperatorHandle op_;
  Stack args_, stack_;
  std::vector<Filled> filled_;
  std::vector<Result> results_;
  std::vector<int> dying_;
  std::vector<int64_t> lent_;
  std::vector<size_t> lists_;  // arguments
  size_t step_;
  ReturnedForms returns_;
  bool of_others_;
};

// The operands of list `position`: fixed tensors, and registers where `filled` says so.
std::vector<GeneratedOperand> operands_of(const Stack& args, const std::vector<Filled>& filled, int position) {
  std::vector<GeneratedOperand> operands;
  for (const Filled& made_of : filled) {
    if (made_of.position != position) continue;
    for (size_t i = 0; i < made_of.registers.size(); ++i) operands.push_back({made_of.fixed[i], made_of.registers[i]});
    return operands;
  }
  for (const at::Tensor& tensor : args[position].toTensorVector()) operands.push_back({tensor, -1});
  return operands;
}

// `air::generated(read, written, order, numbers, address, process)`, which calls a generated kernel (ops/generated.py).
std::unique_ptr<Generated> generated_kernel(
    const c10::OperatorHandle& op, const Stack& args, const std::vector<Filled>& filled, std::vector<c10::IValue>& registers,
    OwnThread& own) {
  if (op.operator_name().name != "air::generated") return nullptr;
  return Generated::of(
      registers, own, reinterpret_cast<void*>(args[4].toInt()), args[5].toInt(), args[2].toStringRef(),
      operands_of(args, filled, 0), operands_of(args, filled, 1), args[3].toIntVector());
}

// A BLAS call for as long as torch would make the same one.
class Product final : public Kernel {
 public:
  Product(const Recording& owner, KernelPtr blas, KernelPtr boxed)
      : owner_(owner), blas_(std::move(blas)), boxed_(std::move(boxed)) {}

  void run() override { (owner_.products_as_captured ? blas_ : boxed_)->run(); }
  void moved() override { blas_->moved(); }

 private:
  const Recording& owner_;
  KernelPtr blas_, boxed_;
};

// The same for a library that shares its work among as many threads as there were at capture.
class PackedProduct final : public Kernel {
 public:
  PackedProduct(const Recording& owner, const c10::OperatorHandle& op, KernelPtr packed, KernelPtr boxed)
      : owner_(owner), packed_(std::move(packed)), boxed_(std::move(boxed)),
        convolves_(op.operator_name().name.rfind("mkldnn::_convolution", 0) == 0) {}

  void run() override { (as_captured() ? packed_ : boxed_)->run(); }
  void moved() override { packed_->moved(); }

 private:
  bool as_captured() const {
    return owner_.products_as_captured && at::get_num_threads() == threads_ &&
        (!convolves_ || convolution_settings() == settings_);
  }

  const Recording& owner_;
  KernelPtr packed_, boxed_;
  const bool convolves_;
  const int threads_ = at::get_num_threads();
  const int64_t settings_ = convolution_settings();
};

// Where the one result of a step lies: where the plan wants it, or in the argument that a convolution is added to.
at::Tensor place_of(const c10::OperatorHandle& op, const Stack& args, const std::vector<Result>& results) {
  if (results.size() == 1) return results[0].place;
  const bool adds = results.empty() && op.operator_name().name == "mkldnn::_convolution_pointwise_";
  return adds && args.at(0).isTensor() ? args[0].toTensor() : at::Tensor();
}

}  // namespace

KernelPtr placed_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  if (KernelPtr found = packed_kernel(op, args, out)) return found;
  return pointwise_kernel(op, args, out);
}

Recording::Recording() : settings_(product_settings()), forks_(Forkable::forks()) {}

std::string Recording::add(
    const c10::OperatorHandle& op, Stack args, std::vector<Filled> filled, std::vector<Result> results,
    std::vector<int> dying, std::vector<int64_t> lent, ReturnedForms returns, bool direct) {
  const size_t step = steps_.size();
  const auto grow = [this](int number) {
    if (number >= static_cast<int>(registers.size())) registers.resize(number + 1);
  };
  for (const Result& result : results) {
    grow(result.reg);
    for (int number : result.list) grow(number);
  }
  lends_ |= is_of_others(op);
  KernelPtr kernel;
  std::string name = "boxed";
  auto generated = direct ? generated_kernel(op, args, filled, registers, own_thread_) : nullptr;
  if (generated) {
    for (const at::Tensor& operand : generated->fixed()) follow(*generated, operand);
    generated->dying = std::move(dying);
    steps_.push_back(std::move(generated));
    return "generated";
  }
  const at::Tensor place = place_of(op, args, results);
  if (direct && filled.empty() && place.defined()) {
    if (KernelPtr packed = placed_kernel(op, args, place)) {
      auto boxed = std::make_unique<Boxed>(*this, op, args, filled, results, dying, lent, step);
      kernel = std::make_unique<PackedProduct>(*this, op, std::move(packed), std::move(boxed));
      follow(*kernel, place);
      name = "packed";
    }
  } else if (direct && filled.empty() && results.empty()) {
    if (KernelPtr blas = blas_kernel(op, args)) {
      auto boxed = std::make_unique<Boxed>(*this, op, args, filled, results, dying, lent, step);
      kernel = std::make_unique<Product>(*this, std::move(blas), std::move(boxed));
      name = "blas";
    } else if ((kernel = held_kernel(op, args))) {
      name = "held";
    }
  }
  if (kernel) {
    follow(*kernel, args);
  } else {
    kernel = std::make_unique<Boxed>(
        *this, op, std::move(args), std::move(filled), std::move(results), std::move(dying), std::move(lent), step,
        std::move(returns));
  }
  steps_.push_back(std::move(kernel));
  return name;
}

void Recording::follow(Kernel& kernel, const Stack& args) {
  for (const c10::IValue& value : args) {
    if (value.isTensor()) follow(kernel, value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) follow(kernel, tensor);
  }
}

void Recording::follow(Kernel& kernel, const at::Tensor& operand) {
  if (!operand.defined() || !operand.has_storage()) return;
  const auto found = users_by_storage_.find(operand.storage().unsafeGetStorageImpl());
  if (found == users_by_storage_.end()) return;
  Users& users = *found->second;
  if (users.empty() || users.back() != &kernel) users.push_back(&kernel);
}

void Recording::set_input(int64_t index, const at::Tensor& whole) {
  Input& input = inputs_[index];
  input = Input{whole, static_cast<int64_t>(whole.storage_offset() * whole.element_size()), {}};
  users_by_storage_[whole.storage().unsafeGetStorageImpl()] = &input.users;
}

void Recording::set_output(size_t number, const std::vector<at::Tensor>& wholes) {
  Output& output = outputs_[number];
  output = Output{wholes, {}};
  for (const at::Tensor& whole : wholes) users_by_storage_[whole.storage().unsafeGetStorageImpl()] = &output.users;
}

void Recording::move_output(size_t number, void* address) {
  Output& output = outputs_.at(number);
  for (const at::Tensor& whole : output.wholes) move_storage(*whole.storage().unsafeGetStorageImpl(), address);
  for (Kernel* kernel : output.users) kernel->moved();
}

void Recording::move(int64_t index, const void* address) {
  auto found = inputs_.find(index);
  if (found == inputs_.end()) return;  // no step reads it
  Input& input = found->second;
  move_storage(
      *input.whole.storage().unsafeGetStorageImpl(),
      const_cast<char*>(static_cast<const char*>(address)) - input.offset);
  for (Kernel* kernel : input.users) kernel->moved();
}

void Recording::set_streams(
    const std::vector<std::vector<size_t>>& threads, const std::vector<std::vector<size_t>>& waits, std::vector<int> kept,
    int64_t spin_ns, std::vector<int> cores) {
  std::unordered_map<size_t, size_t> events;  // by the step that records it
  for (size_t step = 0; step < waits.size(); ++step)
    for (size_t first : waits[step]) {
      TORCH_CHECK(first < step, "step ", step, " would wait for step ", first, ", which comes only after it");
      events.emplace(first, events.size());
    }
  std::vector<std::vector<Turn>> turns;
  for (const auto& steps : threads) {
    turns.emplace_back();
    for (size_t step : steps) {
      TORCH_CHECK(turns.back().empty() || turns.back().back().step < step, "step ", step, " is out of order");
      Turn turn{steps_.at(step).get(), step, {}, -1};
      for (size_t first : waits.at(step)) turn.waits.push_back(events.at(first));
      if (auto own = events.find(step); own != events.end()) turn.records = static_cast<int>(own->second);
      turns.back().push_back(std::move(turn));
    }
  }
  kept_ = std::move(kept);
  streams_ = std::make_unique<Streams>(std::move(turns), events.size(), spin_ns, std::move(cores));
}

void Recording::run() {
  products_as_captured = product_settings() == settings_;
  if (!watch_) {
    run_steps(true);
    return;
  }
  const bool side_by_side = watch_->side_by_side();
  const int64_t begun = now_ns();
  if (run_steps(side_by_side) == side_by_side) watch_->took(now_ns() - begun);
}

bool Recording::run_steps(bool side_by_side, std::vector<Span>* spans) {
  // Threads that kernels shared their work with were the parent's: a child of fork() would wait for them for ever.
  std::optional<OneThread> quiet;
  if (Forkable::forks() != forks_) quiet.emplace();
  const bool ran = side_by_side && streams_ && run_streams(spans);
  if (!ran) {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (spans) (*spans)[i].first = now_ns();
      steps_[i]->run();
      if (spans) (*spans)[i].second = now_ns();
    }
  }
  for (int number : kept_) registers[number] = c10::IValue();
  return ran;
}

bool Recording::run_streams(std::vector<Span>* spans) {
  try {
    return streams_->run(spans);
  } catch (OtherResults& other) {
    other.side_by_side = true;
    streams_.reset();
    throw;
  }
}

std::vector<int64_t> Recording::took(int64_t rounds) {
  std::vector<int64_t> nanoseconds;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t begun = now_ns();
    products_as_captured = product_settings() == settings_;
    run_steps(true);
    nanoseconds.push_back(now_ns() - begun);
  }
  return nanoseconds;
}

std::vector<std::vector<Span>> Recording::spans(int64_t rounds) {
  std::vector<std::vector<Span>> found;
  for (int64_t round = 0; round < rounds; ++round) {
    found.emplace_back(steps_.size());
    const int64_t begun = now_ns();
    run_steps(true, &found.back());
    for (auto& [begin, end] : found.back()) begin -= begun, end -= begun;
  }
  return found;
}

std::vector<double> Recording::times(const std::vector<int64_t>& steps, int64_t rounds) {
  std::vector<double> nanoseconds;
  nanoseconds.reserve(rounds);
  for (int64_t round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t step : steps) steps_.at(step)->run();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    nanoseconds.push_back(took.count());
  }
  return nanoseconds;
}

}  // namespace npucompose
