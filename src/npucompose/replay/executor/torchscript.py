"""Executor: the plan as a TorchScript graph, run by torch's C++ interpreter. No compiler is needed.

Fixed tensors travel as one list, by reference: what is written into constants of a graph might be folded away. The
graph runs unoptimised (that flag is torch's own, and local to the thread): no pass may reorder or fuse a recording, and
the first call takes a millisecond where profiling takes a hundred.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from npucompose.replay.plan import Register, Slot, Step
from npucompose.replay.traits import traits_of

_ENUMS: dict[Any, int] = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
    torch.strided: 0,
}
"""c10::MemoryFormat and c10::Layout as the interpreter's stack holds them."""


class NotExpressible(Exception):
    """A step that TorchScript has no words for; the text says which and why."""


class TorchScript:
    """`run()` calls every kernel in order; `lay(i, tensor)` puts another tensor into slot i."""

    name = "torchscript"
    lends = False
    """Operators that may keep what they are given are not expressible here."""

    def __init__(self, steps: Sequence[Step], slots: Sequence[Slot], tensors: Sequence[torch.Tensor]) -> None:
        builder = _Builder(slots)
        for step in steps:
            builder.add(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # A list needs a first element for its type, also when no kernel reads a slot.
            self._tensors = torch._C.ScriptList([*tensors] or [torch.empty(0)])
            self._function = builder.function(max(len(tensors), 1))

    def run(self) -> None:
        was = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            self._function(self._tensors)
        finally:
            torch._C._set_graph_executor_optimize(was)

    def lay(self, index: int, tensor: torch.Tensor) -> None:
        self._tensors[index] = tensor


class _Builder:
    def __init__(self, slots: Sequence[Slot]) -> None:
        self.graph: Any = torch._C.Graph()
        given = self.graph.addInput("tensors")
        given.setType(torch._C.ListType(torch._C.TensorType.get()))
        unpack = self.graph.create("prim::ListUnpack", [given], max(len(slots), 1))
        self.graph.insertNode(unpack)
        values = list(unpack.outputs())
        for value in values:
            value.setType(torch._C.TensorType.get())
        self.slots = {id(slot): values[i] for i, slot in enumerate(slots)}
        self.registers: dict[int, Any] = {}
        self.constants: dict[tuple[type, Any], Any] = {}

    def add(self, step: Step) -> None:
        schema = step.op._schema
        if not traits_of(step.op).may_be_tried:
            raise NotExpressible(f"{step.op}: an operator that is not torch's may keep what it is given")
        args = [self._value(value, a, step) for a, value in zip(schema.arguments, step.args, strict=True)]
        node = self.graph.create(schema.name, args, len(schema.returns))
        self.graph.insertNode(node)
        for value, declared in zip(node.outputs(), schema.returns, strict=True):
            value.setType(declared.type)
        _check_overload(node, step)
        for value, result in zip(node.outputs(), step.results, strict=False):
            if isinstance(result, Register):
                self.registers[result.number] = value
            elif result:
                self._unpack(value, result)

    def function(self, count: int) -> Any:
        self.graph.registerOutput(self._constant(None))
        self.graph.lint()
        return torch._C._create_function_from_graph("replay", self.graph)

    def _unpack(self, value: Any, registers: tuple[Register, ...]) -> None:
        node = self.graph.create("prim::ListUnpack", [value], len(registers))
        self.graph.insertNode(node)
        for part, register in zip(node.outputs(), registers, strict=True):
            part.setType(torch._C.TensorType.get())
            self.registers[register.number] = part

    def _value(self, value: Any, declared: Any, step: Step) -> Any:
        kind = _plain_type(declared.type)
        if isinstance(value, (Slot, Register)):
            return self._tensor(value)
        if value is None:
            return self._constant(None)
        if kind.kind() == "ListType":
            return self._list(value if isinstance(value, (list, tuple)) else [value], kind.getElementType(), step)
        if kind.kind() == "TensorType":
            raise NotExpressible(f"{step.op}: the number {value!r} in place of a tensor")
        return self._constant(_as(kind, value, step))

    def _list(self, values: Sequence[Any], element: Any, step: Step) -> Any:
        inner = _plain_type(element)
        if inner.kind() != "TensorType" and values:
            return self._constant([_as(inner, value, step) for value in values])
        if any(value is not None and not isinstance(value, (Slot, Register)) for value in values):
            raise NotExpressible(f"{step.op}: a list of mixed values")
        parts = [self._constant(None) if value is None else self._tensor(value) for value in values]
        node = self.graph.create("prim::ListConstruct", parts, 1)
        self.graph.insertNode(node)
        node.output().setType(torch._C.ListType(element))
        return node.output()

    def _tensor(self, operand: Slot | Register) -> Any:
        return self.slots[id(operand)] if isinstance(operand, Slot) else self.registers[operand.number]

    def _constant(self, value: Any) -> Any:
        key = (type(value), repr(value))
        if key not in self.constants:
            try:
                self.constants[key] = self.graph.insertConstant(value)
            except (RuntimeError, TypeError) as error:
                raise NotExpressible(f"no constant for {value!r}") from error
        return self.constants[key]


def _plain_type(declared: Any) -> Any:
    return declared.getElementType() if declared.kind() == "OptionalType" else declared


def _as(kind: Any, value: Any, step: Step) -> Any:
    """`value` as the schema wants it: an int for a float argument is a float, as for a call from Python."""
    name = kind.kind()
    if name == "FloatType" and type(value) is int:
        return float(value)
    if name == "IntType" and type(value) is bool:
        return int(value)
    if name == "NumberType" and type(value) is bool:
        raise NotExpressible(f"{step.op}: a bool as a number")
    if isinstance(value, torch.Generator):
        raise NotExpressible(f"{step.op}: a generator")
    return _ENUMS.get(value, value) if isinstance(value, (torch.memory_format, torch.layout)) else value


def _check_overload(node: Any, step: Step) -> None:
    """TorchScript picks the overload by the types of the arguments: it must be the one that was recorded."""
    found = node.schema().partition("(")[0]
    if not found:
        raise NotExpressible(f"{step.op}: TorchScript knows no such call")
    if found != _qualified(step.op):
        raise NotExpressible(f"{step.op}: TorchScript would call {found}")


def _qualified(op: OpOverload) -> str:
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else op._schema.name
