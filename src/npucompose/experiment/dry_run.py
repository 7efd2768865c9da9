"""`npucompose run --dry-run`: what a command would run, and what the store has of it. Runs nothing, writes nothing.

What only a worker can see (a plan that finds no node, a factory that fails) it cannot know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from airflow_free.ledger import FILE_NAME
from airflow_free.store import Store
from npucompose.experiment.job import Job
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointLedger, kept_of
from npucompose.report.words import as_count

NOTHING = "Nothing was run, and nothing was written."
State = Literal["runs", "from the store", "not run"]
COUNTED = {"runs": "would run", "run": "would run"}


@frozen(kw_only=True)
class Preview:
    """Asks a store what it has of one job after another; what an earlier job would leave in it counts as there."""

    store: Store
    force: bool = False
    """As if the store had nothing yet."""
    made: set[tuple[str, str]] = field(factory=set[tuple[str, str]])
    """(stage, key) that a job before would make."""

    def states(self, job: Job) -> dict[str, State]:
        """{stage: what would become of it}; after a comparison that failed nothing is run."""
        run = ActiveRun.begin(job, Path(), self.store)
        known = set() if self.force else {one.stage for one in run.finished}
        known |= {stage.name for stage in job.order if (stage.name, job.keys[stage.name]) in self.made}
        ended = not self.force and not run.needs_worker
        rest: State = "not run" if ended else "runs"
        states: dict[str, State] = {s.name: "from the store" if s.name in known else rest for s in job.order}
        self.made.update((name, job.keys[name]) for name, state in states.items() if state == "runs")
        return states


def of_a_job(job: Job, store: Store, *, force: bool = False) -> Iterator[str]:
    """A line for each stage, with the record that it is or would be: the file's name is the stage's key."""
    states = Preview(store=store, force=force).states(job)
    widths = max(map(len, states)), max(map(len, states.values()))
    for stage, state in states.items():
        yield f"{stage:{widths[0]}}  {state:{widths[1]}}  {store.path(stage, job.keys[stage])}"
    if "not run" in states.values():
        yield "A stage of the store found that a comparison failed: what comes after it is not run."
    yield f"{_counted(states, 'stage')}. {NOTHING}"


def of_a_sweep(plan: SweepPlan, store: Store) -> Iterator[str]:
    """A line for each legal point, equal ones once: done before, or its stages, and its key."""
    legal = {point.key: point for point in reversed(plan.points) if point.job is not None}
    done = _done_before(plan, store)
    preview = Preview(store=store, force=plan.again == "all")
    ends: dict[str, str] = {}
    for point in (point for point in plan.points if legal.get(point.key) is point):
        assert point.job is not None
        states = {} if point.key in done else preview.states(point.job)
        ends[point.key] = "run" if states else "done before"
        yield f"{plan.name(point)}: {_stages(states) if states else 'done before'}; key {point.key}"
    illegal = {point.key: "illegal" for point in plan.illegal}
    yield f"{_counted({**ends, **illegal}, 'job')}. {NOTHING}"


def _done_before(plan: SweepPlan, store: Store) -> set[str]:
    if not (store.root / FILE_NAME).is_file():
        return set()
    with PointLedger.read(store.root) as ledger:
        return set(kept_of(plan, ledger))


def _stages(states: dict[str, State]) -> str:
    """`runs capture, replay; from the store compile`."""
    by = {state: [name for name, one in states.items() if one == state] for state in dict.fromkeys(states.values())}
    return "; ".join(f"{state} {', '.join(names)}" for state, names in sorted(by.items(), reverse=True))


def _counted(states: dict[str, State] | dict[str, str], kind: str) -> str:
    """`4 stages: 1 from the store, 3 would run`."""
    counts = Counter(states.values())
    parts = ", ".join(f"{number} {COUNTED.get(what, what)}" for what, number in counts.items())
    return f"{as_count(len(states), kind)}: {parts}"
