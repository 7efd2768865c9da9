// The gate before every replay: what a recording may read and write where it lies, and on which thread. A recording works
// on bare addresses, so a tensor has to be what it says. replay/gate.py is the same for replayers that need no
// compiler, and has the words for who was refused.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include "extent.h"
#include "torch_internal.h"

namespace npucompose {

// Keys that say how a tensor is used, not what it is.
inline const c10::DispatchKeySet kUse =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);

// A plain dense tensor on a CPU over memory that is there. Nothing of `object` runs for the answer: a subclass may say of
// itself whatever it likes, and wrappers and fakes have keys of their own. A lazy conj or neg bit is left to `has_form`.
inline bool is_plain(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  static const c10::DispatchKeySet aside = kUse | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  const at::TensorImpl& t = *THPVariable_Unpack(object).unsafeGetTensorImpl();
  if ((t.key_set() - aside) != c10::DispatchKeySet(c10::DispatchKey::CPU)) return false;
  return !t.numel() || (reach_of(t) <= t.unsafe_storage().nbytes() && t.unsafe_storage().data());
}

// Whether a mode, or a transform of torch.func, wants to see every operator on this thread: a replay would keep them from
// it, or hand it tensors that are nobody's.
inline bool has_onlookers() {
  static const c10::DispatchKeySet usual({c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView});
  return !(c10::impl::tls_local_dispatch_key_set().included_ - usual).empty();
}

// Whether one of `objects` carries a tangent of forward-mode AD, which no key shows and a replay would drop. Levels are
// the process's own, and mostly there is none: then no tensor is looked at. Asking takes a lock, so who has the tensors
// at hand asks only where one has metadata of autograd, without which there is no tangent.
inline bool have_tangents(c10::ArrayRef<PyObject*> objects) {
  if (!torch::autograd::ForwardADLevel::try_get_by_idx(0)) return false;
  for (PyObject* object : objects)
    if (THPVariable_Check(object) && THPVariable_Unpack(object)._fw_grad(0).defined()) return true;
  return false;
}

// Whether memory without a value is filled: `torch.use_deterministic_algorithms`, unless the filling is off.
inline bool fills_empty_memory() {
  const at::Context& settings = at::globalContext();
  return settings.deterministicAlgorithms() && settings.deterministicFillUninitializedMemory();
}

}  // namespace npucompose
