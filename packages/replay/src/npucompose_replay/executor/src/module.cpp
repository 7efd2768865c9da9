// The Python module: Recording, and the front that replays it.

#include <ATen/ScalarOps.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include "front.h"
#include "gate.h"
#include "held_kernels.inc"
#include "packed.h"

namespace py = pybind11;

// From torch/csrc/jit/python/pybind_utils.h, which takes longer to compile than all of this. Another signature is an
// error of the linker, and the portable replayer is used.
namespace torch::jit {
TORCH_PYTHON_API c10::IValue toIValue(py::handle object, const c10::TypePtr& type, std::optional<int32_t> length);
}

namespace npucompose {
namespace {

// A Python number where the schema wants a tensor takes less part in type promotion than a tensor does.
c10::IValue value_of(const c10::FunctionSchema& schema, size_t position, py::handle given) {
  const c10::Argument& argument = schema.arguments()[position];
  const bool number = PyBool_Check(given.ptr()) || PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr()) ||
      PyComplex_Check(given.ptr());
  if (number && argument.type()->kind() == c10::TypeKind::TensorType)
    return at::native::wrapped_scalar_tensor(torch::jit::toIValue(given, c10::NumberType::get(), {}).toScalar());
  return torch::jit::toIValue(given, argument.real_type(), argument.N());
}

Filled filled_of(int position, const py::object& made_of) {
  Filled filled;
  filled.position = position;
  filled.is_list = py::isinstance<py::list>(made_of);
  const py::list parts = filled.is_list ? made_of.cast<py::list>() : py::list(py::make_tuple(made_of));
  for (const auto& part : parts) {
    const bool is_register = PyLong_Check(part.ptr());
    filled.registers.push_back(is_register ? part.cast<int>() : -1);
    filled.fixed.push_back(is_register || part.is_none() ? at::Tensor() : part.cast<at::Tensor>());
  }
  return filled;
}

Result result_of(py::handle given) {
  Result result;
  if (PyLong_Check(given.ptr())) result.reg = given.cast<int>();
  else if (THPVariable_Check(given.ptr())) result.place = given.cast<at::Tensor>();
  else if (!given.is_none()) result.list = given.cast<std::vector<int>>();
  return result;
}

// An operator of the dispatcher, looked up once for all steps that call it.
struct Operator {
  c10::OperatorHandle handle;

  Operator(const std::string& name, const std::string& overload)
      : handle(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())) {}
};

// Whether `op(*args)` is computed into memory like `out`, which has its result, without the dispatcher.
bool computes_into(const Operator& op, const py::list& args, const at::Tensor& out) {
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) stack.push_back(value_of(op.handle.schema(), i, args[i]));
  return placed_kernel(op.handle, stack, out) != nullptr;
}

// `given`: for each result a tensor on meta, a list of them or None; empty where nothing is to be looked at.
ReturnedForms returned_of(const c10::FunctionSchema& schema, const py::list& given) {
  torch::jit::Stack recorded;
  for (size_t i = 0; i < given.size(); ++i)
    recorded.push_back(given[i].is_none() ? c10::IValue() : torch::jit::toIValue(given[i], schema.returns()[i].real_type(), {}));
  return ReturnedForms(std::move(recorded));
}

// args: one for each of the schema, None where `filled` ({position: register or list}) says what goes there.
std::string add(
    Recording& recording, const Operator& op, const py::list& args, const py::dict& filled, const py::list& results,
    std::vector<int> dying, std::vector<int64_t> lent, const py::list& returns, bool direct) {
  const c10::FunctionSchema& schema = op.handle.schema();
  std::vector<Filled> fills;
  for (const auto& [position, made_of] : filled)
    fills.push_back(filled_of(position.cast<int>(), py::reinterpret_borrow<py::object>(made_of)));
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i)
    stack.push_back(
        filled.size() && filled.contains(py::int_(i)) ? c10::IValue() : value_of(schema, i, args[i]));
  std::vector<Result> kept;
  for (const auto& result : results) kept.push_back(result_of(result));
  return recording.add(
      op.handle, std::move(stack), std::move(fills), std::move(kept), std::move(dying), std::move(lent),
      returned_of(schema, returns), direct);
}

}  // namespace
}  // namespace npucompose

// For those who look at the file before they load it (build.py): a module of another torch may bring the process down.
extern "C" __attribute__((visibility("default"), used)) const char npucompose_built_with[] =
    "built with the headers of torch " TORCH_VERSION;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using npucompose::Recording;
  m.attr("torch_version") = TORCH_VERSION;
  m.attr("lacking") = py::str(NPUCOMPOSE_LACKING);
  m.def("alone", [](const py::function& act) {
    const npucompose::OneThread quiet;
    return act();
  });
  m.def("is_plain", [](const py::object& object) { return npucompose::is_plain(object.ptr()); });
  m.def("has_onlookers", &npucompose::has_onlookers);
  m.def("address_of_packed", &npucompose::address_of_packed);
  m.def("computes_into", &npucompose::computes_into);
  m.def("synchronisation_ns", [](int64_t rounds, int64_t spin_ns, const std::vector<int>& cores) {
    const py::gil_scoped_release release;
    return npucompose::synchronisation_ns(rounds, spin_ns, cores);
  });
  py::class_<npucompose::Turns, std::shared_ptr<npucompose::Turns>>(m, "Turns", py::module_local())
      .def(py::init<>())
      .def("__enter__", &npucompose::Turns::take)
      .def("__exit__", [](npucompose::Turns& self, const py::args&) { self.end(); })
      .def("is_mine", &npucompose::Turns::is_mine);
  py::class_<npucompose::Operator>(m, "Operator", py::module_local()).def(py::init<const std::string&, const std::string&>());
  using npucompose::StreamWatch;
  const auto count = [](std::atomic<int64_t> StreamWatch::* which) {
    return py::cpp_function([which](const StreamWatch& watch) { return (watch.*which).load(); });
  };
  py::class_<StreamWatch>(m, "StreamWatch", py::module_local())
      .def(py::init<int64_t>())
      .def("side_by_side", &StreamWatch::side_by_side)
      .def("took", &StreamWatch::took)
      .def_property_readonly("replays", count(&StreamWatch::replays))
      .def_property_readonly("alone", count(&StreamWatch::alone))
      .def_property_readonly("falls", count(&StreamWatch::falls))
      .def_property_readonly("trials", count(&StreamWatch::trials));
  py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording", py::module_local())
      .def(py::init<>())
      .def("add", &npucompose::add)
      .def("set_input", &Recording::set_input)
      .def("move", [](Recording& self, int64_t index, uintptr_t address) {
        self.move(index, reinterpret_cast<const void*>(address));
      })
      .def("set_output", &Recording::set_output)
      .def("set_streams", &Recording::set_streams)
      .def("watch", &Recording::watch)
      .def("watched", &Recording::watched, py::return_value_policy::reference_internal)
      .def("took", [](Recording& self, int64_t rounds) {
        const py::gil_scoped_release release;
        const c10::InferenceMode inference(true);
        return self.took(rounds);
      })
      .def("spans", [](Recording& self, int64_t rounds) {
        const py::gil_scoped_release release;
        const c10::InferenceMode inference(true);
        return self.spans(rounds);
      })
      .def("times", [](Recording& self, const std::vector<int64_t>& steps, int64_t rounds) {
        const py::gil_scoped_release release;
        const c10::InferenceMode inference(true);
        return self.times(steps, rounds);
      });
  npucompose::add_front(m);
}
