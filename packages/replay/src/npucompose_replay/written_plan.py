"""A plan as JSON and bytes, so that a later process replays what this one recorded, and compiles nothing.

Written are plans that hold for any inputs of one signature: operators by their names, generated kernels by the library
that they are in, constants by the weight that they are or byte for byte, packed weights by how they were made. Whatever
else a plan may hold (constants that a step writes, filters that are packed for a convolution of what a step makes anew,
collectives, addresses) makes it `Unwritten`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose.bits import same_bytes
from npucompose_replay import generated
from npucompose_replay.generated import GeneratedKernel
from npucompose_replay.operands import StorageLayout, layout_of, over
from npucompose_replay.packed_weights import how_packed, is_opaque, packing
from npucompose_replay.plan import (
    Buffer,
    Literally,
    Output,
    Plan,
    PlanSlot,
    Register,
    Root,
    SameAsInput,
    SameAsOutput,
    Step,
    ViewOfInput,
)

GENERATED = "air::generated"
ADDRESS, PROCESS = 4, 5
"""Arguments of `air::generated` that are of one process only."""
NAMED: tuple[type, ...] = (torch.dtype, torch.layout, torch.memory_format)
"""Types of values that torch has a name for."""


class Unwritten(Exception):
    """What of a plan cannot be written down."""


@frozen(kw_only=True, eq=False)
class WrittenPlan:
    """`facts` are JSON; `constants` the tensors of which they have the numbers, `libraries` the files likewise."""

    facts: Mapping[str, Any]
    constants: Sequence[torch.Tensor]
    libraries: Sequence[str]


def written(plan: Plan, weights: Sequence[torch.Tensor]) -> WrittenPlan:
    """`plan`, its constants named by their place in `weights` where they are one of these; Unwritten."""
    return _Writer(plan, weights).written()


def laid_out(layout: StorageLayout) -> list[Any]:
    name = str(layout.dtype).removeprefix("torch.")
    return [name, list(layout.shape), list(layout.stride), layout.offset, layout.conj, layout.neg]


def layout_from(facts: Sequence[Any]) -> StorageLayout:
    name, shape, stride, offset, conj, neg = facts
    return StorageLayout(
        dtype=getattr(torch, name), shape=tuple(shape), stride=tuple(stride), offset=offset, conj=conj, neg=neg
    )


@define(eq=False)
class _Writer:
    plan: Plan
    weights: Sequence[torch.Tensor]
    constants: list[torch.Tensor] = field(factory=list)
    kernels: dict[int, GeneratedKernel] = field(factory=dict)
    """By address, in order of appearance."""
    slots: dict[int, int] = field(factory=dict)
    """{id(slot): its number}."""
    written_slots: list[Any] = field(factory=list)
    _roots: dict[int, int] = field(factory=dict)
    _steps: dict[int, int] = field(factory=dict)
    _places: dict[tuple[int, int], int] = field(factory=dict)

    def written(self) -> WrittenPlan:
        plan = self.plan
        if plan.pinned:
            raise Unwritten("an input that must stay at one address")
        whole = ((place, weight) for place, weight in enumerate(self.weights) if _is_whole(weight))
        self._places = {_memory(weight): place for place, weight in whole}
        self._roots = {id(root): number for number, root in enumerate(plan.roots)}
        self._steps = {id(step): number for number, step in enumerate(plan.steps)}
        roots = [self._root(root) for root in plan.roots]
        steps = [self._step(step) for step in plan.steps]
        outputs = [self._output(output) for output in plan.outputs]
        facts = {
            "roots": roots,
            "steps": steps,
            "outputs": outputs,
            "slots": self.written_slots,
            "registers": [[number, self._roots[id(root)]] for number, root in plan.register_roots.items()],
            "from_zero": sorted(plan.from_zero),
            "views_resolved": plan.views_resolved,
            "constants": plan.constants,
            "thread_sensitive": plan.thread_sensitive,
            "kernels": [[kernel.name, kernel.order, kernel.parallel] for kernel in self.kernels.values()],
        }
        libraries = [kernel.library for kernel in self.kernels.values()]
        return WrittenPlan(facts=facts, constants=self.constants, libraries=libraries)

    def _root(self, root: Root) -> list[Any]:
        source: Any = None
        if root.kind == "input":
            source = ["input", laid_out(layout_of(root.contents))]
        elif root.tensor is not None:
            source = self._constant(root, root.tensor)
        return [root.kind, root.nbytes, root.index, root.written, root.first, root.last, source]

    def _constant(self, root: Root, tensor: torch.Tensor) -> list[Any]:
        if root.written:
            raise Unwritten("a constant that a step writes")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise Unwritten(f"a constant that is a {type(tensor).__name__} in the layout {tensor.layout}")
        place = self._places.get(_memory(tensor))
        if place is not None:
            return ["weight", place]
        self.constants.append(tensor)
        return ["bytes", len(self.constants) - 1, laid_out(layout_of(tensor))]

    def _step(self, step: Step) -> list[Any]:
        if step.reads:
            raise Unwritten("a wait for a collective")
        schema = step.op._schema
        args = [
            self._packed(step, position) if is_opaque(value) else self._value(value)
            for position, value in enumerate(step.args)
        ]
        if schema.name == GENERATED:
            kernel = generated.of_address(step.args[ADDRESS])
            if not kernel.library:
                raise Unwritten(f"the kernel {kernel.name}, which is in no library")
            self.kernels.setdefault(kernel.address, kernel)
            args[ADDRESS], args[PROCESS] = [*self.kernels].index(kernel.address), None
        name = [schema.name, schema.overload_name or "default"]
        results = [self._value(result) for result in step.results]
        return [name, args, results, step.name, step.stream, [self._steps[id(first)] for first in step.after]]

    def _packed(self, step: Step, position: int) -> Any:
        found = how_packed(step, position)
        if found is None:
            raise Unwritten(f"a packed weight of {step.op}")
        for place, weight in enumerate(self.weights):
            if weight.layout is torch.strided and same_bytes(weight, found.plain):
                return {"packed": [found.way, ["weight", place], self._value(found.given)]}
        self.constants.append(found.plain)
        source = ["bytes", len(self.constants) - 1, laid_out(layout_of(found.plain))]
        return {"packed": [found.way, source, self._value(found.given)]}

    def _output(self, output: Output) -> list[Any]:
        match output:
            case Buffer(slot=slot):
                return ["buffer", self._slot(slot)]
            case SameAsInput(index=index):
                return ["input", index]
            case ViewOfInput(index=index, layout=layout):
                return ["view", index, laid_out(layout)]
            case SameAsOutput(index=index):
                return ["output", index]
            case Literally(value=value):
                return ["value", self._value(value)]

    def _slot(self, slot: PlanSlot) -> int:
        if id(slot) not in self.slots:
            self.slots[id(slot)] = len(self.written_slots)
            self.written_slots.append([self._roots[id(slot.root)], laid_out(slot.layout)])
        return self.slots[id(slot)]

    def _value(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, (list, tuple)):
            return {"list" if isinstance(value, list) else "tuple": [self._value(part) for part in value]}
        if isinstance(value, PlanSlot):
            return {"slot": self._slot(value)}
        if isinstance(value, Register):
            return {"register": value.number}
        if type(value) is float:
            return {"float": value.hex()}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, NAMED):
            return {"torch": str(value).removeprefix("torch.")}
        raise Unwritten(f"a {type(value).__name__}")


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Of a whole storage; all that is empty is one, which holds nothing."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _is_whole(weight: torch.Tensor) -> bool:
    """Its values are all that its storage holds: another weight with these values has the same there."""
    return weight.layout is torch.strided and weight.nbytes == weight.untyped_storage().nbytes()


def read_plan(
    facts: Mapping[str, Any],
    *,
    weights: Sequence[torch.Tensor],
    constants: Sequence[torch.UntypedStorage],
    libraries: Sequence[str],
    inputs: Sequence[torch.Tensor],
) -> Plan:
    """The plan that `written` wrote, over these weights, bytes and inputs, which lie as they lay then."""
    return _Reader(facts, weights, constants, libraries, inputs).plan()


@define(eq=False)
class _Reader:
    facts: Mapping[str, Any]
    weights: Sequence[torch.Tensor]
    constants: Sequence[torch.UntypedStorage]
    libraries: Sequence[str]
    inputs: Sequence[torch.Tensor]
    roots: list[Root] = field(factory=list)
    slots: list[PlanSlot] = field(factory=list)
    kernels: list[GeneratedKernel] = field(factory=list)

    def plan(self) -> Plan:
        facts = self.facts
        self.roots = [self._root(*root) for root in facts["roots"]]
        self.slots = [PlanSlot(self.roots[root], layout_from(layout)) for root, layout in facts["slots"]]
        self.kernels = [
            generated.from_library(library, name=name, order=order, parallel=parallel)
            for library, (name, order, parallel) in zip(self.libraries, facts["kernels"], strict=True)
        ]
        steps: list[Step] = []
        for step in facts["steps"]:
            steps.append(self._step(steps, *step))
        return Plan(
            steps=tuple(steps),
            outputs=tuple(self._output(*output) for output in facts["outputs"]),
            roots=tuple(self.roots),
            pinned=frozenset(),
            from_zero=frozenset(facts["from_zero"]),
            register_roots={number: self.roots[root] for number, root in facts["registers"]},
            views_resolved=facts["views_resolved"],
            constants=facts["constants"],
            thread_sensitive=facts["thread_sensitive"],
        )

    def _root(self, kind: Any, nbytes: int, index: int, written: bool, first: int, last: int, source: Any) -> Root:
        root = Root(kind=kind, nbytes=nbytes, index=index, written=written, first=first, last=last)
        if source is not None and source[0] == "input":
            root.tensor = _at(self.inputs[index], layout_from(source[1]), nbytes)
        elif source is not None:
            root.tensor = self._constant(*source)
        return root

    def _constant(self, kind: str, number: int, layout: Sequence[Any] = ()) -> torch.Tensor:
        return self.weights[number] if kind == "weight" else layout_from(layout).over(self.constants[number])

    def _packed(self, made: Sequence[Any]) -> torch.Tensor:
        way, source, given = made
        with torch.no_grad():
            return packing[way](self._constant(*source), *self._value(given))

    def _step(
        self, before: Sequence[Step], op: Sequence[str], args: Sequence[Any], results: Sequence[Any], name: str,
        stream: str, after: Iterable[int],
    ) -> Step:  # fmt: skip
        made = [self._value(value) for value in args]
        if op[0] == GENERATED:
            kernel = self.kernels[made[ADDRESS]]
            made[ADDRESS], made[PROCESS] = kernel.address, kernel.loaded_by if kernel.parallel else 0
        return Step(
            op=operator(*op),
            args=tuple(made),
            results=tuple(self._value(result) for result in results),
            name=name,
            stream=stream,
            after=tuple(before[step] for step in after),
        )

    def _output(self, kind: str, what: Any, layout: Any = None) -> Output:
        match kind:
            case "buffer":
                return Buffer(slot=self.slots[what])
            case "input":
                return SameAsInput(index=what)
            case "view":
                return ViewOfInput(index=what, layout=layout_from(layout))
            case "output":
                return SameAsOutput(index=what)
            case _:
                return Literally(value=self._value(what))

    def _value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, what),) = value.items()
        return self._kinds[kind](what)

    @functools.cached_property
    def _kinds(self) -> Mapping[str, Callable[[Any], Any]]:
        return {
            "list": lambda parts: [self._value(part) for part in parts],
            "tuple": lambda parts: tuple(self._value(part) for part in parts),
            "slot": self.slots.__getitem__,
            "packed": self._packed,
            "register": Register,
            "float": float.fromhex,
            "device": torch.device,
            "torch": lambda name: getattr(torch, name),
        }


def operator(name: str, overload: str) -> Any:
    """`operator("aten::add", "out")` is torch.ops.aten.add.out."""
    namespace, _, packet = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _at(given: torch.Tensor, layout: StorageLayout, nbytes: int) -> torch.Tensor:
    """What the plan knows of an input, at the place of the one that is given."""
    if given.numel() == 0:
        return layout.over(torch.UntypedStorage(nbytes))
    return layout.over(over(given.data_ptr() - layout.offset * layout.dtype.itemsize, nbytes))
