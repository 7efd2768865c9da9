// What stands before a replay: is this the call that was recorded, and where do its inputs lie today? A few microseconds.
#pragma once

#include <memory>

#include <torch/csrc/utils/pybind.h>

#include "recording.h"
#include "turns.h"

namespace npucompose {

// Front(recording, inputs, outputs, spans, admit, give_back, turns).
//
// inputs: for each, a dict(tensor, fixed, written, from_zero) or dict(value). outputs: ("buffer", tensor), ("input", i),
// ("output", i), ("clone", tensor) or ("made", function of inputs and the outputs before it). spans: where the static
// output buffers lie, as (begin, end). turns: shared with every recording that uses the same memory in between.
//
// .replayer(): replay(inputs) -> the list of outputs, or None when `admit` says that these inputs are not the recording's.
// Every input is looked at on every call. Nothing moved, or something that may move did: all is decided here. Anything
// else is for admit(inputs, addresses) -> None, or (addresses, again): where the inputs lie now, and whether admit and
// give_back(inputs) have to be called each time from now on, because something is copied.
//
// .caller(held, taken, result): call(arguments), for inputs that are `held`, but for those that `taken`, [(input,
// argument)], names. The result: all outputs in a row of the type `result`, or the one with that number. None, with
// nothing done, when Python has to look: another signature, arguments that want gradients, something to copy.
void add_front(pybind11::module_& module);

}  // namespace npucompose
