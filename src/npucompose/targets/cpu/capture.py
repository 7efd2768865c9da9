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
)
from npucompose.targets.cpu.memory import alias_of
from npucompose.targets.cpu.outputs import Outputs
from npucompose.targets.cpu.plan import Buffer, Layout, Plan, Root, Step, lifetimes, mapped
from npucompose.targets.cpu.pool import ALIGNMENT

aten = torch.ops.aten
_MARKERS = frozenset({"scope_enter", "scope_exit", "record", "wait"})
_ARITHMETIC = frozenset({"_operator", "operator", "math", "builtins"})
_RESIZING = frozenset({"resize_", "resize_as_", "set_", "resize_output_"})


def record(graph_module: fx.GraphModule, inputs: Sequence[Any], alone: Alone | None = None) -> Plan:
    """The plan of `graph_module` for the signature of `inputs`.

    With `alone` each kernel of a graph with streams is also tried without threads of its own (`Plan.unlike_alone`).
    Raises CaptureError for what a recording cannot follow. Afterwards memory and RNG are as they were.
    """
    for index, value in enumerate(inputs):
        refusals.check_input(index, value)
    with torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
        seed = torch.get_rng_state()
        issue = Issue.of(graph_module.graph)
        trial = Trial(alone) if alone is not None and issue.has_streams else None
        recorder = Recorder(graph_module=graph_module, sharing=sharing(inputs), issue=issue, trial=trial)
        try:
            return recorder.run(inputs)
        finally:
            recorder.restore()
            torch.set_rng_state(seed)


@define(kw_only=True, eq=False)
class Recorder:
    graph_module: fx.GraphModule
    sharing: frozenset[int]
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
    tried: dict[str, bool] = field(factory=dict)
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
        args, kwargs = mapped(self._known, node.args), mapped(self._known, node.kwargs)
        target = node.target
        if not isinstance(target, OpOverload):
            self.env[node] = self._arithmetic(node, args, kwargs)
        elif target.namespace == "air" and target._schema.name.split("::")[1] in _MARKERS:
            self.env[node] = None
        elif in_place is not None and target in reinplace.VIEW_OF_SCATTER:
            self.env[node] = self._write_view(node, target, args, kwargs)
        elif in_place is not None:
            self.env[node] = self._operator(node, in_place, args, kwargs)
        else:
            self.env[node] = self._operator(node, target, args, kwargs)
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
        real_args, real_kwargs = mapped(real, args), mapped(real, kwargs)
        refusals.check_operator(node, op, real_args, real_kwargs)
        ordered = kernels.schema_order(op, args, kwargs)
        written = self._about_to_write(node, op, ordered)
        for generator in _generators((real_args, real_kwargs)) if kernels.takes_a_generator(op) else ():
            self.generators.append((generator, generator.get_state()))
        if self.trial is not None:
            self.trial.see(op, real_args, real_kwargs)
        before = None if kernels.says_whether_it_draws(op) else torch.get_rng_state()
        try:
            result = op(*real_args, **real_kwargs)
        except Exception as error:
            raise refusals.refused(node, f"it fails on the given inputs: {error}") from error
        seeded = kernels.draws(op) if before is None else not torch.equal(before, torch.get_rng_state())
        self.issue.draws = seeded
        read = [leaf for leaf in flat(ordered) if isinstance(leaf, Held)]
        if op._schema.name.startswith("aten::as_strided"):
            self._count_from_the_storage(read, result)
        refusals.check_result(node, op, flat(result), bool(read))
        if written:
            return self._mutation(node, op, ordered, result, written)
        return self._value(node, op, ordered, result, read, seeded)

    def _count_from_the_storage(self, read: list[Held], result: Any) -> None:
        """as_strided names elements of the whole storage, also outside its input: such an input cannot be copied."""
        for root in {id(held.root): held.root for held in read if held.root.kind == "input"}.values():
            assert root.tensor is not None
            whole = Layout.of(root.tensor).span()
            inside = all(Layout.of(t).span()[1] <= whole[1] for t in flat(result) if isinstance(t, torch.Tensor))
            (self.from_zero if inside and root.tensor.storage_offset() == 0 else self.pinned).add(root.index)

    def _value(
        self, node: fx.Node, op: OpOverload, ordered: tuple[Any, ...], result: Any, read: list[Held], seeded: bool
    ) -> Any:
        tensors = [leaf for leaf in flat(result) if isinstance(leaf, torch.Tensor)]
        if not tensors and not (result is None and read):
            return result  # a number that the signature decides
        shared = [self.ledger.root_of(tensor) for tensor in tensors]
        if tensors and all(root is not None and root.kind != "fresh" for root in shared):
            return self._view(op, result, ordered, read)
        if tensors and not any(shared) and not seeded:
            if kernels.is_uninitialised(op):
                return mapped(
                    lambda t: self.ledger.adopt(Held(t, Root(kind="pool", nbytes=t.untyped_storage().nbytes()))),
                    result,
                )
            if kernels.may_be_constant(op) and all(h.root.kind == "constant" and not h.root.written for h in read):
                return mapped(self._constant, result)
            call = self._into_buffers(op, ordered, result, tensors)
            if call is not None:
                return self._kernel(node, call, result, tensors)
        return self._fresh(node, op, ordered, result)

    def _view(self, op: OpOverload, result: Any, ordered: tuple[Any, ...], read: list[Held]) -> Any:
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

    def _into_buffers(
        self, op: OpOverload, ordered: tuple[Any, ...], result: Any, tensors: list[torch.Tensor]
    ) -> kernels.OutCall | None:
        if op._schema.is_mutable or len(flat(result)) != len(tensors) or isinstance(result, list):
            return None
        numbered = numbers_as_tensors(op, ordered)
        call = kernels.into_buffers(op, mapped(real, numbered), tensors)
        if call is None or not self._gives_the_same_bytes(call, tensors):
            return None
        # The same call, on the recorder's values in place of the real tensors.
        back = {id(held.tensor): held for held in flat(numbered) if isinstance(held, Held)}
        flattened = [a for a in flat(call.args) if isinstance(a, torch.Tensor) and id(a) not in back]
        if any(self.ledger.roots[storage_of(view)].kind == "fresh" for view in flattened):
            return None
        return kernels.OutCall(op=call.op, args=mapped(lambda a: back.get(id(a), a), call.args))

    def _gives_the_same_bytes(self, call: kernels.OutCall, tensors: list[torch.Tensor]) -> bool:
        """Tried once for each operator and form of its arguments: a model has many layers of few forms."""
        form = (call.op, mapped(_form, call.args), tuple(map(_form, tensors)))
        known = self.tried.get(key := repr(form))
        if known is None:
            known = self.tried[key] = kernels.gives_the_same_bytes(call, tensors)
        return known

    def _kernel(self, node: fx.Node, call: kernels.OutCall, result: Any, tensors: list[torch.Tensor]) -> Any:
        made = {
            id(t): self.ledger.adopt(Held(t, Root(kind="pool", nbytes=t.untyped_storage().nbytes()))) for t in tensors
        }

        def operand(argument: Any) -> Any:
            if isinstance(argument, kernels.Out):
                held = made[id(tensors[argument.index])]
                rows = held.tensor.view(-1, held.tensor.shape[-1]) if argument.rows else held.tensor
                return self.ledger.slot(held.root, Layout.of(rows))
            if isinstance(argument, torch.Tensor):  # a flat view that the kernel asked for
                return self.ledger.slot(self.ledger.roots[storage_of(argument)], Layout.of(argument))
            return self.ledger.operand(argument)

        self._add(Step(op=call.op, args=mapped(operand, call.args), name=node.name))
        return mapped(lambda t: made[id(t)], result)

    def _fresh(self, node: fx.Node, op: OpOverload, ordered: tuple[Any, ...], result: Any) -> Any:
        args = mapped(self.ledger.operand, numbers_as_tensors(op, ordered))
        held = mapped(self.ledger.into_register, result)
        self._add(Step(op=op, args=args, results=registers_of(held), name=node.name))
        return held

    def _add(self, step: Step) -> None:
        self.steps.append(self.issue.step(step))

    # -- mutation

    def _about_to_write(self, node: fx.Node, op: OpOverload, ordered: tuple[Any, ...]) -> list[Held]:
        """Back up what `op` is going to write, where it outlives the run, and note that it is written."""
        if not op._schema.is_mutable:
            return []
        if op._schema.name.split("::")[1] in _RESIZING:
            raise refusals.refused(node, "it moves a tensor to other memory, and a recording has fixed memory.")
        written = [
            held
            for argument, value in zip(op._schema.arguments, ordered, strict=True)
            if argument.alias_info is not None and argument.alias_info.is_write
            for held in flat(value)
            if isinstance(held, Held)
        ]
        for held in written:
            root = held.root
            if root.kind in ("input", "attribute"):
                self.backups.append(_backup(held.tensor))
            elif root.kind == "constant" and not root.written:
                self.pristine[id(root)] = bytes_of(held.tensor.untyped_storage()).clone()
            root.written = True
        return written

    def _mutation(
        self, node: fx.Node, op: OpOverload, ordered: tuple[Any, ...], result: Any, written: list[Held]
    ) -> Any:
        args = mapped(self.ledger.operand, numbers_as_tensors(op, ordered))

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
        self._add(Step(op=op, args=args, results=results, name=node.name))
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
    """What tells two arguments of a kernel apart, but for the values of tensors."""
    if not isinstance(value, torch.Tensor):
        return (type(value).__name__, value)
    return (
        value.dtype,
        tuple(value.shape),
        value.stride(),
        value.data_ptr() % ALIGNMENT,
        value.is_conj(),
        value.is_neg(),
    )


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
