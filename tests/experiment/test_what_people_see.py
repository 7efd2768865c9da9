"""What a person is shown of runs, sweeps, searches and recipes, each sentence by itself."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from lock_examples import OVERRIDES, locked_of
from rich.console import Console

from airflow_free.progress import Progress, _words
from airflow_free.stage import Event
from airflow_free.sweep import SweepEvent
from npucompose.compose.check import check
from npucompose.compose.tree import Composer, compose
from npucompose.experiment import job as settings_module
from npucompose.experiment import verify
from npucompose.experiment.job import NOT_IN_A_KEY, Job
from npucompose.experiment.lock import Locked
from npucompose.experiment.sweep import command as view_module
from npucompose.experiment.sweep.command import LAST_SHOWN, SweepView
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointEntry, exit_status
from npucompose.experiment.verify import LockDifference, LockVerdict, described, judged
from npucompose.results.record import Figures, Status
from npucompose_extras.search.command import MOST_SHOWN, best_lines

# A recipe.


@pytest.fixture(scope="module")
def locked() -> Locked:
    return locked_of(Job.from_composed(compose(OVERRIDES)))


def differing(part: str, field: str = "x", there: Any = 1, here: Any = 2) -> LockDifference:
    return LockDifference(part=part, field=field, locked=there, here=here)


def test_a_verdict_is_told_part_by_part(locked: Locked) -> None:
    verdict = LockVerdict(
        compared={"configuration": 50, "versions": 3, "device": 1},
        differences=(differing("versions", "torch"), differing("versions", "python"), differing("device", "cpu")),
    )
    assert judged(verdict, locked, locked).splitlines() == [
        "configuration: the same (50 values)",
        "versions: 2 of 3 differ",
        "  versions.torch: locked 1, here 2",
        "  versions.python: locked 1, here 2",
        "device: 1 of 1 differ",
        "  device.cpu: locked 1, here 2",
        "numerics: hold",
        "speedup: holds",
        "expectations: not in the recipe",
        "the recipe holds here (and device, versions differ): ok",
    ]


def test_options_that_are_newer_than_the_recipe_are_named_with_their_defaults(locked: Locked) -> None:
    verdict = LockVerdict(compared={}, differences=())
    told = judged(verdict, locked, locked, {"target.measure_ms": 5.0, "inductor.replay": "native"}).splitlines()
    at = told.index("newer than the recipe: 2 options, at the default of this version")
    assert told[at + 1 : at + 3] == ["  target.measure_ms=5.0", "  inductor.replay=native"]


def test_a_promise_that_is_broken_or_was_not_made_is_told(locked: Locked) -> None:
    broken = LockVerdict(compared={}, differences=(differing("numerics", "bitwise", True, False), differing("speedup")))
    here = attrs.evolve(locked, result=attrs.evolve(locked.result, status="numerics_failed"))
    assert judged(broken, locked, here).splitlines() == [
        "numerics: differ",
        "  numerics.bitwise: locked true, here false",
        "speedup: differ",
        "  speedup.x: locked 1, here 2",
        "expectations: not in the recipe",
        "the recipe does not hold here: numerics_failed",
    ]
    without = attrs.evolve(locked, result=attrs.evolve(locked.result, numerics=None, benchmark=None))
    assert judged(LockVerdict(compared={}, differences=()), without, locked).splitlines() == [
        "numerics: not in the recipe",
        "speedup: not in the recipe",
        "expectations: not in the recipe",
        "the recipe holds here: ok",
    ]


def test_what_a_recipe_is_is_told_line_by_line(locked: Locked) -> None:
    lines = described(locked).splitlines()
    graph = locked.graphs[0]
    assert lines[0].split(" · ")[0] == "mode=reduce-overhead"
    assert [word.partition("=")[0] for word in lines[0].split(" · ")] == [
        "mode", "shapes", "tiling", "streams", "target", "model",
    ]  # fmt: skip
    assert lines[1] == "passes: cse, stream_plan"
    assert lines[2] == f"configuration {locked.configuration[:12]}"
    assert lines[3] == (
        f"graph {graph.id}: {graph.fx}, {graph.nodes_before} -> {graph.nodes_after} nodes, {graph.fingerprint[:12]}"
    )
    numerics = locked.result.numerics
    assert numerics is not None
    for found, words in (
        (numerics, "equals eager: bit for bit"),
        (attrs.evolve(numerics, bitwise=False), "equals eager: within its tolerance"),
        (attrs.evolve(numerics, bitwise=False, passed=False), "equals eager: no"),
        (None, "not compared"),
    ):
        result = attrs.evolve(locked.result, numerics=found, benchmark=None)
        assert described(attrs.evolve(locked, result=result)).splitlines()[-1] == f"result: ok, {words}"
    bare = attrs.evolve(locked, experiment={"passes": {}, "tiling": {"schedule": "fixed"}}, graphs=())
    assert described(bare).splitlines()[:3] == [
        "mode=None · shapes=None · tiling=fixed · streams=None · target=None · model=None",
        "passes: none",
        f"configuration {locked.configuration[:12]}",
    ]


def test_a_long_value_is_cut_in_a_difference() -> None:
    assert str(differing("device", "cpu", "a" * 60, "b" * 61)) == f"device.cpu: locked {'a' * 60}, here {'b' * 12}…"


@pytest.mark.parametrize(
    ("there", "here", "tolerance", "holds"),
    [(2.0, 1.6, 0.2, True), (2.0, 1.59, 0.2, False), (2.0, None, 0.2, False), (2.0, 2.0, 0.0, True)],
)
def test_a_speedup_may_lack_as_much_as_is_tolerated(
    locked: Locked, there: float, here: float | None, tolerance: float, holds: bool
) -> None:
    def with_speedup(value: float | None) -> Locked:
        assert locked.result.benchmark is not None
        speedup = {} if value is None else {"eager": value}
        benchmark = attrs.evolve(locked.result.benchmark, speedup=speedup)
        return attrs.evolve(locked, result=attrs.evolve(locked.result, benchmark=benchmark))

    found = list(verify._speedup(with_speedup(there), with_speedup(here), tolerance))
    assert found == ([] if holds else [LockDifference(part="speedup", field="eager", locked=there, here=here)])
    assert list(verify._speedup(with_speedup(None), with_speedup(there), tolerance)) == [], "nothing was promised"


def test_numerics_that_held_there_have_to_hold_here_and_better_ones_break_nothing(locked: Locked) -> None:
    numerics = locked.result.numerics
    assert numerics is not None

    def with_numerics(**values: Any) -> Locked:
        found = attrs.evolve(numerics, **values) if values else None
        return attrs.evolve(locked, result=attrs.evolve(locked.result, numerics=found))

    exact, close = with_numerics(passed=True, bitwise=True), with_numerics(passed=True, bitwise=False)
    wrong, without = with_numerics(passed=False, bitwise=False), with_numerics()
    told = {
        (a, b): [f"{d.field} {d.here}" for d in verify._numerics(one, other)]
        for a, one in enumerate((exact, close, wrong, without))
        for b, other in enumerate((exact, close, wrong, without))
    }
    assert {pair: words for pair, words in told.items() if words} == {
        (0, 1): ["bitwise False"],
        (0, 2): ["passed False", "bitwise False"],
        (0, 3): ["passed None", "bitwise None"],
        (1, 2): ["passed False"],
        (1, 3): ["passed None"],
    }


# A sweep.


@pytest.fixture(scope="module")
def plan() -> SweepPlan:
    return SweepPlan.from_overrides(["model=add", f"seed={','.join(map(str, range(12)))}"], Composer())


def entry(key: str, status: Status, **more: Any) -> PointEntry:
    return PointEntry(key=key, status=status, overrides=(), **more)


def logged(total: int, plan: SweepPlan) -> SweepView:
    return SweepView(Console(file=io.StringIO(), width=100, color_system=None), total, plan.name)


def test_the_summary_counts_ends_what_is_left_and_what_was_done_before(plan: SweepPlan) -> None:
    view = logged(5, plan)
    assert view.summary() == "5 jobs: none done, 5 left"
    with view:
        for number, (kind, status) in enumerate(
            (("ended", "crashed"), ("ended", "ok"), ("kept", "ok"), ("ended", "illegal"), ("kept", "timeout"))
        ):
            point = plan.points[number]
            view.listen(SweepEvent(kind=kind, point=point, entry=entry(point.key, status)))  # type: ignore[arg-type]
    assert view.summary() == ("5 jobs: 2 ok, 1 crashed, 1 illegal configuration, 1 timeout · 2 were done before")
    text: Any = view.console.file
    assert [line.split("  ")[0] for line in text.getvalue().splitlines()] == ["1/5", "2/5", "4/5"]


def test_a_point_without_a_job_that_is_kept_was_not_done_before(plan: SweepPlan) -> None:
    view = logged(1, plan)
    point = attrs.evolve(plan.points[0], job=None)
    view.listen(SweepEvent(kind="kept", point=point, entry=entry(point.key, "illegal")))
    assert view.summary() == "1 job: 1 illegal configuration"


def test_a_line_says_status_name_time_and_error(plan: SweepPlan) -> None:
    view, point = logged(1, plan), plan.points[3]
    assert view._line(point, entry("k", "ok")).plain == "ok  seed=3"
    assert view._line(point, entry("k", "ok", figures=Figures(p50_us=12.34))).plain == "ok  seed=3 · p50 12.3 µs"
    crashed = view._line(point, entry("k", "crashed", error="it died.", figures=Figures(p50_us=1500.0)))
    assert crashed.plain == "crashed  seed=3 · p50 1.50 ms · it died."
    assert [str(view._line(point, entry("k", s)).style) for s in ("ok", "expect_failed", "failed")] == [
        "bold green", "bold yellow", "bold red",
    ]  # fmt: skip


def test_what_runs_is_known_until_it_ends_and_the_last_ends_are_kept(plan: SweepPlan) -> None:
    view = logged(12, plan)
    one, other = plan.points[:2]
    view.listen(SweepEvent(kind="started", point=one))
    view.listen(SweepEvent(kind="started", point=other))
    assert {point.key: stage for point, stage in view.stages.values()} == {one.key: "starts", other.key: "starts"}
    view.listen(SweepEvent(kind="stage", point=one, event=Event(kind="started", stage="capture")))
    view.listen(SweepEvent(kind="stage", point=one, event=Event(kind="note", text="no stage")))
    view.listen(SweepEvent(kind="stage", point=one))
    assert view.stages[one.key] == (one, "capture")
    view.listen(SweepEvent(kind="ended", point=one, entry=entry(one.key, "ok")))
    assert list(view.stages) == [other.key]
    for point in plan.points[1:]:
        view.listen(SweepEvent(kind="ended", point=point, entry=entry(point.key, "ok")))
    assert view.stages == {}
    assert [point for point, _ in view.last] == list(plan.points[-LAST_SHOWN:])
    assert LAST_SHOWN == 8


def test_a_terminal_is_drawn_at_most_four_times_a_second(plan: SweepPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(view_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view = SweepView(Console(file=io.StringIO(), force_terminal=True, width=100), 12, plan.name)
    drawn: list[float] = []
    assert view.live is not None
    monkeypatch.setattr(view.live, "update", lambda *_, **named: drawn.append(now[0]))
    for at in (100.0, 100.2, 100.25, 100.4, 100.6):
        now[0] = at
        view.listen(SweepEvent(kind="started", point=plan.points[0]))
    assert drawn == [100.0, 100.25, 100.6]
    assert logged(1, plan).live is None


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ((), 0),
        (("ok", "ok"), 0),
        (("ok", "illegal"), 2),
        (("illegal", "expect_failed"), 1),
        (("numerics_failed", "crashed", "illegal"), 3),
        (("timeout",), 3),
        (("memory_limit",), 3),
        (("failed",), 3),
    ],
)
def test_a_sweep_ends_with_the_worst_of_its_ends(statuses: tuple[Status, ...], status: int) -> None:
    assert exit_status([entry("k", one) for one in statuses]) == status


# A search.


def study(objectives: dict[str, str], *best: Any) -> Any:
    made = SimpleNamespace(objectives=objectives)
    return SimpleNamespace(best=lambda: iter(best), options=made, lacking={"pool_bytes": 2})


LACKING = "2 trials ran and cannot compete: without pool_bytes, an objective of the search."


def test_the_best_trial_is_told_or_the_first_of_those_that_nothing_beats() -> None:
    assert list(best_lines(study({"p50_us": "minimize"}))) == ["no trial has all objectives.", LACKING]
    one = ({"mode": "eager", "seed": 3}, (12.3456789,))
    assert list(best_lines(study({"p50_us": "minimize"}, one))) == [
        "best:",
        "  p50_us 12.3457  mode=eager seed=3",
        LACKING,
    ]
    front = [({"seed": k}, (float(k), 2.0)) for k in range(MOST_SHOWN + 2)]
    lines = list(best_lines(study({"p50_us": "minimize", "pool_bytes": "minimize"}, *front)))
    assert lines[:2] == [
        "Pareto front, 12 trials:", "  p50_us 0, pool_bytes 2  seed=0"
    ]  # fmt: skip
    assert len(lines) == 2 + MOST_SHOWN == 12
    assert lines[-1] == LACKING


# A run.


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(kind="started", stage="s"), "started"),
        (Event(kind="finished", stage="s", seconds=0.0), "done in 0.0 s"),
        (Event(kind="finished", stage="s"), "done"),
        (Event(kind="reused", stage="s", seconds=1.0), "nothing changed, taken from the store"),
        (Event(kind="failed", stage="s", text="why"), "failed"),
        (Event(kind="note", text="hear"), "hear"),
        (Event(kind="progress", stage="s", fraction=0.5), ""),
    ],
)
def test_each_event_has_its_words(event: Event, words: str) -> None:
    assert _words(event) == words
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with Progress(console) as progress:
        progress.show(event)
    text: Any = console.file
    prefix = f"{event.stage}: " if event.stage else ""
    assert text.getvalue() == (f"{prefix}{words}\n" if words else "")


def test_the_bar_of_a_stage_follows_its_events() -> None:
    progress = Progress(Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None))
    assert progress.bars is not None

    def state() -> tuple[Any, ...]:
        assert progress.bars is not None
        (task,) = progress.bars.tasks
        return task.description, task.total, task.completed, task.fields["words"]

    progress.show(Event(kind="note", text="no bar for it"))
    assert progress.bars.tasks == []
    progress.show(Event(kind="started", stage="compile"))
    assert state() == ("compile", None, 0, "")
    progress.show(Event(kind="progress", stage="compile", fraction=0.25))
    assert state() == ("compile", 1.0, 0.25, "")
    progress.show(Event(kind="finished", stage="compile", seconds=2.0))
    assert state() == ("compile", 1.0, 1.0, "done in 2.0 s")
    progress.show(Event(kind="reused", stage="check"))
    assert [task.fields["words"] for task in progress.bars.tasks][1:] == ["nothing changed, taken from the store"]
    assert list(progress.tasks) == ["compile", "check"]


# Settings.


def test_each_leaf_of_an_experiment_has_a_setting_and_the_compiler_is_opened() -> None:
    checked = check(compose(("model=add", "seed=7", "compiler.debug.aclgraph.clone_input=false")))
    found = {one.option: one for one in settings_module.settings_of(checked)}
    assert (found["seed"].value, found["seed"].said_by) == (7, "command line")
    assert found["compiler.debug.aclgraph.clone_input"].value is False
    assert {name.partition(".")[0] for name in found} >= {*NOT_IN_A_KEY, "mode", "model", "compiler"}
    assert found["mode.name"].said_by != "command line"
