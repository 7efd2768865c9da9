"""Published cases of kernels that want the same cores, as planned. The same figures in every process."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from benchmarks.streams.goals import Goal, Part, table_of
from benchmarks.streams.planning import as_graph
from benchmarks.streams.plans import MODEL
from npucompose import ops
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import assignment
from npucompose.streams.limits import settled
from npucompose.streams.problem import Problem, schedule
from npucompose.streams.simulate import Work
from tests.streams import dags

TWO_CHAINS: dags.Dag = [[1], [2], [6], [4], [5], [6], []]
ONE_KIND = Work(us=100.0, vector=48, fixed_us=50.0)
TEXTBOOK: Sequence[tuple[str, dags.Dag, list[Work], float]] = (
    (
        "V20-C40-V20 beside V30-C20-V20: order added",
        TWO_CHAINS,
        [
            *(Work(us=20.0, vector=48), Work(us=40.0, cube=24), Work(us=20.0, vector=48)),
            *(Work(us=30.0, vector=48), Work(us=20.0, cube=24), Work(us=20.0, vector=48)),
        ],
        100.0,
    ),
    ("two kernels that fill the device, T = 100: cores divided", [[2], [2], []], [ONE_KIND, ONE_KIND], 150.0),
)
"""cann-recipes-infer, multi_stream_principles.md, 2.1.3 and 2.2.2; what joins them takes no time."""
ROUNDING = 1e-6


def cores() -> Part:
    """The two published cases, on a device where events and streams cost nothing."""
    ops.define()
    model = attrs.evolve(MODEL, event_us=0.0, stream_us=0.0)
    can = Capabilities(target="null_device", mode="max-autotune", device_model=model, core_limits=True)
    table = table_of("published cases: µs", "case", "one stream", "shared", "found")
    goals: list[Goal] = []
    for case, then, work, goal in TEXTBOOK:
        problem = Problem.from_graph(as_graph(then).graph, Streams(split_cores=True), can)
        vars(problem)["work"] = [*work, Work(us=0.0)]  # in place of the roofline's
        found = assignment.candidates("makespan", problem.instance(2))
        plans = [schedule(problem, one.streams, one.ranked) for one in found]
        shared = min(plan.simulation.makespan for plan in plans)
        best = min(settled(plan, order=True, divide=True).simulation.makespan for plan in plans)
        table.add_row(case, *(f"{us:g}" for us in (problem.serial_us, shared, best)))
        goals.append(Goal(f"{case} in {goal:g} µs", best <= goal + ROUNDING, f"{best:g} µs"))
    return Part(tables=[table], goals=goals)
