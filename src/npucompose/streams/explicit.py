"""The entries that a person wrote: which nodes each one means, the streams that they get, the order that is added."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.matching import find, why_none
from npucompose.schema.streams import DEFAULT_STREAM, Cores, Match, PlanEntry, Streams
from npucompose.vendor.devices import DeviceModel

T = TypeVar("T")


def _kernels(dependence: Dependence, wanted: Streams, match: Match, where: str) -> tuple[fx.Node, ...]:
    found = find(match, dependence.kernels)
    if not found:
        kernels = set(dependence.kernels)
        others = [node for node in dependence.origins if node not in kernels]
        _no_match(wanted, f"{where} ({match}) matches nothing: {why_none(match, dependence.kernels, others)}")
    return found


def _no_match(wanted: Streams, problem: str) -> None:
    if wanted.on_no_match == "error":
        raise PlanError("no_match", problem)
    warnings.warn(problem, stacklevel=2)


def assigned(dependence: Dependence, wanted: Streams) -> list[str]:
    """The stream of the first entry that matches a kernel; the default stream where none does."""
    chosen: dict[fx.Node, str] = {}
    for number, entry in enumerate(wanted.plan):
        where = f"streams.plan[{number}] (stream '{entry.stream}')"
        found = _kernels(dependence, wanted, entry.match, where)
        fresh = [node for node in found if node not in chosen]
        if found and not fresh:
            _no_match(wanted, f"{where} ({entry.match}) matches only kernels that an earlier entry has taken already")
        chosen.update(dict.fromkeys(fresh, entry.stream))
    return [chosen.get(node, DEFAULT_STREAM) for node in dependence.kernels]


def extra_edges(dependence: Dependence, wanted: Streams) -> list[tuple[fx.Node, fx.Node]]:
    """The order that `edges` add: from everything `after` finds to everything `before` finds."""
    edges: list[tuple[fx.Node, fx.Node]] = []
    for number, edge in enumerate(wanted.edges):
        firsts = _kernels(dependence, wanted, edge.after, f"streams.edges[{number}].after")
        seconds = _kernels(dependence, wanted, edge.before, f"streams.edges[{number}].before")
        edges += [(first, second) for first in firsts for second in seconds]
    return edges


def priorities(wanted: Streams) -> Mapping[str, int]:
    """{stream: priority} of the entries; two entries that disagree about one stream are refused."""
    found = _per_stream(wanted, "priority", lambda entry: entry.priority, lambda value: f"priority {value}")
    return {stream: priority for stream, priority in found.items() if priority}


def cores(wanted: Streams, model: DeviceModel) -> Mapping[str, Cores]:
    """{stream: limit} of the entries; what the device has not, and two entries that disagree, are refused."""
    found = _per_stream(wanted, "cores", lambda entry: entry.cores, _in_words)
    for number, entry in enumerate(wanted.plan):
        limit = entry.cores
        lacking = model.lacks(limit.aicore, limit.vectorcore) if limit is not None else None
        if lacking is not None:
            raise PlanError(
                "cores",
                f"streams.plan[{number}].cores asks for {_in_words(limit)}; {lacking} (streams.device.cube and .vector "
                "say otherwise).",
            )
    return {stream: limit for stream, limit in found.items() if limit is not None}


def _per_stream(wanted: Streams, field: str, read: Callable[[PlanEntry], T], words: Callable[[T], str]) -> dict[str, T]:
    """{stream: value of its entries}; two entries that disagree about one stream are refused."""
    found: dict[str, T] = {}
    for number, entry in enumerate(wanted.plan):
        value = read(entry)
        earlier = found.setdefault(entry.stream, value)
        if value != earlier:
            raise PlanError(
                field,
                f"streams.plan[{number}] gives stream '{entry.stream}' {words(value)}, an earlier entry "
                f"{words(earlier)}: one stream has one value of {field}.",
            )
    return found


def _in_words(limit: Cores | None) -> str:
    return "no limit" if limit is None else f"{limit.aicore} cube and {limit.vectorcore} vector cores"
