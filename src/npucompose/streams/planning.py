"""The act of planning: choose streams, order kernels, derive events, weigh the plan, write it into the graph, check.

Streams that stand in the graph already, written in the model's source or by an earlier run of the pass, stay or are
repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from attrs import frozen
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import is_planned
from npucompose.graphs.effects import has_only_limits, is_collective, priorities, stream_labels
from npucompose.results.streams import Decision, StreamAssignment, StreamEvent, TrialRequest, least_gain, most_gain
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.cost_table import BUSY
from npucompose.schema.sizes import as_bytes
from npucompose.schema.streams import DEFAULT_STREAM, Cores, Streams
from npucompose.streams import explicit
from npucompose.streams.assignment import candidates, plans
from npucompose.streams.emit import emit, strip
from npucompose.streams.execute import find_races
from npucompose.streams.limits import bounded, check_bound, is_over, settled
from npucompose.streams.predicted import predicted
from npucompose.streams.problem import Problem, ScheduledPlan, schedule
from npucompose.streams.ranks import agree
from npucompose.streams.timing import issued_before
from npucompose.streams.validation import check_streams, keep_alive, validate


@frozen(kw_only=True, eq=False)
class NamedPlan:
    """A plan by names, with the numbers that it was made from."""

    plan: StreamAssignment
    scheduled: ScheduledPlan
    stream_names: Sequence[str]
    costs_us: float = 0.0
    """What keeping to `streams.max_memory` costs of the predicted time."""

    @property
    def aside(self) -> int:
        """Kernels that leave the default stream."""
        return sum(stream != DEFAULT_STREAM for stream in self.plan.nodes.values())

    @property
    def moved(self) -> int:
        """Kernels that change their place in the list."""
        pairs = zip(self.scheduled.problem.original, self.scheduled.order, strict=True)
        return sum(before != after for before, after in pairs)

    @property
    def gain(self) -> float:
        """Share of the serial time that the plan is predicted to save."""
        serial = self.scheduled.problem.serial_us
        return 1 - self.scheduled.simulation.makespan / serial if serial else 0.0

    @property
    def least_gain(self) -> float:
        """The lower end of it: what the kernels were timed with may have been no more than the machine's best."""
        return least_gain(self.gain, self.scheduled.problem.spread or 0.0)

    @property
    def most_gain(self) -> float | None:
        """The upper end; None where nobody knows how far the prediction may be off."""
        spread = self.scheduled.problem.spread
        return None if spread is None else most_gain(self.gain, spread)

    def decision(
        self, *, applied: bool, why: str, validated: bool = True, trial: TrialRequest | None = None
    ) -> Decision:
        problem = self.scheduled.problem
        _ = problem.lives  # what has to be read off the graph is read now: later passes may rewrite it
        return Decision(
            applied=applied,
            why=why,
            validated=validated,
            trial=trial,
            max_memory=problem.wanted.max_memory,
            predict=lambda: predicted(self.scheduled, self.stream_names),
        )


def named(
    problem: Problem, labels: Sequence[str], priorities: Mapping[str, int], cores: Mapping[str, Cores] | None = None
) -> NamedPlan:
    """The plan that puts each kernel on the stream of its label, in the graph's own order where it can be kept.

    `priorities` and `cores` are those of streams.
    """
    stream_names = tuple(dict.fromkeys((DEFAULT_STREAM, *labels)))
    number = {label: index for index, label in enumerate(stream_names)}
    limits = {index: cores[label] for index, label in enumerate(labels) if cores and label in cores}
    scheduled = schedule(problem, [number[label] for label in labels], range(len(labels)), limits=limits)
    return with_names(scheduled, stream_names, priorities)


def with_names(scheduled: ScheduledPlan, stream_names: Sequence[str], priorities: Mapping[str, int]) -> NamedPlan:
    names = scheduled.problem.names
    nodes = {names[index]: stream_names[scheduled.streams[index]] for index in scheduled.order}
    used = set(nodes.values())
    plan = StreamAssignment(
        nodes=nodes,
        events=tuple(StreamEvent(recorder=names[first], waiter=names[then]) for first, then in scheduled.events),
        priorities={stream: priority for stream, priority in priorities.items() if stream in used},
        cores={names[index]: limit for index in scheduled.order if (limit := scheduled.limit(index)) is not None},
    )
    return NamedPlan(plan=plan, scheduled=scheduled, stream_names=stream_names)


def write(graph: fx.Graph, found: NamedPlan, can: Capabilities) -> None:
    """The plan into the graph, with what the device needs beside it, proven afterwards (PlanError)."""
    problem = found.scheduled.problem
    needed = problem.needed
    strip(graph)
    emit(graph, found.plan, needed, can)
    if can.frees_early:
        keep_alive(graph, needed)
    validate(graph, needed, problem.on_its_model(can))


REPAIRABLE = frozenset(("race", "scope_nested", "scope_label", "record_nothing", "lifetime"))
"""What writing the same streams anew puts right; scopes that do not pair leave nothing to go by."""


def keep(graph: fx.Graph, problem: Problem, can: Capabilities) -> tuple[int, Decision]:
    """(kernels whose place or events changed, what was decided) for a graph with streams.

    A plan of the configuration must be the one that is there. Streams that are safe stay as they are; others get the
    events that their data need, where `unsafe: fix` allows it. Where the device syncs data between streams by itself
    nothing is checked but an order that was asked for.
    """
    wanted = problem.wanted
    labels = stream_labels(graph)
    there = named(problem, [labels.get(kernel, DEFAULT_STREAM) for kernel in problem.kernels], priorities(graph))
    if wanted.plan:
        _same(problem, there)
    check_bound(there.scheduled)
    if not (can.explicit_events or wanted.edges):
        why = "streams of the graph itself; the mode syncs their data"
        return 0, there.decision(applied=True, why=why, validated=False)
    try:
        validate(graph, problem.needed, problem.on_its_model(can))
    except PlanError as error:
        if wanted.unsafe == "error" or error.code not in REPAIRABLE:
            raise
        return _repaired(graph, problem, there.plan, can)
    return 0, there.decision(applied=True, why="streams of the graph itself")


def _same(problem: Problem, there: NamedPlan) -> None:
    for node, stream in zip(problem.kernels, explicit.assigned(problem.needed, problem.wanted), strict=True):
        if there.plan.nodes[node.name] != stream:
            raise PlanError(
                "already_planned",
                f"The graph has stream scopes already, and they differ from streams.plan: '{node.name}' is on "
                f"'{there.plan.nodes[node.name]}', the plan says '{stream}'. Remove one of the two, or say "
                "streams.override=true to replace those of the graph.",
            )


def _repaired(graph: fx.Graph, problem: Problem, there: StreamAssignment, can: Capabilities) -> tuple[int, Decision]:
    """The same streams, flat and with all events; what records and waits ordered before stays ordered."""
    asked = [
        (first, kernel)
        for kernel, firsts in issued_before(graph, problem.kernels).items()
        for first in firsts
        if there.nodes[first.name] != there.nodes[kernel.name]
    ]
    strip(graph)
    again = Problem.from_graph(graph, problem.wanted, can, asked, problem.limits)
    found = named(again, [there.nodes[kernel.name] for kernel in again.kernels], there.priorities)
    write(graph, found, can)
    return found.aside, found.decision(applied=True, why="streams of the graph itself, with the events they lacked")


HOPELESS = -0.5
"""A plan that nominal figures predict to take half as long again as one stream is not tried: they are not that wrong,
and a trial costs every capture its time. The worst seen so far said -24% of a plan that saves a fifth. Where kernels
were timed, the upper end of the gain says it."""
DECISION = "npucompose.stream_plan"
"""Where `apply` leaves its Decision: in the meta data of the graph module."""


def plan(graph: fx.Graph, wanted: Streams, can: Capabilities) -> StreamAssignment:
    """The plan for a graph that has none, whether it pays or not; changes nothing.

    For `mm = x @ x; a = x.abs(); s = a - x; return mm + s`: mm and the sum on the default stream, abs and sub on
    "stream1", one event from sub to the sum.
    """
    return choose(Problem.from_graph(graph, wanted, can), can).plan


def predicted_us(graph: fx.Graph, wanted: Streams, can: Capabilities) -> float:
    """How long the graph takes with the plan that is found for it, or in a row where that is faster; changes nothing.

    A prediction: it compares graphs that compute the same.
    """
    problem = Problem.from_graph(graph, wanted, can)
    return min(choose(problem, can).scheduled.simulation.makespan, problem.serial_us)


def apply(graph: fx.Graph, wanted: Streams, can: Capabilities) -> int:
    """Write the plan into the graph and say how many kernels left the default stream (or, without streams, moved).

    A graph with scopes of its own, or planned before, is left as it is or repaired (see `keep`) unless
    `wanted.override`. An automatic plan that does not pay is not applied: 0, and the Decision in `owning_module.meta`
    says why. A plan that cannot be made safe is a PlanError, and so is one whose collectives do not meet those of the
    other ranks.
    """
    program = [node for node in graph.nodes if is_collective(node)]
    changed, decision = _apply(graph, wanted, can)
    if program and can.ranks is not None:
        agree(graph, program, can.ranks)
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
    problem = Problem.from_graph(graph, wanted, can)
    if is_planned(graph) and not has_only_limits(graph):
        return keep(graph, problem, can)
    found = choose(problem, can)
    trial = _trial(found, can)
    why_not = _not_worth_it(found, can, trial)
    if why_not and not is_over(problem):
        return stripped, found.decision(applied=False, why=why_not)
    moved = found.moved
    write(graph, found, can)
    if wanted.check:
        find_races(graph, wanted.check)
    why = _why(found) if trial is None else f"{_why(found)}, to be tried at capture"
    return found.aside or moved or stripped, found.decision(applied=True, why=why, trial=trial)


def _why(found: NamedPlan) -> str:
    wanted = found.scheduled.problem.wanted
    by = "as written" if wanted.kind == "explicit" or wanted.plan else f"objective {wanted.objective}"
    if wanted.cost != "none":
        by += f", {_gain_words(found)}"
    if wanted.kind == "auto" and not wanted.plan and found.scheduled.limits:
        by += f", cores divided among {len(found.scheduled.limits)} kernels"
    if wanted.max_memory is None:
        return by
    needed, alone = found.scheduled.footprint.nbytes, found.scheduled.problem.one_stream.nbytes
    more = f", which costs {found.costs_us:.1f} µs" if found.costs_us > 0 else ""
    return (
        f"{by}, {as_bytes(needed)} of intermediate results against {as_bytes(alone)} on one stream, "
        f"kept within streams.max_memory {wanted.max_memory}{more}"
    )


def _gain_words(found: NamedPlan) -> str:
    """`predicted gain 25.0% (12.5% to 37.5%)`: with its interval where that is known."""
    most = found.most_gain
    if most is None:
        return f"predicted gain {found.gain:.1%}"
    doubt = ", the machine was busy when kernels were timed" if (found.scheduled.problem.spread or 0.0) > BUSY else ""
    return f"predicted gain {found.gain:.1%} ({found.least_gain:.1%} to {most:.1%}{doubt})"


def _trial(found: NamedPlan, can: Capabilities) -> TrialRequest | None:
    """What the capture is to find out of this plan; None where the plan is followed, or judged here."""
    scheduled, wanted = found.scheduled, found.scheduled.problem.wanted
    if not found.aside or not _may_be_tried(scheduled.problem, can):
        return None
    predicts = wanted.cost != "none"
    return TrialRequest(
        ms=wanted.trial_ms,
        min_gain=wanted.min_gain,
        predicted_us=scheduled.simulation.makespan if predicts else None,
        predicted_serial_us=scheduled.problem.serial_us if predicts else None,
        spread=scheduled.problem.spread,
    )


def _may_be_tried(problem: Problem, can: Capabilities) -> bool:
    """A plan that a person wrote, or wants whatever it costs (`min_gain: 0`), is not; nor one that all ranks run."""
    wanted = problem.wanted
    if problem.communicates:
        return False
    return can.tries_plans and wanted.trial_ms > 0 and wanted.min_gain > 0 and not wanted.plan and wanted.kind == "auto"


def _not_worth_it(found: NamedPlan, can: Capabilities, trial: TrialRequest | None) -> str:
    """Why a plan stays out; '' for one that goes in. What a person wrote, or asked for by `edges`, always goes in."""
    wanted = found.scheduled.problem.wanted
    if not found.aside and wanted.edges and found.moved:
        return ""
    if not found.aside and not (found.moved and found.scheduled.problem.communicates):
        return "nothing runs beside anything else"
    if wanted.kind == "explicit" or wanted.plan:
        return ""
    if can.max_events is not None and len(found.plan.events) > can.max_events:
        return f"it needs {len(found.plan.events)} events, target={can.target} mode={can.mode} has {can.max_events}"
    if wanted.cost == "none" or not wanted.min_gain:
        return ""
    if trial is not None:
        hopeless = found.gain < HOPELESS if found.most_gain is None else found.most_gain < wanted.min_gain
        return f"{_gain_words(found)}, which is beyond a trial" if hopeless else ""
    if found.least_gain >= wanted.min_gain:
        return ""
    return f"{_gain_words(found)} is below streams.min_gain {wanted.min_gain:.1%}"


def choose(problem: Problem, can: Capabilities) -> NamedPlan:
    """The plan that is made of a problem: the one that a person wrote, or the best of those that were found."""
    wanted = problem.wanted
    if wanted.kind == "none":
        return named(problem, [DEFAULT_STREAM] * len(problem.kernels), {})
    if wanted.kind == "explicit" or wanted.plan:
        labels = explicit.assigned(problem.needed, wanted)
        _check_count(labels, wanted, can)
        limits = explicit.cores(wanted, problem.model) if can.core_limits else {}
        written = named(problem, labels, explicit.priorities(wanted), limits)
        best = min(bounded(problem, [written.scheduled], may_move=False), key=lambda one: one.rank)
        return written if best is written.scheduled else _with_schedule(written, best)
    limit = min(wanted.max_streams, can.max_streams)
    free = _schedules(problem, limit)
    free += _improved(free, wanted, can)
    schedules = bounded(problem, free)
    if not wanted.min_gain or _may_be_tried(problem, can):
        # A plan is wanted whatever it costs, or whatever is predicted: one stream is no answer where there is another.
        schedules = [one for one in schedules if any(one.streams)] or schedules
    best, fastest = (min(found, key=lambda one: one.rank) for found in (schedules, free))
    names = (DEFAULT_STREAM, *(f"stream{number}" for number in range(1, limit)))
    return attrs.evolve(with_names(best, names, {}), costs_us=best.simulation.makespan - fastest.simulation.makespan)


def _with_schedule(written: NamedPlan, best: ScheduledPlan) -> NamedPlan:
    """The streams that a person wrote, with order beside that of the data."""
    plan = with_names(best, written.stream_names, written.plan.priorities)
    return attrs.evolve(plan, costs_us=best.simulation.makespan - written.scheduled.simulation.makespan)


def _schedules(problem: Problem, limit: int) -> list[ScheduledPlan]:
    wanted = problem.wanted
    timed = plans(wanted.objective, problem.instance(limit), wanted.ge_policy)
    free = [ScheduledPlan.from_timed(problem, one) for one in timed]
    if problem.communicates and wanted.objective in ("makespan", "time"):
        # The link works beside one stream, too.
        for one in candidates(wanted.objective, problem.instance(1)):
            free.append(schedule(problem, one.streams, one.ranked))
    return free


BEST = 2
"""So many of the plans found are improved where their kernels want the same cores."""


def _improved(schedules: Sequence[ScheduledPlan], wanted: Streams, can: Capabilities) -> list[ScheduledPlan]:
    """The best plans of several streams, with cores divided or kernels that wait for each other.

    Order is added where only time counts: the other objectives keep apart what nothing orders.
    """
    several = sorted((one for one in schedules if any(one.streams)), key=lambda one: one.rank)
    order = wanted.objective in ("makespan", "time")
    divide = wanted.split_cores and can.core_limits and wanted.objective != "ge"
    tried = [(one, settled(one, order=order, divide=divide, max_events=can.max_events)) for one in several[:BEST]]
    return [found for one, found in tried if found is not one]


def _check_count(labels: list[str], wanted: Streams, can: Capabilities) -> None:
    used = sorted({DEFAULT_STREAM, *labels})
    if len(used) > wanted.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The plan uses {len(used)} streams ({', '.join(used)}), streams.max_streams is {wanted.max_streams}: "
            "raise it or name fewer.",
        )
    check_streams("plan", used, can)
