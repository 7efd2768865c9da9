"""What the pass `stream_plan` is asked for (Streams) and what it found (Plan). Knows no graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

from npucompose.schema.options import option

DEFAULT_STREAM = "default"


@frozen(kw_only=True)
class SourceMatch:
    """Lines of a source file: `{file: attn.py, lines: [40, 62]}`; the file matches by its last path parts."""

    file: str
    lines: tuple[int, int] | None = None

    def __attrs_post_init__(self) -> None:
        if self.lines is not None and not 1 <= self.lines[0] <= self.lines[1]:
            raise ValueError(f"'lines' must be [first, last], counted from 1: {list(self.lines)}")


@frozen(kw_only=True)
class Match:
    """Which nodes of an FX graph are meant; every field that is given must hold.

    `target` is an overload (`aten.mm.default`) or a packet (`aten.mm`); `name` a node name; `module` the dotted path
    in nn_module_stack. Text is an exact value, an fnmatch glob, or `re:` and a regular expression (full match).
    """

    target: str | None = None
    name: str | None = None
    module: str | None = None
    source: SourceMatch | None = None

    def __attrs_post_init__(self) -> None:
        if (self.target, self.name, self.module, self.source) == (None, None, None, None):
            raise ValueError("a match needs at least one of target, name, module, source")
        for field_name, text in (("target", self.target), ("name", self.name), ("module", self.module)):
            if text is None or not text.startswith("re:"):
                continue
            try:
                re.compile(text[3:])
            except re.error as error:
                raise ValueError(f"'{field_name}' is not a regular expression ({error}): {text!r}") from None

    def __str__(self) -> str:
        """As it stands in YAML: `target: aten.abs.default, name: abs_*`."""
        parts = {"target": self.target, "name": self.name, "module": self.module}
        words = [f"{key}: {value}" for key, value in parts.items() if value is not None]
        if self.source is not None:
            lines = f":{self.source.lines[0]}-{self.source.lines[1]}" if self.source.lines else ""
            words.append(f"source: {self.source.file}{lines}")
        return ", ".join(words)


@frozen(kw_only=True)
class PlanEntry:
    """Put what `match` finds on `stream`; entries are read in order and the first that matches a node wins."""

    stream: str
    match: Match
    priority: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.stream:
            raise ValueError("'stream' must be a name, '' is none")
        if self.stream == DEFAULT_STREAM and self.priority:
            raise ValueError(f"the stream '{DEFAULT_STREAM}' is not ours: it takes no priority")


@frozen(kw_only=True)
class ExtraEdge:
    """An order that no data asks for: everything `before` finds waits for everything `after` finds."""

    after: Match
    before: Match


@frozen(kw_only=True)
class Streams:
    """What a plan should look like. Users never write events for data; they are derived.

    An explicit `plan` wins over `kind: auto`; `edges` add order to either kind.
    """

    name: str = option("auto", "the choice of conf/streams this is")
    kind: Literal["auto", "explicit", "none"] = option(
        "auto", "find chains, follow `plan`, or leave one stream", choices=("auto", "explicit", "none")
    )
    max_streams: int = option(2, "at most so many streams, the default one included", ge=1)
    plan: tuple[PlanEntry, ...] = option(factory=tuple, doc="explicit assignment; all else stays on the default stream")
    edges: tuple[ExtraEdge, ...] = option(factory=tuple, doc="extra order between nodes")
    on_no_match: Literal["error", "warn"] = option("error", "when an entry finds no node", choices=("error", "warn"))

    def __attrs_post_init__(self) -> None:
        if self.kind == "none" and (self.plan or self.edges):
            raise ValueError("'kind: none' follows no plan: remove 'plan' and 'edges', or say 'kind: explicit'")
        if self.kind == "explicit" and not (self.plan or self.edges):
            raise ValueError("'kind: explicit' needs entries in 'plan' or 'edges'")


@frozen(kw_only=True)
class Event:
    """`waiter` starts only after `recorder` is done; both are node names on different streams."""

    recorder: str
    waiter: str


@frozen(kw_only=True)
class Plan:
    """Streams are chosen, events follow: `nodes` maps every planned node to its stream, in execution order."""

    nodes: Mapping[str, str] = field(factory=dict[str, str])
    events: tuple[Event, ...] = ()
    priorities: Mapping[str, int] = field(factory=dict[str, int])
    """{stream: priority} of the streams that have one other than 0."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams in use, the default one first when it is used, then in order of appearance."""
        seen = dict.fromkeys(self.nodes.values())
        return tuple(sorted(seen, key=lambda s: s != DEFAULT_STREAM))

    def as_dict(self) -> dict[str, Any]:
        return {"streams": len(self.streams), "events": len(self.events), "nodes": dict(self.nodes)}
