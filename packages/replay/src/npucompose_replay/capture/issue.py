"""On which stream each step of a recording is issued, and which earlier steps the graph puts before it.

From scopes, records and waits, random numbers and effects; what steps do to each other's memory is the business of
`threads`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs import define, field
from torch import fx

from npucompose.graphs.effects import control, facts, nodes_in
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose_replay.plan import Step


@define(eq=False)
class Issue:
    """One walk over a graph: `node(n)` before n is recorded, `step(s)` for each step it becomes, then `done(n)`."""

    labels: Mapping[fx.Node, str] | None
    """Of the nodes inside a scope; None for a graph that names no streams."""
    stream: str = DEFAULT_STREAM
    draws: bool = False
    """Whether the node that is recorded now draws random numbers."""
    last: dict[str, Step] = field(factory=dict)
    """The last step of each stream so far."""
    after: dict[fx.Node, Step] = field(factory=dict)
    """The last step of a node's stream when the node was done: what a wait for it waits for."""
    waiting: dict[str, list[Step]] = field(factory=dict)
    last_draw: Step | None = None
    effect: Step | None = None

    @property
    def has_streams(self) -> bool:
        return self.labels is not None

    def node(self, node: fx.Node) -> None:
        if self.labels is None:
            return
        self.stream, self.draws = self.labels.get(node, DEFAULT_STREAM), False
        if control(node) == "wait":
            awaited = [self.after[other] for other in nodes_in(node.args[0]) if other in self.after]
            self.waiting.setdefault(self.stream, []).extend(awaited)

    def step(self, step: Step) -> Step:
        """The step with its stream and with what comes before it."""
        if self.labels is None:
            return step
        before = self.waiting.pop(self.stream, [])
        has_effect = facts(step.op).effect
        before += [other for other in (self.draws and self.last_draw, has_effect and self.effect) if other]
        issued = attrs.evolve(step, stream=self.stream, after=tuple(before))
        self.last[self.stream] = issued
        self.last_draw = issued if self.draws else self.last_draw
        self.effect = issued if has_effect else self.effect
        return issued

    def done(self, node: fx.Node) -> None:
        if self.labels is not None and self.stream in self.last:
            self.after[node] = self.last[self.stream]
