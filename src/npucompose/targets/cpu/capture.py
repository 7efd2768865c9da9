"""Run an FX graph once on real values and write down what a replay has to do; inputs and RNG are restored.

Three things happen to a node: it is resolved (views, arithmetic on numbers, constants), it becomes a kernel that writes
into a fixed buffer, or a kernel that makes a fresh value on every replay (a Register) because torch has no real
`.out` form of it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.errors import CaptureError
from npucompose.targets.cpu import kernels, refusals, reinplace
from npucompose.targets.cpu.alone import Alone, Trial
from npucompose.targets.cpu.inputs import sharing
from npucompose.targets.cpu.issue import Issue
from npucompose.targets.cpu.ledger import (
    Held,
    Ledger,
    bytes_of,
    flat,
    numbers_as_tensors,
    real,
    registers_of,
    storage_of,
    unheld,
)
from npucompose.targets.cpu.memory import alias_of
from npucompose.targets.cpu.outputs import Outputs
from npucompose.targets.cpu.plan import CONTAINERS, Buffer, Layout, Plan, Root, Step, lifetimes, mapped
from npucompose.targets.cpu.pool import ALIGNMENT
from npucompose.targets.cpu.traits import Traits, traits_of
from npucompose.targets.cpu.undisturbed import under, undisturbed

aten = torch.ops.aten
_UNTRIED: Any = object()
_ARITHMETIC = frozenset({"_operator", "operator", "math", "builtins"})


def record(graph_module: fx.GraphModule, inputs: Sequence[Any], alone: Alone | None = None) -> Plan:
    """The plan of `graph_module` for the signature of `inputs`.

    With `alone` each kernel of a graph with streams is also tried without threads of its own (`Plan.unlike_alone`).
    Raises CaptureError for what a recording cannot follow. Afterwards memory and RNG are as they were.
    """
    for index, value in enumerate(inputs):
        refusals.check_input(index, value)
    with undisturbed() as modes:
        seed = torch.get_rng_state()
        issue = Issue.of(graph_module.graph)
        trial = Trial(alone) if alone is not None and issue.has_streams else None
        recorder = Recorder(graph_module=graph_module, sharing=sharing(inputs), modes=modes, issue=issue, trial=trial)
        try:
            return recorder.run(inputs)
        finally:
            recorder.restore()
            torch.set_rng_state(seed)


@define(kw_only=True, eq=False)
class Recorder:
    graph_module: fx.GraphModule
    sharing: frozenset[int]
    modes: Sequence[TorchDispatchMode]
    """What looks at operators that are not torch's own."""
    issue: Issue
    trial: Trial | None
    steps: list[Step] = field(factory=list)
    env: dict[fx.Node, Any] = field(factory=dict)
    ledger: Ledger = field(factory=Ledger)
    backups: list[tuple[torch.Tensor, torch.Tensor]] = field(factory=list)
    generators: list[tuple[torch.Generator, torch.Tensor]] = field(factory=list)
    pristine: dict[int, torch.Tensor] = field(factory=dict)
    """Constants that a step writes: id(root) -> their bytes before."""
    births: list[tuple[int, Root]] = field(factory=list)
    """(step before which it is made, constant root)."""
    pinned: set[int] = field(factory=set)
    from_zero: set[int] = field(factory=set)
    tried: dict[Any, kernels.OutCall | None] = field(factory=dict)
    """By operator and form of its arguments and results: the call into buffers that gives the same bytes."""
    views: int = 0

    # -- the run

    def run(self, inputs: Sequence[Any]) -> Plan:
        graph = self.graph_module.graph
        found = reinplace.find(graph, self.sharing)
        dying = _last_uses(graph)
        given = iter(enumerate(inputs))
        for node in graph.nodes:
            self.issue.node(node)
            if node.op == "placeholder":
                self._placeholder(node, *next(given))
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                return self._finish(node)
            elif node in found.dropped:
                self.env[node] = self.env[node.args[0]]  # type: ignore[index]
                self.ledger.hold(self.env[node])
            else:
                refusals.check_target(node)
                self._call(node, found.in_place.get(node))
            self.issue.done(node)
            for dead in dying.get(node, ()):
                self.ledger.release(self.env.pop(dead, None))
        raise CaptureError("cannot capture a graph without an output node.")

    def restore(self) -> None:
        for place, bytes_before in reversed(self.backups):
            place.copy_(bytes_before)
        for generator, state in reversed(self.generators):
            generator.set_state(state)
        self.backups.clear()
        self.generators.clear()

    def _placeholder(self, node: fx.Node, index: int, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            self.env[node] = value
            return
        alias = alias_of(value)
        root = Root(kind="input", nbytes=alias.untyped_storage().nbytes(), tensor=alias, index=index)
        self.env[node] = self.ledger.adopt(Held(alias, root, whole_input=index))

    def _attribute(self, node: fx.Node) -> None:
        value: Any = self.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.env[node] = value
            return
        alias = alias_of(value)
        self.ledger.kept.append(alias)
        root = Root(kind="attribute", nbytes=alias.untyped_storage().nbytes(), tensor=value)
        self.env[node] = self.ledger.adopt(Held(alias, root))

    # -- one node

    def _known(self, argument: Any) -> Any:
        return self.env[argument] if isinstance(argument, fx.Node) else argument

    def _call(self, node: fx.Node, in_place: OpOverload | None) -> None:
        args = mapped(self._known, node.args)
        kwargs = mapped(self._known, node.kwargs) if node.kwargs else {}
        target = node.target
        if not isinstance(target, OpOverload):
            self.env[node] = self._arithmetic(node, args, kwargs)
        elif traits_of(target).marks:
            self.env[node] = None
        elif in_place is not None and target in reinplace.VIEW_OF_SCATTER:
            self.env[node] = self._write_view(node, target, args, kwargs)
        else:
            self.env[node] = self._operator(node, in_place or target, args, kwargs)
        self.ledger.hold(self.env[node])

    def _arithmetic(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """getitem and arithmetic on numbers: their values belong to the signature."""
        target: Any = node.target
        if target is not operator.getitem:
            if any(isinstance(leaf, Held) for leaf in flat((args, kwargs))):
                raise refusals.refused(node, "a Python function on a tensor is not an operator that can be replayed.")
            name = getattr(target, "__name__", "")
            if target.__module__ not in _ARITHMETIC and not name.lstrip("_").startswith("sym_"):
                raise refusals.refused(node, "it is neither an operator nor arithmetic on numbers.")
        return target(*args, **kwargs)

    def _write_view(self, node: fx.Node, scatter: OpOverload, args: Any, kwargs: Any) -> Any:
        """`slice_scatter(x, src, …)` in place: `slice(x, …).copy_(src)`; the value is x."""
        whole, source, *rest = args
        view = self._operator(node, reinplace.VIEW_OF_SCATTER[scatter], [whole, *rest], kwargs)
        self._operator(node, aten.copy_.default, [view, source], {})
        return whole

    def _operator(self, node: fx.Node, op: OpOverload, args: Any, kwargs: Any) -> Any:
        traits = traits_of(op)
        real_args, read = unheld(args)
        real_kwargs = {}
        if kwargs:
            real_kwargs = mapped(real, kwargs)
            read += [leaf for leaf in flat(kwargs) if isinstance(leaf, Held)]
        if traits.may_depend_on_data:
            refusals.check_operator(node, op, real_args, real_kwargs)
        ordered = traits.in_order(args, kwargs)
        written = self._about_to_write(node, traits, ordered) if traits.mutable else []
        for generator in _generators((real_args, real_kwargs)) if traits.takes_generator else ():
            self.generators.append((generator, generator.get_state()))
        if self.trial is not None:
            self.trial.see(op, real_args, real_kwargs)
        before = None if traits.of_torch else torch.get_rng_state()
        try:
            result = (
                op(*real_args, **real_kwargs)
                if traits.of_torch or not self.modes
                else under(self.modes, op, *real_args, **real_kwargs)
            )
        except Exception as error:
            raise refusals.refused(node, f"it fails on the given inputs: {error}") from error
        seeded = traits.draws if before is None else not torch.equal(before, torch.get_rng_state())
        self.issue.draws = seeded
        if traits.is_as_strided:
            self._count_from_the_storage(read, result)
        leaves = flat(result)
        refusals.check_result(node, op, leaves, bool(read))
        if written:
            return self._mutation(node, traits, ordered, result, written)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors and not (result is None and read):
            return result  # a number that the signature decides
        shared = [self.ledger.root_of(tensor) for tensor in tensors]
        if tensors and all(root is not None and root.kind != "fresh" for root in shared):
            return self._view(result, read)
        if tensors and not any(shared) and not seeded:
            found = self._fixed(node, traits, ordered, read, result, tensors)
            if found is not None:
                return found
        return self._fresh(node, op, ordered, result)

    def _count_from_the_storage(self, read: list[Held], result: Any) -> None:
        """as_strided names elements of the whole storage, also outside its input: such an input cannot be copied."""
        for root in {id(held.root): held.root for held in read if held.root.kind == "input"}.values():
            assert root.tensor is not None
            whole = Layout.of(root.tensor).span()
            inside = all(Layout.of(t).span()[1] <= whole[1] for t in flat(result) if isinstance(t, torch.Tensor))
            (self.from_zero if inside and root.tensor.storage_offset() == 0 else self.pinned).add(root.index)

    def _fixed(
        self,
        node: fx.Node,
        traits: Traits,
        ordered: tuple[Any, ...],
        read: list[Held],
        result: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        """The result in memory that stays the same from replay to replay; None where there is no way to that."""
        if traits.uninitialised:
            return mapped(self._in_the_pool, result)
        if traits.may_be_constant and all(h.root.kind == "constant" and not h.root.written for h in read):
            return mapped(self._constant, result)
        if traits.mutable or not (isinstance(result, torch.Tensor) or _is_row_of(result, tensors)):
            return None
        numbered = numbers_as_tensors(traits, ordered)
        call = self._into_buffers(traits, numbered, tensors)
        if call is None or (call.flattened is not None and numbered[call.flattened].root.kind == "fresh"):
            return None
        made = [self._in_the_pool(tensor) for tensor in tensors]
        args = tuple([self._operand(part, numbered, made) for part in call.args])
        self._add(Step(op=call.op, args=args, name=node.name))
        return tuple(made) if isinstance(result, tuple) else made[0]

    def _into_buffers(
        self, traits: Traits, numbered: tuple[Any, ...], tensors: list[torch.Tensor]
    ) -> kernels.OutCall | None:
        """Found out once for each operator and form of its arguments: a model has many layers of few forms."""
        # Of torch's operators the arguments say how the results lie.
        form = (traits.op, *map(_form, numbered), *(() if traits.of_torch else map(_form, tensors)))
        call = self.tried.get(form, _UNTRIED)
        if call is _UNTRIED:
            call = self.tried[form] = kernels.into_buffers(traits.op, mapped(real, numbered), tensors)
        return call

    def _operand(self, part: Any, numbered: tuple[Any, ...], made: list[Held]) -> Any:
        """What stands in a step for a part of an OutCall."""
        if isinstance(part, kernels.Out):
            held = made[part.index]
            return self.ledger.slot(held.root, Layout.of(kernels.rows_of(held.tensor)) if part.rows else held.layout)
        if not isinstance(part, kernels.Arg):
            return part
        value = numbered[part.index]
        if part.flat:
            return self.ledger.slot(value.root, Layout.of(value.tensor.view(-1)))
        return mapped(self.ledger.operand, value) if isinstance(value, CONTAINERS) else self.ledger.operand(value)

    def _in_the_pool(self, tensor: torch.Tensor) -> Held:
        return self.ledger.adopt(Held(tensor, Root(kind="pool", nbytes=tensor.untyped_storage().nbytes())))

    def _view(self, result: Any, read: list[Held]) -> Any:
        self.views += 1

        def place(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            for held in read:
                if held.tensor is tensor:
                    return held
            return Held(tensor, self.ledger.roots[storage_of(tensor)])

        return mapped(place, result)

    def _constant(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        root = self.ledger.root_of(tensor)
        if root is None:
            root = Root(kind="constant", nbytes=tensor.untyped_storage().nbytes(), tensor=tensor)
            self.births.append((len(self.steps), root))
        return self.ledger.adopt(Held(tensor, root))

    def _fresh(self, node: fx.Node, op: OpOverload, ordered: tuple[Any, ...], result: Any) -> Any:
        args = mapped(self.ledger.operand, numbers_as_tensors(traits_of(op), ordered))
        held = mapped(self.ledger.into_register, result)
        self._add(Step(op=op, args=args, results=registers_of(held), name=node.name))
        return held

    def _add(self, step: Step) -> None:
        self.steps.append(self.issue.step(step))

    # -- mutation

    def _about_to_write(self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...]) -> list[Held]:
        """Back up what is going to be written, where it outlives the run, and note that it is written."""
        if traits.resizes:
            raise refusals.refused(node, "it moves a tensor to other memory, and a recording has fixed memory.")
        written = [held for i in traits.written for held in flat(ordered[i]) if isinstance(held, Held)]
        for held in written:
            root = held.root
            if root.kind in ("input", "attribute"):
                self.backups.append(_backup(held.tensor))
            elif root.kind == "constant" and not root.written:
                self.pristine[id(root)] = bytes_of(held.tensor.untyped_storage()).clone()
            root.written = True
        return written

    def _mutation(
        self, node: fx.Node, traits: Traits, ordered: tuple[Any, ...], result: Any, written: list[Held]
    ) -> Any:
        args = mapped(self.ledger.operand, numbers_as_tensors(traits, ordered))

        def place(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            for held in written:
                if held.tensor is tensor:
                    return held
            root = self.ledger.root_of(tensor)
            if root is not None and root.kind != "fresh":
                return Held(tensor, root)
            return self.ledger.into_register(tensor)

        known = {id(held) for held in written}
        placed = mapped(place, result)
        returned = placed if isinstance(placed, tuple) else () if placed is None else (placed,)
        if any(isinstance(r, list) for r in returned):
            raise refusals.refused(node, "an operator that writes its arguments and returns a list.")
        # What lies in a known place needs no register; the executor drops it.
        results = tuple(None if not isinstance(r, Held) or id(r) in known else r.register for r in returned)
        self._add(Step(op=traits.op, args=args, results=results, name=node.name))
        return placed

    # -- the end

    def _finish(self, node: fx.Node) -> Plan:
        returned = mapped(self._known, node.args[0])
        listed = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        ending = Outputs(ledger=self.ledger, steps=self.steps, pristine=self.pristine, births=self.births)
        outputs = ending.of(node, listed)
        inserted = ending.written_constants()
        steps = [step for i, step in enumerate(self.steps) for step in (*inserted.get(i, ()), step)]
        steps += inserted.get(len(self.steps), ())
        used = lifetimes(steps, self.ledger.register_roots)
        known = {id(root) for root in used}
        for output in outputs:
            if isinstance(output, Buffer) and id(output.slot.root) not in known:
                known.add(id(output.slot.root))
                used.append(output.slot.root)
        return Plan(
            steps=tuple(steps),
            outputs=tuple(outputs),
            roots=tuple(used),
            pinned=frozenset(self.pinned),
            from_zero=frozenset(self.from_zero),
            register_roots=self.ledger.register_roots,
            views_resolved=self.views,
            constants=sum(1 for root in used if root.kind == "constant"),
            unlike_alone=self.trial.unlike if self.trial is not None else "",
        )


def _form(value: Any) -> Any:
    """What tells two arguments of a kernel apart, but for the values of tensors; 0.0 is not -0.0 and 1 not True."""
    if isinstance(value, Held):
        return value.form
    if isinstance(value, torch.Tensor):
        return Layout.of(value), value.data_ptr() % ALIGNMENT
    if isinstance(value, CONTAINERS):
        return type(value).__name__, repr(value) if isinstance(value, slice) else tuple(map(_form, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def _is_row_of(result: Any, tensors: list[torch.Tensor]) -> bool:
    return isinstance(result, tuple) and len(result) == len(tensors) and all(map(operator.is_, result, tensors))


def _generators(structure: Any) -> list[torch.Generator]:
    return [leaf for leaf in flat(structure) if isinstance(leaf, torch.Generator)]


def _backup(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = Layout.of(tensor).span()
    place = bytes_of(tensor.untyped_storage())[low:high]
    return place, place.clone()


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """node -> the nodes whose value nobody needs after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last.setdefault(node, node)
        for used in node.all_input_nodes:
            last[used] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node, at in last.items():
        dying.setdefault(at, []).append(node)
    return dying
