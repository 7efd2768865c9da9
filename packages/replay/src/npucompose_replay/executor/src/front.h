// What stands before a replay: is this the call that was recorded, and where do its inputs lie today? A few microseconds.
#pragma once

#include <memory>

#include <torch/csrc/utils/pybind.h>

#include "recording.h"
#include "turns.h"

namespace npucompose {

// Front(recording, inputs, memory, outputs, admit, give_back, go_on, fills, turns).
//
// inputs: for each, a dict(tensor, fixed, written, from_zero, lent) or dict(value). memory: bytes of each output buffer. outputs:
// ("buffer", number of a memory, tensor, the same as an inference tensor), ("clone", …) likewise, ("input", i),
// ("output", i) or ("made", function of inputs and the outputs before it). go_on(step, returned, registers, inputs) gives
// the outputs where the operator of a step returned other tensors than it was recorded with (registers: None where it ran
// beside other streams, of which nothing is known then). fills: whether memory without
// a value is filled (None: the recording has none). turns: shared with every recording that uses
// the same memory in between.
//
// .replayer(reuse): replay(inputs) -> the list of outputs, or None when `admit` says that these inputs are not the
// recording's. Every input is looked at on every call. Nothing moved, or something that may move did: all is decided here.
// Anything else is for admit(inputs, addresses) -> None, or (addresses, again): where the inputs lie now, and whether admit
// and give_back(inputs) have to be called each time from now on, because something is copied. A result that is still held
// is left to its holder; with `reuse`, results that were given out with `reuse` are overwritten, with one warning.
//
// .caller(held, taken, result, entries, reuse, weights): call(arguments), for inputs that are `held`, but for those that
// `taken`, [(input, argument)], names. The result: all outputs in a row of the type `result`, or the one with that number.
// entries: (dict, name, tensor) that must still be so; weights: a Weights that must hold, or None. None, with nothing done,
// when Python has to look: another signature, another mode of the thread than when the caller was made (replay/state.py),
// arguments that want gradients, something to copy.
//
// Weights: add(tensor, frozen, version, address, sample_at, sample) for each (npucompose_replay/inductor/frozen_weights.py), then hold().
void add_front(pybind11::module_& module);

}  // namespace npucompose
