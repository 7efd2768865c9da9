"""Run an FX graph once on real values and write down what a replay has to do.

The walk over the graph: inputs, attributes, arithmetic on numbers, how long each value is needed, the plan at the end.
What a call of an operator becomes is decided by `calls`.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from attrs import define, field
from torch import fx
from torch._ops import OpOverload

from npucompose.errors import CaptureError
from npucompose.graphs.effects import orders_streams, stream_labels
from npucompose_replay import gate
from npucompose_replay.capture import updates
from npucompose_replay.capture.calls import Calls, no_rest
from npucompose_replay.capture.issue import Issue
from npucompose_replay.capture.kernels import OneThread, SingleThreadCheck, Undo
from npucompose_replay.capture.ledger import CaptureLedger, Held, OutputPlanner
from npucompose_replay.gate import NOT_RUN, isolated_capture
from npucompose_replay.operands import (
    CONTAINERS,
    alias_of,
    flat,
    is_plain,
    laid_over,
    layout_of,
    mapped,
    relative,
    sharing,
    traits_of,
)
from npucompose_replay.plan import Buffer, Plan, RestOfGraph, Root, SameAsInput, ViewOfInput, lifetimes

R = TypeVar("R", bound="GraphRecorder")
aten = torch.ops.aten
_ARITHMETIC = frozenset({"_operator", "operator", "math", "builtins"})


def record(graph_module: fx.GraphModule, inputs: Sequence[Any], one_thread: OneThread | None = None) -> Plan:
    """The plan of `graph_module` for the signature of `inputs`. Afterwards memory and RNG are as they were.

    With `one_thread` each kernel of a graph with streams is also tried on a single thread (`Plan.thread_sensitive`).
    Raises CaptureError for what a recording cannot follow.
    """
    with recorder_of(graph_module, inputs, one_thread, GraphRecorder) as recorder:
        return recorder.run(inputs)


def record_call(
    graph_module: fx.GraphModule, inputs: Sequence[Any], one_thread: OneThread | None = None, *, finish: bool = False
) -> tuple[Plan, list[Any]]:
    """`record`, and the results of the run that was recorded, which counts: what it wrote and drew stays so.

    Every operator runs once. The results lie in memory of their own. On CaptureError memory and RNG are as they were;
    with `finish` the run goes on from a node that was refused, without being recorded: `Refused.outputs`.
    """
    inference = torch.is_inference_mode_enabled()

    def returned(values: Sequence[Any]) -> list[Any]:
        return [for_inference(value) if inference else value for value in values]

    with recorder_of(graph_module, inputs, one_thread, GraphRecorder) as recorder:
        try:
            plan = recorder.run(inputs)
        except gate.Refused as refusal:
            if finish and refusal.node is not None:
                refusal.outputs = returned(recorder.finish(refusal, inputs))
                recorder.commit(inputs)
            raise
        results = recorder.results(inputs)
        recorder.commit(inputs)
    return plan, returned(results)


@contextlib.contextmanager
def recorder_of(
    graph_module: fx.GraphModule, inputs: Sequence[Any], one_thread: OneThread | None, kind: type[R]
) -> Iterator[R]:
    """What a run changed is undone, unless it was committed."""
    for index, value in enumerate(inputs):
        gate.check_input(index, value)
    with isolated_capture() as modes:
        seed = torch.get_rng_state()
        graph, ledger, undo = graph_module.graph, CaptureLedger(), Undo()
        issue = Issue(stream_labels(graph) if orders_streams(graph) else None)
        check = SingleThreadCheck(one_thread) if one_thread is not None and issue.has_streams else None
        calls = Calls(ledger=ledger, issue=issue, undo=undo, single_thread=check, given=inputs, modes=modes)
        recorder = kind(graph_module=graph_module, ledger=ledger, issue=issue, calls=calls)
        calls.rest = recorder.rest
        try:
            yield recorder
        finally:
            calls.rest = no_rest  # otherwise both would live, with all values, until a collection
            if not recorder.committed:
                undo.restore()
                torch.set_rng_state(seed)


def for_inference(value: Any) -> Any:
    """A result as inference mode gives it: the same memory, without a history to come."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return value
    with torch.inference_mode():
        return layout_of(value).over(value.untyped_storage())


@define(kw_only=True, eq=False)
class GraphRecorder:
    graph_module: fx.GraphModule
    ledger: CaptureLedger
    issue: Issue
    calls: Calls
    env: dict[fx.Node, Any] = field(factory=dict)
    dying: dict[fx.Node, list[fx.Node]] = field(factory=dict)
    returned: list[Any] = field(factory=list)
    """The values of the graph's outputs, tensors as Held."""
    committed: bool = False
    """Whether what the run wrote and drew is to stay."""

    def run(self, inputs: Sequence[Any]) -> Plan:
        graph = self.graph_module.graph
        found = updates.find(graph, sharing(inputs))
        self.dying = dying = last_uses(graph)
        given = iter(enumerate(inputs))
        for node in graph.nodes:
            self.issue.node(node)
            if node.op == "call_function" and node not in found.dropped:
                self.env[node] = self._call(node, found.in_place.get(node))
            elif node.op == "placeholder":
                self.env[node] = self._placeholder(*next(given))
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                return self._plan(node)
            elif node in found.dropped:
                self.env[node] = self._known(node.args[0])
            else:
                raise gate.not_a_call(node)
            self.ledger.hold(self.env[node])
            self.issue.done(node)
            for dead in dying.get(node, ()):
                self.ledger.release(self.env.pop(dead, None))
        raise CaptureError("cannot capture a graph without an output node.")

    def _placeholder(self, index: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        alias = alias_of(value)
        root = Root(kind="input", nbytes=alias.untyped_storage().nbytes(), tensor=alias, index=index)
        return self.ledger.adopt(Held(alias, root, whole_input=index))

    def _attribute(self, node: fx.Node) -> Any:
        value = attribute(self.graph_module, node)
        if (
            not isinstance(value, torch.Tensor) or value.layout is not torch.strided
        ):  # a library's own: nobody looks into
            return value
        alias = alias_of(value)
        self.ledger.alive.append(alias)
        root = Root(kind="attribute", nbytes=alias.untyped_storage().nbytes(), tensor=value)
        return self.ledger.adopt(Held(alias, root))

    def _known(self, argument: Any) -> Any:
        """An argument as the graph names it -> its value; what names no node stays as it is."""
        if isinstance(argument, fx.Node):
            return self.env[argument]
        if isinstance(argument, CONTAINERS) and not is_plain(argument):
            return mapped(self._known, argument)
        return argument

    def _call(self, node: fx.Node, in_place: OpOverload | None) -> Any:
        env = self.env
        args = [env[part] if isinstance(part, fx.Node) else self._known(part) for part in node.args]
        kwargs = self._known(node.kwargs) if node.kwargs else {}
        target = node.target
        if not isinstance(target, OpOverload):
            return self._arithmetic(node, args, kwargs)
        if traits_of(target).marks:
            return None
        if in_place is not None and target in updates.VIEW_OF_SCATTER:
            return self._write_view(node, target, args, kwargs)
        return self.calls.record(node, in_place or target, args, kwargs)

    def _arithmetic(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """getitem and arithmetic on numbers: their values belong to the signature."""
        gate.check_target(node)
        target: Any = node.target
        if target is not operator.getitem:
            if any(isinstance(leaf, Held) for leaf in flat((args, kwargs))):
                raise gate.refused(node, "a Python function on a tensor is not an operator that can be replayed.")
            name = getattr(target, "__name__", "")
            if target.__module__ not in _ARITHMETIC and not name.lstrip("_").startswith("sym_"):
                raise gate.refused(node, "it is neither an operator nor arithmetic on numbers.")
        return target(*args, **kwargs)

    def _write_view(self, node: fx.Node, scatter: OpOverload, args: Any, kwargs: Any) -> Any:
        """`slice_scatter(x, src, …)` in place: `slice(x, …).copy_(src)`; the value is x."""
        whole, source, *rest = args
        view = self.calls.record(node, updates.VIEW_OF_SCATTER[scatter], [whole, *rest], kwargs)
        self.calls.record(node, aten.copy_.default, [view, source], {})
        return whole

    def _plan(self, node: fx.Node) -> Plan:
        returned = self._known(node.args[0])
        self.returned = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        return self.planned(node, self.returned)

    def planned(self, node: fx.Node, listed: Sequence[Any]) -> Plan:
        """What was recorded, with the outputs `listed`; errors name `node`."""
        calls = self.calls
        if calls.flying:
            collective, _ = next(iter(calls.flying.values()))
            refusal = gate.refused(collective, "nothing in the graph waits for its result, which a recording reads.")
            refusal.node = node  # everything has run, the collective too
            raise refusal
        ending = OutputPlanner(ledger=self.ledger, steps=calls.steps, pristine=calls.pristine, births=calls.births)
        outputs = ending.describe(node, listed)
        inserted = ending.written_constants()
        steps = [step for i, step in enumerate(calls.steps) for step in (*inserted.get(i, ()), step)]
        steps += inserted.get(len(calls.steps), ())
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
            pinned=frozenset(calls.pinned),
            from_zero=frozenset(calls.from_zero),
            register_roots=self.ledger.register_roots,
            views_resolved=calls.views,
            constants=sum(1 for root in used if root.kind == "constant"),
            fills=calls.fills,
            thread_sensitive=calls.single_thread.unlike if calls.single_thread is not None else "",
        )

    def rest(self, node: fx.Node) -> RestOfGraph | None:
        """What is left of the graph at a node that is recorded now."""
        needed = self.env.keys() - set(self.dying.get(node, ()))
        values = {known: mapped(self._named, value) for known, value in self.env.items() if known in needed}
        return RestOfGraph(module=self.graph_module, node=node, values=values)

    def _named(self, value: Any) -> Any:
        """Where a value is found in a replay."""
        if not isinstance(value, Held):
            return value
        if value.whole_input is not None:
            return SameAsInput(index=value.whole_input)
        if value.root.kind == "input" and value.register is None:
            return ViewOfInput(index=value.root.index, layout=relative(value.tensor, value.root.contents))
        return self.ledger.operand(value)

    # -- the run itself as a call

    def finish(self, refusal: gate.Refused, inputs: Sequence[Any]) -> list[Any]:
        """The results of a run that is recorded no further, from the values that are there."""
        assert refusal.node is not None
        if refusal.__cause__ is not None:
            raise refusal.__cause__  # the model's own error, which eager raises too

        values = {node: mapped(lambda leaf: self._real(leaf, inputs), value) for node, value in self.env.items()}
        return go_on(self.graph_module, refusal.node, values, refusal.result)

    def _real(self, value: Any, inputs: Sequence[Any]) -> Any:
        return self._result(value, inputs) if isinstance(value, Held) else value

    def results(self, inputs: Sequence[Any]) -> list[Any]:
        """What the run returned. A value is one tensor object, however often it is returned."""
        made: dict[int, Any] = {}
        for value in self.returned:
            if id(value) not in made:
                made[id(value)] = self._real(value, inputs)
        return [made[id(value)] for value in self.returned]

    def _result(self, value: Held, inputs: Sequence[Any]) -> Any:
        root, tensor = value.root, value.tensor
        if value.whole_input is not None:
            return inputs[value.whole_input]
        if root.kind == "input":
            return laid_over(inputs[root.index], relative(tensor, root.contents))
        if root.kind == "attribute":
            return root.contents if layout_of(root.contents) == layout_of(tensor) else tensor
        # Also where the recording makes a constant anew on every replay: what lies here is nobody else's.
        return tensor

    def commit(self, inputs: Sequence[Any]) -> None:
        """Let what was written and drawn stay, and let autograd know which inputs changed."""
        self.committed = True
        for held in self.calls.written_inputs.values():
            given = inputs[held.root.index]
            if not given.is_inference():
                torch.autograd.graph.increment_version(given)


def attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    """What a get_attr names."""
    return functools.reduce(getattr, str(node.target).split("."), module)


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """node -> the nodes whose value nobody needs after it."""
    seen: set[fx.Node] = set()
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        last = [used for used in (node, *node._input_nodes) if used not in seen]
        if last:
            dying[node] = last
            seen.update(last)
    return dying


def go_on(module: fx.GraphModule, begin: fx.Node, values: dict[fx.Node, Any], result: Any = NOT_RUN) -> list[Any]:
    """What the graph returns, from the node `begin` on; `result` is that node's, where it has run already."""
    node = begin
    while node.op != "output":
        values[node] = result if node is begin and result is not NOT_RUN else _value(module, node, values)
        node = node.next
    returned = fx.map_arg(node.args[0], values.__getitem__)
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _value(module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    target: Any = node.target
    if node.op == "get_attr":
        return attribute(module, node)
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return (module.get_submodule(target) if node.op == "call_module" else target)(*args, **kwargs)
