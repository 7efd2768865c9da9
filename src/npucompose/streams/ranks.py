"""What the ranks of a process group issue to one another: one order on all of them, and an end to all waiting.

Ranks name no partner for a collective: the n-th that one of them issues to a process group meets the n-th of every
other one (MPI 4.1, chapter 6; NCCL's user guide, "Using multiple NCCL communicators concurrently"). Ranks whose plans
differ in that order exchange the wrong data or wait for ever, and no rank can see it alone. Knows no network: whoever
compiles on several ranks brings the texts of all of them (`Capabilities.ranks`), or files do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import frozen
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import is_collective, tensors_in
from npucompose.schema.capabilities import Ranks
from npucompose.streams import dag
from npucompose.streams.timing import issued_before

SHOWN = 6
"""Collectives of an order that an error names, from the last that agrees."""


@frozen(kw_only=True)
class CollectiveCall:
    """A collective of one rank, or a wait for some of them (`group` is '')."""

    name: str
    """Of the FX node."""
    group: str = ""
    what: str = ""
    """What all ranks of the group must issue at this place: operator, constants, dtype, and its number in the program,
    before anything was planned."""
    after: tuple[str, ...] = ()
    """The calls right before it, by streams and events: a collective was issued then, a wait is over."""
    awaits: tuple[str, ...] = ()
    """Of a wait: the collectives."""


@frozen(kw_only=True)
class RankOrder:
    """The calls of one rank, each after those of `after`; as text for the other ranks, or for a file."""

    calls: tuple[CollectiveCall, ...] = ()

    @classmethod
    def from_graph(cls, graph: fx.Graph, program: Sequence[fx.Node]) -> RankOrder:
        """Of a graph with or without streams; `program` are its collectives in the order of the program."""
        needed = Dependence.from_graph(graph)
        number = _numbers(program)
        last: dict[fx.Node, tuple[str, ...]] = {}
        calls: list[CollectiveCall] = []
        for kernel, before in issued_before(graph, needed.kernels).items():
            after = tuple(dict.fromkeys(name for first in before for name in last[first]))
            awaits = tuple(one.name for one in needed.awaited.get(kernel, ()))
            if is_collective(kernel):
                calls.append(
                    CollectiveCall(name=kernel.name, group=group_of(kernel), what=_what(kernel, number), after=after)
                )
            elif awaits:
                calls.append(CollectiveCall(name=kernel.name, after=after, awaits=awaits))
            last[kernel] = (kernel.name,) if awaits or is_collective(kernel) else after
        return cls(calls=tuple(calls))

    @classmethod
    def from_text(cls, text: str) -> RankOrder:
        calls = json.loads(text)
        return cls(
            calls=tuple(
                CollectiveCall(**{**call, "after": tuple(call["after"]), "awaits": tuple(call["awaits"])})
                for call in calls
            )
        )

    @property
    def text(self) -> str:
        return json.dumps([attrs.asdict(call) for call in self.calls])

    @property
    def groups(self) -> Mapping[str, Sequence[CollectiveCall]]:
        """The collectives of each process group, in the order in which they are issued."""
        found: dict[str, list[CollectiveCall]] = {}
        for call in self.calls:
            if call.group:
                found.setdefault(call.group, []).append(call)
        return found


def group_of(collective: fx.Node) -> str:
    """The name of its process group; all operators of torch have it last."""
    return next((str(given) for given in reversed(collective.args) if isinstance(given, str)), "")


def _numbers(program: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Of each collective among those of its group, from 1."""
    seen: dict[str, int] = {}
    numbers: dict[fx.Node, int] = {}
    for collective in program:
        group = group_of(collective)
        numbers[collective] = seen[group] = seen.get(group, 0) + 1
    return numbers


def _what(collective: fx.Node, number: Mapping[fx.Node, int]) -> str:
    """No shapes and no splits: those of an exchange may differ from rank to rank."""
    constants = [str(given) for given in collective.args[1:-1] if isinstance(given, (str, int))]
    dtypes = dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors_in((collective.meta.get("val"),)))
    name = str(collective.target).removeprefix("_c10d_functional.").removesuffix(".default")
    return f"{' '.join([name, *constants, *dtypes])} ({number[collective]} of the program)"


def agree(graph: fx.Graph, program: Sequence[fx.Node], ranks: Ranks) -> None:
    """Compare the graph of this rank with those that the others compile now; PlanError as `check`."""
    mine = RankOrder.from_graph(graph, program)
    said = ranks(mine.text, tuple(mine.groups))
    check({rank: RankOrder.from_text(text) for rank, text in said.items()})


def check(orders: Mapping[int, RankOrder]) -> None:
    """Raise PlanError unless what these ranks issue meets and comes to an end, however long each kernel takes.

    The codes: `rank_order` (two ranks issue other collectives, or in another order, to one group; both orders are
    named) and `rank_deadlock` (a circle through several ranks' streams, events and collectives, printed).
    """
    groups = {rank: order.groups for rank, order in orders.items()}
    for group in dict.fromkeys(name for found in groups.values() for name in found):
        first, *others = [rank for rank, found in groups.items() if group in found]
        for rank in others:
            _same(group, (first, groups[first][group]), (rank, groups[rank][group]))
    circle = _circle(orders)
    if circle:
        raise PlanError("rank_deadlock", f"The ranks would wait for each other for ever: {' -> '.join(circle)}.")


def _same(group: str, one: tuple[int, Sequence[CollectiveCall]], other: tuple[int, Sequence[CollectiveCall]]) -> None:
    (first, mine), (second, theirs) = one, other
    pairs = zip(mine, theirs, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a.what != b.what), min(len(mine), len(theirs)))
    if at == len(mine) == len(theirs):
        return
    raise PlanError(
        "rank_order",
        f"Ranks {first} and {second} do not issue the same collectives in the same order to process group '{group}': "
        f"the wrong ones would meet, from number {at + 1} on. Rank {first}: {_shown(mine, at)}. Rank {second}: "
        f"{_shown(theirs, at)}.",
    )


def _shown(calls: Sequence[CollectiveCall], at: int) -> str:
    begin = max(at - 1, 0)
    shown = [f"{call.name} = {call.what}" for call in calls[begin : begin + SHOWN]]
    return ", ".join(["…"] * (begin > 0) + shown + ["…"] * (begin + SHOWN < len(calls))) or "none"


def _circle(orders: Mapping[int, RankOrder]) -> list[str]:
    """Of the graph of all ranks' calls and the meetings of their collectives: a circle, in words; [] for none."""
    names: dict[tuple[int | str, str], int] = {}

    def number(owner: int | str, name: str) -> int:
        return names.setdefault((owner, name), len(names))

    edges = [(number(*first), number(*then)) for first, then in _edges(orders)]
    _, circle = dag.topological(dag.successors(len(names), edges))
    words = [f"{name} of rank {owner}" if isinstance(owner, int) else f"{owner}, {name}" for owner, name in names]
    return [words[index] for index in circle]


_Place = tuple["int | str", str]
"""(rank, call), or (words for a group, number) of a meeting."""


def _edges(orders: Mapping[int, RankOrder]) -> Iterator[tuple[_Place, _Place]]:
    """What is over before what begins: within a rank, from issuing to meeting, and from meeting to who waits for it.

    The meetings of one group follow one another.
    """
    for rank, order in orders.items():
        meeting: dict[str, _Place] = {}
        for group, calls in order.groups.items():
            for count, call in enumerate(calls, 1):
                meeting[call.name] = (f"process group '{group}'", f"collective {count}")
                yield (rank, call.name), meeting[call.name]
                if count > 1:
                    yield (f"process group '{group}'", f"collective {count - 1}"), meeting[call.name]
        for call in order.calls:
            yield from (((rank, first), (rank, call.name)) for first in call.after)
            yield from ((meeting[awaited], (rank, call.name)) for awaited in call.awaits)
