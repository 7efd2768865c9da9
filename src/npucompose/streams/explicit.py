"""The entries that a person wrote: which nodes each one means, the streams that they get, the order that is added."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.describe import op_name
from npucompose.schema.streams import DEFAULT_STREAM, Cores, Match, PlanEntry, SourceMatch, Streams, fits
from npucompose.vendor.devices import DeviceModel

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_KEY = re.compile(r"(?:\.?_modules)?\[['\"]?([^'\"\]]+)['\"]?\]")
"""One step of a path: `['0']`, up to torch 2.9 `._modules['0']`."""


def targets(node: fx.Node) -> tuple[str, ...]:
    """An overload's name and its packet's: ("aten.mm.default", "aten.mm")."""
    name = op_name(node)
    packet = getattr(node.target, "overloadpacket", None)
    return (name,) if packet is None else (name, str(packet))


def modules(node: fx.Node) -> tuple[str, ...]:
    """The dotted paths of the modules a node was called in, outermost first: ("layers.0", "layers.0.mlp")."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = (_KEY.sub(r".\1", _ROOT.sub("", str(entry[0]))).lstrip(".") for entry in stack.values())
    return tuple(path for path in paths if path)


def frames(node: fx.Node) -> tuple[tuple[str, int], ...]:
    """(file, line) of the calls that made a node, outermost first."""
    found = _FRAME.finditer(node.meta.get("stack_trace") or "")
    return tuple((frame["file"], int(frame["line"])) for frame in found)


def _from(source: SourceMatch, node: fx.Node) -> bool:
    wanted = PurePath(source.file).parts
    first, last = source.lines or (1, 1 << 60)
    return any(PurePath(file).parts[-len(wanted) :] == wanted and first <= line <= last for file, line in frames(node))


_TEXTS: Mapping[str, Callable[[fx.Node], tuple[str, ...]]] = {
    "target": targets,
    "name": lambda node: (node.name,),
    "module": modules,
}
"""{field of a match: what a node has for it}."""


def matches(match: Match, node: fx.Node) -> bool:
    fitting = all(_fits(match, field_name, node) for field_name in _TEXTS)
    return fitting and (match.source is None or _from(match.source, node))


def _fits(match: Match, field_name: str, node: fx.Node) -> bool:
    given = getattr(match, field_name)
    return given is None or any(fits(given, text) for text in _TEXTS[field_name](node))


def find(match: Match, nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    return tuple(node for node in nodes if matches(match, node))


def why_none(match: Match, kernels: Sequence[fx.Node], others: Sequence[fx.Node]) -> str:
    """Why `match` finds no kernel: the field that fits nothing, with what is near it; else what was found instead."""
    if find(match, others):
        return "it finds only views, inputs or sizes, which start no kernel and stay with what they are made of"
    for field_name, texts in _TEXTS.items():
        given = getattr(match, field_name)
        if given is not None and not any(_fits(match, field_name, node) for node in kernels):
            # Of an overload its full name: that of its packet would only say it twice.
            present = [text for node in kernels for text in texts(node)[: 1 if field_name == "target" else None]]
            return f"no {field_name} fits '{given}'. {_near(given, list(dict.fromkeys(present)))}"
    if match.source is not None and not find(Match(source=match.source), kernels):
        files = sorted({f"{PurePath(file).name}:{line}" for node in kernels for file, line in frames(node)[-1:]})
        return f"no source line fits. {_near(match.source.file, files)}"
    return "every field fits some node, but no node fits them all"


def _near(given: str, present: list[str]) -> str:
    if not present:
        return "The nodes of this graph do not say theirs."
    plain = given.removeprefix("re:")
    close = difflib.get_close_matches(plain, present, n=3, cutoff=0.5)
    listing = close or present[:8]
    more = ", …" if not close and len(present) > 8 else ""
    return f"{'Near' if close else 'There are'}: {', '.join(listing)}{more}."


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
