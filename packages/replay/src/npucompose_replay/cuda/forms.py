"""Whether a call's inputs have the signature of a recording: a quick look, and a closer one where that sees more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from npucompose_replay import gate
from npucompose_replay.memory.inputs import is_there, layout_guard, picker, same_number
from npucompose_replay.operands import span_of

_ADDRESS, _STORAGE, _BYTES = torch.Tensor.data_ptr, torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes


class Forms:
    """`Forms(inputs, …).fit(others)`: as many, tensors of the same types, sizes, strides and kinds over memory that is
    there, those that are `fixed` at the same addresses, and equal numbers."""

    def __init__(
        self, inputs: Sequence[Any], *, fixed: Collection[int], from_zero: Collection[int], device: str
    ) -> None:
        """`from_zero` are those that lie in their storage as those of `inputs` do; `device` is torch's word for it."""
        self._device, self._count = device, len(inputs)
        self._tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self._numbers = [(i, value) for i, value in enumerate(inputs) if not isinstance(value, torch.Tensor)]
        self._pick_fixed = picker([i for i in self._tensors if i in fixed])
        self._places = self._where(inputs)
        self._from_zero = [(i, inputs[i].storage_offset()) for i in from_zero]
        self._pick = picker(self._tensors)
        self._looks = [_look(inputs[i]) for i in self._tensors]
        spans = {i: span_of(inputs[i]) for i in self._tensors if inputs[i].numel()}
        self._sizes = [(i, high - low) for i, (low, high) in spans.items() if i not in fixed]
        self._note(inputs)

    def fit(self, inputs: Sequence[Any]) -> bool:
        return (
            len(inputs) == self._count
            and self._look_alike(inputs)
            and self._where(inputs) == self._places
            and all(inputs[i].storage_offset() == offset for i, offset in self._from_zero)
            and all(same_number(inputs[i], value) for i, value in self._numbers)
        )

    def _look_alike(self, inputs: Sequence[Any]) -> bool:
        tensors = self._pick(inputs)
        # The guard is made of tensors that were looked at closely, and takes those of the same classes: it asks nothing
        # of what is no tensor.
        if list(map(type, tensors)) == self._kinds and self._guard(*tensors):
            return all(is_there(inputs[i], nbytes) for i, nbytes in self._sizes)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            return False
        if gate.first_refused(inputs, self._device, subclasses=True) or list(map(_look, tensors)) != self._looks:
            return False
        self._note(inputs)
        return True

    def _where(self, inputs: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Addresses, and bytes of the storages, of what does not move: where both are the same, its memory is there."""
        fixed = self._pick_fixed(inputs)
        return list(map(_ADDRESS, fixed)), list(map(_BYTES, map(_STORAGE, fixed)))

    def _note(self, inputs: Sequence[Any]) -> None:
        tensors = self._pick(inputs)
        self._kinds = list(map(type, tensors))
        self._guard = layout_guard(tensors)


def _look(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.device, value.shape, value.stride(), value.is_conj(), value.is_neg()
