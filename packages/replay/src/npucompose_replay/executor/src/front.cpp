#include "front.h"

#include "front_replay.h"
#include "weights.h"

namespace npucompose {
namespace {

// A call of which some inputs are the same each time: what a detached handle needs, without a word of Python.
class Call {
 public:
  Call(
      std::shared_ptr<Front> front, const py::list& held, std::vector<std::pair<size_t, size_t>> taken,
      const py::object& result, const py::list& entries, bool reuse, std::shared_ptr<const Weights> weights)
      : front_(std::move(front)), weights_(std::move(weights)), taken_(std::move(taken)),
        earlier_(reuse ? Earlier::reuse : Earlier::keep) {
    for (const auto& item : entries) {
      const auto entry = item.cast<py::tuple>();
      entries_.push_back({entry[0], entry[1], entry[2]});
    }
    for (const auto& item : held) held_.push_back(py::reinterpret_borrow<py::object>(item));
    for (const auto& [input, argument] : taken_) arguments_ = std::max(arguments_, argument + 1);
    for (const auto& [input, argument] : taken_) TORCH_CHECK(input < held_.size(), "there is no input ", input);
    for (const py::object& item : held_) held_wants_grad_ |= THPVariable_Check(item.ptr()) && wants_grad(item.ptr());
    if (py::isinstance<py::int_>(result)) only_ = front_->origin_of(result.cast<size_t>()), result_ = Row::one;
    else result_ = result.ptr() == reinterpret_cast<PyObject*>(&PyTuple_Type) ? Row::tuple : Row::list;
    TORCH_CHECK(!front_->asks(), "an output is a function of the inputs");
  }

  py::object operator()(const py::tuple& given) const {
    if (given.size() != arguments_) return py::none();
    if (!(CallMode() == mode_)) return py::none();
    const bool grad = mode_.grad;
    if (grad && held_wants_grad_) return py::none();
    if (weights_ && !weights_->hold()) return py::none();
    for (const Entry& entry : entries_)
      if (entry.standing() != entry.tensor.ptr()) {
        if (PyErr_Occurred()) throw python_error();
        return py::none();
      }
    c10::SmallVector<PyObject*, 64> inputs;
    for (const py::object& item : held_) inputs.push_back(item.ptr());
    for (const auto& [input, argument] : taken_) {
      PyObject* object = PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(argument));
      if (grad && (!THPVariable_CheckExact(object) || wants_grad(object))) return py::none();
      inputs[input] = object;
    }
    return front_->replay_unasked(inputs, result_, only_, earlier_);
  }

 private:
  // A tensor, or what leads to one, where a module keeps it.
  struct Entry {
    py::object owner, name, tensor;  // a dict, or the cell of a variable

    PyObject* standing() const {
      return PyCell_Check(owner.ptr()) ? PyCell_GET(owner.ptr()) : PyDict_GetItemWithError(owner.ptr(), name.ptr());
    }
  };

  static bool wants_grad(PyObject* tensor) { return THPVariable_Unpack(tensor).requires_grad(); }

  std::shared_ptr<Front> front_;
  std::shared_ptr<const Weights> weights_;  // null where the graph has none as constants
  std::vector<py::object> held_;
  std::vector<std::pair<size_t, size_t>> taken_;  // (input, argument)
  size_t arguments_ = 0, only_ = 0;
  bool held_wants_grad_ = false;
  Row result_ = Row::list;
  Earlier earlier_;
  std::vector<Entry> entries_;
  const CallMode mode_;
};

// A function of one argument that owns `state`: called without the half microsecond that pybind11 takes.
template <class State, py::object (*act)(State&, PyObject*)>
py::object function_of(State state) {
  static PyMethodDef method = {
      "replay",
      [](PyObject* self, PyObject* given) -> PyObject* {
        HANDLE_TH_ERRORS
        return act(*static_cast<State*>(PyCapsule_GetPointer(self, nullptr)), given).release().ptr();
        END_HANDLE_TH_ERRORS
      },
      METH_O, nullptr};
  const py::capsule holder(new State(std::move(state)), [](void* held) { delete static_cast<State*>(held); });
  return py::reinterpret_steal<py::object>(check(PyCFunction_New(&method, holder.ptr())));
}

template <Earlier earlier>
py::object replay(std::shared_ptr<Front>& front, PyObject* inputs) {
  return front->replay(py::reinterpret_steal<py::tuple>(check(PySequence_Tuple(inputs))), earlier);
}

py::object call(Call& call, PyObject* arguments) { return call(py::reinterpret_borrow<py::tuple>(arguments)); }

}  // namespace

void add_front(py::module_& module) {
  py::class_<Front, std::shared_ptr<Front>>(module, "Front", py::module_local())
      .def(py::init<std::shared_ptr<Recording>, const py::list&, const std::vector<size_t>&, const py::list&, py::object,
                    py::object, py::object, std::optional<bool>, std::shared_ptr<Turns>>())
      .def("replayer", [](std::shared_ptr<Front> self, bool reuse) {
        using Self = std::shared_ptr<Front>;
        return reuse ? function_of<Self, replay<Earlier::reuse>>(std::move(self))
                     : function_of<Self, replay<Earlier::keep>>(std::move(self));
      })
      .def("caller", [](std::shared_ptr<Front> self, const py::list& held, std::vector<std::pair<size_t, size_t>> taken,
                        const py::object& result, const py::list& entries, bool reuse,
                        std::shared_ptr<const Weights> weights) {
        return function_of<Call, call>(
            Call(std::move(self), held, std::move(taken), result, entries, reuse, std::move(weights)));
      });
  py::class_<Weights, std::shared_ptr<Weights>>(module, "Weights", py::module_local())
      .def(py::init<>())
      .def("add", &Weights::add)
      .def("hold", &Weights::hold);
}

}  // namespace npucompose
