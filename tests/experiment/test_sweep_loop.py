"""The loop of a sweep and its trackers, with an executor that runs nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from report.report_examples import FULL

from airflow_free.outcome import Outcome
from airflow_free.stage import Event
from airflow_free.store import Store
from airflow_free.sweep import SweepEvent
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment import tracking
from npucompose.experiment.job import Job
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep import run
from npucompose.experiment.sweep.command import TrackerQueue
from npucompose.experiment.sweep.plan import Point, SweepPlan
from npucompose.experiment.sweep.run import (
    PointEntry,
    PointLedger,
    PointRun,
    exit_status,
    folder_of,
    kept,
    make_folder,
    membership,
    run_sweep,
    take_back_folder,
)
from npucompose.report import json as report_json
from npucompose.results.record import Figures, Report
from npucompose.schema.sweep import Tracker


@pytest.fixture(scope="module")
def plan() -> SweepPlan:
    return SweepPlan.from_overrides(["model=add", "pipeline=check", "seed=1,2,3,1,-1"], Composer())


class Alone:
    """Room for one; each job ends as the test says, after one event."""

    def __init__(self, **ends: Outcome) -> None:
        self.ends, self.running = ends, list[int]()
        self.log: list[Any] = []

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("closed")

    def has_room(self, job: Job) -> bool:
        return not self.running

    def start(self, number: int, begun: ActiveRun) -> None:
        self.log.append(number)
        self.running.append(number)

    def events(self) -> list[tuple[int, Any]]:
        (number,) = self.running
        self.running.clear()
        return [(number, Event(kind="note", text="x")), (number, self.ends.get(f"n{number}", Outcome(status="done")))]


class Fixed:
    """What becomes of a job: made by hand instead of from a store."""

    def __init__(self, report: Any = FULL, *, works: bool = True) -> None:
        self.report, self.needs_worker = report, works
        self.run_dir = Path()
        self.outcomes: list[Any] = []
        self.job: Any = None

    def finish(self, outcome: Any) -> Report:
        self.outcomes.append(outcome)
        if isinstance(self.report, Exception):
            raise self.report
        return self.report


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder, store = tmp_path / "sweep", Store(tmp_path / "store")
    found = SimpleNamespace(executor=Alone(), begun={}, heard=[], folder=folder, store=store)
    found.folder.mkdir()

    def begin(job: Job, place: Path, store: Store) -> Any:
        assert store is found.store
        one = found.begun.setdefault(job.checked.experiment.seed, Fixed())
        one.run_dir, one.job = place, job
        return one

    monkeypatch.setattr(ActiveRun, "begin", begin)
    monkeypatch.setattr(run, "executor_of", lambda options, folder: found.executor)
    return found


def sweep(scene: Any, plan: SweepPlan, ledger: PointLedger) -> dict[str, PointEntry]:
    return run_sweep(
        plan, scene.folder, lambda point: str(point.number), store=scene.store, ledger=ledger,
        listen=scene.heard.append,
    )  # fmt: skip


def test_every_point_runs_once_and_its_end_is_told_and_written(scene: Any, plan: SweepPlan, tmp_path: Path) -> None:
    scene.executor.ends["n1"] = Outcome(status="crashed", exit_signal="SIGKILL", seconds=4.5)
    scene.begun[2] = Fixed(evolve(FULL, status="crashed", error="it died"))
    with PointLedger.open(tmp_path) as ledger:
        ends = sweep(scene, plan, ledger)
        assert ledger.ends([point.key for point in plan.points]) == ends
    one, two, three, same, illegal = plan.points
    assert scene.executor.log == [3, 1, 2, "closed"]  # the last of equal points speaks for them
    assert same.key == one.key
    assert {p.number: ends[p.key].status for p in plan.points} == {
        0: "ok",
        1: "crashed",
        2: "ok",
        3: "ok",
        4: "illegal",
    }
    assert ends[two.key] == PointEntry(
        key=two.key, status="crashed", overrides=two.overrides, error="it died", exit_signal="SIGKILL",
        run_dir=os.path.join("sweep", "1"), seconds=4.5, ended=ends[two.key].ended, figures=Figures.from_report(FULL),
    )  # fmt: skip
    assert ends[three.key].exit_signal is None
    assert "'seed' must be >= 0" in (ends[illegal.key].error or "")
    assert [(news.kind, news.point.number) for news in scene.heard] == [
        ("kept", 4), ("started", 3), ("stage", 3), ("ended", 3), ("started", 1), ("stage", 1), ("ended", 1),
        ("started", 2), ("stage", 2), ("ended", 2),
    ]  # fmt: skip
    assert scene.heard[2].event == Event(kind="note", text="x")
    assert scene.heard[3].entry == ends[one.key]
    found = json.loads((scene.folder / run.POINTS).read_text())
    assert (found["schema"], [point["number"] for point in found["points"]]) == (1, [0, 1, 2, 3, 4])


def test_what_the_ledger_has_is_kept_and_told_and_needs_no_executor(
    scene: Any, plan: SweepPlan, tmp_path: Path
) -> None:
    for name in "012":
        (tmp_path / "old" / name).mkdir(parents=True)
        (tmp_path / "old" / name / "report.json").write_text("{}")
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(
            PointEntry(key=point.key, status=status, overrides=(), run_dir=f"old/{point.number}")
            for point, status in zip(plan.points[:3], ("ok", "crashed", "illegal"), strict=True)
        )
        sweep(scene, plan, ledger)
        assert scene.executor.log == [2, "closed"]  # illegal, by what a worker saw: that may have changed
        again = kept(plan.points, ledger, retry_failed=True)
        assert {entry.status for entry in again.values()} == {"ok", "illegal"}
        (tmp_path / "old" / "0" / "report.json").unlink()
        assert plan.points[0].key not in kept(plan.points, ledger, retry_failed=False)
        assert plan.points[1].key in kept(plan.points, ledger, retry_failed=False)


def test_where_all_are_run_again_the_store_forgets_them_and_the_ledger_keeps_none_but_the_illegal(
    scene: Any, plan: SweepPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Any] = []
    monkeypatch.setattr(run, "forget", lambda jobs, store: forgotten.append(([job.key for job in jobs], store)))
    with PointLedger.open(tmp_path) as ledger:
        ledger.write(PointEntry(key=point.key, status="ok", overrides=()) for point in plan.points)
        sweep(scene, evolve(plan, again="all"), ledger)
        assert sorted(scene.executor.log[:-1]) == [1, 2, 3]
        ((keys, store),) = forgotten
        legal = {point.key for point in plan.points if point.job is not None}
        assert (set(keys), store) == (legal, scene.store)
        forgotten.clear()
        sweep(scene, plan, ledger)
        assert forgotten == []


@pytest.mark.parametrize("status", ["failed", "crashed", "timeout", "memory_limit", "ok", "numerics_failed"])
def test_what_is_repeated_where_failed_ones_are_asked_for(status: Any, plan: SweepPlan, tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([PointEntry(key=plan.points[0].key, status=status, overrides=())])
        assert plan.points[0].key in kept(plan.points, ledger, retry_failed=False)
        stays = status in ("ok", "numerics_failed")
        assert (plan.points[0].key in kept(plan.points, ledger, retry_failed=True)) is stays


def test_a_point_that_the_store_has_ends_without_an_executor(scene: Any, plan: SweepPlan, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        scene.begun[seed] = Fixed(works=False)
    with PointLedger.open(tmp_path) as ledger:
        ends = sweep(scene, plan, ledger)
    assert scene.executor.log == ["closed"]
    entry = ends[plan.points[0].key]
    assert (entry.status, entry.exit_signal) == ("ok", None)
    assert 0 <= entry.seconds < 60
    assert scene.begun[1].outcomes == [None]


def test_what_only_the_worker_found_illegal_leaves_no_folder(scene: Any, plan: SweepPlan, tmp_path: Path) -> None:
    scene.begun[1] = Fixed(ConfigError("told"))
    scene.begun[2] = Fixed(ConfigError("told"))
    scene.executor.ends["n3"] = Outcome(status="config_error", problems=("no node", "no graph"), exit_status=2)
    scene.executor.ends["n1"] = Outcome(status="config_error", error="alone", exit_status=2)
    with PointLedger.open(tmp_path) as ledger:
        ends = sweep(scene, plan, ledger)
    one, two = (ends[point.key] for point in plan.points[:2])
    assert (one.status, one.error, one.run_dir) == ("illegal", "no node; no graph", None)
    assert two.error == "alone"
    assert sorted(path.name for path in scene.folder.iterdir()) == ["2", "points.json"]


def test_what_cannot_be_made_a_report_is_the_end_of_one_point(scene: Any, plan: SweepPlan, tmp_path: Path) -> None:
    scene.begun[1] = Fixed(ValueError("a\x1bb"))
    (scene.folder / "1").write_text("a file where a folder should be")
    with PointLedger.open(tmp_path) as ledger:
        ends = sweep(scene, plan, ledger)
    one, two, three = (ends[point.key] for point in plan.points[:3])
    assert (one.status, one.error) == ("crashed", r"what it left cannot be made a report: ValueError: a\x1bb")
    assert two.status == "crashed"
    assert (two.error or "").startswith("its folder cannot be made: ")
    assert three.status == "ok"
    assert (scene.folder / "3" / ".hydra").is_dir()  # what a job left behind stays to be looked at


@pytest.mark.parametrize(
    ("statuses", "status"),
    [((), 0), (("ok",), 0), (("ok", "illegal"), 2), (("illegal", "expect_failed"), 1), (("numerics_failed",), 1),
     (("ok", "crashed", "illegal", "expect_failed"), 3), (("failed",), 3), (("timeout",), 3), (("memory_limit",), 3)],
)  # fmt: skip
def test_the_worst_end_decides_the_exit_status(statuses: tuple[Any, ...], status: int) -> None:
    assert exit_status([PointEntry(key="k", status=one, overrides=()) for one in statuses]) == status


def test_the_points_of_a_sweep_are_listed_with_key_and_overrides() -> None:
    point = Point(number=3, overrides=("a=1",), job=None, key="k")
    assert json.loads(membership([point])) == {
        "schema": 1, "points": [{"number": 3, "key": "k", "overrides": ["a=1"]}],
    }  # fmt: skip


def test_a_folder_that_a_job_took_away_is_made_again(plan: SweepPlan, tmp_path: Path) -> None:
    point = plan.points[0]
    assert point.job is not None
    path = folder_of(tmp_path, "a/b", point)
    make_folder(path, point, point.job)
    (path / "run.log").write_text("x")
    make_folder(path, point, point.job)
    config = (path / ".hydra" / "config.yaml").read_text()
    assert config.index("model:") >= 0
    run: Any = Fixed()
    run.run_dir, run.job = path, point.job
    begun = PointRun(point=point, run=run, root=tmp_path)
    (path / ".hydra" / "overrides.yaml").unlink()
    begun.finish(None)
    assert not (path / ".hydra" / "overrides.yaml").exists()
    take_back_folder(path)
    assert not path.exists()
    take_back_folder(path)
    begun.finish(None)
    assert (path / ".hydra" / "config.yaml").read_text() == config
    (path / "mine").write_text("")
    take_back_folder(path)
    assert [inside.name for inside in path.iterdir()] == ["mine"]


def test_a_report_of_the_same_point_lends_its_folder_and_another_s_does_not(plan: SweepPlan, tmp_path: Path) -> None:
    point = plan.points[0]
    for name, key in (("0", point.key), ("1", "b" * 64), ("1.2", "c" * 64)):
        (tmp_path / name).mkdir()
        report_json.write(evolve(FULL, key=key), tmp_path / name)
    assert folder_of(tmp_path, "0", point) == tmp_path / "0"
    assert folder_of(tmp_path, "1", point) == tmp_path / "1.3"


# Trackers of a sweep.


def test_points_that_ended_now_are_told_to_their_tracker(
    plan: SweepPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(tracking, "report_runs", lambda *what: asked.append(what) or ["it is gone"])
    heard: list[SweepEvent] = []
    told = TrackerQueue(heard.append)
    one, two, *_, illegal = plan.points

    def entry(run_dir: str | None) -> PointEntry:
        return PointEntry(key="k", status="ok", overrides=(), run_dir=run_dir)

    for news in (
        SweepEvent(kind="started", point=one), SweepEvent(kind="ended", point=one, entry=entry("a")),
        SweepEvent(kind="kept", point=two, entry=entry("b")), SweepEvent(kind="ended", point=two, entry=entry("c")),
        SweepEvent(kind="ended", point=two, entry=entry(None)),
        SweepEvent(kind="ended", point=illegal, entry=entry("d")),
    ):  # fmt: skip
        told.listen(news)
    assert len(heard) == 6
    told.send(tmp_path)
    assert asked == [(Tracker(), [tmp_path / "a", tmp_path / "c"], tmp_path)]
    assert capsys.readouterr().err == "npucompose: it is gone\n"
