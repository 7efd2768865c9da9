"""A step of the engine by one handle: from its call of the model to the recording, without the Python between.

Between them lie the model's own `forward`, vLLM's choice of compiled code, what Dynamo made of the model and the piece.
Imports nothing of vLLM.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torch import nn

from npucompose import recorder
from npucompose.errors import CaptureError, SignatureError
from npucompose.recorder import Handle

_MOVES = frozenset({
    "RESUME", "PUSH_NULL", "PRECALL", "KW_NAMES", "NOP", "LOAD_FAST", "LOAD_METHOD", "LOAD_ATTR", "LOAD_CONST",
    "STORE_FAST", "RETURN_VALUE", "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST",
})  # fmt: skip
"""Instructions of Python (3.11 to 3.13) that call nothing and change nothing but local names."""
_CALLS = frozenset({"CALL", "CALL_KW"})


def inner_model(model: nn.Module) -> nn.Module | None:
    """The module of `model` that its `forward` calls once, with nothing before and nothing after; None where it does
    more, or has hooks."""
    code = getattr(type(model).forward, "__code__", None)
    steps = list(dis.get_instructions(code)) if code is not None else []
    if sum(step.opname in _CALLS for step in steps) != 1 or any(_is_more(step) for step in steps):
        return None
    names = {step.argval for step in steps if step.opname in ("LOAD_METHOD", "LOAD_ATTR")}
    found = getattr(model, names.pop()) if len(names) == 1 else None
    return found if isinstance(found, nn.Module) and not _has_hooks(model) else None


def _is_more(step: dis.Instruction) -> bool:
    return step.opname not in _MOVES and step.opname not in _CALLS


def _has_hooks(model: nn.Module) -> bool:
    return bool(model._forward_hooks or model._forward_pre_hooks)


class RecordedForward:
    """In place of a model runner's `_model_forward`, where the model does nothing beside its one compiled module.

    A number of tokens among `sizes` gets a handle when it first comes. Every other step, one that shall not be compiled
    (`skipped`) and one for another model take the way that they had before, as does a size of which no handle can be
    made.
    """

    def __init__(self, runner: Any, sizes: Iterable[int], skipped: Callable[[], bool]) -> None:
        self._runner, self._forward, self._skipped = runner, runner._model_forward, skipped
        self._model: nn.Module = runner.model
        self._recorder = recorder.needed("steps are not recorded")
        self._sizes = frozenset(sizes)
        self._handles: dict[int, Handle] = {}

    def __call__(self, **inputs: Any) -> Any:
        given = inputs.get("input_ids")
        tokens = 0 if given is None else given.shape[0]
        if tokens not in self._sizes or not self._acts():
            return self._forward(**inputs)
        handle = self._handles.get(tokens)
        if handle is not None:
            with suppress(SignatureError):  # weights lie elsewhere
                return handle(**inputs)
        return self._recorded(tokens, inputs)

    def _acts(self) -> bool:
        return self._runner.model is self._model and not _has_hooks(self._model) and not self._skipped()

    def _recorded(self, tokens: int, inputs: dict[str, Any]) -> Any:
        result, handle = self._recorder.call_and_detach(self._forward, (), inputs, model=self._model, outputs="keep")
        if not isinstance(handle, CaptureError) and handle.unwatched == 0:
            self._handles[tokens] = handle
        else:  # its piece, which is given all tensors in each call, replays it, or says why it does not
            self._sizes -= {tokens}
        return result
