// What a call is held against, and what it gives: the inputs and outputs of a recording, the mode of the thread. For
// front.cpp alone.
#pragma once

#include <string>
#include <vector>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "gate.h"
#include "held_memory.h"
#include "recording.h"
#include "torch_internal.h"

namespace py = pybind11;

namespace npucompose {
namespace {

// What a call looks at lies together; sizes and strides of up to five dimensions do not lie elsewhere.
struct Input {
  bool is_tensor = false, fixed = false, written = false, from_zero = false, lent = false;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  uintptr_t address = 0;
  size_t nbytes = 0;  // from the first element to the end of the last; 0 when empty
  c10::SmallVector<int64_t, 5> sizes, strides;
  py::object value;  // of a plain value
  // Where the tensor of the last call had its parts. Only ever fetched ahead: they may be gone.
  const void *last_tensor = nullptr, *last_storage = nullptr;

  // That of the capture, which came through the gate. Sizes come last: a tensor of another kind may have none.
  bool has_form(const at::TensorImpl& t) const {
    if (t.dtype() != dtype || (t.key_set() - kUse) != keys) return false;
    const auto its_sizes = t.sizes(), its_strides = t.strides();
    if (its_sizes.size() != sizes.size()) return false;
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
  Py_ssize_t index = 0;
  // Of a buffer: what is handed out, and the same for a caller in inference mode.
  at::Tensor tensor, inference;
  py::object maker;
};

// What becomes of an earlier result that is still held: it is kept, or, for who asked for that, overwritten.
enum class Earlier { keep, reuse };

constexpr size_t kIdle = 64;  // replays after which memory that nobody needed is given back
constexpr char kOneStream[] =
    "the streams of a recorded graph take longer than one stream would: the machine has other work to do. The same "
    "recording goes on in one stream, with the same bits, and tries again later. target.stream_fallback=false keeps the "
    "streams.";
constexpr char kOverwritten[] =
    "a result of an earlier call of this handle is still held, and this call overwrites it. Clone what must last, or make "
    "the handle with detach(..., outputs=\"keep\").";

enum class Row { tuple, list, one };

struct Span {
  uintptr_t begin, end;
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

// The mode of the calling thread, beside the arguments, that a graph was made for.
struct CallMode {
  bool grad = c10::GradMode::is_enabled(), inference = c10::InferenceMode::is_enabled();
  bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = autocast ? at::autocast::get_autocast_dtype(at::kCPU) : at::kFloat;
  caffe2::TypeMeta by_default = c10::get_default_dtype();
  bool deterministic = at::globalContext().deterministicAlgorithms();
  int64_t overriding = at::impl::PythonTorchFunctionTLS::stack_len();

  bool operator==(const CallMode& other) const {
    return grad == other.grad && inference == other.inference && autocast == other.autocast && dtype == other.dtype &&
        by_default == other.by_default && deterministic == other.deterministic && overriding == other.overriding;
  }
};

PyObject* check(PyObject* object) {
  if (!object) throw python_error();
  return object;
}

// Of a call, borrowed from whoever makes it.
using Given = c10::ArrayRef<PyObject*>;

Given items_of(const py::tuple& row) { return {PySequence_Fast_ITEMS(row.ptr()), row.size()}; }

// Lets a recording know, for a replay, which tensors its inputs are and whose memory its results lie in, where
// an operator may keep one.
class Owners {
 public:
  Owners(
      Recording& recording, const std::vector<Input>& inputs, Given given, const std::vector<HeldMemory>& memory,
      Earlier earlier)
      : recording_(recording) {
    if (!recording.lends()) return;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].lent) recording.owners.emplace(i, THPVariable_Unpack(given[i]));
    if (earlier == Earlier::reuse) return;
    for (size_t i = 0; i < memory.size(); ++i)
      recording.results.emplace_back(recording.result_storage(i), memory[i].storage());
  }
  ~Owners() {
    if (!recording_.lends()) return;
    recording_.owners.clear();
    recording_.results.clear();
  }

 private:
  Recording& recording_;
};

}  // namespace
}  // namespace npucompose
