"""What planning costs and what plans are worth: `python benchmarks/streams.py [--rounds 5]`.

Five tables of planning: exact answers on published graphs; planning, proving and simulating 10,000 kernels (goals:
0.6 s and 0.1 s); the same as an FX graph, read, planned, written and judged by the validator that judges every plan
(goal: 0.6 s for all of it); the whole pass `stream_plan` on model graphs of about 2,500 nodes (goal: 0.6 s); simulated
time of the list schedule, of the plan with the fewest events and of GE's own way on two costed random families. Times
are the shortest of the rounds, in processor time of this process, so that other work on the machine counts little; as
in a pipeline of passes, garbage is not collected meanwhile.

Two tables of execution, for a machine with two cores and nothing else to do, one intra-op thread (`--only execution`):
`parallel_branches` on one stream and on two, replays in turn (goals: 1.7 times as fast from n = 64, 1.9 times from
n = 256, and at n = 8 the default gate leaves the plan out); predicted against measured time (goal: 15 % for graphs of a
millisecond and more). What is timed is a call of the detached handle; medians of rounds, and their spread.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.table import Table
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose import ops
from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.machine import gc_paused
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM, Objective, Streams
from npucompose.streams import apply, assignment, dag, validate
from npucompose.streams.emit import emit
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.planning import NamedPlan, with_names
from npucompose.streams.problem import Problem, ScheduledPlan
from npucompose.streams.simulate import Simulation, Work, simulate
from npucompose.streams.strategies.chains import Shape, fewest_streams, fewest_syncs, laid_on
from npucompose.streams.strategies.instance import Instance
from npucompose.targets.compilation import Backend
from npucompose.vendor.devices import ATLAS_A2
from tests.streams import dags

NAMES = ("DIAMOND", "MM_ABS_SUB", "INCEPTION_A", "INCEPTION_E", "NASNET_A", "MOE", "MLA")
NODES, EDGES, SPAN, STREAMS = 10_000, 30_000, 400, 8
PLAN_GOAL, SIMULATION_GOAL, PASS_GOAL = 0.6, 0.1, 0.6
MODELS = (("gpt_decode", "model.layers=29"), ("tiny_ops", "model.count=2400"))
MODEL = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0)

SIZES, DEPTH = (8, 16, 32, 64, 128, 256, 512), 8
SPEED_GOALS: Mapping[int, float] = {64: 1.7, 128: 1.7, 256: 1.9, 512: 1.9}
GATED = 8
BATCH_S, TURNS = 0.02, 25
PREDICTED = (
    ("parallel_branches", ("model.size=192", "model.depth=8")),
    ("parallel_branches", ("model.size=512", "model.depth=4")),
    ("moe_shared_expert", ("model.tokens=64", "model.hidden=512", "model.ffn=1024", "model.shared_ffn=4096")),
    ("mla_prolog", ("model.tokens=64", "model.hidden=2048")),
)
LONG_US, ERROR_GOAL = 1000.0, 0.15
Planned = tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]]]


def shortest(rounds: int, make: Callable[[], Any], act: Callable[[Any], Any]) -> tuple[float, Any]:
    """(seconds of the fastest call of `act(make())`, its result)."""
    best, result = float("inf"), None
    for _ in range(rounds):
        given = make()
        with gc_paused():
            begun = process_time()
            result = act(given)
            best = min(best, process_time() - begun)
    return best, result


def verdict(seconds: float, goal: float) -> str:
    return f"{'met' if seconds <= goal else 'MISSED'}: at most {goal * 1e3:g} ms"


def exact() -> Table:
    table = Table(title="published graphs")
    for column in ("graph", "nodes", "edges", "reduced", "events", "streams"):
        table.add_column(column)
    for name in NAMES:
        then = getattr(dags, name)
        shape = Shape.from_work(then, [1.0] * len(then))
        streams = laid_on(fewest_syncs(shape), shape, len(then))
        events = fewest_events(in_runs(streams, then, range(len(then))), streams, dags.pairs(then))
        sizes = (len(then), len(dags.pairs(then)), len(dags.pairs(shape.needed)), len(events))
        table.add_row(name.lower(), *map(str, sizes), str(len(fewest_streams(shape))))
    return table


def planned(then: dags.Dag, work: Sequence[Work], objective: Objective, streams: int) -> Planned:
    """(order, streams, events) of the best plan, as the pass would choose it, proven by clocks on the way."""
    instance = Instance(then=then, work=work, streams=streams, model=MODEL)
    best = min(assignment.plans(objective, instance), key=lambda plan: plan.rank)
    return best.order, best.streams, best.events


def simulated(plan: Planned, work: Sequence[Work]) -> Simulation:
    order, streams, events = plan
    return simulate(order, streams, events, work, MODEL)


def is_proven(then: dags.Dag, plan: Planned) -> bool:
    """Whether events and stream order alone keep every edge, by reachability."""
    order, streams, events = plan
    place = {index: position for position, index in enumerate(order)}
    last: dict[int, int] = {}
    queue: list[tuple[int, int]] = []
    for index in order:
        if streams[index] in last:
            queue.append((last[streams[index]], index))
        last[streams[index]] = index
    forward = dag.successors(len(order), [(place[a], place[b]) for a, b in (*queue, *events)])
    reach = dag.descendants(forward)
    return all(reach[place[a]] >> place[b] & 1 for a, b in dags.pairs(then))


def costed(count: int, seed: int) -> list[Work]:
    """Kernels as a model has them: some fill the cube cores, most a few vector cores."""
    chance = random.Random(seed)
    return [
        Work(us=chance.uniform(10, 60), cube=chance.choice([8, 24]))
        if chance.random() < 0.4
        else Work(us=chance.uniform(3, 30), vector=chance.choice([4, 16, 48]))
        for _ in range(count)
    ]


def large(rounds: int) -> tuple[Table, bool]:
    then = dags.random_dag(NODES, EDGES, 1, SPAN)
    work = [Work(us=item.us, vector=1) for item in costed(NODES, 1)]
    table = Table(title=f"{NODES:,} kernels, {EDGES:,} edges, {STREAMS} streams")
    for column in ("what", "ms", "goal"):
        table.add_column(column)
    met = True
    for objective in ("events", "streams", "ge"):

        def plan_and_prove(_: Any, objective: Objective = objective) -> Planned:
            instance = Instance(then=then, work=work, streams=STREAMS, model=MODEL)
            (one,) = assignment.candidates(objective, instance)
            order = in_runs(one.streams, then, one.ranked)
            plan = order, one.streams, fewest_events(order, one.streams, instance.edges)
            if not is_proven(then, plan):
                raise RuntimeError(f"objective {objective} gave an unsafe plan")
            return plan

        seconds, plan = shortest(rounds, lambda: None, plan_and_prove)
        met &= objective != "events" or seconds <= PLAN_GOAL
        goal = verdict(seconds, PLAN_GOAL) if objective == "events" else "none: it solves the closure, or is GE's"
        table.add_row(f"objective {objective}: planned, minimised, proven", f"{seconds * 1e3:.0f}", goal)
        if objective == "events":
            took, _ = shortest(rounds, lambda: None, lambda _, plan=plan: simulated(plan, work))
            met &= took <= SIMULATION_GOAL
            table.add_row("simulated", f"{took * 1e3:.0f}", verdict(took, SIMULATION_GOAL))
    return table, met


def as_graph(then: dags.Dag) -> fx.GraphModule:
    """An FX graph whose kernels need each other as `then` says: each joins what its predecessors made."""
    before = dag.predecessors(then)
    graph, mode = fx.Graph(), FakeTensorMode()
    x = graph.placeholder("x")
    with mode:
        x.meta["val"] = torch.empty(4)
    made: list[fx.Node] = []
    for sources in before:
        made.append(graph.call_function(torch.ops.aten.cat.default, ([made[i] for i in sources] or [x],)))
        with mode:
            made[-1].meta["val"] = torch.empty(4)
    graph.output(([made[i] for i, targets in enumerate(then) if not targets],))
    return fx.GraphModule(torch.nn.Module(), graph)


def large_graph(rounds: int) -> tuple[Table, bool]:
    """The parts of the pass on an FX graph, one after the other."""
    ops.define()
    module = as_graph(dags.random_dag(NODES, EDGES, 1, SPAN))
    can = Capabilities(target="null_device", mode="reduce-overhead", max_streams=STREAMS)
    wanted = Streams(objective="events", cost="none", max_streams=STREAMS)
    edges = len(Problem.from_graph(module.graph, wanted, can).edges)
    work, names = [Work(us=1.0)] * NODES, (DEFAULT_STREAM, *(f"stream{n}" for n in range(1, STREAMS)))

    def planned_only(problem: Problem) -> NamedPlan:
        instance = Instance(then=problem.then, work=work, streams=STREAMS, model=MODEL)
        (one,) = assignment.candidates("events", instance)
        order = in_runs(one.streams, problem.then, one.ranked)
        events = fewest_events(order, one.streams, problem.edges)
        nothing = Simulation(start=(), end=(), makespan=0.0)
        scheduled = ScheduledPlan(problem=problem, streams=one.streams, order=order, events=events, simulation=nothing)
        return with_names(scheduled, names, {})

    def fresh() -> Problem:
        return Problem.from_graph(copy.deepcopy(module).graph, wanted, can)

    read, _ = shortest(
        rounds, lambda: copy.deepcopy(module), lambda copied: Problem.from_graph(copied.graph, wanted, can)
    )
    took, _ = shortest(rounds, fresh, planned_only)
    written, found = shortest(rounds, lambda: planned_only(fresh()), lambda found: _emitted(found, can))
    proven, _ = shortest(
        rounds,
        lambda: found,
        lambda found: validate(found.scheduled.problem.graph, found.scheduled.problem.needed, can),
    )
    table = Table(title=f"the same as an FX graph: {NODES:,} kernels, {edges:,} edges, {STREAMS} streams")
    for column in ("what", "ms", "goal"):
        table.add_column(column)
    table.add_row("read: kernels, aliases, edges", f"{read * 1e3:.0f}", "")
    table.add_row("planned, minimised", f"{took * 1e3:.0f}", "")
    table.add_row("written: scopes, records, waits", f"{written * 1e3:.0f}", "")
    table.add_row("validated", f"{proven * 1e3:.0f}", "")
    together = read + took + written + proven
    table.add_row("together", f"{together * 1e3:.0f}", verdict(together, PLAN_GOAL))
    return table, together <= PLAN_GOAL


def _emitted(found: NamedPlan, can: Capabilities) -> NamedPlan:
    emit(found.scheduled.problem.graph, found.plan, found.scheduled.problem.needed, can)
    return found


def whole_pass(rounds: int) -> tuple[Table, bool]:
    table = Table(title="the pass stream_plan, default options, every plan applied")
    for column in ("model", "nodes", "kernels aside", "ms", "goal"):
        table.add_column(column)
    met = True
    wanted = Streams(min_gain=0)
    for model, size in MODELS:
        graph, can = _graph_of(model, size)
        seconds, aside = shortest(
            3 * rounds, lambda graph=graph: copy.deepcopy(graph), lambda gm, can=can: apply(gm.graph, wanted, can)
        )
        met &= seconds <= PASS_GOAL
        row = (f"{model} {size}", len(graph.graph.nodes), aside, f"{seconds * 1e3:.0f}", verdict(seconds, PASS_GOAL))
        table.add_row(*map(str, row))
    return table, met


def _graph_of(model: str, size: str) -> tuple[Any, Any]:
    """The model's graph as it reaches the passes, and what the null device can do."""
    session = Session(checked([f"model={model}", size, "target=null_device", "pipeline=compile_only", "passes=[]"]))
    (compilation,) = session.compilations
    assert isinstance(session.materialised.backend, Backend)
    return compilation.graph_module, session.materialised.pre.can


def families() -> Table:
    table = Table(title="simulated speed over one stream, mean of 5 graphs of 300 kernels")
    for column in ("family", "streams", "makespan", "events", "ge"):
        table.add_column(column)
    for family, edges, span in (("layered", 600, 30), ("wide", 450, 120)):
        for streams in (2, 4, 8):
            means: list[str] = []
            for objective in ("makespan", "events", "ge"):
                ratios = [_ratio(family, edges, span, seed, objective, streams) for seed in range(5)]
                means.append(f"{sum(ratios) / len(ratios):.2f} x")
            table.add_row(family, str(streams), *means)
    return table


def _ratio(family: str, edges: int, span: int, seed: int, objective: Objective, streams: int) -> float:
    then = dags.random_dag(300, edges, seed, span)
    work = costed(300, seed)
    return sum(item.us for item in work) / simulated(planned(then, work, objective, streams), work).makespan


def _session(model: str, *wanted: str) -> Session:
    return Session(checked([f"model={model}", "mode=reduce-overhead", "target.executor=native", *wanted]))


def _in_turn(handles: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of a call, one figure for each batch; the handles take turns."""
    found: dict[str, list[float]] = {name: [] for name in handles}
    begun = perf_counter()
    for act in handles.values():
        act()
    calls = max(3, round(BATCH_S / (perf_counter() - begun)))
    for _ in range(TURNS):
        for name, act in handles.items():
            act()
            begun = perf_counter()
            for _ in range(calls):
                act()
            found[name].append((perf_counter() - begun) / calls * 1e6)
    return found


def executed() -> tuple[Table, bool]:
    table = Table(title=f"parallel_branches, chains of {DEPTH}, one intra-op thread: µs of a replay")
    for column in ("n", "one stream", "two streams", "ratio (quartiles)", "goal", "default gate"):
        table.add_column(column)
    met = True
    for size in SIZES:
        shape = ("parallel_branches", f"model.size={size}", f"model.depth={DEPTH}")
        lives = {
            "one": _session(*shape, "passes=[]"),
            "two": _session(*shape, "passes=stream_plan", "streams.min_gain=0"),
        }
        times = _in_turn({name: _handle(live) for name, live in lives.items()})
        (gated,) = _session(*shape, "passes=stream_plan").compilations
        applied = gated.decision is not None and gated.decision.applied
        ratios = [one / two for one, two in zip(times["one"], times["two"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        goal = SPEED_GOALS.get(size)
        reached = (goal is None or middle >= goal) and not (size == GATED and applied)
        met &= reached
        told = f"at least {goal:g}" if goal else "left out by the gate" if size == GATED else "none"
        table.add_row(
            str(size),
            *(f"{median(times[name]):.1f}" for name in ("one", "two")),
            f"{middle:.2f} ({low:.2f} … {high:.2f})",
            f"{'met' if reached else 'MISSED'}: {told}" if goal or size == GATED else told,
            "applied" if applied else "left out",
        )
    return table, met


def _handle(live: Session) -> Callable[[], Any]:
    handle, inputs = live.detached, live.bind(live.inputs(0)).args
    assert handle is not None, live.why_attached
    return lambda: handle(*inputs)


def predictions() -> tuple[Table, bool]:
    table = Table(title="streams.cost=measured: predicted against measured, µs")
    for column in ("model", "one: predicted", "measured", "plan: predicted", "measured", "error", "goal"):
        table.add_column(column)
    met = True
    for model, shape in PREDICTED:
        live = _session(model, *shape, "passes=stream_plan", "streams.cost=measured", "streams.min_gain=0")
        live.compiled  # noqa: B018  the first call records
        (compilation,) = live.compilations
        decision = compilation.decision
        assert decision is not None
        assert decision.prediction is not None
        times = live.checked.target.stream_times(live.materialised.backend)[compilation.id]
        error = decision.prediction.plan_us / times.plan_us - 1
        reached = times.plan_us < LONG_US or abs(error) <= ERROR_GOAL
        met &= reached
        serial, plan = decision.prediction.serial_us, decision.prediction.plan_us
        figures = (f"{us:.0f}" for us in (serial, times.serial_us, plan, times.plan_us))
        goal = f"{'met' if reached else 'MISSED'}: within 15 %" if times.plan_us >= LONG_US else "none: short"
        table.add_row(" ".join((model, *shape)), *figures, f"{error:+.1%}", goal)
    return table, met


def planning(rounds: int, console: Console) -> bool:
    console.print(exact())
    plan_table, plans_met = large(rounds)
    console.print(plan_table)
    graph_table, graph_met = large_graph(rounds)
    console.print(graph_table)
    pass_table, passes_met = whole_pass(rounds)
    console.print(pass_table)
    console.print(families())
    return plans_met and graph_met and passes_met


def execution(console: Console) -> bool:
    torch.set_num_threads(1)
    speed_table, speed_met = executed()
    console.print(speed_table)
    error_table, errors_met = predictions()
    console.print(error_table)
    return speed_met and errors_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="the shortest of so many counts")
    parser.add_argument("--only", choices=("planning", "execution"), help="one half of the tables")
    given = parser.parse_args()
    console = Console()
    met = given.only == "execution" or planning(given.rounds, console)
    met &= given.only == "planning" or execution(console)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
