"""Which stream each kernel runs on by the entries that a person wrote, and the order that they added."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

from attrs import define, field
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.matching import find, why_none
from npucompose.schema.streams import DEFAULT_STREAM, Cores, Match, PlanEntry, Streams
from npucompose.vendor.device_model import DeviceModel

T = TypeVar("T")


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


def assigned(dependence: Dependence, wanted: Streams) -> list[str]:
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


def extra_edges(dependence: Dependence, wanted: Streams) -> list[tuple[fx.Node, fx.Node]]:
    """The order that `edges` add: from everything `after` finds to everything `before` finds."""
    matcher = _Matcher(dependence, wanted.on_no_match)
    edges: list[tuple[fx.Node, fx.Node]] = []
    for number, edge in enumerate(wanted.edges):
        firsts = matcher.find(edge.after, f"streams.edges[{number}].after")
        seconds = matcher.find(edge.before, f"streams.edges[{number}].before")
        edges += [(first, second) for first in firsts for second in seconds]
    return edges


def priorities(wanted: Streams) -> Mapping[str, int]:
    """{stream: priority} of the entries; two entries that disagree about one stream are refused."""
    found = _of_each_stream(wanted, "priority", lambda entry: entry.priority, lambda value: f"priority {value}")
    return {stream: priority for stream, priority in found.items() if priority}


def cores(wanted: Streams, model: DeviceModel) -> Mapping[str, Cores]:
    """{stream: limit} of the entries; what the device has not, and two entries that disagree, are refused."""
    found = _of_each_stream(wanted, "cores", lambda entry: entry.cores, _told)
    for number, entry in enumerate(wanted.plan):
        limit = entry.cores
        lacking = model.lacks(limit.aicore, limit.vectorcore) if limit is not None else None
        if lacking is not None:
            raise PlanError(
                "cores",
                f"streams.plan[{number}].cores asks for {_told(limit)}; {lacking} (streams.device.cube and .vector say "
                "otherwise).",
            )
    return {stream: limit for stream, limit in found.items() if limit is not None}


def _of_each_stream(
    wanted: Streams, field: str, of: Callable[[PlanEntry], T], told: Callable[[T], str]
) -> dict[str, T]:
    """{stream: value of its entries}; two entries that disagree about one stream are refused."""
    found: dict[str, T] = {}
    for number, entry in enumerate(wanted.plan):
        value, earlier = of(entry), found.setdefault(entry.stream, of(entry))
        if value != earlier:
            raise PlanError(
                field,
                f"streams.plan[{number}] gives stream '{entry.stream}' {told(value)}, an earlier entry "
                f"{told(earlier)}: one stream has one value of {field}.",
            )
    return found


def _told(limit: Cores | None) -> str:
    return "no limit" if limit is None else f"{limit.aicore} cube and {limit.vectorcore} vector cores"
