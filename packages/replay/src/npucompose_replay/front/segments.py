"""A graph in parts: recordings, and between them the operators that no recording can hold, run as they are.

    sum, gt | cond, getitem | add        `|` is where a part ends; cond runs as it is, the others are recorded

# Note [Only memory crosses]
A view that is made in one part and read in another is made anew there, of the same memory, and the result of an
in-place operator is known by its argument: what a later part writes is seen by all, whoever copies what it returns.
A cut is a point in time: what stands before it is done when it is reached, so that waits across it have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.graphs import is_planned
from npucompose.graphs.effects import control, is_functional_call, is_getitem, is_host, nodes_in, op_facts, written_by
from npucompose.graphs.recordable import outside_of, refused_by_recordings
from npucompose.recorder import LowerRequest, RunAsEager
from npucompose.results.graphs import Partition
from npucompose.results.measured import CallStatistics
from npucompose_replay.capture import updates
from npucompose_replay.capture.updates import write_in_place
from npucompose_replay.front.overlapping import Overlapping
from npucompose_replay.gate import Refused
from npucompose_replay.interface import Recording, SeenCall, note, watchers
from npucompose_replay.memory.results import copied_as_it_lies
from npucompose_replay.operands import storage_of


@frozen(kw_only=True, eq=False)
class Part:
    """Some nodes of a graph; values are named by the nodes of the whole graph that make them."""

    module: fx.GraphModule
    """Takes `inputs`, returns a tuple of `outputs`."""
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    recorded: bool
    dying: tuple[fx.Node, ...] = ()
    """Values that nobody needs after this part."""


@define(eq=False)
class _Run:
    """Nodes that stand together."""

    recorded: bool
    nodes: list[fx.Node] = field(factory=list)
    opened: tuple[fx.Node, ...] = ()
    """Scopes that are open where it begins."""


def parts_of(graph_module: fx.GraphModule, outside: Iterable[fx.Node]) -> tuple[Part, ...]:
    """The parts of a graph whose nodes `outside` run as they are; the last part returns what the graph returns."""
    cuts = frozenset(node for node in outside if not is_getitem(node))  # an item goes where its list goes
    output = next(node for node in reversed(graph_module.graph.nodes) if node.op == "output")
    runs = [*_runs(graph_module.graph, cuts), _Run(recorded=False, nodes=[output])]
    writers = [_SegmentWriter(graph_module, run, cuts) for run in runs]
    read_later: set[fx.Node] = set()
    parts: list[Part] = []
    for writer in reversed(writers):
        part = writer.part(read_later)
        dying = tuple(node for node in (*part.inputs, *part.outputs) if node not in read_later and node.op != "output")
        read_later.update(part.inputs)
        parts.append(attrs.evolve(part, dying=() if writer is writers[-1] else dying))
    return tuple(part for part in reversed(parts) if part.outputs or not _is_idle(part))


def _is_idle(part: Part) -> bool:
    return all(node.op in ("placeholder", "get_attr", "output") for node in part.module.graph.nodes)


def _runs(graph: fx.Graph, outside: frozenset[fx.Node]) -> list[_Run]:
    """Neighbours that run as they are stand together; between them only what starts a kernel is worth a recording."""
    found: list[_Run] = []
    home: dict[fx.Node, _Run] = {}
    scopes: list[fx.Node] = []
    cut = True
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if is_getitem(node) and node.args[0] in home:
            run = home[node.args[0]]  # type: ignore[index]
        else:
            if cut or node in outside:
                found.append(_Run(recorded=node not in outside, opened=tuple(scopes)))
            cut, run = node in outside, found[-1]
        run.nodes.append(node)
        home[node] = run
        kind = control(node)
        if kind == "scope_enter":
            scopes.append(node)
        elif kind == "scope_exit":
            scopes.pop()
    for run in found:
        run.recorded = run.recorded and any(_starts_a_kernel(node, outside) for node in run.nodes)
    return _joined(found)


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for run in runs:
        if joined and not (joined[-1].recorded or run.recorded):
            joined[-1].nodes += run.nodes
        else:
            joined.append(run)
    return joined


def _starts_a_kernel(node: fx.Node, outside: frozenset[fx.Node]) -> bool:
    return not (is_host(node) or is_getitem(node) or control(node) is not None or _is_view(node, outside))


def _is_view(node: fx.Node, outside: frozenset[fx.Node]) -> bool:
    """Memory of its input and nothing else, and so are the items of a list of such views."""
    if node in outside:
        return False
    if is_getitem(node):
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_view(source, outside)
    found = op_facts(node)
    return found.view and not found.may_copy


def _in_place_on(node: fx.Node) -> fx.Node | None:
    """The argument whose memory, as it lies there, is the node's result: x of `add_(x, y)`."""
    found, written = op_facts(node), written_by(node)
    return written[0] if found.in_place and len(written) == 1 and not found.changes_metadata else None


class _SegmentWriter:
    """Writes one run as a module of its own. See Note [Only memory crosses]."""

    def __init__(self, whole: fx.GraphModule, run: _Run, outside: frozenset[fx.Node]) -> None:
        self.whole, self.run, self.outside = whole, run, outside
        self.own = frozenset(run.nodes)
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.inputs: list[fx.Node] = []
        self._anchor = self.graph.call_function(print)  # placeholders are written before it, all else behind

    def part(self, read_later: set[fx.Node]) -> Part:
        """The run as a part that returns those of its values that are read later."""
        for enter in self.run.opened if self.run.recorded else ():
            self._copy(enter)
        for node in self.run.nodes:
            if node.op == "output":
                return self._returning(node)
            if control(node) is not None:
                self._control(node)
            elif not _is_view(node, self.outside):
                self._value(node)
        outputs = tuple(node for node in self.run.nodes if node in read_later)
        self._close()
        self.graph.output(tuple(self.env[node] for node in outputs))
        return self._done(outputs)

    def _returning(self, output: fx.Node) -> Part:
        """What the whole graph returns, in its own form."""
        returned = fx.map_arg(output.args[0], self._value)
        self.graph.output(returned)
        return self._done((output,))

    def _done(self, outputs: tuple[fx.Node, ...]) -> Part:
        self.graph.erase_node(self._anchor)
        module = fx.GraphModule(self.whole, self.graph)
        return Part(module=module, inputs=tuple(self.inputs), outputs=outputs, recorded=self.run.recorded)

    def _value(self, node: fx.Node) -> fx.Node:
        """The node of this part that stands for `node`."""
        if node in self.env:
            return self.env[node]
        mine = node in self.own
        if not mine and (argument := _in_place_on(node)) is not None:
            return self._value(argument)
        if mine or node.op == "get_attr" or _is_view(node, self.outside):
            return self._copy(node)
        with self.graph.inserting_before(self._anchor):
            made = self.graph.placeholder(node.name)
        made.meta = dict(node.meta)
        self.inputs.append(node)
        self.env[node] = made
        return made

    def _copy(self, node: fx.Node) -> fx.Node:
        for source in node.all_input_nodes:
            self._value(source)
        made = self.env[node] = self.graph.node_copy(node, self._value)
        return made

    # -- stream plans

    def _control(self, node: fx.Node) -> None:
        """Scopes that a cut goes through are closed before it and opened behind it; what runs as it is has none."""
        if not self.run.recorded:
            return
        if control(node) == "wait":
            awaited = [self.env[one] for one in nodes_in(node.args[0]) if one in self.env and one in self.own]
            if awaited:
                self.env[node] = self.graph.call_function(node.target, (awaited,))  # type: ignore[arg-type]
            return
        self._copy(node)

    def _close(self) -> None:
        depth = 0
        for node in self.graph.nodes:
            kind = control(node)
            depth += (kind == "scope_enter") - (kind == "scope_exit")
        for enter in [node for node in self.graph.nodes if control(node) == "scope_enter"][:depth]:
            space = enter.target.name().partition("::")[0]  # type: ignore[union-attr]
            self.graph.call_function(getattr(torch.ops, space).scope_exit.default)


class PartCache(Protocol):
    """Records one part, as a GraphCache does."""

    @property
    def statistics(self) -> CallStatistics: ...

    def __call__(self, inputs: list[Any]) -> list[Any]: ...

    @property
    def captured(self) -> Sequence[Recording]: ...

    def partition(self) -> Partition: ...


Make = Callable[[LowerRequest], PartCache]


def prepared(request: LowerRequest) -> LowerRequest:
    """The request with a graph in which operators that AOTAutograd made functional write in place again."""
    return attrs.evolve(request, graph_module=_written_in_place(request.graph_module))


def _written_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """A copy, where there is such an operator: what the passes left stays as it is, for those who look at it."""
    if not any(map(is_functional_call, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copy = fx.GraphModule(module, graph)
    write_in_place(copy)
    return copy


def planned(module: fx.GraphModule, device: str) -> Partition:
    """How a graph will be cut, as far as the graph shows."""
    whole = _written_in_place(module)
    refused = dict(refused_by_recordings(whole.graph, device))
    if not refused:
        return Partition()
    return Partition(
        segments=sum(part.recorded for part in parts_of(whole, refused)),
        outside=tuple(outside_of(node, reason) for node, reason in refused.items()),
    )


def nodes_of(refusal: Refused, graph: fx.Graph) -> dict[fx.Node, str]:
    """{node that runs as it is: why}: the one that was refused, or the readers of the input that was."""
    if refusal.node is not None:
        return {refusal.node: refusal.reason}
    given = graph.find_nodes(op="placeholder")[refusal.index]
    return {node: refusal.reason for node in given.users if node.op != "output"}


class Segmented:
    """Called with the list of a graph's inputs, as a GraphCache; each recorded part has a GraphCache of its own.

    What crosses from part to part are ordinary tensors and numbers; a number that data decided (an unbacked symbol)
    belongs to the signature of the parts that read it. `refused` are the nodes that run as they are, with the reasons.
    """

    _boxed_call = True

    def __init__(
        self,
        request: LowerRequest,
        refused: Mapping[fx.Node, str],
        make: Make,
        *,
        clone_output: bool = False,
    ) -> None:
        graph = request.graph_module.graph
        _copy_back_early(graph)
        self._placeholders = graph.find_nodes(op="placeholder")
        self._static = frozenset(node for i, node in enumerate(self._placeholders) if i in request.static_inputs)
        self._clone = clone_output
        self._overlapping = Overlapping(request)
        self._outside = tuple(outside_of(node, reason) for node, reason in refused.items())
        self._steps = [(part, self._callable(part, request, make)) for part in parts_of(request.graph_module, refused)]
        self.caches = [call for part, call in self._steps if part.recorded]

    def _callable(self, part: Part, request: LowerRequest, make: Make) -> Any:
        if not part.recorded:
            forward = part.module.forward
            return lambda values: forward(*values)
        static = frozenset(i for i, node in enumerate(part.inputs) if node in self._static)
        examples = tuple(node.meta.get("val") for node in part.inputs)
        of_part = {"graph_module": part.module, "example_inputs": examples, "static_inputs": static}
        return make(attrs.evolve(request, **of_part, written=None, eager_at_hand=False))

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        if self._overlapping.meet(inputs):
            raise RunAsEager
        if watchers:
            note(SeenCall(None, list(inputs), [], 0, cut=self.partition().words))
        values: dict[fx.Node, Any] = dict(zip(self._placeholders, inputs, strict=True))
        made: Any = ()
        for part, call in self._steps:
            made = call([values[node] for node in part.inputs])
            values.update(zip(part.outputs, made, strict=False))
            for node in part.dying:
                values.pop(node, None)
        return self._cloned(made, inputs) if self._clone else list(made)

    def _cloned(self, outputs: Iterable[Any], inputs: Sequence[Any]) -> list[Any]:
        given = {storage_of(value) for value in inputs if isinstance(value, torch.Tensor)}
        return [
            copied_as_it_lies(o) if isinstance(o, torch.Tensor) and storage_of(o) not in given else o for o in outputs
        ]

    @property
    def captured(self) -> Sequence[Recording]:
        """The recordings of all parts."""
        return [recording for cache in self.caches for recording in cache.captured]

    @property
    def statistics(self) -> CallStatistics:
        """How the calls of the recorded parts ran."""
        return sum((cache.statistics for cache in self.caches), CallStatistics())

    def partition(self) -> Partition:
        inner = [cache.partition() for cache in self.caches]
        return Partition(
            segments=sum(one.segments for one in inner),
            outside=(*self._outside, *(node for one in inner for node in one.outside)),
        )


def _copy_back_early(graph: fx.Graph) -> None:
    """Where an update of an input may happen in the input itself, in the part that makes it: that part copies it back.

    AOTAutograd copies at the end of the graph, where an update that lies in another part would need memory of its own.
    """
    if is_planned(graph):  # other streams may still read the input
        return
    found = updates.find(graph, frozenset())
    for copy in found.dropped:
        copy.args[1].append(copy)  # type: ignore[union-attr]
