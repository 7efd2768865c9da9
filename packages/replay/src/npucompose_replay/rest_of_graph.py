"""A call that leaves its recording: an operator returned other tensors than it was recorded with, or freed an input.

Nothing runs twice. What the steps before have computed is copied out of the recording's memory, and the graph goes on
from there, node by node, as `Refused` calls do at capture.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import define, field

from npucompose.errors import CaptureError
from npucompose_replay.capture.recorder import go_on
from npucompose_replay.memory.results import handed_out
from npucompose_replay.operands import StorageLayout, flat, layout_of, mapped
from npucompose_replay.plan import PlanSlot, Register, RestOfGraph, SameAsInput, Step, ViewOfInput, leaves


class Executor(Protocol):
    def tensor(self, slot: PlanSlot) -> torch.Tensor:
        """What stands in the place of a slot now."""
        ...


@define(eq=False)
class RestOfCalls:
    """The outputs of a recording's calls that leave it.

    It knows no recording: the front that calls it belongs to one, and no collector sees a circle through C++.
    """

    steps: Sequence[Step]
    executor: Executor
    give_back: Callable[[Sequence[Any]], object]
    _told: bool = field(default=False, init=False)

    def __call__(self, index: int, returned: Sequence[Any], registers: Any | None, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the graph behind the step at `index`, whose operator `returned` these; a warning at first.

        CaptureError where nothing says how to go on: of what a compiler made of a graph, and, with `registers` None,
        beside other streams.
        """
        self.give_back(inputs)
        step = self.steps[index]
        words = _words(step, returned)
        if registers is None:
            raise CaptureError(
                f"{words}, beside other streams: some of their steps have run, others have not. Later calls of this "
                "recording run in one stream and go on without it; passes.stream_plan=null makes no streams."
            )
        if step.rest is None:
            raise CaptureError(f"{words}. What was compiled for the one cannot go on with the other.")
        if not self._told:
            self._told = True
            warnings.warn(f"{words}. Such calls go on without the recording from there.", RuntimeWarning, stacklevel=4)
        return _outputs(step, step.rest, returned, _Values(self.executor, registers, inputs))


def _outputs(step: Step, rest: RestOfGraph, returned: Sequence[Any], values: _Values) -> list[Any]:
    for slot in leaves(step.args):
        if isinstance(slot, PlanSlot) and slot.root.kind not in ("input", "attribute"):
            values.copy(values.executor.tensor(slot))
    known = {node: mapped(values.found, value) for node, value in rest.values.items()}
    result = mapped(values.moved, list(returned))
    count = len(step.op._schema.returns)
    return go_on(rest.module, rest.node, known, tuple(result) if count > 1 else result[0] if count else None)


@define(eq=False)
class _Values:
    """What the graph calls on: no tensor of it lies in the recording's memory."""

    executor: Executor
    registers: Mapping[int, Any] | Sequence[Any]
    inputs: Sequence[Any]
    _copies: dict[tuple[int, int], torch.UntypedStorage] = field(factory=dict, init=False)
    """By (address, bytes) of what they are copies of."""

    def found(self, value: Any) -> Any:
        if isinstance(value, (SameAsInput, ViewOfInput)):
            return handed_out(value, self.inputs, ())
        if isinstance(value, Register):
            made = self.registers[value.number]
            return self.moved(made) if isinstance(made, torch.Tensor) else made
        if not isinstance(value, PlanSlot):
            return value
        if value.root.kind == "attribute":
            return value.layout.over(value.root.contents.untyped_storage())
        return self.copy(self.executor.tensor(value))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Tensors that share memory go on sharing it."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._copies:
            self._copies[key] = storage.clone()
        return layout_of(tensor).over(self._copies[key])

    def moved(self, value: Any) -> Any:
        """A tensor as the caller's mode makes one, in a copy where it lies in the recording's memory."""
        if not isinstance(value, torch.Tensor) or not value.is_cpu or value.layout is not torch.strided:
            return value
        layout, storage = layout_of(value), value.untyped_storage()
        for (address, nbytes), copied in self._copies.items():
            before = storage.data_ptr() - address if nbytes else -1
            if 0 <= before < nbytes and before % layout.dtype.itemsize == 0:
                return layout.moved(before // layout.dtype.itemsize).over(copied)
        return layout.over(storage)


def _words(step: Step, returned: Sequence[Any]) -> str:
    pairs = zip(_forms(returned), _forms(step.returns), strict=False)
    other = [(now, before) for now, before in pairs if now != before] or [("", "")]
    now, before = other[0]
    if now == before:
        return f"the operator {step.op} ('{step.name}') has freed or moved an input of the graph, in a replay"
    return f"the operator {step.op} ('{step.name}') was recorded with a result {before} and has returned {now}"


def _forms(row: Sequence[Any]) -> list[str]:
    return [str(_bare(leaf)) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in flat(list(row))]


def _bare(tensor: torch.Tensor) -> StorageLayout:
    """How it lies, wherever that is."""
    stride = tuple(1 if size < 2 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return StorageLayout(dtype=tensor.dtype, shape=tuple(tensor.shape), stride=stride, offset=0)
