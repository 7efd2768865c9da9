"""What is predicted of a scheduled plan, in a few figures and as drawings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from npucompose.results.streams import PredictedPlan, Prediction, Timeline
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.streams import dag
from npucompose.streams.memory import Life
from npucompose.streams.problem import Problem, ScheduledPlan


def predicted(plan: ScheduledPlan, stream_names: Sequence[str]) -> PredictedPlan:
    """What the simulation says, in a few figures and as drawings."""
    return PredictedPlan(
        figures=_prediction(plan, stream_names),
        timeline=_timeline(plan, stream_names),
        one_stream=_in_a_row(plan.problem) if any(plan.streams) else None,
    )


def _in_a_row(problem: Problem) -> Timeline:
    """The kernels in their legal order, each with all threads that it may take: `serial_us` in the end."""
    ends = list(accumulate(item.us for item in problem.work_in_a_row))
    return Timeline(
        source="predicted on one stream",
        nodes=tuple(problem.names),
        streams=(DEFAULT_STREAM,) * len(ends),
        start_us=(0.0, *ends[:-1]),
        end_us=tuple(ends),
    )


def _prediction(plan: ScheduledPlan, stream_names: Sequence[str]) -> Prediction:
    problem, simulation = plan.problem, plan.simulation
    times = [item.us for item in problem.work]
    busy = dict.fromkeys(stream_names, 0.0)
    for index, name in enumerate(_tracks(plan, stream_names)):
        busy[name] = busy.get(name, 0.0) + simulation.end[index] - simulation.start[index]
    return Prediction(
        device=problem.model.name,
        cost=problem.cost,
        plan_us=simulation.makespan,
        serial_us=problem.serial_us,
        critical_us=max(dag.longest_paths(times, problem.then), default=0.0),
        busy={name: us / simulation.makespan for name, us in busy.items()} if simulation.makespan else {},
        peak_bytes=plan.footprint.nbytes,
        serial_peak_bytes=problem.one_stream.nbytes,
        spread=problem.spread,
        profile=None if problem.tabled is None else problem.tabled.use,
        intra_op_threads=None if all(item.in_a_row_us is None for item in problem.work) else problem.threads,
    )


def _timeline(plan: ScheduledPlan, stream_names: Sequence[str]) -> Timeline:
    problem, simulation = plan.problem, plan.simulation
    names, start, end = problem.names, simulation.start, simulation.end
    tracks = _tracks(plan, stream_names)
    counters = {"bytes alive": tuple(_living(problem.lives, start, end))}
    for kind, used in (
        ("cube cores", [item.cube for item in plan.work]),
        ("vector cores", [item.vector for item in plan.work]),
    ):
        if any(used):
            counters[kind] = tuple(_changes([(start[i], end[i], count) for i, count in enumerate(used) if count]))
    return Timeline(
        source="predicted",
        nodes=tuple(names[index] for index in plan.order),
        streams=tuple(tracks[index] for index in plan.order),
        start_us=tuple(start[index] for index in plan.order),
        end_us=tuple(end[index] for index in plan.order),
        events=tuple((names[first], names[then]) for first, then in plan.events),
        counters=counters,
    )


ON_THE_LINK = "link"
"""Where collectives are drawn: they take no time of the stream that issues them."""


def _tracks(plan: ScheduledPlan, stream_names: Sequence[str]) -> list[str]:
    """Of each kernel: its stream, or the link."""
    pairs = zip(plan.streams, plan.problem.work, strict=True)
    return [ON_THE_LINK if item.link else stream_names[stream] for stream, item in pairs]


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
