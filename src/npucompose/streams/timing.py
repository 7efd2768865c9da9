"""What the streams, records and waits of a planned graph really order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field, frozen
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import LABEL, Scope, control, nodes_in, stream_labels, tag_of, tagged_streams
from npucompose.races import knows, learn
from npucompose.results.streams import StreamEvent
from npucompose.schema.streams import DEFAULT_STREAM


@frozen
class Moment:
    """A point on a stream: the last kernel before it, and how far every stream is known to be by then."""

    kernel: str
    clock: Mapping[str, int]


@define
class Timing:
    """One walk over a planned graph with a clock for each stream: {other stream: number of its last known kernel}."""

    streams: dict[str, str] = field(factory=dict)
    events: list[StreamEvent] = field(factory=list)
    number: dict[fx.Node, int] = field(factory=dict)
    clocks: dict[fx.Node, Mapping[str, int]] = field(factory=dict)
    now: dict[str, Moment] = field(factory=dict)
    moments: dict[fx.Node, Moment] = field(factory=dict)
    waiting: dict[str, list[Moment]] = field(factory=dict)
    seen: set[fx.Node] = field(factory=set)
    tagged: dict[str, Moment | None] = field(factory=dict)
    """What was done on its stream when an event of that name was recorded last; None: nothing."""

    @classmethod
    def from_graph(cls, graph: fx.Graph, dependence: Dependence) -> Timing:
        timing = cls()
        kernels, named = set(dependence.kernels), tagged_streams(graph)
        stack: list[tuple[fx.Node, str | None]] = []
        for node in graph.nodes:
            stream = next((label for _, label in reversed(stack) if label), DEFAULT_STREAM) if stack else DEFAULT_STREAM
            timing.seen.add(node)
            if node in kernels:
                timing.kernel(node, stream)
                continue
            kind = control(node)
            if kind == "scope_enter":
                stack.append((node, timing.enter(node, stream)))
            elif kind == "scope_exit":
                if not stack:
                    raise PlanError("scope_unpaired", f"'{node.name}' leaves a scope that was never entered.")
                stack.pop()
            elif kind == "record":
                timing.record(node, named.get(node, stream))
            elif kind == "wait":
                timing.wait(node, named.get(node, stream))
        if stack:
            raise PlanError("scope_unpaired", f"'{stack[-1][0].name}' enters a scope that nothing leaves.")
        return timing

    def enter(self, node: fx.Node, outer: str) -> str | None:
        scope = Scope.from_node(node)
        if scope.stream is None:
            return None
        if outer != DEFAULT_STREAM:
            raise PlanError(
                "scope_nested",
                f"'{node.name}' enters stream '{scope.stream}' inside stream '{outer}': scopes must be flat.",
            )
        if scope.keys[0] != LABEL:
            raise PlanError("scope_label", f"'{node.name}': '{LABEL}' must be the first key, not '{scope.keys[0]}'.")
        return scope.stream

    def kernel(self, node: fx.Node, stream: str) -> None:
        clock = dict(self.now[stream].clock) if stream in self.now else {}
        for moment in self.waiting.pop(stream, ()):
            learn(clock, moment.clock)
            if self.streams[moment.kernel] != stream:
                self.events.append(StreamEvent(recorder=moment.kernel, waiter=node.name))
        self.number[node] = clock[stream] = len(self.number)
        self.streams[node.name] = stream
        self.clocks[node] = clock
        self.now[stream] = self.moments[node] = Moment(node.name, clock)

    def record(self, node: fx.Node, stream: str) -> None:
        if tag := tag_of(node):  # torch.npu's own events may be recorded where nothing was done yet
            self.tagged[tag] = self.now.get(stream)
            return
        if stream not in self.now:
            raise PlanError(
                "record_nothing", f"'{node.name}' stands on stream '{stream}' before any kernel: it records nothing."
            )
        self.moments[node] = self.now[stream]

    def wait(self, node: fx.Node, stream: str) -> None:
        if tag := tag_of(node):  # of an event that was never recorded nobody waits, as in torch.npu
            if moment := self.tagged.get(tag):
                self.waiting.setdefault(stream, []).append(moment)
            return
        for awaited in self._awaited(node, node.args[0]):
            self.waiting.setdefault(stream, []).append(self.moments[awaited])

    def _awaited(self, wait: fx.Node, value: object) -> Iterable[fx.Node]:
        """A record itself; for a tensor (TorchAir allows it) the kernel that makes it; an input is always there."""
        for node in nodes_in(value):
            if node in self.moments:
                yield node
            elif node not in self.seen:
                raise PlanError(
                    "deadlock",
                    f"'{wait.name}' waits for '{node.name}', which comes only after it: {wait.name} -> … -> "
                    f"{node.name} -> {wait.name}.",
                )
            else:
                yield from self._awaited(wait, node.all_input_nodes)

    def orders(self, first: fx.Node, then: fx.Node) -> bool:
        stream = self.streams[first.name]
        return self.number[first] < self.number[then] and knows(self.clocks[then], stream, self.number[first])


def issued_before(graph: fx.Graph, kernels: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """For each kernel those that must be done right before it: the last of its own stream and of the streams it
    waits for, by scopes, records and waits alone."""
    labels = stream_labels(graph) | tagged_streams(graph)
    known = frozenset(kernels)
    last: dict[str, fx.Node] = {}
    recorded: dict[fx.Node, list[fx.Node]] = {}
    tagged: dict[str, fx.Node] = {}
    waits: dict[str, list[fx.Node]] = {}
    before: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        stream = labels.get(node, DEFAULT_STREAM)
        kind, tag = control(node), tag_of(node)
        if kind == "record":
            recorded[node] = [last[stream]] if stream in last else []
            if tag:
                tagged[tag] = node
        elif kind == "wait":
            for awaited in nodes_in(node.args[0] if tag is None else tagged.get(tag)):
                waits.setdefault(stream, []).extend(_makers(awaited, recorded, known))
        elif node in known:
            before[node] = list(dict.fromkeys(waits.get(stream, ())))
            waits[stream], last[stream] = [node], node
    return before


def _makers(node: fx.Node, recorded: Mapping[fx.Node, list[fx.Node]], known: frozenset[fx.Node]) -> list[fx.Node]:
    """The kernels that a record or a tensor stands for; none for an input."""
    if node in known:
        return [node]
    if node in recorded:
        return recorded[node]
    return [maker for source in node.all_input_nodes for maker in _makers(source, recorded, known)]
