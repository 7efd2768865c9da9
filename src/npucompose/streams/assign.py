"""Which stream each kernel runs on: chains found by themselves (auto), or the entries a person wrote (explicit)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from attrs import define, field
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.schema.streams import DEFAULT_STREAM, Match, Streams
from npucompose.streams.cost import cost
from npucompose.streams.match import find, why_none
from npucompose.streams.order import descendants, successors


@define
class _Lane:
    """A stream while chains are being placed on it; `heads` and `tails` are bit sets of its chains' ends."""

    name: str
    chains: int = 0
    load: float = 0.0
    heads: int = 0
    tails: int = 0

    def take(self, chain: Sequence[int], load: float) -> None:
        self.chains += 1
        self.load += load
        self.heads |= 1 << chain[0]
        self.tails |= 1 << chain[-1]


def auto(dependence: Dependence, edges: Sequence[tuple[int, int]], max_streams: int) -> list[str]:
    """Follow each chain on one stream; start a new stream where a value forks; reuse a stream that is through.

    `a = f(x); b = g(x); return a + b` runs f on one stream, g on another. Where a value forks, its stream continues
    with the longest work behind it, so the critical path is one chain and stays on the default stream. A chain goes to
    the first stream whose chains all come before or after it anyway (nothing is lost there); else to a new stream;
    when there is no more, to the one with the least work. `edges` go from low to high numbers.
    """
    weights = [cost(node) for node in dependence.kernels]
    then = successors(len(weights), edges)
    chains = _chains(weights, then, edges)
    behind = descendants(then)
    ahead = _ancestors(then)
    lanes = [_Lane(DEFAULT_STREAM)]
    result = [DEFAULT_STREAM] * len(weights)
    for chain in chains:
        load = sum(weights[index] for index in chain)
        lane = _lane(lanes, chain, ahead[chain[0]], behind[chain[-1]], max_streams)
        lane.take(chain, load)
        for index in chain:
            result[index] = lane.name
    _join_factories(dependence, then, result)
    return _renumbered(result)


def _lane(lanes: list[_Lane], chain: Sequence[int], ahead: int, behind: int, max_streams: int) -> _Lane:
    for lane in lanes:
        if (lane.tails & ahead).bit_count() + (lane.heads & behind).bit_count() == lane.chains:
            return lane
    if len(lanes) < max_streams:
        lanes.append(_Lane(f"stream{len(lanes)}"))
        return lanes[-1]
    return min(lanes, key=lambda lane: lane.load)


def _chains(
    weights: Sequence[float], then: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Every kernel in exactly one chain: first the critical path, then the others in the order of their heads."""
    count = len(weights)
    left = list(weights)  # the longest work from here to the end
    for index in range(count - 1, -1, -1):
        left[index] += max((left[target] for target in then[index]), default=0.0)
    done = [0.0] * count  # the longest work up to here
    for index in range(count):
        done[index] += weights[index]
        for target in then[index]:
            done[target] = max(done[target], done[index])
    heavy = [max(targets, key=lambda t: (left[t], -t), default=-1) for targets in then]
    previous = [-1] * count
    for first, second in edges:
        if heavy[first] == second and (previous[second] < 0 or done[first] > done[previous[second]]):
            previous[second] = first
    chains: dict[int, list[int]] = {}
    head = list(range(count))
    for index in range(count):
        if previous[index] >= 0:
            head[index] = head[previous[index]]
        chains.setdefault(head[index], []).append(index)
    critical = head[max(range(count), key=lambda i: (done[i], -i))] if count else -1
    return sorted(chains.values(), key=lambda chain: (chain[0] != critical, chain[0]))


def _ancestors(then: Sequence[Sequence[int]]) -> list[int]:
    ahead = [0] * len(then)
    for index, targets in enumerate(then):
        ahead[index] |= 1 << index
        for target in targets:
            ahead[target] |= ahead[index]
    return ahead


def _join_factories(dependence: Dependence, then: Sequence[Sequence[int]], streams: list[str]) -> None:
    """`zeros`, `arange`, `full` read nothing: each goes where its first reader is, so that it needs no event."""
    for index in range(len(streams) - 1, -1, -1):
        if then[index] and not dependence.kernels[index].all_input_nodes:
            streams[index] = streams[min(then[index])]


def _renumbered(streams: list[str]) -> list[str]:
    """stream1, stream2, … in the order in which the kernels need them, without gaps."""
    aside = dict.fromkeys(stream for stream in streams if stream != DEFAULT_STREAM)
    names = {DEFAULT_STREAM: DEFAULT_STREAM, **{old: f"stream{n}" for n, old in enumerate(aside, start=1)}}
    return [names[stream] for stream in streams]


@define
class _Matcher:
    """Finds the kernels of a match and speaks, as `on_no_match` says, when there are none."""

    dependence: Dependence
    on_no_match: str
    others: list[fx.Node] = field(init=False)

    def __attrs_post_init__(self) -> None:
        kernels = set(self.dependence.kernels)
        self.others = [node for node in self.dependence.origins if node not in kernels]

    def find(self, match: Match, where: str) -> tuple[fx.Node, ...]:
        found = find(match, self.dependence.kernels)
        if not found:
            self.none(f"{where} ({match}) matches nothing: {why_none(match, self.dependence.kernels, self.others)}")
        return found

    def none(self, problem: str) -> None:
        if self.on_no_match == "error":
            raise PlanError("no_match", problem)
        warnings.warn(problem, stacklevel=2)


def explicit(dependence: Dependence, wanted: Streams) -> list[str]:
    """The stream of the first entry that matches a kernel; the default stream where none does."""
    matcher = _Matcher(dependence, wanted.on_no_match)
    chosen: dict[fx.Node, str] = {}
    for number, entry in enumerate(wanted.plan):
        where = f"streams.plan[{number}] (stream '{entry.stream}')"
        found = matcher.find(entry.match, where)
        fresh = [node for node in found if node not in chosen]
        if found and not fresh:
            matcher.none(f"{where} ({entry.match}) matches only kernels that an earlier entry has taken already")
        chosen.update(dict.fromkeys(fresh, entry.stream))
    return [chosen.get(node, DEFAULT_STREAM) for node in dependence.kernels]


def extra_edges(dependence: Dependence, wanted: Streams) -> list[tuple[int, int]]:
    """The order that `edges` add: from everything `after` finds to everything `before` finds."""
    matcher = _Matcher(dependence, wanted.on_no_match)
    numbers = {node: index for index, node in enumerate(dependence.kernels)}
    edges: list[tuple[int, int]] = []
    for number, edge in enumerate(wanted.edges):
        firsts = matcher.find(edge.after, f"streams.edges[{number}].after")
        seconds = matcher.find(edge.before, f"streams.edges[{number}].before")
        edges += [(numbers[first], numbers[second]) for first in firsts for second in seconds]
    return edges


def priorities(wanted: Streams) -> Mapping[str, int]:
    """{stream: priority} of the entries; two entries that disagree about one stream are refused."""
    found: dict[str, int] = {}
    for number, entry in enumerate(wanted.plan):
        if found.setdefault(entry.stream, entry.priority) != entry.priority:
            raise PlanError(
                "priority",
                f"streams.plan[{number}] gives stream '{entry.stream}' priority {entry.priority}, "
                f"an earlier entry {found[entry.stream]}: one stream has one priority.",
            )
    return {stream: priority for stream, priority in found.items() if priority}
