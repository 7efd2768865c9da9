"""Executors without a compiler: the plan as a TorchScript graph or a Python function, and the front that calls them.

TorchScript is run by torch's C++ interpreter. Fixed tensors travel as one list, by reference: what is written into
constants of a graph might be folded away. The graph runs unoptimised (that flag is torch's own, and local to the
thread): no pass may reorder or fuse a recording, and the first call takes a millisecond where profiling takes a
hundred.

An operator that is not torch's own may keep what it is given: it gets ordinary tensors, as eager would give it.
executor/src/lent_operands.h is the same for the replayer in C++; its Note [An operator may keep what it is given] says
why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import define, field
from torch._ops import OpOverload

from npucompose_replay.operands import layout_of, lie_alike, mapped, traits_of
from npucompose_replay.plan import (
    Form,
    PlanSlot,
    Register,
    Step,
    UnsupportedStep,
    dying_registers,
    leaves,
    lent_inputs,
)


@define
class Lent:
    """What an operator may keep, for the length of a replay."""

    owners: dict[int, torch.Tensor] = field(factory=dict)
    """The inputs, by their index."""
    results: dict[int, torch.UntypedStorage] = field(factory=dict)
    """{storage that steps know a result by: the one that callers are given}, where a result that is held is kept."""
    moved: bool = False
    """An operator has freed or moved one of the inputs."""

    def clear(self) -> None:
        self.moved = False
        self.owners.clear()
        self.results.clear()


def lending(op: OpOverload, lent: Lent, inputs: frozenset[int]) -> Callable[..., Any]:
    """`op`, called with the caller's own `inputs` or views of them, with the memory of results, and with copies of what
    else the graph computes.

    Portable executors look for nobody who keeps an operand. Tensors that it writes are given as they are.
    """
    names = traits_of(op).names
    written = {names[i] for i in traits_of(op).written}

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            owners = [lent.owners[i] for i in sorted(inputs)]
            made = {
                name: mapped(lambda leaf, writes=name in written: _operand(leaf, lent, owners, writes), value)
                for name, value in given.items()
            }
            places = [(storage := owner.untyped_storage()).nbytes() and storage.data_ptr() for owner in owners]
            returned = op(*(made[name] for name in names[: len(args)]), **{name: made[name] for name in kwargs})
            now = [(storage := owner.untyped_storage()).nbytes() and storage.data_ptr() for owner in owners]
            lent.moved = lent.moved or now != places
            return returned

    return call


def _operand(value: Any, lent: Lent, owners: Sequence[torch.Tensor], writes: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    layout, memory = layout_of(value), value.untyped_storage()
    if memory._cdata in lent.results:
        return layout.over(lent.results[memory._cdata])
    if writes:
        return layout.over(memory)
    low, high = layout.span()
    for owner in owners:
        storage = owner.untyped_storage()
        before = memory.data_ptr() - storage.data_ptr()
        if before + low < 0 or before + high > storage.nbytes() or before % layout.dtype.itemsize:
            continue
        there = layout.moved(before // layout.dtype.itemsize)
        return owner if there == layout_of(owner) else there.over(storage)
    return layout.over(memory.clone())


aten = torch.ops.aten

_BINDINGS: dict[OpOverload, Callable[..., Any]] = {
    aten.add.out: torch.add,
    aten.sub.out: torch.sub,
    aten.mul.out: torch.mul,
    aten.div.out: torch.div,
    aten.mm.out: torch.mm,
    aten.bmm.out: torch.bmm,
    aten.clamp_min.out: torch.clamp_min,
    aten.rsqrt.out: torch.rsqrt,
    aten.exp.out: torch.exp,
    aten.sigmoid.out: torch.sigmoid,
    aten.tanh.out: torch.tanh,
}
"""torch's own argument parser is quicker than OpOverload.__call__; only where the arguments are the same by name."""


class OtherResults(Exception):
    """An operator returned other tensors than it was recorded with: src/returned.h, Note [Results as they were
    recorded]."""

    def __init__(self, said: str, step: int = -1, returned: Any = (), names: dict[str, Any] | None = None) -> None:
        super().__init__(said)
        self.step = step
        self.returned = list(returned) if isinstance(returned, tuple) else [returned]
        self.registers = {int(name[1:]): value for name, value in (names or {}).items() if name[0] == "r"}


def _returns_otherwise(lent: Lent, recorded: Sequence[Form], returned: Any) -> bool:
    if lent.moved or not recorded:
        return lent.moved
    row = returned if isinstance(returned, tuple) else (returned,)
    return len(row) != len(recorded) or not all(map(_alike, row, recorded))


def _alike(now: Any, before: Form) -> bool:
    if isinstance(before, torch.Tensor):
        return isinstance(now, torch.Tensor) and now.is_cpu and now.layout is torch.strided and lie_alike(now, before)
    if isinstance(before, list):
        return isinstance(now, list) and len(now) == len(before) and all(map(_alike, now, before))
    return (now is None) == (before is None)


class StraightLine:
    """`run()` calls every kernel in order; `lay(i, tensor)` puts another tensor into slot i."""

    name = "python"

    def __init__(self, steps: Sequence[Step], slots: Sequence[PlanSlot], tensors: Sequence[torch.Tensor]) -> None:
        self.lent = Lent()
        self.lends = any(traits_of(step.op).may_keep for step in steps)
        self._numbers = {id(slot): i for i, slot in enumerate(slots)}
        self._names: dict[str, Any] = {f"s{i}": tensor for i, tensor in enumerate(tensors)}
        self._names["OtherResults"] = OtherResults
        dying, _ = dying_registers(steps)
        lent = lent_inputs(steps)
        lines = [line for i, step in enumerate(steps) for line in self._lines(i, step, dying[i], lent[i])]
        self.source = "\n    ".join(("def run():", *(lines or ["pass"])))
        exec(compile(self.source, "<npucompose replay>", "exec"), self._names)
        self.run: Callable[[], None] = self._names["run"]

    def lay(self, index: int, tensor: torch.Tensor) -> None:
        self._names[f"s{index}"] = tensor

    def tensor(self, slot: PlanSlot) -> torch.Tensor:
        return self._names[f"s{self._numbers[id(slot)]}"]

    def _lines(self, index: int, step: Step, dying: Sequence[int], lent: frozenset[int]) -> list[str]:
        may_keep = traits_of(step.op).may_keep
        function = lending(step.op, self.lent, lent) if may_keep else _BINDINGS.get(step.op, step.op)
        self._names[f"f{index}"] = function
        parts: list[str] = []
        for position, (declared, value) in enumerate(zip(step.op._schema.arguments, step.args, strict=True)):
            text = self._text(value, f"c{index}_{position}")
            parts.append(f"{declared.name}={text}" if declared.kwarg_only else text)
        call = f"f{index}({', '.join(parts)})"
        looks: list[str] = []
        if may_keep:
            self._names[f"other{index}"] = partial(_returns_otherwise, self.lent, step.returns)
            looks = [
                f"v{index} = {call}",
                f'if other{index}(v{index}): raise OtherResults("step {index}", {index}, v{index}, locals())',
            ]
            call = f"v{index}"
        placed = [result for result in step.results if isinstance(result, PlanSlot)]
        targets = [f"p{index}" if isinstance(result, PlanSlot) else _target(result) for result in step.results]
        if any(target != "_" for target in targets):
            call = f"{', '.join(targets)} = {call}" if len(targets) > 1 else f"{targets[0]} = {call}"
        copies = (f"{self._text(slot, '')}.copy_(p{index})" for slot in placed)
        return [*looks, call, *copies, *(f"r{number} = None" for number in dying)]

    def _text(self, value: Any, name: str) -> str:
        if isinstance(value, PlanSlot):
            return f"s{self._numbers[id(value)]}"
        if isinstance(value, Register):
            return f"r{value.number}"
        if isinstance(value, (list, tuple)) and leaves(value):
            return f"[{', '.join(self._text(part, f'{name}_{i}') for i, part in enumerate(value))}]"
        self._names[name] = mapped(lambda leaf: leaf, value)
        return name


def _target(result: Register | tuple[Register, ...] | None) -> str:
    if result is None:
        return "_"
    if isinstance(result, tuple):
        return f"[{', '.join(f'r{r.number}' for r in result)}]" if result else "_"
    return f"r{result.number}"


_ENUMS: dict[Any, int] = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
    torch.strided: 0,
}
"""c10::MemoryFormat and c10::Layout as the interpreter's stack holds them."""


class TorchScript:
    """`run()` calls every kernel in order; `lay(i, tensor)` puts another tensor into slot i."""

    name = "torchscript"
    lends = False
    """Operators that may keep what they are given are not expressible here."""

    def __init__(self, steps: Sequence[Step], slots: Sequence[PlanSlot], tensors: Sequence[torch.Tensor]) -> None:
        builder = _ScriptBuilder(slots)
        for step in steps:
            builder.add(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # A list needs a first element for its type, also when no kernel reads a slot.
            self._tensors = torch._C.ScriptList([*tensors] or [torch.empty(0)])
            self._function = builder.function()

    def run(self) -> None:
        was = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            self._function(self._tensors)
        finally:
            torch._C._set_graph_executor_optimize(was)

    def lay(self, index: int, tensor: torch.Tensor) -> None:
        self._tensors[index] = tensor


class _ScriptBuilder:
    def __init__(self, slots: Sequence[PlanSlot]) -> None:
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
            raise UnsupportedStep(f"{step.op}: an operator that is not torch's may keep what it is given")
        args = [self._value(value, a, step) for a, value in zip(schema.arguments, step.args, strict=True)]
        node = self.graph.create(schema.name, args, len(schema.returns))
        self.graph.insertNode(node)
        for value, declared in zip(node.outputs(), schema.returns, strict=True):
            value.setType(declared.type)
        _check_overload(node, step)
        for value, result in zip(node.outputs(), step.results, strict=False):
            if isinstance(result, Register):
                self.registers[result.number] = value
            elif isinstance(result, PlanSlot):
                self.graph.insertNode(
                    self.graph.create("aten::copy_", [self._tensor(result), value, self._constant(False)])
                )
            elif result:
                self._unpack(value, result)

    def function(self) -> Any:
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
        if isinstance(value, (PlanSlot, Register)):
            return self._tensor(value)
        if value is None:
            return self._constant(None)
        if kind.kind() == "ListType":
            return self._list(value if isinstance(value, (list, tuple)) else [value], kind.getElementType(), step)
        if kind.kind() == "TensorType":
            raise UnsupportedStep(f"{step.op}: the number {value!r} in place of a tensor")
        return self._constant(_as(kind, value, step))

    def _list(self, values: Sequence[Any], element: Any, step: Step) -> Any:
        inner = _plain_type(element)
        if inner.kind() != "TensorType" and values:
            return self._constant([_as(inner, value, step) for value in values])
        if any(value is not None and not isinstance(value, (PlanSlot, Register)) for value in values):
            raise UnsupportedStep(f"{step.op}: a list of mixed values")
        parts = [self._constant(None) if value is None else self._tensor(value) for value in values]
        node = self.graph.create("prim::ListConstruct", parts, 1)
        self.graph.insertNode(node)
        node.output().setType(torch._C.ListType(element))
        return node.output()

    def _tensor(self, operand: PlanSlot | Register) -> Any:
        return self.slots[id(operand)] if isinstance(operand, PlanSlot) else self.registers[operand.number]

    def _constant(self, value: Any) -> Any:
        key = (type(value), repr(value))
        if key not in self.constants:
            try:
                self.constants[key] = self.graph.insertConstant(value)
            except (RuntimeError, TypeError) as error:
                raise UnsupportedStep(f"no constant for {value!r}") from error
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
        raise UnsupportedStep(f"{step.op}: a bool as a number")
    if isinstance(value, torch.Generator):
        raise UnsupportedStep(f"{step.op}: a generator")
    return _ENUMS.get(value, value) if isinstance(value, (torch.memory_format, torch.layout)) else value


def _check_overload(node: Any, step: Step) -> None:
    """TorchScript picks the overload by the types of the arguments: it must be the one that was recorded."""
    found = node.schema().partition("(")[0]
    if not found:
        raise UnsupportedStep(f"{step.op}: TorchScript knows no such call")
    if found != step.op.name():
        raise UnsupportedStep(f"{step.op}: TorchScript would call {found}")
