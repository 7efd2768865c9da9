"""What a call of one operator becomes in a recording, found by running it on real values.

A view, which is resolved; a kernel that writes into a fixed buffer; or a kernel that makes a fresh value on every
replay (a Register) because torch has no real `.out` form of it. Knows no graph but the node that errors name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from attrs import define, field
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.graphs.effects import facts
from npucompose_replay import gate
from npucompose_replay.capture import kernels
from npucompose_replay.capture.issue import Issue
from npucompose_replay.capture.kernels import Computes, SingleThreadCheck, Undo
from npucompose_replay.capture.ledger import (
    CaptureLedger,
    Held,
    all_constant,
    form_of,
    forms_of,
    real,
    registers_of,
    unheld,
)
from npucompose_replay.gate import under
from npucompose_replay.operands import Traits, bytes_of, flat, layout_of, mapped, storage_of, traits_of
from npucompose_replay.plan import Form, PlanSlot, Register, RestOfGraph, Root, Step
from npucompose_replay.state import fills_empty_memory


class _LookedAt(TypedDict, total=False):
    returns: tuple[Form, ...]
    rest: RestOfGraph | None


def no_rest(_: fx.Node) -> None:
    """Of whatever node: nothing is known of what is left."""


MOST_COPIED = 1 << 16
"""Bytes of a result that a replay copies to its place: some 2 µs, as long as laying a few views over it anew takes."""
_UNTRIED: Any = object()


@define(kw_only=True, eq=False)
class Calls:
    """`record(node, op, args, kwargs)` runs one operator, notes the step of a replay, if any, and gives its value."""

    ledger: CaptureLedger
    issue: Issue
    undo: Undo
    single_thread: SingleThreadCheck | None
    given: Sequence[Any]
    """The inputs of the graph."""
    modes: Sequence[TorchDispatchMode]
    """What looks at operators that are not torch's own."""
    steps: list[Step] = field(factory=list)
    pristine: dict[int, torch.Tensor] = field(factory=dict)
    """Constants that a step writes: id(root) -> their bytes before."""
    births: list[tuple[int, Root]] = field(factory=list)
    """(step before which it is made, constant root)."""
    written_inputs: dict[int, Held] = field(factory=dict)
    """By index: of each input that a step writes, one tensor that lies in it."""
    pinned: set[int] = field(factory=set)
    from_zero: set[int] = field(factory=set)
    views: int = 0
    flying: dict[int, tuple[fx.Node, Step]] = field(factory=dict)
    """Collectives that nothing has waited for yet, by id(root) of what they fill."""
    rest: Callable[[fx.Node], RestOfGraph | None] = no_rest
    """What is left of the graph at a node; None where nothing says so."""
    fills: bool | None = None
    """`Plan.fills`."""
    computes: Computes | None = None
    """Of a library's operator that makes its result anew: whether a replay can do without that."""
    _tried: dict[Any, kernels.OutCall | None] = field(factory=dict)
    """By operator and form of its arguments and results: the call into buffers that gives the same bytes."""

    def record(self, node: fx.Node, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of `op(*args, **kwargs)`, tensors as `Held`."""
        traits = traits_of(op)
        ordered = traits.in_order(args, kwargs)
        real_args, read = unheld(args)
        real_kwargs: dict[str, Any] = {}
        if kwargs:
            real_kwargs = mapped(real, kwargs)
            read += [leaf for leaf in flat(kwargs) if isinstance(leaf, Held)]
        if not traits.may_be_tried:
            real_args, real_kwargs = self._owned(traits, args, kwargs)
        written = [] if traits.is_plain else self._before(node, traits, ordered, real_args, real_kwargs)
        if self.single_thread is not None:
            self.single_thread.see(op, real_args, real_kwargs)
        result = self._run(node, traits, real_args, real_kwargs)
        try:
            if traits.may_keep:
                _check_still_there(node, flat((real_args, real_kwargs)))
            tensors = gate.checked(node, op, result, bool(read))
            if traits.is_as_strided:
                self._count_from_the_storage(read, tensors)
            if written:
                return self._mutation(node, traits, ordered, result, written)
        except gate.Refused as refusal:
            refusal.result = result
            raise
        if not tensors and not (result is None and read):
            return result  # a number that the signature decides
        found = self._in_place(node, traits, ordered, read, result, tensors)
        return self._fresh(node, traits, ordered, result) if found is None else found

    def _owned(self, traits: Traits, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What an operator reads that may keep it: inputs as the caller's own tensors, or views in their storage.

        Of an input that was written before it gets a copy, as in a replay (`plan.lent_inputs`).
        """
        names, written = traits.names, {traits.names[i] for i in traits.written}

        def owned(value: Any) -> Any:
            if not isinstance(value, Held) or value.root.kind not in ("input", "attribute"):
                return real(value)
            root = value.root
            if root.kind == "input" and root.index in self.written_inputs:
                return value.layout.over(value.tensor.untyped_storage().clone())
            owner = self.given[root.index] if root.kind == "input" else root.contents
            return owner if value.layout == layout_of(owner) else value.layout.over(owner.untyped_storage())

        def given(name: str, value: Any) -> Any:
            return mapped(real if name in written else owned, value)

        return (
            [given(name, value) for name, value in zip(names, args, strict=False)],
            {name: given(name, value) for name, value in kwargs.items()},
        )

    def _before(
        self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], args: list[Any], kwargs: dict[str, Any]
    ) -> list[Held]:
        """Refuse what cannot be followed, keep what the operator is about to change; the tensors that it writes."""
        if traits.may_depend_on_data:
            gate.check_operator(node, traits.op, args, kwargs)
        if traits.resizes:
            raise gate.refused(node, "it moves a tensor to other memory, and a recording has fixed memory.")
        for leaf in flat((args, kwargs)) if traits.takes_generator else ():
            if isinstance(leaf, torch.Generator):
                self.undo.about_to_draw(leaf)
        written = [held for i in traits.written for held in flat(ordered[i]) if isinstance(held, Held)]
        for held in written:
            root = held.root
            if root.kind in ("input", "attribute"):
                self.undo.about_to_write(held.tensor, traits.op, args)
                if root.kind == "input":
                    self.written_inputs[root.index] = held
            elif root.kind == "constant" and not root.written:
                self.pristine[id(root)] = bytes_of(held.tensor.untyped_storage()).clone()
            root.written = True
        return written

    def _run(self, node: fx.Node, traits: Traits, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the operator gives; `issue` learns whether it drew random numbers."""
        try:
            if traits.of_torch:
                self.issue.draws = traits.draws
                return traits.op(*args, **kwargs)
            before = torch.get_rng_state()
            result = under(self.modes, traits.op, *args, **kwargs)
        except Exception as error:
            raise gate.refused(node, f"it fails on the given inputs: {error}") from error
        self.issue.draws = not torch.equal(before, torch.get_rng_state())
        return result

    def _count_from_the_storage(self, read: list[Held], results: list[torch.Tensor]) -> None:
        """as_strided names elements of the whole storage, also outside its input: such an input cannot be copied."""
        for root in {id(held.root): held.root for held in read if held.root.kind == "input"}.values():
            whole = layout_of(root.contents).span()
            inside = all(layout_of(tensor).span()[1] <= whole[1] for tensor in results)
            (self.from_zero if inside and root.contents.storage_offset() == 0 else self.pinned).add(root.index)

    def _in_place(
        self,
        node: fx.Node,
        traits: Traits,
        ordered: tuple[Any, ...],
        read: list[Held],
        result: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        """The result in memory that stays the same from replay to replay; None where there is no way to that."""
        known = self.ledger.roots
        shared = [known.get(storage_of(tensor)) for tensor in tensors]
        if tensors and all(root is not None and root.kind != "fresh" for root in shared):
            return self._view(result, read)
        if not tensors or self.issue.draws or any(shared):
            return None
        if traits.uninitialised:
            return mapped(self._empty, result)
        if traits.may_be_constant and all_constant(read):
            return mapped(self._constant, result)
        if traits.mutable or not (isinstance(result, torch.Tensor) or _is_row_of(result, tensors)):
            return None
        if traits.placed:
            return self._where_wanted(node, traits, ordered, result)
        return self._kernel(node, traits, ordered, result, tensors)

    def laid(self, held: Held, view: torch.Tensor) -> Held:
        """`view`, which lies over the memory of a tensor; over what is made anew on every replay it is laid anew."""
        self.views += 1
        if held.register is None:
            return Held(view, held.root)
        made = self.ledger.into_register(view)
        form = list(view.shape), list(view.stride()), view.storage_offset()
        self._add(Step(op=torch.ops.aten.as_strided.default, args=(held.register, *form), results=(made.register,)))
        return made

    # -- kernels into buffers

    def _kernel(
        self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], result: Any, tensors: list[torch.Tensor]
    ) -> Any:
        if not traits.may_be_tried or any(isinstance(leaf, torch.Tensor) for leaf in flat(ordered)):
            return None  # somebody else's operator; or an operand in a layout that nobody looks into
        numbered = self.ledger.numbered(traits, ordered)
        call = self._into_buffers(traits, numbered, tensors)
        if call is None or (call.flattened is not None and numbered[call.flattened].root.kind == "fresh"):
            return None
        made = [self._in_the_pool(tensor) for tensor in tensors]
        if call.in_order:
            args = tuple([self.ledger.operand(value) for value in (*numbered, *made)])
        else:
            args = tuple([self._operand(part, numbered, made) for part in call.args])
        self._add(Step(op=call.op, args=args, name=node.name))
        return tuple(made) if isinstance(result, tuple) else made[0]

    def _where_wanted(self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], result: Any) -> Any:
        """None where it would be copied there, and that would take longer than to look it up on every replay."""
        if not isinstance(result, torch.Tensor) or not kernels.fills_its_storage(result):
            return None
        if traits.placed == "copied" and result.nbytes > MOST_COPIED and not self._computed(traits, ordered, result):
            return None
        args, made = self._operands(traits, ordered), self._in_the_pool(result)
        self._add(Step(op=traits.op, args=args, results=(self.ledger.slot(made.root, made.layout),), name=node.name))
        return made

    def _computed(self, traits: Traits, ordered: tuple[Any, ...], result: torch.Tensor) -> bool:
        return self.computes is not None and self.computes(traits.op, mapped(real, ordered), result)

    def _into_buffers(
        self, traits: Traits, numbered: tuple[Any, ...], tensors: list[torch.Tensor]
    ) -> kernels.OutCall | None:
        """Found out once for each operator and form of its arguments: a model has many layers of few forms."""
        # Of torch's operators the arguments say how the results lie.
        form = (traits, form_of(numbered), None if traits.of_torch else form_of(tensors))
        call = self._tried.get(form, _UNTRIED)
        if call is _UNTRIED:
            call = self._tried[form] = kernels.into_buffers(traits.op, mapped(real, numbered), tensors)
        return call

    def _operand(self, part: Any, numbered: tuple[Any, ...], made: list[Held]) -> Any:
        """What stands in a step for a part of an OutCall."""
        if isinstance(part, kernels.Out):
            held = made[part.index]
            return self.ledger.slot(held.root, layout_of(kernels.rows_of(held.tensor)) if part.rows else held.layout)
        if not isinstance(part, kernels.Arg):
            return part
        value = numbered[part.index]
        return (
            self.ledger.slot(value.root, layout_of(value.tensor.view(-1))) if part.flat else self.ledger.operand(value)
        )

    def _empty(self, tensor: torch.Tensor) -> Held:
        """Memory without a value, or with the one that torch fills it with."""
        self.fills = fills_empty_memory()
        made = self._in_the_pool(tensor)
        if self.fills and tensor.numel():
            value = tensor.reshape(-1)[0].clone()
            filling = Root(kind="constant", nbytes=value.element_size(), tensor=value)
            args = self.ledger.operand(made), self.ledger.slot(filling, layout_of(value))
            self._add(Step(op=torch.ops.aten.fill_.Tensor, args=args))
        return made

    def _in_the_pool(self, tensor: torch.Tensor) -> Held:
        return self.ledger.adopt(Held(tensor, Root(kind="pool", nbytes=tensor.untyped_storage().nbytes())))

    # -- what needs no kernel, or a fresh value of one

    def _operands(self, traits: Traits, ordered: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([self.ledger.operand(value) for value in self.ledger.numbered(traits, ordered)])

    def _view(self, result: Any, read: list[Held]) -> Any:
        self.views += 1
        return self._placed(result, read)

    def _placed(self, result: Any, among: Sequence[Held]) -> Any:
        """Each tensor as it is held already, over the memory that is known, or else in a register."""

        def place(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            if held := next((held for held in among if held.tensor is tensor), None):
                return held
            root = self.ledger.root_of(tensor)
            if root is None or root.kind == "fresh":
                return self.ledger.into_register(tensor)
            return Held(tensor, root)

        return mapped(place, result)

    def _constant(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        root = self.ledger.root_of(tensor)
        if root is None:
            root = Root(kind="constant", nbytes=tensor.untyped_storage().nbytes(), tensor=tensor)
            self.births.append((len(self.steps), root))
        return self.ledger.adopt(Held(tensor, root))

    def _fresh(self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], result: Any) -> Any:
        args = self._operands(traits, ordered)
        held = mapped(self.ledger.into_register, result)
        looked_at = self._looked_at(node, traits, result)
        step = self._add(Step(op=traits.op, args=args, results=registers_of(held), name=node.name, **looked_at))
        self._launched(node, traits, step, flat(held))
        return held

    def _mutation(
        self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], result: Any, written: list[Held]
    ) -> Any:
        args = self._operands(traits, ordered)
        known = {id(held) for held in written}
        placed = self._placed(result, written)
        returned = placed if isinstance(placed, tuple) else () if placed is None else (placed,)
        if any(isinstance(r, list) for r in returned):
            raise gate.refused(node, "an operator that writes its arguments and returns a list.")
        # What lies in a known place needs no register; the executor drops it.
        results = tuple(None if not isinstance(r, Held) or id(r) in known else r.register for r in returned)
        reads = self._landed(written) if facts(traits.op).waits else ()
        looked_at = self._looked_at(node, traits, result)
        step = self._add(Step(op=traits.op, args=args, results=results, name=node.name, reads=reads, **looked_at))
        self._launched(node, traits, step, written)
        return placed

    def _looked_at(self, node: fx.Node, traits: Traits, result: Any) -> _LookedAt:
        """Of an operator that is not torch's own: what replays compare its results with, and what is left to do."""
        if not traits.may_keep:
            return {}
        return {"returns": forms_of(result), "rest": self.rest(node)}

    def _launched(self, node: fx.Node, traits: Traits, step: Step, filled: Sequence[Any]) -> None:
        """A collective fills its result, and reads its operands, on its own until something waits for it."""
        if facts(traits.op).collective:
            self.flying.update({id(held.root): (node, step) for held in filled if isinstance(held, Held)})

    def _landed(self, awaited: Sequence[Held]) -> tuple[PlanSlot | Register, ...]:
        """What the collectives read that are now waited for."""
        landed = [self.flying.pop(id(held.root)) for held in awaited if id(held.root) in self.flying]
        return tuple(dict.fromkeys(operand for _, step in landed for operand in step.operands))

    def _add(self, step: Step) -> Step:
        self.steps.append(issued := self.issue.step(step))
        return issued


def _is_row_of(result: Any, tensors: list[torch.Tensor]) -> bool:
    return isinstance(result, tuple) and len(result) == len(tensors) and all(map(operator.is_, result, tensors))


def _check_still_there(node: fx.Node, operands: Sequence[Any]) -> None:
    for operand in operands:
        if isinstance(operand, torch.Tensor) and operand.layout is torch.strided and gate.why_no_memory(operand):
            raise gate.refused(node, "it frees the memory of what it is given.")
