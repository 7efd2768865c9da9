"""What `report` gathers from folders, sweeps and stores, and what it prints of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from report.report_examples import FULL, INDUCTOR, WRONG

from airflow_free.errors import OrchestratorError
from airflow_free.ledger import FILE_NAME
from npucompose.cli.arguments import command_line
from npucompose.errors import ConfigError
from npucompose.experiment.orchestrator import STORE_VARIABLE
from npucompose.experiment.sweep import gather as gathering
from npucompose.experiment.sweep import report as reporting
from npucompose.experiment.sweep.gather import gather, with_reports
from npucompose.experiment.sweep.run import (
    PointEntry,
    PointLedger,
)
from npucompose.report import json as report_json
from npucompose.results.record import Figures


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


def test_a_store_sorts_by_itself_and_is_the_default(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # single runs of the folder are listed, too
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
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        reporting.act(arguments(str(runs), "--html", str(runs)))
