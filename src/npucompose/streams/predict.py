"""From a plan to its predicted time, the memory it holds, and a timeline that can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from attrs import frozen

from npucompose.graphs import allocations
from npucompose.results.streams import Prediction, Timeline
from npucompose.streams import dag
from npucompose.streams.order import fewest_events, in_runs
from npucompose.streams.problem import Problem
from npucompose.streams.simulate import Simulation, simulate

Pairs = Sequence[tuple[int, int]]


@frozen(kw_only=True, eq=False)
class Drawn:
    """A plan in numbers: streams chosen, kernels ordered, events derived, time simulated."""

    problem: Problem
    streams: Sequence[int]
    order: Sequence[int]
    events: Pairs
    simulation: Simulation

    @classmethod
    def of(cls, problem: Problem, streams: Sequence[int], ranked: Sequence[int]) -> Drawn:
        order = in_runs(streams, problem.then, ranked)
        events = fewest_events(order, streams, problem.edges)
        simulation = simulate(order, streams, events, problem.work, problem.model)
        return cls(problem=problem, streams=streams, order=order, events=events, simulation=simulation)

    @property
    def rank(self) -> tuple[float, int, int]:
        """The faster plan is the better one; then the one with fewer events, then with fewer streams."""
        return self.simulation.makespan, len(self.events), len(set(self.streams))


def predicted(drawn: Drawn, stream_names: Sequence[str], lives: Sequence[Life]) -> tuple[Prediction, Timeline]:
    """What the simulation says, in a few figures and as a drawing."""
    living = _living(lives, drawn.simulation.start, drawn.simulation.end)
    return _prediction(drawn, stream_names, lives, living), _timeline(drawn, stream_names, living)


def _prediction(
    drawn: Drawn, stream_names: Sequence[str], lives: Sequence[Life], living: Sequence[tuple[float, float]]
) -> Prediction:
    problem, simulation = drawn.problem, drawn.simulation
    times = [item.us for item in problem.work]
    busy = dict.fromkeys(stream_names, 0.0)
    for index, stream in enumerate(drawn.streams):
        busy[stream_names[stream]] += simulation.end[index] - simulation.start[index]
    in_a_row = list(accumulate(times))
    return Prediction(
        device=problem.model.name,
        cost=problem.wanted.cost,
        plan_us=simulation.makespan,
        serial_us=problem.serial_us,
        critical_us=max(dag.longest_paths(times, problem.then), default=0.0),
        busy={name: us / simulation.makespan for name, us in busy.items()} if simulation.makespan else {},
        peak_bytes=_peak(living),
        serial_peak_bytes=_peak(_living(lives, [end - us for end, us in zip(in_a_row, times, strict=True)], in_a_row)),
    )


def _timeline(drawn: Drawn, stream_names: Sequence[str], living: Sequence[tuple[float, float]]) -> Timeline:
    problem, simulation = drawn.problem, drawn.simulation
    names, start, end = problem.names, simulation.start, simulation.end
    counters = {"bytes alive": tuple(living)}
    for kind, used in (
        ("cube cores", [item.cube for item in problem.work]),
        ("vector cores", [item.vector for item in problem.work]),
    ):
        if any(used):
            counters[kind] = tuple(_changes([(start[i], end[i], count) for i, count in enumerate(used) if count]))
    return Timeline(
        source="predicted",
        nodes=tuple(names[index] for index in drawn.order),
        streams=tuple(stream_names[drawn.streams[index]] for index in drawn.order),
        start_us=tuple(start[index] for index in drawn.order),
        end_us=tuple(end[index] for index in drawn.order),
        events=tuple((names[first], names[then]) for first, then in drawn.events),
        counters=counters,
    )


@frozen(slots=True)
class Life:
    """A kernel's results: how many bytes, and the kernels that read them; None for what the graph returns."""

    made_by: int
    nbytes: float
    readers: Sequence[int] | None


def lives_of(problem: Problem) -> list[Life]:
    """Of every kernel that makes memory of its own; whoever uses it under another name (in place, a view) counts."""
    number = {kernel: index for index, kernel in enumerate(problem.kernels)}
    users: dict[int, dict[int, None] | None] = {}
    for memory in allocations(problem.graph, problem.needed):
        maker = number[memory.maker]
        known = users.setdefault(maker, {})
        if memory.returned:
            users[maker] = None
        elif known is not None:
            known.update(dict.fromkeys(number[user] for user in memory.touched_by))
    return [
        Life(maker, problem.sizes.of(problem.kernels[maker])[1], None if found is None else list(found))
        for maker, found in sorted(users.items())
    ]


def _living(lives: Sequence[Life], start: Sequence[float], end: Sequence[float]) -> list[tuple[float, float]]:
    last = max(end, default=0.0)
    spans: list[tuple[float, float, float]] = []
    for life in lives:
        gone = last if life.readers is None else max([end[r] for r in life.readers], default=end[life.made_by])
        spans.append((start[life.made_by], gone, life.nbytes))
    return _changes(spans)


def _changes(spans: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """[(time, sum of what covers it from then on)] of spans (from, to, how much)."""
    steps: dict[float, float] = {}
    for begin, stop, amount in spans:
        steps[begin] = steps.get(begin, 0.0) + amount
        steps[stop] = steps.get(stop, 0.0) - amount
    times = sorted(steps)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


def _peak(changes: Sequence[tuple[float, float]]) -> int:
    return int(max((amount for _, amount in changes), default=0.0))
