// One recording behind its checks: `Front`, which front.h describes. For front.cpp alone.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "front_values.h"
#include "turns.h"

// From torch/csrc/jit/python/pybind_utils.h (see module.cpp).
namespace torch::jit {
TORCH_PYTHON_API py::object toPyObject(c10::IValue value);
}

namespace npucompose {
namespace {

class Front {
 public:
  Front(
      std::shared_ptr<Recording> recording, const py::list& inputs, const std::vector<size_t>& memory,
      const py::list& outputs, py::object admit, py::object give_back, py::object go_on, std::optional<bool> fills,
      std::shared_ptr<Turns> turns)
      : recording_(std::move(recording)), admit_(std::move(admit)), give_back_(std::move(give_back)),
        go_on_(std::move(go_on)), fills_(fills), turns_(std::move(turns)) {
    for (const auto& item : inputs) inputs_.push_back(input_of(item.cast<py::dict>()));
    size_t nbytes = 0;
    for (const Input& input : inputs_) nbytes += input.nbytes;
    cold_ = nbytes > kCacheBytes;
    for (size_t bytes : memory) memory_.emplace_back(bytes);
    lent_.assign(memory_.size(), false);
    for (const auto& item : outputs) outputs_.push_back(output_of(item.cast<py::tuple>()));
    for (size_t i = 0; i < memory_.size(); ++i) recording_->move_output(i, memory_[i].address());
  }

  // The outputs, or None, with nothing done: these are not the recording's inputs, or this thread may not replay.
  py::object replay(const py::tuple& given, Earlier earlier) {
    const Given inputs = items_of(given);
    if (is_other_state()) return py::none();
    const Turns::Turn turn(*turns_);
    if ((again_ || !is_known(inputs)) && (have_tangents(inputs) || !is_admitted(given))) return py::none();
    leave_held(inputs, earlier);
    if (const py::object left = run(inputs, earlier)) return left;
    if (again_) give_back_(given);
    else note_writes(inputs);
    return outputs_of(inputs, given, PyList_New(count()));
  }

  // The same where nobody has to be asked: all outputs in a tuple or a list, or the one that `only` names. None, with
  // nothing done, also where only `admit` could tell.
  py::object replay_unasked(Given inputs, Row result, size_t only, Earlier earlier) {
    if (is_other_state()) return py::none();
    const Turns::Turn turn(*turns_);
    if (again_ || !is_known(inputs)) return py::none();
    leave_held(inputs, earlier);
    if (const py::object left = run(inputs, earlier)) {
      if (result == Row::list) return left;
      return result == Row::one ? py::object(left[py::int_(only)]) : py::object(py::tuple(left));
    }
    note_writes(inputs);
    if (result == Row::one) return py::reinterpret_steal<py::object>(check(made_of(outputs_[only], inputs, c10::InferenceMode::is_enabled())));
    return outputs_of(inputs, {}, result == Row::tuple ? PyTuple_New(count()) : PyList_New(count()));
  }

  Py_ssize_t count() const { return static_cast<Py_ssize_t>(outputs_.size()); }

  // Where output `i` is made, when it is another one once more.
  size_t origin_of(size_t i) const {
    while (outputs_.at(i).kind == Output::output) i = outputs_[i].index;
    return i;
  }

  bool asks() const {
    return std::any_of(outputs_.begin(), outputs_.end(), [](const Output& o) { return o.kind == Output::made; });
  }

 private:
  static Input input_of(const py::dict& given) {
    Input made;
    if (!given.contains("tensor")) {
      made.value = given["value"];
      return made;
    }
    TORCH_CHECK(is_plain(py::object(given["tensor"]).ptr()), "an input did not come through the gate");
    const auto t = given["tensor"].cast<at::Tensor>();
    made.is_tensor = true;
    made.fixed = given["fixed"].cast<bool>();
    made.written = given["written"].cast<bool>();
    made.from_zero = given["from_zero"].cast<bool>();
    made.lent = given["lent"].cast<bool>();
    made.sizes.assign(t.sizes().begin(), t.sizes().end());
    made.strides.assign(t.strides().begin(), t.strides().end());
    made.dtype = t.dtype(), made.keys = t.key_set() - kUse;
    made.nbytes = bytes_of(t);
    made.address = made.nbytes ? reinterpret_cast<uintptr_t>(t.data_ptr()) : 0;
    return made;
  }

  Output output_of(const py::tuple& given) {
    const auto kind = given[0].cast<std::string>();
    if (kind == "made") return {Output::made, 0, {}, {}, given[1]};
    if (kind == "input") return {Output::input, given[1].cast<Py_ssize_t>(), {}, {}, {}};
    if (kind == "output") return {Output::output, given[1].cast<Py_ssize_t>(), {}, {}, {}};
    TORCH_CHECK(kind == "buffer" || kind == "clone", "an output of kind ", kind);
    // Objects of our own: Python's would count as holders of the memory.
    const auto place = given[1].cast<size_t>();
    Output made{kind == "buffer" ? Output::buffer : Output::clone, given[1].cast<Py_ssize_t>(),
                another_over(given[2].cast<at::Tensor>()), another_over(given[3].cast<at::Tensor>()), {}};
    memory_.at(place).add(made.tensor);
    memory_.at(place).add(made.inference);
    return made;
  }

  // Note [Held results]: after the inputs are known to be right and before a kernel runs.
  void leave_held(Given inputs, Earlier earlier) {
    say_where_streams_fell_back();
    bool left = false;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i].is_held() && (earlier == Earlier::keep || !lent_[i] || is_read(memory_[i], inputs))) {
        memory_[i].leave();
        recording_->move_output(i, memory_[i].address());
        left = spares_ = true;
      } else if (earlier == Earlier::reuse && !warned_ && memory_[i].is_held()) {
        warned_ = true;
        if (PyErr_WarnEx(PyExc_RuntimeWarning, kOverwritten, 1) < 0) throw python_error();
      }
      lent_[i] = earlier == Earlier::reuse;
    }
    idle_ = left ? 0 : idle_ + 1;
    if (spares_ && idle_ >= kIdle) {
      for (HeldMemory& memory : memory_) memory.give_spares_back();
      spares_ = false;
    }
  }

  // Before a replay, where whoever makes an error of it stops nothing half done.
  void say_where_streams_fell_back() {
    const StreamWatch* watch = recording_->watched();
    if (fell_back_ || !watch || !watch->falls.load(std::memory_order_relaxed)) return;
    fell_back_ = true;
    if (PyErr_WarnEx(PyExc_RuntimeWarning, kOneStream, 1) < 0) throw python_error();
  }

  // Whether an input lies there: a result of an earlier replay that comes back.
  static bool is_read(const HeldMemory& memory, Given inputs) {
    return std::any_of(inputs.begin(), inputs.end(), [&](PyObject* object) {
      if (!THPVariable_Check(object)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      const uintptr_t begin = address_of(*tensor.unsafeGetTensorImpl());
      return memory.meets(begin, begin + bytes_of(tensor));
    });
  }

  // Whether the call is right as it is, or after moving inputs that may lie anywhere. False: nothing was done.
  bool is_known(Given given) {
    if (given.size() != inputs_.size()) return false;
    bool may_have_tangents = false;
    moved_.clear();
    if (cold_) fetch_ahead(given);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Input& input = inputs_[i];
      PyObject* object = given[i];
      if (!input.is_tensor) {
        if (object != input.value.ptr()) return false;
        continue;
      }
      if (!THPVariable_CheckExact(object)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      if (!input.has_form(impl)) return false;
      may_have_tangents |= impl.autograd_meta() != nullptr;
      input.last_tensor = &impl, input.last_storage = impl.unsafe_storage().unsafeGetStorageImpl();
      if (!input.nbytes) continue;
      if (!input.is_there(impl) || !impl.unsafe_storage().data()) return false;
      // data_ptr() makes a lazy copy first, where there is one.
      const auto address = input.written ? reinterpret_cast<uintptr_t>(tensor.data_ptr()) : address_of(impl);
      if (address == input.address) continue;
      if (input.fixed) return false;
      moved_.emplace_back(i, address);
    }
    if (may_have_tangents && have_tangents(given)) return false;
    return moved_.empty() || may_move();
  }

  // Kernels that read a megabyte leave nothing of the inputs' headers in the cache. Asked for all at once, they come
  // together; one after the other, each would be waited for.
  void fetch_ahead(Given given) const {
    constexpr size_t kLine = 64;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      __builtin_prefetch(given[i]);
      const auto* tensor = static_cast<const char*>(inputs_[i].last_tensor);
      for (size_t at = 0; at < sizeof(at::TensorImpl); at += kLine) __builtin_prefetch(tensor + at);
      __builtin_prefetch(inputs_[i].last_storage);
    }
  }

  bool may_move() {
    const auto place = [this] {
      for (auto& [i, address] : moved_) std::swap(inputs_[i].address, address);
    };
    place();  // afterwards `moved_` holds where they were
    for (const auto& [i, before] : moved_) {
      if (!is_free(i)) {
        place();
        return false;
      }
    }
    for (const auto& [i, before] : moved_)
      recording_->move(static_cast<int64_t>(i), reinterpret_cast<const void*>(inputs_[i].address));
    return true;
  }

  // Whether input i meets no input of which one of the two is written. Outputs give way to inputs (`leave_held`).
  bool is_free(size_t i) const {
    const Span mine = span_of(inputs_[i]);
    for (size_t j = 0; j < inputs_.size(); ++j)
      if (j != i && (inputs_[i].written || inputs_[j].written) && mine.meets(span_of(inputs_[j]))) return false;
    return true;
  }

  static Span span_of(const Input& input) { return {input.address, input.address + input.nbytes}; }

  bool is_admitted(const py::tuple& given) {
    if (given.size() != inputs_.size()) return false;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].is_tensor && !is_plain(PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i)))) return false;
    py::list addresses;
    for (const Input& input : inputs_) addresses.append(input.address);
    const py::object answer = admit_(given, addresses);
    if (answer.is_none()) return false;
    const auto found = answer.cast<std::pair<std::vector<uintptr_t>, bool>>();
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i].address = found.first[i];
    again_ = found.second;
    return true;
  }

  // What neither an input nor its keys show: replay/state.py has the table of it.
  bool is_other_state() const { return has_onlookers() || (fills_ && *fills_ != fills_empty_memory()); }

  // Null, or the outputs of a call that left the recording: Note [Results as they were recorded].
  py::object run(Given given, Earlier earlier) {
    try {
      replay_steps(given, earlier);
      return {};
    } catch (const OtherResults& other) {
      py::list returned, registers, inputs;
      for (const c10::IValue& value : other.returned) returned.append(torch::jit::toPyObject(value));
      for (c10::IValue& value : recording_->registers) {
        registers.append(value.isTensor() ? py::cast(value.toTensor()) : py::none());
        value = c10::IValue();
      }
      for (PyObject* object : given) inputs.append(py::reinterpret_borrow<py::object>(object));
      return go_on_(other.step, returned, other.side_by_side ? py::none() : py::object(registers), inputs);
    }
  }

  void replay_steps(Given given, Earlier earlier) {
    const Owners owners(*recording_, inputs_, given, memory_, earlier);
    const py::gil_scoped_release release;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const c10::InferenceMode inference(true);
    recording_->run();
  }

  void note_writes(Given given) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].written) continue;
      const at::Tensor& tensor = THPVariable_Unpack(given[i]);
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }

  // `row`, a new list or tuple, filled; `asked` is what functions of the inputs are called with.
  py::object outputs_of(Given given, py::handle asked, PyObject* row) const {
    const auto made = py::reinterpret_steal<py::object>(check(row));
    PyObject** places = PySequence_Fast_ITEMS(row);
    const bool inference = c10::InferenceMode::is_enabled();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      if (output.kind == Output::made) places[i] = output.maker(asked, made).release().ptr();
      else places[i] = check(output.kind == Output::output ? Py_NewRef(places[output.index]) : made_of(output, given, inference));
    }
    return made;
  }

  static PyObject* made_of(const Output& output, Given given, bool inference) {
    if (output.kind == Output::input) return Py_NewRef(given[output.index]);
    const at::Tensor& tensor = inference ? output.inference : output.tensor;
    return THPVariable_Wrap(output.kind == Output::clone ? copy_as_it_lies(tensor) : another_over(tensor));
  }

  std::shared_ptr<Recording> recording_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<HeldMemory> memory_;
  std::vector<char> lent_;  // to a handle whose next call overwrites what it gave
  size_t idle_ = 0;
  bool spares_ = false, warned_ = false, fell_back_ = false;
  std::vector<std::pair<size_t, uintptr_t>> moved_;
  py::object admit_, give_back_, go_on_;
  std::optional<bool> fills_;  // whether memory without a value was filled at capture; none where there is none
  bool again_ = false, cold_ = false;
  std::shared_ptr<Turns> turns_;
};

}  // namespace
}  // namespace npucompose
