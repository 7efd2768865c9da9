"""A plan that was found: in numbers, by names, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen
from torch import fx

from npucompose.results.streams import Decision, Event, Plan, Trial
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM, Cores
from npucompose.streams.emit import emit
from npucompose.streams.lifetime import keep_alive
from npucompose.streams.predict import Drawn, lives_of, predicted
from npucompose.streams.problem import Problem
from npucompose.streams.validate import validate


@frozen(kw_only=True, eq=False)
class Found:
    plan: Plan
    drawn: Drawn
    stream_names: Sequence[str]

    @property
    def aside(self) -> int:
        """Kernels that leave the default stream."""
        return sum(stream != DEFAULT_STREAM for stream in self.plan.nodes.values())

    @property
    def moved(self) -> int:
        """Kernels that change their place in the list."""
        before = self.drawn.problem.original
        return sum(before[index] != place for place, index in enumerate(self.drawn.order))

    @property
    def gain(self) -> float:
        """Share of the serial time that the plan is predicted to save."""
        serial = self.drawn.problem.serial_us
        return 1 - self.drawn.simulation.makespan / serial if serial else 0.0

    def decision(self, *, applied: bool, why: str, validated: bool = True, trial: Trial | None = None) -> Decision:
        # What has to be read off the graph is read now: later passes may rewrite it.
        lives = lives_of(self.drawn.problem)
        return Decision(
            applied=applied,
            why=why,
            validated=validated,
            trial=trial,
            tell=lambda: predicted(self.drawn, self.stream_names, lives),
        )


def named(
    problem: Problem, labels: Sequence[str], priorities: Mapping[str, int], cores: Mapping[str, Cores] | None = None
) -> Found:
    """The plan that puts each kernel on the stream of its label, in the graph's own order where it can be kept."""
    stream_names = tuple(dict.fromkeys((DEFAULT_STREAM, *labels)))
    number = {label: index for index, label in enumerate(stream_names)}
    drawn = Drawn.of(problem, [number[label] for label in labels], range(len(labels)))
    return with_names(drawn, stream_names, priorities, cores)


def with_names(
    drawn: Drawn,
    stream_names: Sequence[str],
    priorities: Mapping[str, int],
    cores: Mapping[str, Cores] | None = None,
) -> Found:
    names = drawn.problem.names
    nodes = {names[index]: stream_names[drawn.streams[index]] for index in drawn.order}
    used = set(nodes.values())
    plan = Plan(
        nodes=nodes,
        events=tuple(Event(recorder=names[first], waiter=names[then]) for first, then in drawn.events),
        priorities={stream: priority for stream, priority in priorities.items() if stream in used},
        cores={stream: limit for stream, limit in (cores or {}).items() if stream in used},
    )
    return Found(plan=plan, drawn=drawn, stream_names=stream_names)


def write(graph: fx.Graph, found: Found, can: Capabilities) -> None:
    """The plan into the graph, with what the device needs beside it, proven afterwards (PlanError)."""
    needed = found.drawn.problem.needed
    emit(graph, found.plan, needed, can)
    if can.frees_early:
        keep_alive(graph, needed)
    validate(graph, needed, can)
