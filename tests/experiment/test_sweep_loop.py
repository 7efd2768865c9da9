"""The loop of a sweep, a search's trials and what a report gathers, with an executor that runs nothing."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from report.report_examples import FULL, INDUCTOR, WRONG

from airflow_free.errors import OrchestratorError
from airflow_free.ledger import FILE_NAME
from airflow_free.outcome import Outcome
from airflow_free.stage import Event
from airflow_free.store import Store
from airflow_free.sweep import SweepEvent
from npucompose.arguments import command_line
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment import tracking
from npucompose.experiment.job import Job
from npucompose.experiment.orchestrator import STORE_VARIABLE
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep import gather as gathering
from npucompose.experiment.sweep import report as reporting
from npucompose.experiment.sweep import run
from npucompose.experiment.sweep.command import TrackerQueue
from npucompose.experiment.sweep.gather import gather, with_reports
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
from npucompose_extensions.search.command import _Trials


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


# A search.


class Study:
    def __init__(self, *asked: tuple[str, ...]) -> None:
        self.asked = iter(enumerate(asked))
        self.told: list[Any] = []
        self.lacking: Counter[str] = Counter()

    def ask(self) -> Any:
        found = next(self.asked, None)
        return found and SimpleNamespace(number=found[0], overrides=("model=add", *found[1]))

    def tell(self, trial: Any, key: str, values: Any, *, illegal: bool) -> None:
        self.told.append((trial.number, values, illegal))


def trials(
    ledger: PointLedger, folder: Path, study: Study, *objectives: str, heard: list[Any], retry: bool = False
) -> Any:
    composer = Composer()
    question = SimpleNamespace(
        composer=composer, base=composer.compose(["model=add"]), retry_failed=retry,
        options=SimpleNamespace(space={}, objectives=dict.fromkeys(objectives, "minimize")),
    )  # fmt: skip
    return _Trials(question, study, ledger, heard.append, folder)  # type: ignore[arg-type]


def test_a_trial_is_run_kept_shared_or_illegal(tmp_path: Path) -> None:
    heard: list[Any] = []
    study = Study(("seed=1",), ("seed=1",), ("seed=-1",), ("seed=2",), ("seed=1",))
    with PointLedger.open(tmp_path) as ledger:
        source = trials(ledger, tmp_path, study, "p50_us", heard=heard)
        one, two = source.ask(), source.ask()
        assert (one.number, two.number) == (0, 3)
        assert study.told == [(2, None, True)]
        (news,) = heard
        assert (news.kind, news.entry.status, news.point.number) == ("ended", "illegal", 2)
        assert ledger.ends([news.point.key])[news.point.key].status == "illegal"
        end = PointEntry(key=one.key, status="ok", overrides=(), figures=Figures(p50_us=3))
        source.ended(one, end)
        assert study.told[1:] == [(0, (3.0,), False), (1, (3.0,), False)]
        assert source.ask() is None
        assert study.told[3:] == [(4, (3.0,), False)]
        assert heard[-1].kind == "kept"
        source.ended(two, PointEntry(key=two.key, status="illegal", overrides=()))
        assert study.told[4:] == [(3, None, True)]
        assert set(source.ends) == {one.key, two.key, news.point.key}
    listed = json.loads((tmp_path / "points.json").read_text())["points"]
    assert [point["number"] for point in listed] == [0, 1, 2, 3, 4]


def test_an_earlier_end_of_the_same_point_is_an_answer(tmp_path: Path) -> None:
    heard: list[Any] = []
    key = SweepPlan.from_overrides(["model=add", "seed=1"], Composer()).points[0].key
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([PointEntry(key=key, status="crashed", overrides=())])
        study = Study(("seed=1",))
        assert trials(ledger, tmp_path, study, "p50_us", heard=heard).ask() is None
        assert study.told == [(0, None, False)]
        again = trials(ledger, tmp_path, Study(("seed=1",), ("seed=1",)), "p50_us", heard=heard, retry=True)
        point = again.ask()
        assert point is not None
        again.ended(point, PointEntry(key=key, status="crashed", overrides=()))


def test_only_a_point_that_held_has_values_and_all_of_them(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        source = trials(ledger, tmp_path, Study(), "p50_us", "pool_bytes", heard=[])

        def values(status: Any, **figures: Any) -> Any:
            return source._values(PointEntry(key="k", status=status, overrides=(), figures=Figures(**figures)))

        assert values("ok", p50_us=1.5, pool_bytes=2) == (1.5, 2.0)
        assert values("ok", p50_us=1.5) is None
        assert values("expect_failed", p50_us=1.5, pool_bytes=2) is None


def test_what_no_stage_measures_and_what_only_a_person_says_is_illegal(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        study = Study(("pipeline=compile_only",), ("pipeline=compile_only", "executor.jobs=3"))
        source = trials(ledger, tmp_path, study, "p50_us", "compile_s", "pool_bytes", heard=[])
        assert source.ask() is None
        first, second = (point.problems for point in source.points)
    assert first == (
        "search.objectives.p50_us comes from the stage benchmark, and pipeline.stages has none.",
        "search.objectives.pool_bytes comes from the stage capture, and pipeline.stages has none.",
    )
    assert second[0].startswith("'executor' cannot be searched over")


# What a report gathers.


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs below one folder, and a ledger that knows two of them."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    for name, report in (("slow", INDUCTOR), ("fast", FULL), ("wrong", WRONG)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        report_json.write(report, tmp_path / "runs" / name)
    with PointLedger.open(tmp_path / "store") as ledger:
        ledger.write(
            PointEntry(key=f"{n}" * 64, status="ok", overrides=("model=add", f"seed={n}"), run_dir=f"../runs/{name}",
                  figures=Figures(model="add", target="cpu", p50_us=float(n), pool_bytes=1, peak_rss_bytes=1,
                                  compile_s=1.0))
            for n, name in ((2, "fast"), (1, "slow"))
        )  # fmt: skip
    return tmp_path / "runs"


def names(found: gathering.Gathered) -> list[str]:
    return [line.name for line in found.lines]


def test_runs_in_a_folder_are_sorted_and_those_without_the_figure_are_last(runs: Path) -> None:
    found = gather([runs], sort="p50_us")
    assert names(found) == ["fast", "slow", "wrong"]
    assert dict(found.counts) == {"ok": 2, "numerics_failed": 1}
    assert names(gather([runs], sort="p50_us", descending=True))[2] == "wrong"
    assert names(gather([runs], sort="p50_us", limit=1)) == ["fast"]
    assert names(gather([runs], sort="status"))[0] == "wrong"
    assert [line.folder for line in gather([runs / "fast", runs / "slow" / "report.json"], sort="p50_us").lines] == [
        runs / "fast", runs / "slow",
    ]  # fmt: skip
    assert names(gather([runs / "fast"], sort="p50_us")) == [str(runs / "fast")]
    with pytest.raises(ConfigError, match="nothing was run in"):
        gather([runs.parent / "empty"], sort="p50_us")


def test_a_store_sorts_by_itself_and_is_the_default(runs: Path) -> None:
    found = gather([], sort="p50_us")
    assert names(found) == ["seed=1", "seed=2"]
    assert names(gather([], sort="p50_us", descending=True, limit=1)) == ["model=add seed=2"]
    assert dict(found.counts) == {"ok": 2}
    assert [line.front for line in found.lines] == [True, False]
    assert found.lines[0].work == "add on cpu"
    assert [one.report is not None for one in with_reports(found.lines)] == [True, True]
    both = gather([runs.parent / "store", runs], sort="p50_us")
    assert len(both.lines) == 5


def test_a_sweep_s_points_are_looked_up_in_the_ledger_once_each(runs: Path, tmp_path: Path) -> None:
    sweep_ = tmp_path / "sweep"
    sweep_.mkdir()
    keys = ["2" * 64, "1" * 64, "2" * 64, "9" * 64]
    (sweep_ / "points.json").write_text(json.dumps({"points": [{"key": key} for key in keys]}))
    assert names(gather([sweep_], sort="p50_us")) == ["seed=1", "seed=2"]
    (sweep_ / "points.json").write_text('{"points": 3}')
    with pytest.raises(ConfigError, match="is not the list of jobs of a sweep"):
        gather([sweep_], sort="p50_us")


def test_the_work_is_the_model_and_what_else_decides_it() -> None:
    assert gathering._work("mlp", "cpu", ("mode=eager", "model.size=8", "experiment=a", "+experiment=b")) == (
        "mlp on cpu, +experiment=b, experiment=a, model.size=8"
    )


def test_one_run_alone_keeps_all_of_its_overrides(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([PointEntry(key="k" * 64, status="illegal", overrides=("a=1", "b=2"), error="e")])
    (line,) = gather([tmp_path], sort="p50_us").lines
    assert (line.name, line.status, line.error, line.folder) == ("a=1 b=2", "illegal", "e", None)
    assert with_reports([line])[0].report is None


def arguments(*words: str) -> argparse.Namespace:
    return command_line("report").parse_args(["report", *words])


def test_the_command_s_arguments_have_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    given = vars(arguments())
    assert callable(given.pop("act"))
    assert given == {
        "places": [], "diff": False, "sort": "p50_us", "descending": False, "limit": 50, "markdown": False,
        "csv": False, "json": False, "html": None, "full": False,
    }  # fmt: skip
    assert arguments("--limit", "0", "a", "b").limit == 0
    for words in (["--sort", "nothing"], ["--markdown", "--csv"], ["--csv", "--json"]):
        with pytest.raises(ConfigError, match=r"Choices|not allowed with argument"):
            arguments(*words)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert reporting.act(arguments(*words)) == 0
    return capsys.readouterr().out


def test_a_table_has_its_summary_and_two_runs_a_verdict_and_their_differences(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, str(runs))
    assert "3 of 3 runs: 2 ok, 1 " in text
    assert "2 of 3 runs" in printed(capsys, str(runs), "--limit", "2")
    two = [str(runs / "fast"), str(runs / "slow")]
    assert "mode.name" in printed(capsys, *two)
    csv = printed(capsys, *two, "--csv")
    assert csv.count("\n") == 3
    assert "mode.name" not in csv
    assert printed(capsys, *two, "--markdown").startswith("|")
    assert "Nothing differs." in printed(capsys, two[0], two[0])
    assert "mode.name" not in printed(capsys, str(runs), two[0])  # a folder of runs is not one


def test_differences_come_as_words_markdown_or_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--diff", str(runs / "fast"), str(runs / "slow")]
    assert json.loads(printed(capsys, *two, "--json"))
    assert printed(capsys, *two, "--markdown").startswith("|")
    assert "mode.name" in printed(capsys, *two)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--json"], "--json is for --diff"),
        (["--diff", "a"], "--diff compares two runs; given 1"),
        (["--diff", "a", "b", "--csv"], "--diff is a table of words"),
        (["--diff", "a", "b", "--html", "x"], "--diff is a table of words"),
        (["nowhere"], "nothing was run in nowhere"),
    ],
)
def test_what_makes_no_report_is_refused(words: list[str], told: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        reporting.act(arguments(*words))


def test_a_place_that_cannot_be_read_is_a_wrong_question(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no database " * 50)
    with pytest.raises(ConfigError, match="file is not a database") as caught:
        reporting.act(arguments(str(tmp_path)))
    assert isinstance(caught.value.__cause__, OrchestratorError)


def test_the_page_is_written_or_it_is_told_why_not(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = runs.parent / "page.html"
    text = printed(capsys, str(runs), "--html", str(page))
    assert "3 of 3 runs" in text
    assert str(page) in text
    assert page.read_text().startswith("<!")
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        reporting.act(arguments(str(runs), "--html", str(runs / "no" / "page.html")))
