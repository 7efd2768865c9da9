#include "front.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch_internal.h"

namespace py = pybind11;

namespace npucompose {
namespace {

// Keys that say how a tensor is used, not what it is.
const c10::DispatchKeySet kUse = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);

// What a call looks at lies together; sizes and strides of up to five dimensions do not lie elsewhere.
struct Input {
  bool is_tensor = false, fixed = false, written = false, from_zero = false;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  uintptr_t address = 0;
  size_t nbytes = 0;  // from the first element to the end of the last; 0 when empty
  c10::SmallVector<int64_t, 5> sizes, strides;
  py::object value;  // of a plain value
  // Where the tensor of the last call had its parts. Only ever fetched ahead: they may be gone.
  const void *last_tensor = nullptr, *last_storage = nullptr;

  bool has_form(const at::TensorImpl& t) const {
    const auto its_sizes = t.sizes(), its_strides = t.strides();
    if (t.dtype() != dtype || (t.key_set() - kUse) != keys || its_sizes.size() != sizes.size()) return false;
    for (size_t d = 0; d < sizes.size(); ++d)
      if (its_sizes[d] != sizes[d] || its_strides[d] != strides[d]) return false;
    return !(from_zero && t.storage_offset());
  }

  // Whether its storage still holds what the tensor says: it may have been freed, or cut short.
  bool is_there(const at::TensorImpl& t) const {
    const size_t before = static_cast<size_t>(t.storage_offset()) * t.itemsize();
    return before + nbytes <= t.unsafe_storage().nbytes();
  }
};

constexpr size_t kCacheBytes = size_t{1} << 20;

struct Output {
  enum Kind { buffer, clone, input, output, made } kind;
  at::Tensor tensor;
  Py_ssize_t index = 0;
  py::object maker;
};

struct Span {
  uintptr_t begin, end;
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

size_t bytes_of(const at::Tensor& t) {
  if (!t.numel()) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return (last + 1) * t.element_size();
}

class Front {
 public:
  Front(
      std::shared_ptr<Recording> recording, const py::list& inputs, const py::list& outputs, const py::list& spans,
      py::object admit, py::object give_back, std::shared_ptr<Turns> turns)
      : recording_(std::move(recording)), admit_(std::move(admit)), give_back_(std::move(give_back)),
        turns_(std::move(turns)) {
    for (const auto& item : inputs) inputs_.push_back(input_of(item.cast<py::dict>()));
    size_t nbytes = 0;
    for (const Input& input : inputs_) nbytes += input.nbytes;
    cold_ = nbytes > kCacheBytes;
    for (const auto& item : outputs) outputs_.push_back(output_of(item.cast<py::tuple>()));
    for (const auto& item : spans) spans_.push_back(item.cast<std::pair<uintptr_t, uintptr_t>>());
  }

  py::object call(py::handle given) {
    const py::tuple inputs = py::reinterpret_steal<py::tuple>(check(PySequence_Tuple(given.ptr())));
    const Turns::Turn turn(*turns_);
    if ((again_ || !is_known(inputs)) && !is_admitted(inputs)) return py::none();
    run();
    give_back(inputs);
    return outputs_of(inputs);
  }

 private:
  static PyObject* check(PyObject* object) {
    if (!object) throw python_error();
    return object;
  }

  static Input input_of(const py::dict& given) {
    Input made;
    if (!given.contains("tensor")) {
      made.value = given["value"];
      return made;
    }
    const auto t = given["tensor"].cast<at::Tensor>();
    made.is_tensor = true;
    made.fixed = given["fixed"].cast<bool>();
    made.written = given["written"].cast<bool>();
    made.from_zero = given["from_zero"].cast<bool>();
    made.sizes.assign(t.sizes().begin(), t.sizes().end());
    made.strides.assign(t.strides().begin(), t.strides().end());
    made.dtype = t.dtype(), made.keys = t.key_set() - kUse;
    made.nbytes = bytes_of(t);
    made.address = made.nbytes ? reinterpret_cast<uintptr_t>(t.data_ptr()) : 0;
    return made;
  }

  static Output output_of(const py::tuple& given) {
    const auto kind = given[0].cast<std::string>();
    if (kind == "buffer") return {Output::buffer, given[1].cast<at::Tensor>(), 0, {}};
    if (kind == "clone") return {Output::clone, given[1].cast<at::Tensor>(), 0, {}};
    if (kind == "input") return {Output::input, {}, given[1].cast<Py_ssize_t>(), {}};
    if (kind == "output") return {Output::output, {}, given[1].cast<Py_ssize_t>(), {}};
    return {Output::made, {}, 0, given[1]};
  }

  // Whether the call is right as it is, or after moving inputs that may lie anywhere. False: nothing was done.
  bool is_known(const py::tuple& given) {
    if (static_cast<size_t>(PyTuple_GET_SIZE(given.ptr())) != inputs_.size()) return false;
    moved_.clear();
    if (cold_) fetch_ahead(given);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Input& input = inputs_[i];
      PyObject* object = PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
      if (!input.is_tensor) {
        if (object != input.value.ptr()) return false;
        continue;
      }
      if (!THPVariable_CheckExact(object)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      if (!input.has_form(impl)) return false;
      input.last_tensor = &impl, input.last_storage = impl.unsafe_storage().unsafeGetStorageImpl();
      if (!input.nbytes) continue;
      if (!input.is_there(impl)) return false;
      // data_ptr() makes a lazy copy first, where there is one.
      const auto address = input.written ? reinterpret_cast<uintptr_t>(tensor.data_ptr()) : address_of(impl);
      if (address == input.address) continue;
      if (input.fixed) return false;
      moved_.emplace_back(i, address);
    }
    return moved_.empty() || may_move();
  }

  // Kernels that read a megabyte leave nothing of the inputs' headers in the cache. Asked for all at once, they come
  // together; one after the other, each would be waited for.
  void fetch_ahead(const py::tuple& given) const {
    constexpr size_t kLine = 64;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      __builtin_prefetch(PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i)));
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

  // Whether input i meets neither our outputs nor an input of which one of the two is written.
  bool is_free(size_t i) const {
    const Span mine = span_of(inputs_[i]);
    for (const auto& [begin, end] : spans_)
      if (mine.meets({begin, end})) return false;
    for (size_t j = 0; j < inputs_.size(); ++j)
      if (j != i && (inputs_[i].written || inputs_[j].written) && mine.meets(span_of(inputs_[j]))) return false;
    return true;
  }

  static Span span_of(const Input& input) { return {input.address, input.address + input.nbytes}; }

  bool is_admitted(const py::tuple& given) {
    py::list addresses;
    for (const Input& input : inputs_) addresses.append(input.address);
    const py::object answer = admit_(given, addresses);
    if (answer.is_none()) return false;
    const auto found = answer.cast<std::pair<std::vector<uintptr_t>, bool>>();
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i].address = found.first[i];
    again_ = found.second;
    return true;
  }

  void run() {
    const py::gil_scoped_release release;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const c10::InferenceMode inference(true);
    recording_->run();
  }

  void give_back(const py::tuple& given) {
    if (again_) {
      give_back_(given);
      return;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].written) continue;
      const at::Tensor& tensor = THPVariable_Unpack(PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i)));
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }

  py::object outputs_of(const py::tuple& given) {
    py::list made(outputs_.size());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      PyObject* object = nullptr;
      switch (output.kind) {
        case Output::buffer: object = THPVariable_Wrap(another_over(output.tensor)); break;
        case Output::clone: object = THPVariable_Wrap(output.tensor.clone()); break;
        case Output::input: object = Py_NewRef(PyTuple_GET_ITEM(given.ptr(), output.index)); break;
        case Output::output: object = Py_NewRef(PyList_GET_ITEM(made.ptr(), output.index)); break;
        case Output::made: object = output.maker(given, made).release().ptr(); break;
      }
      PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), check(object));
    }
    return made;
  }

  std::shared_ptr<Recording> recording_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<std::pair<uintptr_t, uintptr_t>> spans_;
  std::vector<std::pair<size_t, uintptr_t>> moved_;
  py::object admit_, give_back_;
  bool again_ = false, cold_ = false;
  std::shared_ptr<Turns> turns_;
};

constexpr const char* kCapsule = "npucompose.front";

PyObject* call_front(PyObject* self, PyObject* inputs) {
  HANDLE_TH_ERRORS
  auto* front = static_cast<Front*>(PyCapsule_GetPointer(self, kCapsule));
  return front->call(inputs).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyMethodDef kCall = {"replay", call_front, METH_O, "replay(inputs) -> outputs, or None: another signature"};

}  // namespace

py::object make_front(
    std::shared_ptr<Recording> recording, const py::list& inputs, const py::list& outputs, const py::list& spans,
    py::object admit, py::object give_back, std::shared_ptr<Turns> turns) {
  auto front = std::make_unique<Front>(
      std::move(recording), inputs, outputs, spans, std::move(admit), std::move(give_back), std::move(turns));
  const py::capsule holder(front.release(), kCapsule, [](PyObject* capsule) {
    delete static_cast<Front*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&kCall, holder.ptr()));
}

}  // namespace npucompose
