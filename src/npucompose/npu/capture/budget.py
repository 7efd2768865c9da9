"""How many streams, tasks, events and bytes captures take on a SoC, and how many sizes fit: intervals, and why.

A figure is an interval where something is unknown, and `unknown` names each such thing. What is known is the runtime's
public rules, the table of SoCs (vendor/socs.yaml) and what vllm-ascend's people found and wrote down: 2,048 streams of
which 128 (2025-06, #1168) and later 248 were kept free, a piece for each layer or one more, one or two streams for each
communicator, 40 more of each outside of captures (`update_aclgraph_sizes`, deleted in #9962 as newer drivers allow
more). No figure here was measured by us.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from attrs import evolve, field, frozen

from npucompose.errors import ConfigError, raise_for
from npucompose.npu.capture.fitting import Amounts, largest_set
from npucompose.vendor.devices import Soc, soc_of

ExpansionMode = Literal["ffts", "aicpu", "aiv"]
"""How HCCL runs a collective (HCCL_OP_EXPANSION_MODE)."""


@frozen
class Interval:
    """`Interval(94, 95)`: at least 94, at most 95; `high` is math.inf where nothing is known."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        """What is left, whatever both are."""
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        """Of amounts, which are not negative."""
        return Interval(self.low * other.low, self.high * other.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:,.0f}"
        return f"{self.low:,.0f} to {self.high:,.0f}" if math.isfinite(self.high) else f"{self.low:,.0f} or more"


ZERO = Interval(0, 0)
KEPT_FREE = Interval(128, 248)
"""Streams of a process outside of captures: as much as vllm-ascend left, first and last."""
OUTSIDE_OF_A_COMMUNICATOR = Interval(0, 40)
"""Streams of a communicator outside of captures; 40 is vllm-ascend's figure."""
CASCADE = 32
"""Tasks before its queue's depth at which a capture's stream makes another (hicann/runtime, feature/aclgraph)."""
CASCADE_RESERVE = Interval(0, 128)
"""Tasks that it keeps free beyond that: the runtime's own reserve, whose size is not public; 128 is assumed."""
TASKS_OF_A_LAYER = Interval(8, 128)
"""Kernels of a decoder layer where nobody counted; assumed. Some ten are the least that its formulas need."""
COLLECTIVES_OF_A_LAYER = Interval(0, 4)
"""Of one communicator where nobody counted; assumed."""
DEFAULT_EXPANSION: Mapping[str, ExpansionMode] = {"ascend910b": "ffts", "ascend910_93": "aicpu"}
"""vllm-ascend's comment in `update_aclgraph_sizes`."""


@frozen(kw_only=True)
class CommunicatorGroup:
    """A group of ranks whose collectives are captured: `CommunicatorGroup(name="tp", ranks=8)`."""

    name: str
    ranks: int
    expansion: ExpansionMode | None = None
    """None: the product's default."""

    def streams(self, soc: Soc) -> tuple[Interval, str | None]:
        """Of one captured piece that uses it, and what of that is unknown."""
        mode = self.expansion or DEFAULT_EXPANSION.get(soc.family)
        where = f"streams that HCCL takes for {self.name} in each piece"
        if mode == "aiv":
            return Interval(1, 2), f"{where} (AIV: 1, in dense models more)"
        if mode == "ffts":
            return Interval(1, 2), f"{where} (FFTS+: vllm-ascend counted 1 in 2025-06 and 2 later)"
        most = max(1, min(self.ranks, 16) - 1)
        return Interval(1, most), f"{where} (AICPU: up to {most}, a rank each and at most 15)"


@frozen(kw_only=True)
class CapturedGraph:
    """One graph that is captured for each size: the main model, a draft, an encoder."""

    name: str
    layers: int
    pieces: bool = False
    """It is cut at every attention, and each piece is a capture of its own (vLLM's piecewise graphs)."""
    merged: int = 1
    """So many neighbouring pieces are captured as one."""
    streams: int = 1
    """Of its stream plan in one piece, the capture's own among them."""
    tasks: Interval | None = None
    """Kernels of one layer; None: unknown."""
    events: int = 0
    """Of its stream plan, in one layer."""
    joins: int | None = None
    """Events that TorchAir adds to a piece; None: two for each side stream."""
    collectives: int | None = None
    """In one layer, of each communicator; None: unknown."""
    shared_events: bool = False
    """One set of events for all layers of a piece, reset in between."""
    communicators: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    """Its own, all of which are captured; None: the question's."""

    @property
    def count(self) -> Interval:
        """Captures for one size."""
        if not self.pieces:
            return Interval(1, 1)
        return Interval(math.ceil(self.layers / self.merged), math.ceil((self.layers + 1) / self.merged))


@frozen(kw_only=True)
class BudgetQuestion:
    """What is to be captured, on what."""

    soc: str
    graphs: tuple[CapturedGraph, ...]
    sizes: tuple[int, ...]
    communicators: tuple[CommunicatorGroup, ...] = ()
    many_streams: bool | None = None
    """Whether the driver gives captures more than the 2,048 streams of 2025; None: unknown."""
    nbytes: Mapping[int, Interval] = field(factory=dict[int, Interval])
    """{size: bytes of its captures}, where they are known; a shared pool is what the largest size adds."""
    memory: float | None = None
    """Bytes that captures may take; None: no bound."""

    def __attrs_post_init__(self) -> None:
        raise_for(list(self._wrong()))

    def _wrong(self) -> Iterator[str]:
        known = {group.name for group in self.communicators}
        for graph in self.graphs:
            if min(graph.layers, graph.streams, graph.merged) < 1:
                yield f"{graph.name}: layers, streams and merged are at least 1."
            if lacking := set(graph.communicators) - known:
                yield f"{graph.name} uses the communicators {', '.join(sorted(lacking))}, which are not described."
        if not self.sizes or min(self.sizes) < 1:
            yield f"sizes: {', '.join(map(str, self.sizes)) or 'none'}; one or more, each at least 1."
        if self.nbytes and set(self.sizes) - set(self.nbytes):
            yield "nbytes: has to say it of every size, or of none."


@frozen(kw_only=True)
class CaptureUse:
    """What captures take together."""

    streams: Interval = ZERO
    tasks: Interval = ZERO
    events: Interval = ZERO
    nbytes: Interval = ZERO

    def __add__(self, other: CaptureUse) -> CaptureUse:
        return CaptureUse(
            streams=self.streams + other.streams,
            tasks=self.tasks + other.tasks,
            events=self.events + other.events,
            nbytes=self.nbytes + other.nbytes,
        )


@frozen(kw_only=True)
class Change:
    """`Change(what="HCCL_OP_EXPANSION_MODE=AIV", freed=…)`: what it would free with all sizes."""

    what: str
    freed: Interval
    """Streams: at the low ends of both, and at the high ends."""
    events: Interval
    sizes: Interval
    """How many would then fit."""


@frozen(kw_only=True)
class CaptureBudget:
    """The answer. `certain` fits whatever the unknown parts are, `possible` where all of them are at their best."""

    each: Mapping[int, CaptureUse]
    """What one size takes."""
    total: CaptureUse
    """All sizes, and the graphs that have their own."""
    available: Interval
    """Streams for captures."""
    certain: tuple[int, ...]
    possible: tuple[int, ...]
    unknown: tuple[str, ...]
    changes: tuple[Change, ...] = ()

    @property
    def sizes(self) -> Interval:
        """How many fit."""
        return Interval(len(self.certain), len(self.possible))

    def lines(self) -> Iterator[str]:
        yield f"streams     {self.total.streams} for {len(self.each)} sizes; {self.available} for captures"
        yield f"tasks       {self.total.tasks}"
        yield f"events      {self.total.events}"
        if self.total.nbytes.high:
            yield f"bytes       {self.total.nbytes}"
        best = f"; at best {_listed(self.possible)}" if self.possible != self.certain else ""
        yield f"sizes       {self.sizes} of {len(self.each)} fit; certainly {_listed(self.certain)}{best}"
        for change in self.changes:
            what = f"{change.freed} streams" if change.freed.high else f"{change.events} events"
            yield f"frees       {what}, then {change.sizes} sizes fit: {change.what}"
        yield from (f"unknown     {what}" for what in self.unknown)

    def fits(self) -> bool | None:
        """Whether all sizes fit; None where that depends on what is unknown."""
        if len(self.certain) == len(self.each):
            return True
        return None if len(self.possible) == len(self.each) else False


def capture_budget(question: BudgetQuestion) -> CaptureBudget:
    """ConfigError for an unknown SoC and for one that captures nothing."""
    found = _budget(question)
    changes = []
    for what, changed in _changes(question):
        other = _budget(changed)
        freed = _freed(found.total.streams, other.total.streams)
        events = _freed(found.total.events, other.total.events)
        changes.append(Change(what=what, freed=freed, events=events, sizes=other.sizes))
    useful = [change for change in changes if change.freed.high > 0 or change.events.high > 0]
    return evolve(found, changes=tuple(sorted(useful, key=lambda c: (c.freed.high, c.freed.low), reverse=True)))


def _freed(before: Interval, after: Interval) -> Interval:
    low, high = sorted((before.low - after.low, before.high - after.high))
    return Interval(low, high)


def _budget(question: BudgetQuestion) -> CaptureBudget:
    soc = soc_of(question.soc)
    if soc is None or soc.product.captures is False:
        raise ConfigError(f"{question.soc} captures nothing: {soc.product.title if soc else 'no SoC is named'}.")
    unknown: dict[str, None] = {}
    shared = [graph for graph in question.graphs if graph.sizes is None]
    per_size = _sum(_use(graph, question, soc, unknown) for graph in shared)
    each = {size: evolve(per_size, nbytes=question.nbytes.get(size, ZERO)) for size in sorted(set(question.sizes))}
    own = ((graph, size) for graph in question.graphs for size in graph.sizes or ())
    fixed = _sum(_use(graph, question, soc, unknown) for graph, _ in own)
    available = _available(question, soc, unknown)
    streams = available - fixed.streams
    memory = math.inf if question.memory is None else question.memory
    most = soc.product.capture_sizes if not question.many_streams else None
    return CaptureBudget(
        each=each,
        total=_sum([*each.values(), fixed]),
        available=available,
        certain=_fitting({s: (u.streams.high, u.nbytes.high) for s, u in each.items()}, (streams.low, memory), most),
        possible=_fitting({s: (u.streams.low, u.nbytes.low) for s, u in each.items()}, (streams.high, memory), None),
        unknown=tuple(unknown),
    )


def _fitting(costs: Mapping[int, Amounts], limits: Amounts, most: int | None) -> tuple[int, ...]:
    """The most sizes; where all take the same, evenly spread from the smallest to the largest, as vllm-ascend did."""
    number = math.inf if most is None else most
    found = largest_set({size: (*cost, 1.0) for size, cost in costs.items()}, (*limits, number))
    if len(found) < 2 or len(set(costs.values())) > 1:
        return found
    ascending, step = sorted(costs), (len(costs) - 1) / (len(found) - 1)
    return tuple(ascending[round(at * step)] for at in range(len(found)))


def _use(graph: CapturedGraph, question: BudgetQuestion, soc: Soc, unknown: dict[str, None]) -> CaptureUse:
    """Of one graph for one size."""
    count = graph.count
    if graph.pieces:
        unknown[f"whether {graph.name} has a piece for each layer or one more ({count})"] = None
    tasks = graph.tasks
    if tasks is None:
        tasks = TASKS_OF_A_LAYER
        unknown[f"kernels of a layer of {graph.name} ({tasks} assumed)"] = None
    all_tasks = tasks * Interval(graph.layers, graph.layers)
    streams = _own_streams(graph, all_tasks, soc, unknown)
    layers = 1 if graph.shared_events else math.ceil(graph.layers / count.low)
    plan_events = graph.events * layers + (2 * (graph.streams - 1) if graph.joins is None else graph.joins)
    events = Interval(plan_events, plan_events)
    known = graph.collectives
    collectives = COLLECTIVES_OF_A_LAYER if known is None else Interval(known, known)
    for group in (group for group in question.communicators if group.name in graph.communicators):
        taken, what = group.streams(soc)
        streams += taken
        events += Interval(2, 2) * collectives * Interval(layers, layers)
        if what:
            unknown[what] = None
    if graph.communicators and known is None:
        unknown[f"collectives in a layer of {graph.name} ({COLLECTIVES_OF_A_LAYER} assumed; they take events)"] = None
    return CaptureUse(streams=streams * count, tasks=all_tasks, events=events * count)


def _own_streams(graph: CapturedGraph, tasks: Interval, soc: Soc, unknown: dict[str, None]) -> Interval:
    """Of one piece: those of its plan, and one more for each that its queue overflows into."""
    count = graph.count
    piece = Interval(math.ceil(tasks.low / count.high), math.ceil(tasks.high / count.low))
    room = Interval(soc.depth - CASCADE, soc.depth - CASCADE) - CASCADE_RESERVE
    low = max(graph.streams, math.ceil(piece.low / room.high))
    others = graph.streams - 1
    high = others + max(1, math.ceil((piece.high - others) / room.low))
    if low != high:
        unknown[
            f"how the kernels of {graph.name} spread over its streams, and the runtime's reserve in a queue of "
            f"{soc.depth:,} ({CASCADE_RESERVE} assumed): a queue that is nearly full makes another stream"
        ] = None
    return Interval(low, high)


def _available(question: BudgetQuestion, soc: Soc, unknown: dict[str, None]) -> Interval:
    """Streams for captures: what the driver gives, less what a process has beside them."""
    few, many = soc.product.capture_streams or soc.streams, soc.streams
    if question.many_streams is None and few != many:
        unknown[
            f"whether the driver gives captures {few:,} streams or up to {many:,} ({soc.product.capture_source})"
        ] = None
    given = Interval(many if question.many_streams else few, few if question.many_streams is False else many)
    outside = KEPT_FREE + _sum_of(OUTSIDE_OF_A_COMMUNICATOR for _ in question.communicators)
    unknown[f"streams of the process outside of captures ({outside}: vllm-ascend kept so many free)"] = None
    left = given - outside
    return Interval(max(0.0, left.low), max(0.0, left.high))


def _changes(question: BudgetQuestion) -> Iterator[tuple[str, BudgetQuestion]]:
    """Each change by itself."""
    for graph in question.graphs:
        for what, changed in _changes_of(graph):
            others = (changed if other is graph else other for other in question.graphs)
            yield what, evolve(question, graphs=tuple(other for other in others if other is not None))
    if any(group.expansion != "aiv" for group in question.communicators):
        aiv = tuple(evolve(group, expansion="aiv") for group in question.communicators)
        yield "HCCL_OP_EXPANSION_MODE=AIV", evolve(question, communicators=aiv)


def _changes_of(graph: CapturedGraph) -> Iterator[tuple[str, CapturedGraph | None]]:
    if graph.streams > 1:
        yield f"{graph.name} with one stream fewer", evolve(graph, streams=graph.streams - 1)
    if graph.pieces:
        yield f"{graph.name} captured whole", evolve(graph, pieces=False, merged=1)
        yield f"two pieces of {graph.name} merged into one", evolve(graph, merged=2 * graph.merged)
    if len(graph.communicators) > 1:
        yield f"one communicator for {graph.name}", evolve(graph, communicators=graph.communicators[:1])
    if graph.events and not graph.shared_events:
        yield f"events of {graph.name} shared by its layers", evolve(graph, shared_events=True)
    if graph.name != "main":
        yield f"{graph.name} not captured", None


def _sum(uses: Sequence[CaptureUse] | Iterator[CaptureUse]) -> CaptureUse:
    found = CaptureUse()
    for use in uses:
        found += use
    return found


def _sum_of(intervals: Iterator[Interval]) -> Interval:
    found = ZERO
    for interval in intervals:
        found += interval
    return found


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) or "none"
