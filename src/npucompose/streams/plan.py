"""The act of planning: choose streams, order kernels, derive events, weigh the plan, write it into the graph, check."""

from __future__ import annotations

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import is_planned
from npucompose.results.streams import Decision, Plan, Trial
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM, Streams
from npucompose.streams import auto, explicit
from npucompose.streams.emit import strip
from npucompose.streams.found import Found, named, with_names, write
from npucompose.streams.limits import check_streams
from npucompose.streams.predict import Drawn
from npucompose.streams.problem import Problem
from npucompose.streams.race import find_races
from npucompose.streams.source import keep
from npucompose.streams.validate import validate

HOPELESS = -0.5
"""A plan that is predicted to take half as long again as one stream is not tried: no prediction is that wrong, and a
trial costs every capture its time. The worst seen so far said -24% of a plan that saves a fifth."""
DECISION = "npucompose.stream_plan"
"""Where `apply` leaves its Decision: in the meta data of the graph module."""


def plan(graph: fx.Graph, wanted: Streams, can: Capabilities) -> Plan:
    """The plan for a graph that has none, whether it pays or not; changes nothing.

    For `mm = x @ x; a = x.abs(); s = a - x; return mm + s`: mm and the sum on the default stream, abs and sub on
    "stream1", one event from sub to the sum.
    """
    return _found(Problem.of(graph, wanted, can), can).plan


def apply(graph: fx.Graph, wanted: Streams, can: Capabilities) -> int:
    """Write the plan into the graph and say how many kernels left the default stream (or, without streams, moved).

    A graph with scopes of its own, or planned before, is kept (see `source.keep`) unless `wanted.override`. An
    automatic plan that does not pay is not applied: 0, and the Decision in `owning_module.meta` says why. A plan that
    cannot be made safe is a PlanError.
    """
    changed, decision = _apply(graph, wanted, can)
    if graph.owning_module is not None:
        graph.owning_module.meta[DECISION] = decision
    return changed


def judged(graph: fx.Graph) -> Decision:
    """Whether streams that nobody planned, those of the model's own code, keep every order that the kernels need."""
    try:
        validate(graph)
    except PlanError as error:
        return Decision(applied=True, validated=False, why=str(error))
    return Decision(applied=True, why="the streams of the model's own code")


def decision_of(module: fx.GraphModule) -> Decision | None:
    """What `apply` decided for this graph module; None where it was not asked."""
    return module.meta.get(DECISION)


def _apply(graph: fx.Graph, wanted: Streams, can: Capabilities) -> tuple[int, Decision]:
    if wanted.kind == "none":
        return 0, Decision(applied=False, why="streams.kind is none")
    stripped = strip(graph) if wanted.override else 0
    problem = Problem.of(graph, wanted, can)
    if is_planned(graph):
        return keep(graph, problem, can)
    found = _found(problem, can)
    trial = _trial(found, can)
    why_not = _not_worth_it(found, can, trial)
    if why_not:
        return stripped, found.decision(applied=False, why=why_not)
    moved = found.moved
    write(graph, found, can)
    if wanted.check:
        find_races(graph, wanted.check)
    why = _why(found) if trial is None else f"{_why(found)}, to be tried at capture"
    return found.aside or moved or stripped, found.decision(applied=True, why=why, trial=trial)


def _why(found: Found) -> str:
    wanted = found.drawn.problem.wanted
    by = "as written" if wanted.kind == "explicit" or wanted.plan else f"objective {wanted.objective}"
    return by if wanted.cost == "none" else f"{by}, predicted gain {found.gain:.1%}"


def _trial(found: Found, can: Capabilities) -> Trial | None:
    """What the capture is to find out of this plan; None where the plan is followed, or judged here."""
    wanted, drawn = found.drawn.problem.wanted, found.drawn
    if not found.aside or not _may_be_tried(wanted, can):
        return None
    if wanted.cost == "none":
        return Trial(ms=wanted.trial_ms, min_gain=wanted.min_gain)
    return Trial(
        ms=wanted.trial_ms,
        min_gain=wanted.min_gain,
        predicted_us=drawn.simulation.makespan,
        predicted_serial_us=drawn.problem.serial_us,
    )


def _may_be_tried(wanted: Streams, can: Capabilities) -> bool:
    """A plan that a person wrote, or wants whatever it costs (`min_gain: 0`), is not."""
    return can.tries_plans and wanted.trial_ms > 0 and wanted.min_gain > 0 and not wanted.plan and wanted.kind == "auto"


def _not_worth_it(found: Found, can: Capabilities, trial: Trial | None) -> str:
    """Why a plan stays out; '' for one that goes in. What a person wrote, or asked for by `edges`, always goes in."""
    wanted = found.drawn.problem.wanted
    if not found.aside:
        return "" if wanted.edges and found.moved else "nothing runs beside anything else"
    if wanted.kind == "explicit" or wanted.plan:
        return ""
    if can.max_events is not None and len(found.plan.events) > can.max_events:
        return f"it needs {len(found.plan.events)} events, target={can.target} mode={can.mode} has {can.max_events}"
    if wanted.cost == "none" or not wanted.min_gain:
        return ""
    if trial is not None:
        return f"predicted gain {found.gain:.1%}, which is beyond a trial" if found.gain < HOPELESS else ""
    if found.gain >= wanted.min_gain:
        return ""
    return f"predicted gain {found.gain:.1%} is below streams.min_gain {wanted.min_gain:.1%}"


def _found(problem: Problem, can: Capabilities) -> Found:
    wanted = problem.wanted
    if wanted.kind == "none":
        return named(problem, [DEFAULT_STREAM] * len(problem.kernels), {})
    if wanted.kind == "explicit" or wanted.plan:
        labels = explicit.assigned(problem.needed, wanted)
        _check_count(labels, wanted, can)
        limits = explicit.cores(wanted, problem.model) if can.core_limits else {}
        return named(problem, labels, explicit.priorities(wanted), limits)
    limit = min(wanted.max_streams, can.max_streams)
    chosen = auto.candidates(wanted.objective, problem.then, problem.work, limit, problem.model, problem.factories)
    drawn = [Drawn.of(problem, one.streams, one.ranked) for one in chosen]
    if not wanted.min_gain or _may_be_tried(wanted, can):
        # A plan is wanted whatever it costs, or whatever is predicted: one stream is no answer where there is another.
        drawn = [one for one in drawn if any(one.streams)] or drawn
    best = min(drawn, key=lambda one: one.rank)
    return with_names(best, (DEFAULT_STREAM, *(f"stream{number}" for number in range(1, limit))), {})


def _check_count(labels: list[str], wanted: Streams, can: Capabilities) -> None:
    used = sorted({DEFAULT_STREAM, *labels})
    if len(used) > wanted.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The plan uses {len(used)} streams ({', '.join(used)}), streams.max_streams is {wanted.max_streams}: "
            "raise it or name fewer.",
        )
    check_streams("plan", used, can)
