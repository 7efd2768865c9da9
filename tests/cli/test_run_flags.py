"""`--quiet`, `--dry-run` and `--force` of `npucompose run`, for one experiment and for a sweep."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from nursery import command

from airflow_free.stage import Finished
from airflow_free.store import Record, Store
from npucompose.cli import main
from npucompose.cli.arguments import command_line
from npucompose.cli.completion import candidates
from npucompose.compose.tree import Composer
from npucompose.experiment import dry_run
from npucompose.experiment.job import Job
from npucompose.experiment.run import forget
from npucompose.experiment.sweep.command import Sweep
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointEntry, PointLedger, kept_of

CHECK = ["model=add", "mode=eager", "pipeline=check"]
COMPOSER = Composer()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NPUCOMPOSE_STORE", raising=False)
    return tmp_path


def job(*overrides: str) -> Job:
    return Job.from_composed(COMPOSER.compose([*CHECK, *overrides]))


def record(one: Job, stage: str, **facts: object) -> Record:
    return Record(stage=stage, key=one.keys[stage], facts=facts, seconds=1.0)


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_dry_run_names_each_stage_with_its_record_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *CHECK, "--dry-run"]) == 0
    assert files(folder) == set()
    lines, one = capsys.readouterr().out.splitlines(), job()
    names = [stage.name for stage in one.order]
    assert [line.split() for line in lines[:-1]] == [
        [name, "runs", f".npucompose/records/{name}/{one.keys[name]}.json"] for name in names
    ]
    assert lines[-1] == f"{len(names)} stages: {len(names)} would run. {dry_run.NOTHING}"


def test_a_dry_run_says_what_comes_from_the_store_and_force_that_nothing_does(folder: Path) -> None:
    store, one = Store(folder), job()
    first = one.order[0].name
    store.write(record(one, first))
    before = files(folder)
    states = dry_run.Preview(store=store).states(one)
    assert states == {first: "from the store", **{s.name: "runs" for s in one.order[1:]}}
    assert set(dry_run.Preview(store=store, force=True).states(one).values()) == {"runs"}
    assert "1 from the store" in list(dry_run.of_a_job(one, store))[-1]
    assert files(folder) == before


def test_after_a_comparison_that_failed_a_dry_run_says_that_nothing_is_run(folder: Path) -> None:
    store, one = Store(folder), job()
    stage = one.order[0].name
    store.write(record(one, stage, numerics={"passed": False}))
    assert set(dry_run.Preview(store=store).states(one).values()) == {"from the store", "not run"}
    assert any("a comparison failed" in line for line in dry_run.of_a_job(one, store))


def test_a_dry_run_of_a_sweep_counts_what_two_points_share_once(folder: Path) -> None:
    plan = SweepPlan.from_overrides(["model=add", "mode=eager", "benchmark.warmup=1,2", "seed=0,-1"], COMPOSER)
    lines = list(dry_run.of_a_sweep(plan, Store(folder)))
    legal = [point for point in plan.points if point.job is not None]
    assert [line.rpartition("; key ")[2] for line in lines[:-1]] == [point.key for point in legal]
    assert "from the store" not in lines[0]
    assert "runs benchmark; from the store compile" in lines[1]
    assert lines[-1] == f"4 jobs: 2 would run, 2 illegal. {dry_run.NOTHING}"
    assert files(folder) == set()


def test_a_point_that_was_done_is_kept_unless_it_is_forced(folder: Path) -> None:
    plan = SweepPlan.from_overrides([*CHECK, "seed=1,2"], COMPOSER)
    with PointLedger.open(folder) as ledger:
        ledger.write([PointEntry(key=plan.points[0].key, status="ok", overrides=plan.points[0].overrides)])
    assert "done before" in next(iter(dry_run.of_a_sweep(plan, Store(folder))))
    sweep = Sweep(plan)
    sweep.run_again()
    assert sweep.plan.again == "all"
    assert "done before" not in "".join(dry_run.of_a_sweep(sweep.plan, Store(folder)))
    with PointLedger.read(folder) as ledger:
        assert set(kept_of(plan, ledger)) == {plan.points[0].key}
        assert kept_of(sweep.plan, ledger) == {}


def test_force_takes_the_records_and_files_of_its_own_stages_away_and_no_other(folder: Path) -> None:
    store, one, other = Store(folder), job(), job("seed=1")
    for each in (one, other):
        store.write(record(each, "compile"))
        store.put_file("compile", each.keys["compile"], "graph.txt", b"built")
    forget([one], store)
    assert store.read("compile", one.keys["compile"]) is None
    assert not store.file("compile", one.keys["compile"]).exists()
    assert store.has_files("compile", other.keys["compile"], ["graph.txt"])
    left = store.read("compile", other.keys["compile"])
    assert left is not None
    assert Finished.from_record(left, reused=True).key == other.keys["compile"]


@pytest.mark.parametrize("flag", ["--force", "--dry-run"])
def test_a_search_refuses_what_needs_known_points(flag: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    asked = ["search=optuna", "search.objectives={p50_us: minimize}", "search.space={seed: {low: 0, high: 3}}"]
    assert main(["run", "-m", "model=add", *asked, flag]) == 2
    assert capsys.readouterr().err.startswith(f"npucompose: {flag} needs jobs that are known")
    assert files(folder) == set()


def test_the_flags_are_completed() -> None:
    found = candidates(command_line("run"), ["run", "mode=eager", "--"])
    assert {"--quiet", "--dry-run", "--force"} <= set(found)


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command("npucompose", "run", *words), cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_quiet_run_prints_its_result_and_a_forced_one_runs_again(tmp_path: Path) -> None:
    first = launched(tmp_path, *CHECK, "--quiet")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("result ")
    assert "compile: started" not in first.stdout
    again = launched(tmp_path, *CHECK, "--force")
    assert (again.returncode, "taken from the store" in again.stdout) == (0, False), again.stderr
    reports = sorted(tmp_path.glob("outputs/*/*/report.json"))
    assert [json.loads(one.read_text())["reused"] for one in reports] == [False, False]
    wrong = launched(tmp_path, "model=addd", "--quiet")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "unknown model 'addd'" in wrong.stderr


@pytest.mark.slow
def test_a_quiet_sweep_prints_its_summary_and_a_forced_one_runs_all_points_again(tmp_path: Path) -> None:
    swept = ["-m", "model=add", "mode=eager", "pipeline=check", "seed=1,2", "--quiet"]
    done = launched(tmp_path, *swept)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 jobs: 2 ok\n")
    assert "2 were done before" in launched(tmp_path, *swept).stdout
    assert "done before" not in launched(tmp_path, *swept, "--force").stdout
