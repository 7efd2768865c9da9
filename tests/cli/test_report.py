"""npucompose report on ledgers, sweeps, runs and places where there are none."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from attrs import evolve

from npucompose.cli import main
from npucompose.experiment.sweep import gather
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.report import json as report_json
from npucompose.results.record import Figures

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from report_examples import CRASHED, FULL


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a ledger of three points, a sweep of two of them, and two run folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NPUCOMPOSE_STORE", raising=False)
    entries = [
        PointEntry(key=f"{n:064x}", status="ok", overrides=("model=add", f"seed={n}"), figures=Figures(p50_us=30.0 - n))
        for n in range(2)
    ]
    illegal = PointEntry(
        key="f" * 64, status="illegal", overrides=("model=add", "seed=-1"), error="'seed' must be >= 0"
    )
    with PointLedger.open(tmp_path / ".npucompose") as ledger:
        ledger.write([*entries, illegal])
    points = [{"number": n, "key": key, "overrides": []} for n, key in enumerate([entries[0].key, "f" * 64, "e" * 64])]
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "points.json").write_text(json.dumps({"schema": 1, "points": points}))
    for name, report in (("one", FULL), ("other", CRASHED)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        report_json.write(report, tmp_path / "runs" / name)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *arguments]) == 0
    return capsys.readouterr().out


def test_without_a_place_it_is_the_ledger_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys)
    assert text.index("seed=1") < text.index("seed=0") < text.index("seed=-1")
    assert "model=add" not in text  # every point has it
    assert "3 of 3 runs: 2 ok, 1 illegal configuration" in text


def test_without_a_sweep_it_is_the_single_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NPUCOMPOSE_STORE", raising=False)
    (tmp_path / ".npucompose" / "records").mkdir(parents=True)
    assert main(["report"]) == 2
    said = capsys.readouterr().err
    assert "nothing was run here: no sweep (.npucompose/sweeps.sqlite)" in said
    assert "npucompose report DIR" in said
    run = tmp_path / "outputs" / "2026-11-23" / "10-51-07"
    run.mkdir(parents=True)
    report_json.write(FULL, run)
    text = told(capsys)
    assert "outputs/2026-11-23/10-51-07" in text
    assert "1 of 1 runs: 1 ok" in text


def test_single_runs_stand_beside_the_points_of_sweeps_and_one_that_is_no_report_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "MOST_SINGLE", 2)
    for name, text in (("1", None), ("2", None), ("3", "[]")):
        (here / "outputs" / name).mkdir(parents=True)
        report_json.write(FULL, here / "outputs" / name)
        if text is not None:
            (here / "outputs" / name / "report.json").write_text(text)
    assert main(["report", "--csv"]) == 0
    out, err = capsys.readouterr()
    assert out.count("outputs/") == 1
    assert len(out.splitlines()) == 1 + 3 + 1
    assert "outputs/2" in out
    assert "the newest 2 of 3 runs in outputs" in err
    assert "not read: outputs/3/report.json is not a report" in err
    assert told(capsys, ".npucompose", "--csv").count("outputs/") == 0


def test_a_limit_and_an_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, ".npucompose", "--limit", "1", "--descending")
    assert "seed=0" in text
    assert "seed=1" not in text
    assert "1 of 3 runs" in text


def test_a_sweep_shows_its_points_wherever_they_were_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "sweep")
    assert "2 of 2 runs: 1 ok, 1 illegal configuration" in text
    assert "seed=1" not in text


def test_run_folders_and_places_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 of 2 runs: 1 ok, 1 crashed" in told(capsys, "runs")
    assert "5 of 5 runs" in told(capsys, "runs", ".npucompose")
    assert told(capsys, "runs/one", "--csv").splitlines()[1].startswith("runs/one,ok,front,gpt_decode,cpu")
    assert told(capsys, "runs", "--markdown").startswith("| run | status |")


def test_two_runs_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "status  ok → crashed" in told(capsys, "--diff", "runs/one", "runs/other")
    assert told(capsys, "--diff", "runs/one", "runs/one") == "Nothing differs.\n"
    assert "| result | status | ok | crashed |" in told(capsys, "--diff", "--markdown", "runs/one", "runs/other")


def test_two_run_folders_are_shown_with_what_differs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "runs/one", "runs/other")
    assert text.index("2 of 2 runs: 1 ok, 1 crashed") < text.index("status  ok → crashed")
    assert "| result | status | ok | crashed |" in told(capsys, "runs/one", "runs/other", "--markdown")
    assert "status  ok → crashed" not in told(capsys, "runs", ".npucompose")


def test_differences_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "--diff", "--json", "runs/one", "runs/other"))
    assert {"part": "result", "name": "status", "one": "ok", "other": "crashed", "said_by": ["", ""]} in found


def test_a_page_of_ledger_and_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--html", "all.html", ".npucompose", "runs") == (
        "5 of 5 runs: 3 ok, 1 illegal configuration, 1 crashed\n  all.html\n"
    )
    text = (here / "all.html").read_text()
    assert "What differs between two runs" in text
    assert text.count("<option ") == 4  # two runs have a report, and either may be the one or the other


def test_the_front_of_a_ledger_is_that_of_all_its_points(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def end(name: str, p50: float, compile_s: float, *overrides: str) -> PointEntry:
        figures = Figures(model="mlp", target="cpu", p50_us=p50, peak_rss_bytes=1 << 20, compile_s=compile_s)
        return PointEntry(key=name * 64, status="ok", overrides=(f"seed={name}", *overrides), figures=figures)

    with PointLedger.open(here / "front") as ledger:
        ledger.write([end("a", 10, 1), end("b", 20, 2), end("c", 30, 0.1), end("d", 40, 4, "model.size=9")])
    rows = [row.split(",")[2] for row in told(capsys, "front", "--csv").splitlines()[1:]]
    assert rows == ["front", "", "front", "front"]
    rows = [row.split(",")[2] for row in told(capsys, "front", "--csv", "--limit", "2").splitlines()[1:]]
    assert rows == ["front", ""]
    assert told(capsys, "front", "front", "--csv").count("ok,front,") == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nothing was run in nowhere"),
        (["--diff", "runs/one"], "--diff compares two runs; given 1"),
        (["--diff", "--csv", "runs/one", "runs/other"], "--diff is a table of words"),
        (["--json", "runs/one"], "--json is for --diff"),
        (["--html", "runs"], "--html runs cannot be written: Is a directory"),
        (["broken"], "is not the list of jobs of a sweep"),
        (["deep"], "is not a report"),
        (["huge"], "is not read"),
    ],
)
def test_what_cannot_be_reported_is_a_paragraph(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken", "deep", "huge"):
        (here / name).mkdir()
    (here / "broken" / "points.json").write_text("[]")
    (here / "deep" / "report.json").write_text("[" * 100_000)
    with (here / "huge" / "report.json").open("wb") as huge:
        huge.truncate(1 << 30)
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_two_runs_of_the_same_work_have_a_winner(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another mode, and a hundredth as fast against the eager beside it."""
    times = FULL.stages.benchmark
    assert times is not None
    speedup = {name: value / 100 for name, value in times.speedup.items()}
    slower = evolve(times, samples_us=tuple(us * 100 for us in times.samples_us), speedup=speedup)
    replayed = evolve(
        FULL,
        experiment={**FULL.experiment, "mode": {"name": "npugraph_ex"}},
        stages=evolve(FULL.stages, benchmark=slower),
    )
    (here / "runs" / "third").mkdir()
    report_json.write(replayed, here / "runs" / "third")
    sentence = "mode=reduce-overhead is 100.00 × as fast as mode=npugraph_ex"
    assert sentence in told(capsys, "runs/one", "runs/third")
    assert " × as fast as" not in told(capsys, "runs/one", "runs/other")
    assert " × as fast as" not in told(capsys, "runs")


def test_a_table_in_a_pipe_breaks_no_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`grep` and `cut` want a run in one line, however long its overrides are."""
    long = [f"passes.stream_plan.option_{n}={n}" for n in range(9)]
    with PointLedger.open(here / ".npucompose") as ledger:
        ledger.write([PointEntry(key="a" * 64, status="ok", overrides=tuple(long), figures=Figures(p50_us=7.5))])
    (line,) = (line for line in told(capsys).splitlines() if long[0] in line)
    assert len(line) > 200
    assert long[-1] in line
    assert "7.5" in line


def test_a_table_on_a_terminal_keeps_to_its_width(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # rich has 80 columns for a dumb one, whatever is asked
    monkeypatch.setenv("COLUMNS", "100")
    with PointLedger.open(here / ".npucompose") as ledger:
        ledger.write([PointEntry(key="a" * 64, status="ok", overrides=("passes=" + "x" * 150,), figures=Figures())])
    text = re.sub(r"\x1b\[[0-9;]*m", "", told(capsys))
    assert max(map(len, text.splitlines())) == 100
